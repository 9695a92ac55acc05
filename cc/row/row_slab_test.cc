#include "cc/row/row_slab.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/env/env.h"
#include "cc/env/fault_env.h"
#include "cc/env/memory_env.h"

namespace multitier::row_slab_test {
namespace {

std::shared_ptr<const RowLayout> LayoutOfDim(int dim) {
  return std::make_shared<const RowLayout>(*RowLayout::Create(dim, DType::kFloat32));
}

// A value of 12 elements and as many slots of 3 as make `columns`: row n begins with n, slot c with c.
std::shared_ptr<const RowLayout> LayoutOfColumns(int columns) {
  RowLayout layout = *RowLayout::Create(12, DType::kFloat32);
  for (int c = 1; c < columns; ++c) {
    layout = *layout.WithColumn({"slot" + std::to_string(c), DType::kFloat32, 3, static_cast<float>(c)});
  }
  return std::make_shared<const RowLayout>(std::move(layout));
}

// The bytes of the key's row in its first columns.
std::vector<float> RowOf(int64_t key, uint32_t columns) {
  std::vector<float> row(LayoutOfColumns(static_cast<int>(columns))->row_bytes() / sizeof(float));
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(key % 1000) + static_cast<float>(i) / 64;
  return row;
}

// Allocates a row of the key. REQUIRES: Reserve.
uint32_t AddRow(RowSlab* slab, int64_t key) {
  const uint32_t location = slab->Allocate();
  RowHeader* row = slab->Header(location);
  const std::vector<float> data = RowOf(key, static_cast<uint32_t>(slab->layout()->columns().size()));
  row->key = key;
  row->version = key + 1;
  std::memcpy(RowSlab::Data(row), data.data(), data.size() * sizeof(float));
  return location;
}

bool HoldsRow(const RowSlab& slab, uint32_t location, int64_t key, uint32_t columns) {
  const RowHeader* row = slab.Header(location);
  const std::vector<float> data = RowOf(key, columns);
  return !row->has(kRowFree) && row->key == key && row->version == key + 1 &&
         std::memcmp(RowSlab::Data(row), data.data(), data.size() * sizeof(float)) == 0;
}

Status Widen(RowSlab* slab, std::shared_ptr<const RowLayout> layout) {
  MT_ASSIGN_OR_RETURN(std::unique_ptr<RowSlab> room, slab->RoomFor(std::move(layout)));
  slab->MoveInto(std::move(room));
  return OkStatus();
}

TEST(RowSlabTest, AnEmptySlabTakesNoMemory) {
  FaultEnv env(Env::Posix());
  RowSlab slab(&env, LayoutOfDim(16));
  EXPECT_EQ(slab.resident_bytes(), 0u);
  EXPECT_EQ(slab.rows(), 0u);
  EXPECT_EQ(slab.end(), 0u);
  EXPECT_EQ(env.calls(FaultKind::kAny), 0u);
}

TEST(RowSlabTest, AllocatedSlotHasACleanHeaderEvenWhenReused) {
  RowSlab slab(Env::Posix(), LayoutOfDim(16));
  ASSERT_TRUE(slab.Reserve(2).ok());
  const uint32_t first = slab.Allocate();
  RowHeader* row = slab.Header(first);
  std::memset(row, 0xff, sizeof(*row));
  slab.Release(first);
  EXPECT_TRUE(row->has(kRowFree));
  const uint32_t again = slab.Allocate();
  EXPECT_EQ(again, first);
  EXPECT_EQ(row->key, 0);
  EXPECT_EQ(row->pins, 0);
  EXPECT_EQ(row->flags, 0);
  EXPECT_EQ(row->below, kNoLocation);
  EXPECT_EQ(slab.rows(), 1u);
}

TEST(RowSlabTest, FreeSlotsAreUsedBeforeNewOnes) {
  RowSlab slab(Env::Posix(), LayoutOfDim(4));
  ASSERT_TRUE(slab.Reserve(10).ok());
  for (int i = 0; i < 10; ++i) slab.Allocate();
  for (uint32_t location = 0; location < 10; location += 2) slab.Release(location);
  EXPECT_EQ(slab.rows(), 5u);
  ASSERT_TRUE(slab.Reserve(5).ok());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(slab.Allocate() % 2, 0u);
  EXPECT_EQ(slab.end(), 10u);
}

// Rows of 64 KiB: 128 or 256 to a chunk of at most 16 MiB.
TEST(RowSlabTest, RowsAcrossChunksKeepTheirAddressesAndDoNotOverlap) {
  const auto layout = LayoutOfDim(16384);
  RowSlab slab(Env::Posix(), layout);
  std::vector<RowHeader*> rows;
  for (int i = 0; i < 600; ++i) {
    ASSERT_TRUE(slab.Reserve(1).ok());
    rows.push_back(slab.Header(slab.Allocate()));
    rows.back()->key = i;
    std::memset(RowSlab::Data(rows.back()), i & 0xff, layout->row_bytes());
  }
  for (uint32_t i = 0; i < 600; ++i) {
    ASSERT_EQ(slab.Header(i), rows[i]);
    ASSERT_EQ(rows[i]->key, i);
    const uint8_t* data = RowSlab::Data(rows[i]);
    ASSERT_EQ(data[0], i & 0xff);
    ASSERT_EQ(std::memcmp(data, data + 1, layout->row_bytes() - 1), 0);
  }
}

TEST(RowSlabTest, RowsLargerThanAChunkWork) {
  const auto layout = LayoutOfDim(1 << 20);
  const auto wide = std::make_shared<const RowLayout>(*layout->WithColumn({"slot", DType::kFloat32, 1 << 20, 1.0f}));
  RowSlab slab(Env::Posix(), layout);
  ASSERT_TRUE(slab.Reserve(9).ok());
  for (int i = 0; i < 9; ++i) {
    RowHeader* row = slab.Header(slab.Allocate());
    RowSlab::Data(row)[layout->row_bytes() - 1] = static_cast<uint8_t>(i);
  }
  ASSERT_TRUE(Widen(&slab, wide).ok());
  for (uint32_t i = 0; i < 9; ++i) EXPECT_EQ(RowSlab::Data(slab.Header(i))[layout->row_bytes() - 1], i);
}

TEST(RowSlabTest, RowsAreCacheLineAlignedWhereTheOverheadAllows) {
  RowSlab slab(Env::Posix(), LayoutOfDim(24));  // 32 + 96 bytes: two lines
  ASSERT_TRUE(slab.Reserve(3).ok());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(reinterpret_cast<uintptr_t>(slab.Header(slab.Allocate())) % 64, 0u);
}

TEST(RowSlabTest, ResidentBytesFollowTheSlotsUsed) {
  const auto layout = LayoutOfDim(16);  // stride 96 or 128
  RowSlab slab(Env::Posix(), layout);
  ASSERT_TRUE(slab.Reserve(300000).ok());
  EXPECT_EQ(slab.resident_bytes(), 0u);
  slab.Allocate();
  EXPECT_EQ(slab.resident_bytes(), 4096u);
  while (slab.end() < 300000) slab.Allocate();
  const size_t used = 300000 * layout->stride();
  EXPECT_GE(slab.resident_bytes(), used);
  EXPECT_LE(slab.resident_bytes(), used + (4u << 20));
  slab.Clear();
  EXPECT_EQ(slab.resident_bytes(), 0u);
}

// The slabs of a table fill alike. None takes two huge pages at a time, nor one in the step of another.
TEST(RowSlabTest, SlabsTakeTheirHugePagesOneAfterTheOther) {
  constexpr size_t kPage = 2u << 20, kSlabs = 4, kRows = 200000;
  std::vector<std::unique_ptr<RowSlab>> slabs;
  for (size_t s = 0; s < kSlabs; ++s) {
    slabs.push_back(std::make_unique<RowSlab>(Env::Posix(), LayoutOfDim(16), nullptr, static_cast<double>(s) / kSlabs));
  }
  size_t bytes[kSlabs] = {}, before[kSlabs] = {};  // before: rows when the last page was taken
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t s = 0; s < kSlabs; ++s) {
      ASSERT_TRUE(slabs[s]->Reserve(1).ok());
      slabs[s]->Allocate();
      const size_t taken = slabs[s]->resident_bytes();
      ASSERT_GE(taken, (row + 1) * slabs[s]->layout()->stride());
      ASSERT_LE(taken, (row + 1) * slabs[s]->layout()->stride() + 2 * kPage);
      if (bytes[s] >= 2 * kPage && taken != bytes[s]) {  // two are the first, for the rows on small pages
        EXPECT_EQ(taken - bytes[s], kPage) << "at row " << row;
        for (const size_t other : before) EXPECT_GT(row - other, 100u) << "at row " << row;
        before[s] = row;
      }
      bytes[s] = taken;
    }
  }
}

TEST(RowSlabTest, FailedReserveLeavesTheSlabAsItWas) {
  for (const FaultKind kind : {FaultKind::kReserve, FaultKind::kCommit}) {
    for (uint64_t n = 1; n <= 3; ++n) {
      FaultEnv env(Env::Posix());
      RowSlab slab(&env, LayoutOfColumns(2));
      ASSERT_TRUE(slab.Reserve(1).ok());
      const uint32_t location = AddRow(&slab, 42);
      const size_t resident = slab.resident_bytes();
      env.FailNth(kind, n, ResourceExhaustedError("no memory"));
      const Status status = slab.Reserve(1000000);  // some 5 chunks
      EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
      EXPECT_NE(status.message().find("dram tier"), std::string::npos);
      ASSERT_TRUE(env.Disarm());
      EXPECT_EQ(slab.resident_bytes(), resident);
      EXPECT_EQ(slab.rows(), 1u);
      EXPECT_TRUE(HoldsRow(slab, location, 42, 2));
      EXPECT_TRUE(slab.Reserve(1000000).ok());
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

TEST(RowSlabTest, ReserveBeyond32BitLocationsIsRefused) {
  BoundlessEnv env;
  {
    RowSlab slab(&env, LayoutOfDim(4));
    const Status status = slab.Reserve(size_t{1} << 32);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_NE(status.message().find("2^32"), std::string::npos) << status.message();
    const int freed = env.freed_;
    EXPECT_GT(freed, 1000);
    EXPECT_TRUE(slab.Reserve(1).ok());
    EXPECT_EQ(env.freed_, freed);
  }
}

// 500,000 rows of 80 bytes over several chunks, every third one free.
TEST(RowSlabTest, WidenKeepsRowsLocationsAndFreeSlots) {
  constexpr uint32_t kRows = 500000;
  RowSlab slab(Env::Posix(), LayoutOfColumns(1));
  ASSERT_TRUE(slab.Reserve(kRows).ok());
  for (uint32_t i = 0; i < kRows; ++i) ASSERT_EQ(AddRow(&slab, i), i);
  for (uint32_t i = 0; i < kRows; i += 3) slab.Release(i);
  const size_t rows = slab.rows();
  const auto wide = LayoutOfColumns(3);
  ASSERT_TRUE(Widen(&slab, wide).ok());
  EXPECT_EQ(slab.layout(), wide);
  EXPECT_EQ(slab.rows(), rows);
  EXPECT_EQ(slab.end(), kRows);
  std::vector<uint8_t> slots(wide->row_bytes());
  wide->FillSlots(slots.data(), 1);
  const size_t offset = wide->columns()[1].offset;
  for (uint32_t i = 0; i < kRows; ++i) {
    ASSERT_EQ(slab.Header(i)->has(kRowFree), i % 3 == 0);
    if (i % 3 == 0) continue;
    ASSERT_TRUE(HoldsRow(slab, i, i, 1)) << i;
    ASSERT_EQ(std::memcmp(RowSlab::Data(slab.Header(i)) + offset, &slots[offset], slots.size() - offset), 0) << i;
  }
  for (size_t n = kRows - rows; n > 0; --n) ASSERT_EQ(slab.Allocate() % 3, 0u);
  EXPECT_EQ(slab.end(), kRows);
}

TEST(RowSlabTest, FailedWidenLeavesTheSlabAsItWas) {
  constexpr uint32_t kRows = 400000;
  FaultEnv env(Env::Posix());
  RowSlab slab(&env, LayoutOfColumns(1));
  ASSERT_TRUE(slab.Reserve(kRows).ok());
  for (uint32_t i = 0; i < kRows; ++i) AddRow(&slab, i);
  uint64_t fired = 0;
  for (uint64_t n = 1;; ++n) {
    env.FailNth(FaultKind::kAny, n, ResourceExhaustedError("no memory"));
    const Status status = Widen(&slab, LayoutOfColumns(2));
    if (!env.Disarm()) {
      EXPECT_TRUE(status.ok());
      break;
    }
    ++fired;
    ASSERT_EQ(status.code(), StatusCode::kResourceExhausted);
    ASSERT_EQ(slab.layout()->columns().size(), 1u);
    for (uint32_t i = 0; i < kRows; ++i) ASSERT_TRUE(HoldsRow(slab, i, i, 1));
  }
  EXPECT_GE(fired, 4u);  // two chunks or more, two calls each
  for (uint32_t i = 0; i < kRows; ++i) ASSERT_TRUE(HoldsRow(slab, i, i, 1));
}

TEST(RowSlabTest, AClearedSlabStartsOver) {
  RowSlab slab(Env::Posix(), LayoutOfColumns(2));
  ASSERT_TRUE(slab.Reserve(10).ok());
  for (int64_t i = 0; i < 10; ++i) AddRow(&slab, i);
  slab.Release(3);
  slab.Clear();
  EXPECT_EQ(slab.rows(), 0u);
  EXPECT_EQ(slab.end(), 0u);
  ASSERT_TRUE(slab.Reserve(1).ok());
  EXPECT_EQ(AddRow(&slab, 5), 0u);
  EXPECT_TRUE(HoldsRow(slab, 0, 5, 2));
}

}  // namespace
}  // namespace multitier::row_slab_test
