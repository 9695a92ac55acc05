#include "cc/table/tiering/record_mover.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "cc/table/test/table_parts_test_util.h"
#include "cc/table/tiering/row_mover.h"

namespace multitier::record_mover_test {
namespace {

constexpr int kDim = 4;

// Rows of DRAM over a bounded tier over an unbounded one, moved by the movers alone.
class RecordMoverTest : public ::testing::Test {
 protected:
  void Make(uint64_t middle_rows, bool has_last = true, bool drop_coldest = false) {
    TableOptions options;
    options.name = "t";
    options.dim = kDim;
    options.dram_budget_bytes = 1024;
    options.drop_coldest = drop_coldest;
    options.on_corruption = OnCorruption::kDrop;
    parts_ = std::make_unique<TableParts>(std::move(options), InitializerSpec(), /*has_lower=*/true, middle_rows, has_last);
    base_ = &parts_->base;
  }
  // Trains keys and moves their rows to the tier below, the first key first.
  void TrainAndDemote(const std::vector<int64_t>& keys) {
    for (const int64_t key : keys) {
      parts_->Train(key);
      size_t moved = 0;
      const ShardWriter writer(base_->shards[0]);
      ASSERT_TRUE(rows_mover().Demote(writer, 1, &moved).ok());
      ASSERT_EQ(moved, 1u);
    }
  }
  RowMover rows_mover() { return RowMover(base_, &parts_->demoter.records(), &dropped_); }
  Status Demote(size_t n) { return mover()->Demote(ShardWriter(base_->shards[0]), 0, n); }
  RecordMover* mover() { return &parts_->demoter.records(); }
  int64_t rows_in(int level) { return Shard::Locked(base_->shards[0])->counts().rows_in[level]; }
  int level_of(int64_t key) {
    Shard::Locked lock(base_->shards[0]);
    const ReadProbe probe = lock->records().BeginRead(key, HashKey(key), {});
    if (probe.where != ReadProbe::kBegun) return -1;
    lock->records().EndRead(HashKey(key), probe.id);
    return probe.level;
  }

  std::unique_ptr<TableParts> parts_;
  TableBase* base_ = nullptr;  // of parts_
  DroppedRows dropped_;
};

TEST_F(RecordMoverTest, TheColdestRecordsGoToTheNextTier) {
  Make(/*middle_rows=*/10);
  TrainAndDemote({1, 2, 3});
  ASSERT_TRUE(Demote(2).ok());
  EXPECT_EQ(level_of(1), 1);
  EXPECT_EQ(level_of(2), 1);
  EXPECT_EQ(level_of(3), 0);
  EXPECT_EQ(Shard::Locked(base_->shards[0])->counters().lower[1].writes, 2);
}

TEST_F(RecordMoverTest, AFailedWriteLeavesRecordsWhereTheyWere) {
  Make(/*middle_rows=*/10);
  TrainAndDemote({1, 2});
  parts_->last->FailWrite(1, ResourceExhaustedError("disk full"));
  EXPECT_EQ(Demote(2).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(rows_in(0), 2);
  EXPECT_FALSE(Shard::Locked(base_->shards[0])->records().reading());
  ASSERT_TRUE(Demote(2).ok());
  EXPECT_EQ(rows_in(1), 2);
}

TEST_F(RecordMoverTest, AFailedReadLeavesRecordsWhereTheyWere) {
  Make(/*middle_rows=*/10);
  TrainAndDemote({1});
  parts_->tier->FailRead(2, InternalError("broken"));  // the first one reads headers
  EXPECT_EQ(Demote(1).code(), StatusCode::kInternal);
  EXPECT_EQ(level_of(1), 0);
  EXPECT_EQ(parts_->last->counters().write_calls, 0);
}

TEST_F(RecordMoverTest, ADamagedRecordIsDroppedWhereTheOptionSaysSo) {
  Make(/*middle_rows=*/10);
  TrainAndDemote({1, 2});
  ASSERT_TRUE(parts_->tier->Corrupt(0).ok());
  ASSERT_TRUE(Demote(2).ok());
  EXPECT_EQ(parts_->demoter.PopDropped(), std::vector<int64_t>{1});
  EXPECT_EQ(level_of(1), -1);
  EXPECT_EQ(level_of(2), 1);
}

TEST_F(RecordMoverTest, MakeRoomDemotesNoMoreThanIsNeeded) {
  Make(/*middle_rows=*/3);
  TrainAndDemote({1, 2, 3});
  size_t room = 0;
  ASSERT_TRUE(mover()->MakeRoom(ShardWriter(base_->shards[0]), 0, 1, &room).ok());
  EXPECT_EQ(room, 1u);
  EXPECT_EQ(rows_in(0), 2);
  EXPECT_EQ(level_of(1), 1);
}

TEST_F(RecordMoverTest, ALastTierThatIsFullRefusesOrDropsItsColdest) {
  for (const bool drops : {false, true}) {
    Make(/*middle_rows=*/2, /*has_last=*/false, drops);
    TrainAndDemote({1, 2});
    size_t room = 0;
    const Status status = mover()->MakeRoom(ShardWriter(base_->shards[0]), 0, 1, &room);
    EXPECT_EQ(status.code(), drops ? StatusCode::kOk : StatusCode::kResourceExhausted);
    EXPECT_EQ(parts_->demoter.PopDropped(), drops ? std::vector<int64_t>{1} : std::vector<int64_t>{});
  }
}

TEST_F(RecordMoverTest, CopyToLastGivesEachRecordOneCopyAndMovesNone) {
  Make(/*middle_rows=*/10);
  TrainAndDemote({1, 2});
  for (int times = 0; times < 2; ++times) {
    ASSERT_TRUE(mover()->CopyToLast(ShardWriter(base_->shards[0])).ok());
    EXPECT_EQ(rows_in(0), 2);
    EXPECT_EQ(parts_->last->counters().records_written, 2);
  }
  ASSERT_TRUE(Demote(2).ok());  // to their copies
  EXPECT_EQ(rows_in(1), 2);
  EXPECT_EQ(parts_->last->counters().records_written, 2);
}

}  // namespace
}  // namespace multitier::record_mover_test
