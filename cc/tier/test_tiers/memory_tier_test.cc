#include "cc/tier/test_tiers/memory_tier.h"

#include <thread>
#include <vector>

#include "cc/tier/tier_conformance.h"

namespace multitier::memory_tier_test {
namespace {

INSTANTIATE_TEST_SUITE_P(Memory, TierConformanceTest,
                         testing::Values(TierTestCase{
                             "Memory", [](std::shared_ptr<const RowLayout>) { return std::make_unique<MemoryTier>(); },
                             [](std::shared_ptr<const RowLayout>, int64_t max_rows) {
                               auto tier = std::make_unique<MemoryTier>();
                               tier->SetMaxRows(max_rows);
                               return tier;
                             }}),
                         TierTestName);

class MemoryTierTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(tier_.SetLayout(TierTestLayout(2)).ok()); }

  Status Write(int64_t key, uint32_t* location) {
    const TestRecord record(key, 1, 2);
    const WriteRecord write = record.write();
    return tier_.Write(Span<const WriteRecord>(&write, 1), location);
  }
  // The call's status, else the record's.
  Status Read(int64_t key, uint32_t location) {
    ReadRecord read;
    read.key = key;
    read.location = location;
    MT_RETURN_IF_ERROR(tier_.Read(Span<ReadRecord>(&read, 1)));
    return read.status;
  }

  MemoryTier tier_;
};

TEST_F(MemoryTierTest, WriteBeforeSetLayoutIsRefused) {
  MemoryTier tier;
  EXPECT_EQ(tier.Write(Span<const WriteRecord>(), nullptr).code(), StatusCode::kFailedPrecondition);
}

TEST_F(MemoryTierTest, ChosenCallsFailAndDoNothing) {
  uint32_t location = 77;
  tier_.FailWrite(2, ResourceExhaustedError("disk full"), 2);
  ASSERT_TRUE(Write(1, &location).ok());
  EXPECT_EQ(Write(2, &location), ResourceExhaustedError("disk full"));
  EXPECT_EQ(Write(2, &location), ResourceExhaustedError("disk full"));
  EXPECT_EQ(tier_.stats().rows, 1);
  ASSERT_TRUE(Write(2, &location).ok());
  tier_.FailRead(1, UnavailableError("no answer"));
  EXPECT_EQ(Read(2, location), UnavailableError("no answer"));
  EXPECT_TRUE(Read(2, location).ok());
}

TEST_F(MemoryTierTest, CorruptRecordIsDataLossNamingKeyAndLocationUntilFreed) {
  uint32_t location = 0;
  EXPECT_EQ(tier_.Corrupt(3).code(), StatusCode::kNotFound);
  ASSERT_TRUE(Write(4711, &location).ok());
  ASSERT_TRUE(tier_.Corrupt(location).ok());
  const Status status = Read(4711, location);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("key 4711 at location 0"), std::string::npos) << status.message();
  const KeyLocation freed{4711, location};
  tier_.Free(Span<const KeyLocation>(&freed, 1));
  uint32_t again = 99;
  ASSERT_TRUE(Write(5, &again).ok());
  EXPECT_EQ(again, location);
  EXPECT_TRUE(Read(5, again).ok());
}

TEST_F(MemoryTierTest, HookRunsAroundReadsAndWritesAndMayCallTheTier) {
  std::vector<MemoryTier::Point> points;
  uint32_t location = 0;
  tier_.SetHook([&](MemoryTier::Point point) {
    points.push_back(point);
    // A record that is freed between the copy and the return: the reader has it all the same.
    if (point != MemoryTier::Point::kAfterRead) return;
    const KeyLocation freed{1, location};
    tier_.Free(Span<const KeyLocation>(&freed, 1));
  });
  ASSERT_TRUE(Write(1, &location).ok());
  EXPECT_TRUE(Read(1, location).ok());
  using Point = MemoryTier::Point;
  EXPECT_EQ(points, (std::vector<Point>{Point::kBeforeWrite, Point::kAfterWrite, Point::kBeforeRead, Point::kAfterRead}));
  tier_.SetHook(nullptr);
  EXPECT_EQ(Read(1, location).code(), StatusCode::kNotFound);
  EXPECT_EQ(points.size(), 4u);
}

TEST_F(MemoryTierTest, HookHoldsAReaderWhileAnotherThreadWrites) {
  uint32_t location = 0, other = 0;
  ASSERT_TRUE(Write(1, &location).ok());
  tier_.SetHook([&](MemoryTier::Point point) {
    if (point == MemoryTier::Point::kBeforeRead) {
      std::thread([&] { EXPECT_TRUE(Write(2, &other).ok()); }).join();
    }
  });
  EXPECT_TRUE(Read(1, location).ok());
  EXPECT_NE(other, location);
}

TEST_F(MemoryTierTest, CountersTellCallsAndRecords) {
  uint32_t location = 0;
  ASSERT_TRUE(Write(1, &location).ok());
  tier_.FailWrite(1, UnavailableError("no"));
  EXPECT_FALSE(Write(2, &location).ok());
  EXPECT_TRUE(Read(1, 0).ok());
  EXPECT_FALSE(Read(1, 5).ok());
  const KeyLocation removed{1, 0};
  ASSERT_TRUE(tier_.Remove(Span<const KeyLocation>(&removed, 1)).ok());
  ASSERT_TRUE(tier_.Sync().ok());
  const MemoryTier::Counters counters = tier_.counters();
  EXPECT_EQ(counters.write_calls, 2);
  EXPECT_EQ(counters.records_written, 1);
  EXPECT_EQ(counters.read_calls, 2);
  EXPECT_EQ(counters.records_read, 1);
  EXPECT_EQ(counters.records_freed, 0);
  EXPECT_EQ(counters.records_removed, 1);
  EXPECT_EQ(counters.syncs, 1);
}

TEST(MemoryTierDeathTest, FreeingARecordOfAnotherKeyStopsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  MemoryTier tier;
  ASSERT_TRUE(tier.SetLayout(TierTestLayout(1)).ok());
  const TestRecord record(1, 1, 1);
  const WriteRecord write = record.write();
  uint32_t location = 0;
  ASSERT_TRUE(tier.Write(Span<const WriteRecord>(&write, 1), &location).ok());
  const KeyLocation wrong{2, location};
  EXPECT_DEATH(tier.Free(Span<const KeyLocation>(&wrong, 1)), "broken invariant");
}

}  // namespace
}  // namespace multitier::memory_tier_test
