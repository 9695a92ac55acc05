#include "cc/table/tiering/row_mover.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "cc/table/test/table_parts_test_util.h"

namespace multitier::row_mover_test {
namespace {

// Three trained rows over a tier in memory.
class RowMoverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const int64_t key : {1, 2, 3}) parts_.Train(key);
  }
  static TableOptions Options() {
    TableOptions options;
    options.name = "t";
    options.dim = 4;
    options.dram_budget_bytes = 1024;
    return options;
  }
  Status Demote(size_t n, size_t* moved) { return mover_.Demote(ShardWriter(parts_.base.shards[0]), n, moved); }
  Status Flush() {
    uint32_t from = 0;
    const Status status = mover_.Flush(ShardWriter(parts_.base.shards[0]), &from);
    EXPECT_EQ(from, kNoLocation);
    return status;
  }
  RowHeader* row(int64_t key) { return Shard::Locked(parts_.base.shards[0])->Find(key, HashKey(key)).row; }
  void ChangeDuringTheWrite(int64_t key) {
    parts_.tier->SetHook([this, key](MemoryTier::Point point) {
      if (point == MemoryTier::Point::kAfterWrite) parts_.Train(key);
    });
  }

  TableParts parts_{Options(), InitializerSpec()};
  DroppedRows dropped_;
  RecordMover records_{&parts_.base, &dropped_};
  RowMover mover_{&parts_.base, &records_, &dropped_};
};

TEST_F(RowMoverTest, TheColdestRowsLeaveDram) {
  size_t moved = 0;
  ASSERT_TRUE(Demote(2, &moved).ok());
  EXPECT_EQ(moved, 2u);
  EXPECT_TRUE(row(1) == nullptr && row(2) == nullptr && row(3) != nullptr);
}

TEST_F(RowMoverTest, ARowThatChangesDuringItsWriteStaysAndItsRecordIsFreed) {
  ChangeDuringTheWrite(1);
  size_t moved = 0;
  ASSERT_TRUE(Demote(1, &moved).ok());
  EXPECT_EQ(moved, 0u);
  EXPECT_EQ(row(1)->below, kNoLocation);
  EXPECT_EQ(parts_.tier->counters().records_freed, 1);
}

TEST_F(RowMoverTest, AFailedWriteLeavesEveryRowInDram) {
  parts_.tier->FailWrite(1, ResourceExhaustedError("disk full"));
  size_t moved = 0;
  const Status status = Demote(3, &moved);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("demoting 3 rows from DRAM (they stay in memory)"), std::string::npos) << status.message();
  EXPECT_EQ(moved, 0u);
  EXPECT_FALSE(row(1)->has(kRowDemoting));
}

TEST_F(RowMoverTest, ACleanRowIsDemotedWithoutAWrite) {
  ASSERT_TRUE(Flush().ok());
  size_t moved = 0;
  ASSERT_TRUE(Demote(3, &moved).ok());
  EXPECT_EQ(moved, 3u);
  EXPECT_EQ(parts_.tier->counters().records_written, 3);  // by the flush
}

TEST_F(RowMoverTest, AFlushedRowThatChangesDuringTheWriteHasNoCopy) {
  ChangeDuringTheWrite(2);
  ASSERT_TRUE(Flush().ok());
  EXPECT_NE(row(1)->below, kNoLocation);
  EXPECT_EQ(row(2)->below, kNoLocation);
  EXPECT_EQ(parts_.tier->counters().records_freed, 1);
}

}  // namespace
}  // namespace multitier::row_mover_test
