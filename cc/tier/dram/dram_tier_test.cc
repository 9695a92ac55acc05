#include "cc/tier/dram/dram_tier.h"

#include <cstring>
#include <vector>

#include "cc/env/env.h"
#include "cc/env/fault_env.h"
#include "cc/env/memory_env.h"
#include "cc/tier/tier_conformance.h"

namespace multitier {
namespace {

INSTANTIATE_TEST_SUITE_P(Dram, TierConformanceTest,
                         testing::Values(TierTestCase{"Dram",
                                                      [](std::shared_ptr<const RowLayout> layout) {
                                                        return std::make_unique<DramTier>(Env::Posix(), layout);
                                                      },
                                                      /*make_bounded=*/nullptr, /*synchronized=*/false}),
                         TierTestName);

std::shared_ptr<const RowLayout> LayoutOfDim(int dim) {
  return std::make_shared<const RowLayout>(*RowLayout::Create(dim, DType::kFloat32));
}

// Allocates a row of the key whose first columns hold what TestRecord says. REQUIRES: Reserve.
uint32_t AddRow(DramTier* tier, int64_t key) {
  const uint32_t location = tier->Allocate();
  RowHeader* row = tier->Header(location);
  const TestRecord record(key, 1, static_cast<uint32_t>(tier->layout()->columns().size()));
  row->key = key;
  row->version = record.header.version;
  std::memcpy(DramTier::Data(row), record.row_data.data(), record.row_data.size());
  return location;
}

bool HoldsRow(const DramTier& tier, uint32_t location, int64_t key, uint32_t num_columns) {
  const RowHeader* row = tier.Header(location);
  const TestRecord record(key, 1, num_columns);
  return !row->has(kRowFree) && row->key == key && row->version == record.header.version &&
         std::memcmp(DramTier::Data(row), record.row_data.data(), record.row_data.size()) == 0;
}

TEST(DramTierTest, EmptyTierTakesNoMemory) {
  FaultEnv env(Env::Posix());
  DramTier tier(&env, LayoutOfDim(16));
  EXPECT_EQ(tier.resident_bytes(), 0u);
  EXPECT_EQ(tier.rows(), 0u);
  EXPECT_EQ(tier.end(), 0u);
  EXPECT_EQ(env.calls(FaultKind::kAny), 0u);
}

TEST(DramTierTest, AllocatedSlotHasACleanHeaderEvenWhenReused) {
  DramTier tier(Env::Posix(), LayoutOfDim(16));
  ASSERT_TRUE(tier.Reserve(2).ok());
  const uint32_t first = tier.Allocate();
  RowHeader* row = tier.Header(first);
  std::memset(row, 0xff, sizeof(*row));
  tier.Release(first);
  EXPECT_TRUE(row->has(kRowFree));
  const uint32_t again = tier.Allocate();
  EXPECT_EQ(again, first);
  EXPECT_EQ(row->key, 0);
  EXPECT_EQ(row->pins, 0);
  EXPECT_EQ(row->flags, 0);
  EXPECT_EQ(row->below, kNoLocation);
  EXPECT_EQ(tier.rows(), 1u);
}

TEST(DramTierTest, FreeSlotsAreUsedBeforeNewOnes) {
  DramTier tier(Env::Posix(), LayoutOfDim(4));
  ASSERT_TRUE(tier.Reserve(10).ok());
  for (int i = 0; i < 10; ++i) tier.Allocate();
  for (uint32_t location = 0; location < 10; location += 2) tier.Release(location);
  EXPECT_EQ(tier.rows(), 5u);
  ASSERT_TRUE(tier.Reserve(5).ok());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(tier.Allocate() % 2, 0u);
  EXPECT_EQ(tier.end(), 10u);
}

// Rows of 64 KiB: 128 or 256 to a chunk of at most 16 MiB.
TEST(DramTierTest, RowsAcrossChunksKeepTheirAddressesAndDoNotOverlap) {
  const auto layout = LayoutOfDim(16384);
  DramTier tier(Env::Posix(), layout);
  std::vector<RowHeader*> rows;
  for (int i = 0; i < 600; ++i) {
    ASSERT_TRUE(tier.Reserve(1).ok());
    rows.push_back(tier.Header(tier.Allocate()));
    rows.back()->key = i;
    std::memset(DramTier::Data(rows.back()), i & 0xff, layout->row_bytes());
  }
  for (uint32_t i = 0; i < 600; ++i) {
    ASSERT_EQ(tier.Header(i), rows[i]);
    ASSERT_EQ(rows[i]->key, i);
    const uint8_t* data = DramTier::Data(rows[i]);
    ASSERT_EQ(data[0], i & 0xff);
    ASSERT_EQ(std::memcmp(data, data + 1, layout->row_bytes() - 1), 0);
  }
}

TEST(DramTierTest, RowsLargerThanAChunkWork) {
  const auto layout = LayoutOfDim(1 << 20);
  const auto wide = std::make_shared<const RowLayout>(*layout->WithColumn({"slot", DType::kFloat32, 1 << 20, 1.0f}));
  DramTier tier(Env::Posix(), layout);
  ASSERT_TRUE(tier.Reserve(9).ok());
  for (int i = 0; i < 9; ++i) {
    RowHeader* row = tier.Header(tier.Allocate());
    DramTier::Data(row)[layout->row_bytes() - 1] = static_cast<uint8_t>(i);
  }
  ASSERT_TRUE(tier.Widen(wide).ok());
  for (uint32_t i = 0; i < 9; ++i) EXPECT_EQ(DramTier::Data(tier.Header(i))[layout->row_bytes() - 1], i);
}

TEST(DramTierTest, RowsAreCacheLineAlignedWhereTheOverheadAllows) {
  DramTier tier(Env::Posix(), LayoutOfDim(24));  // 32 + 96 bytes: two lines
  ASSERT_TRUE(tier.Reserve(3).ok());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(reinterpret_cast<uintptr_t>(tier.Header(tier.Allocate())) % 64, 0u);
}

TEST(DramTierTest, ResidentBytesFollowTheSlotsUsed) {
  const auto layout = LayoutOfDim(16);  // stride 96 or 128
  DramTier tier(Env::Posix(), layout);
  ASSERT_TRUE(tier.Reserve(300000).ok());
  EXPECT_EQ(tier.resident_bytes(), 0u);
  tier.Allocate();
  EXPECT_EQ(tier.resident_bytes(), 4096u);
  while (tier.end() < 300000) tier.Allocate();
  const size_t used = 300000 * layout->stride();
  EXPECT_GE(tier.resident_bytes(), used);
  EXPECT_LE(tier.resident_bytes(), used + (4u << 20));
  tier.Clear();
  EXPECT_EQ(tier.resident_bytes(), 0u);
}

TEST(DramTierTest, FailedReserveLeavesTheTierAsItWas) {
  for (const FaultKind kind : {FaultKind::kReserve, FaultKind::kCommit}) {
    for (uint64_t n = 1; n <= 3; ++n) {
      FaultEnv env(Env::Posix());
      DramTier tier(&env, TierTestLayout(2));
      ASSERT_TRUE(tier.Reserve(1).ok());
      const uint32_t location = AddRow(&tier, 42);
      const size_t resident = tier.resident_bytes();
      env.FailNth(kind, n, ResourceExhaustedError("no memory"));
      const Status status = tier.Reserve(1000000);  // some 5 chunks
      EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
      EXPECT_NE(status.message().find("dram tier"), std::string::npos);
      ASSERT_TRUE(env.Disarm());
      EXPECT_EQ(tier.resident_bytes(), resident);
      EXPECT_EQ(tier.rows(), 1u);
      EXPECT_TRUE(HoldsRow(tier, location, 42, 2));
      EXPECT_TRUE(tier.Reserve(1000000).ok());
    }
  }
}

// Has any amount of address space to give, none of it real.
class BoundlessEnv : public InMemoryEnv {
 public:
  void* ReserveAddressSpace(size_t, bool) override { return this; }
  void FreePages(void*, size_t) override { ++freed_; }
  int freed_ = 0;
};

TEST(DramTierTest, ReserveBeyond32BitLocationsIsRefused) {
  BoundlessEnv env;
  {
    DramTier tier(&env, LayoutOfDim(4));
    const Status status = tier.Reserve(size_t{1} << 32);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_NE(status.message().find("2^32"), std::string::npos) << status.message();
    const int freed = env.freed_;
    EXPECT_GT(freed, 1000);
    EXPECT_TRUE(tier.Reserve(1).ok());
    EXPECT_EQ(env.freed_, freed);
  }
}

TEST(DramTierTest, WriteThatFindsNoMemoryWritesNothing) {
  FaultEnv env(Env::Posix());
  DramTier tier(&env, TierTestLayout(2));
  const TestRecord record(1, 1, 2);
  const WriteRecord write = record.write();
  uint32_t location = 0;
  env.FailNth(FaultKind::kReserve, 1, ResourceExhaustedError("no memory"));
  EXPECT_EQ(tier.Write(Span<const WriteRecord>(&write, 1), &location).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(tier.stats().rows, 0);
  EXPECT_TRUE(tier.Write(Span<const WriteRecord>(&write, 1), &location).ok());
}

// 500,000 rows of 80 bytes over several chunks, every third one free.
TEST(DramTierTest, WidenKeepsRowsLocationsAndFreeSlots) {
  constexpr uint32_t kRows = 500000;
  DramTier tier(Env::Posix(), TierTestLayout(1));
  ASSERT_TRUE(tier.Reserve(kRows).ok());
  for (uint32_t i = 0; i < kRows; ++i) ASSERT_EQ(AddRow(&tier, i), i);
  for (uint32_t i = 0; i < kRows; i += 3) tier.Release(i);
  const size_t rows = tier.rows();
  const auto wide = TierTestLayout(3);
  ASSERT_TRUE(tier.Widen(wide).ok());
  EXPECT_EQ(tier.layout(), wide);
  EXPECT_EQ(tier.rows(), rows);
  EXPECT_EQ(tier.end(), kRows);
  std::vector<uint8_t> slots(wide->row_bytes());
  wide->FillSlots(slots.data(), 1);
  const size_t offset = wide->columns()[1].offset;
  for (uint32_t i = 0; i < kRows; ++i) {
    ASSERT_EQ(tier.Header(i)->has(kRowFree), i % 3 == 0);
    if (i % 3 == 0) continue;
    ASSERT_TRUE(HoldsRow(tier, i, i, 1)) << i;
    ASSERT_EQ(std::memcmp(DramTier::Data(tier.Header(i)) + offset, &slots[offset], slots.size() - offset), 0) << i;
  }
  for (size_t n = kRows - rows; n > 0; --n) ASSERT_EQ(tier.Allocate() % 3, 0u);
  EXPECT_EQ(tier.end(), kRows);
}

TEST(DramTierTest, FailedWidenLeavesTheTierAsItWas) {
  constexpr uint32_t kRows = 400000;
  FaultEnv env(Env::Posix());
  DramTier tier(&env, TierTestLayout(1));
  ASSERT_TRUE(tier.Reserve(kRows).ok());
  for (uint32_t i = 0; i < kRows; ++i) AddRow(&tier, i);
  uint64_t fired = 0;
  for (uint64_t n = 1;; ++n) {
    env.FailNth(FaultKind::kAny, n, ResourceExhaustedError("no memory"));
    const Status status = tier.Widen(TierTestLayout(2));
    if (!env.Disarm()) {
      EXPECT_TRUE(status.ok());
      break;
    }
    ++fired;
    ASSERT_EQ(status.code(), StatusCode::kResourceExhausted);
    ASSERT_EQ(tier.layout()->columns().size(), 1u);
    for (uint32_t i = 0; i < kRows; ++i) ASSERT_TRUE(HoldsRow(tier, i, i, 1));
  }
  EXPECT_GE(fired, 4u);  // two chunks or more, two calls each
  for (uint32_t i = 0; i < kRows; ++i) ASSERT_TRUE(HoldsRow(tier, i, i, 1));
}

TEST(DramTierTest, ClearedTierStartsOver) {
  DramTier tier(Env::Posix(), TierTestLayout(2));
  ASSERT_TRUE(tier.Reserve(10).ok());
  for (int64_t i = 0; i < 10; ++i) AddRow(&tier, i);
  tier.Release(3);
  tier.Clear();
  EXPECT_EQ(tier.rows(), 0u);
  EXPECT_EQ(tier.end(), 0u);
  ASSERT_TRUE(tier.Reserve(1).ok());
  EXPECT_EQ(AddRow(&tier, 5), 0u);
  EXPECT_TRUE(HoldsRow(tier, 0, 5, 2));
}

TEST(DramTierDeathTest, FreeingARowOfAnotherKeyStopsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  DramTier tier(Env::Posix(), TierTestLayout(2));
  ASSERT_TRUE(tier.Reserve(1).ok());
  const KeyLocation wrong{2, AddRow(&tier, 1)};
  EXPECT_DEATH(tier.Free(Span<const KeyLocation>(&wrong, 1)), "broken invariant");
}

}  // namespace
}  // namespace multitier
