#include "cc/table/tiering/demoter.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/table/test/table_parts_test_util.h"

namespace multitier::demoter_test {
namespace {

constexpr int kDim = 4;
constexpr uint64_t kRowBytes = kDim * sizeof(float);

// Rows are made as an apply makes them.
class DemoterTest : public ::testing::Test {
 protected:
  void Make(uint64_t dram_rows, uint64_t lower_rows = 0, bool drop_coldest = false, bool lower = true) {
    TableOptions options;
    options.name = "t";
    options.dim = kDim;
    options.dram_budget_bytes = dram_rows * kRowBytes;
    options.drop_coldest = drop_coldest;
    parts_ = std::make_unique<TableParts>(std::move(options), InitializerSpec(), lower, lower_rows);
    base_ = &parts_->base;
    demoter_ = &parts_->demoter;
    tier_ = parts_->tier.get();
  }
  void TrainUpTo(int64_t keys) {
    for (int64_t key = 1; key <= keys; ++key) parts_->Train(key);
  }
  int64_t rows_below() { return Shard::Locked(base_->shards[0])->counts().rows_in[0]; }
  bool in_dram(int64_t key) { return Shard::Locked(base_->shards[0])->Find(key, HashKey(key)).row != nullptr; }

  std::unique_ptr<TableParts> parts_;
  TableBase* base_ = nullptr;  // of parts_
  Demoter* demoter_ = nullptr;
  MemoryTier* tier_ = nullptr;
};

TEST_F(DemoterTest, WhatIsBeyondTheBudgetGoesDownColdestFirst) {
  Make(3);
  TrainUpTo(5);
  ASSERT_TRUE(demoter_->Trim().ok());
  EXPECT_EQ(rows_below(), 2);
  EXPECT_EQ(base_->common.dram_rows, 3);
  EXPECT_TRUE(!in_dram(1) && !in_dram(2) && in_dram(3) && in_dram(5));
}

TEST_F(DemoterTest, WithinTheBudgetNothingMoves) {
  Make(5);
  TrainUpTo(5);
  ASSERT_TRUE(demoter_->Trim().ok());
  EXPECT_EQ(tier_->counters().write_calls, 0);
}

TEST_F(DemoterTest, AFailedWriteKeepsItsRowsAndIsTheStickyErrorUntilARetrySucceeds) {
  Make(3);
  TrainUpTo(5);
  tier_->FailWrite(1, ResourceExhaustedError("disk full"));
  demoter_->TrimAndRemember();
  EXPECT_TRUE(demoter_->failed());
  EXPECT_EQ(demoter_->sticky_error().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(demoter_->sticky_error().message().find("table 't': demoting 2 rows from DRAM"), std::string::npos);
  EXPECT_EQ(base_->common.dram_rows, 5);
  EXPECT_TRUE(demoter_->Retry().ok());
  EXPECT_FALSE(demoter_->failed());
  EXPECT_TRUE(demoter_->sticky_error().ok());
  EXPECT_EQ(rows_below(), 2);
}

TEST_F(DemoterTest, ABoundedLastTierThatIsFullRefuses) {
  Make(2, 2);
  TrainUpTo(5);
  EXPECT_EQ(demoter_->Trim().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(rows_below(), 2);
  EXPECT_EQ(base_->budgets.share(2, *base_->layout()), 4u);
}

TEST_F(DemoterTest, ABoundedLastTierDropsItsColdestWhereTheOptionSaysSo) {
  Make(2, 2, /*drop_coldest=*/true);
  TrainUpTo(4);
  ASSERT_TRUE(demoter_->Trim().ok());
  parts_->Train(5);
  ASSERT_TRUE(demoter_->Trim().ok());
  EXPECT_EQ(rows_below(), 2);
  EXPECT_EQ(demoter_->PopDropped(), std::vector<int64_t>{1});
  EXPECT_TRUE(demoter_->PopDropped().empty());
}

TEST_F(DemoterTest, WithoutALowerTierTheColdestRowsAreDropped) {
  Make(2, 0, /*drop_coldest=*/true, /*lower=*/false);
  TrainUpTo(4);
  ASSERT_TRUE(demoter_->Trim().ok());
  EXPECT_EQ(demoter_->PopDropped(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(base_->common.dram_rows, 2);
}

TEST_F(DemoterTest, ASmallerBudgetIsReachedByTheJobs) {
  Make(5);
  TrainUpTo(5);
  ASSERT_TRUE(demoter_->Start(/*in_background=*/false).ok());
  EXPECT_EQ(demoter_->SetDramBudget(Budget::Bytes(kRowBytes - 1)).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(demoter_->SetDramBudget(Budget::Bytes(2 * kRowBytes)).ok());
  demoter_->AwaitJobs();
  ASSERT_TRUE(demoter_->Drain().ok());
  EXPECT_EQ(base_->common.dram_rows, 2);
  demoter_->Stop();
}

TEST_F(DemoterTest, ARefusedRemovalIsTheStickyError) {
  Make(3);
  base_->on_refusal(ResourceExhaustedError("no room"));
  EXPECT_EQ(demoter_->sticky_error().code(), StatusCode::kResourceExhausted);
  demoter_->Forget();
  EXPECT_TRUE(demoter_->sticky_error().ok());
}

TEST_F(DemoterTest, AFlushGivesEveryRowARecordAndTheyStayInDram) {
  Make(5);
  TrainUpTo(5);
  ASSERT_TRUE(demoter_->FlushShard(base_->shards[0].get()).ok());
  EXPECT_EQ(tier_->counters().records_written, 5);
  EXPECT_EQ(rows_below(), 0);
  ASSERT_TRUE(demoter_->FlushShard(base_->shards[0].get()).ok());
  EXPECT_EQ(tier_->counters().records_written, 5);  // they are clean
}

}  // namespace
}  // namespace multitier::demoter_test
