// Rows that a prefetch keeps in DRAM: until they are used, until their time is over, or until they are released.

#include <thread>
#include <utility>

#include "cc/env/clock_env.h"
#include "cc/table/test/table_test_util.h"

namespace multitier::prefetch_test {
namespace {

constexpr uint64_t kHour = 3600ull * 1000000;

// Eight rows of twenty are in DRAM, so that two may be kept there; the coldest, from key 0 on, are below.
class PrefetchTest : public testing::Test {
 protected:
  void SetUp() override {
    below_ = std::make_shared<MemoryTier>();
    TableOptions options = TieredOptions(4, 8, below_);
    options.env = &env_;
    table_ = MakeTable(std::move(options));
    MT_ASSERT_OK(Sgd(Range(0, 20), 1.0f, 4).Run(table_.get()));
  }

  ClockEnv env_;
  std::shared_ptr<MemoryTier> below_;
  std::unique_ptr<EmbeddingTable> table_;
};

// The second begins and ends while the first reads its rows.
TEST_F(PrefetchTest, PrefetchesThatRunTogetherKeepAQuarterOfTheBudgetAtMost) {
  int64_t first = 0, second = 0;
  bool begun = false;
  below_->SetHook([&](MemoryTier::Point point) {
    if (point != MemoryTier::Point::kBeforeRead || std::exchange(begun, true)) return;
    std::thread([&] { MT_EXPECT_OK(table_->Prefetch(Range(5, 8), kHour, &second)); }).join();
  });
  MT_ASSERT_OK(table_->Prefetch(Range(0, 1), kHour, &first));
  below_->SetHook(nullptr);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 1) << "one place is reserved";
  EXPECT_EQ(table_->Stats().prefetched, 2);
  MT_ASSERT_OK(table_->Prefetch(Range(0, 8), kHour, &second));
  EXPECT_EQ(second, 0);
  table_->ReleasePrefetched();
  MT_ASSERT_OK(table_->Prefetch(Range(0, 8), kHour, &second));
  EXPECT_EQ(second, 2) << "no reservation stays";
}

TEST_F(PrefetchTest, RowStaysUntilItIsUsedReleasedOrItsTimeIsOver) {
  int64_t pinned = 0;
  MT_ASSERT_OK(table_->Prefetch(Range(0, 5), kHour, &pinned));
  EXPECT_EQ(pinned, 2) << "a quarter of the budget";
  EXPECT_EQ(table_->Stats().prefetched, 2);
  EXPECT_EQ(TierOf(table_.get(), Range(0, 3)), (std::vector<int32_t>{0, 0, 1}));
  LookupAll(table_.get(), Range(8, 20));
  EXPECT_EQ(TierOf(table_.get(), Range(0, 3)), (std::vector<int32_t>{0, 0, 1}));
  LookupAll(table_.get(), {0});  // used
  EXPECT_EQ(table_->Stats().prefetched, 1);
  LookupAll(table_.get(), Range(8, 20));
  EXPECT_EQ(TierOf(table_.get(), Range(0, 2)), (std::vector<int32_t>{1, 0}));
  table_->ReleasePrefetched();
  LookupAll(table_.get(), Range(8, 20));
  EXPECT_EQ(TierOf(table_.get(), Range(0, 2)), (std::vector<int32_t>{1, 1}));
  MT_ASSERT_OK(table_->Prefetch(Range(3, 4), 0, &pinned));
  EXPECT_EQ(pinned, 1);
  LookupAll(table_.get(), Range(8, 20));
  EXPECT_EQ(TierOf(table_.get(), Range(3, 4)), (std::vector<int32_t>{1}));
  MT_ASSERT_OK(table_->Prefetch(Range(4, 6), kHour, &pinned));
  MT_ASSERT_OK(Sgd({4}, 1.0f, 4).Run(table_.get()));
  MT_ASSERT_OK(table_->Remove(Range(5, 6), nullptr));
  EXPECT_EQ(table_->Stats().prefetched, 0);
  MT_ASSERT_OK(table_->Prefetch(Range(100, 110), kHour, &pinned));
  EXPECT_EQ(pinned, 0) << "absent keys are not created";
  EXPECT_EQ(table_->TotalCount(), 19);
}

// The entry of the first pin is still there when its time comes; the row is kept for longer by then.
TEST_F(PrefetchTest, PinThatIsRenewedAfterItsUseEndsAtItsOwnTime) {
  int64_t pinned = 0;
  MT_ASSERT_OK(table_->Prefetch(Range(0, 1), kHour, &pinned));
  LookupAll(table_.get(), {0});
  MT_ASSERT_OK(table_->Prefetch(Range(0, 1), 3 * kHour, &pinned));
  EXPECT_EQ(pinned, 1);
  env_.now += 2 * kHour;
  EXPECT_EQ(table_->Stats().prefetched, 1);
  LookupAll(table_.get(), Range(8, 20));
  EXPECT_EQ(TierOf(table_.get(), Range(0, 1)), (std::vector<int32_t>{0}));
  env_.now += 2 * kHour;
  EXPECT_EQ(table_->Stats().prefetched, 0);
}

// Use ends a pin: one for a shorter time afterwards is not kept for what is left of it.
TEST_F(PrefetchTest, PinThatIsRenewedAfterItsUseForAShorterTimeEndsAtItsOwnTime) {
  int64_t pinned = 0;
  MT_ASSERT_OK(table_->Prefetch(Range(0, 1), 10 * kHour, &pinned));
  LookupAll(table_.get(), {0});
  MT_ASSERT_OK(table_->Prefetch(Range(0, 1), kHour, &pinned));
  EXPECT_EQ(pinned, 1);
  env_.now += kHour - 1;
  EXPECT_EQ(table_->Stats().prefetched, 1);
  env_.now += 1;
  EXPECT_EQ(table_->Stats().prefetched, 0);
  LookupAll(table_.get(), Range(8, 20));
  EXPECT_EQ(TierOf(table_.get(), {0}), (std::vector<int32_t>{1}));
  env_.now += 20 * kHour;  // nothing comes of what is left of the first
  EXPECT_EQ(table_->Stats().prefetched, 0);
}

// Each call was promised its time: of those before the next use the latest end holds, where the quarter is full, too.
TEST_F(PrefetchTest, PinThatIsRenewedBeforeItsUseEndsAtTheLatestTime) {
  for (const bool longer_first : {false, true}) {
    SetUp();
    int64_t pinned = 0;
    MT_ASSERT_OK(table_->Prefetch(Range(0, 2), (longer_first ? 3 : 1) * kHour, &pinned));
    EXPECT_EQ(pinned, 2) << "all that may be kept";
    MT_ASSERT_OK(table_->Prefetch(std::vector<int64_t>{5, 1, 0}, (longer_first ? 1 : 3) * kHour, &pinned));
    EXPECT_EQ(pinned, 0);
    env_.now += 2 * kHour;
    EXPECT_EQ(table_->Stats().prefetched, 2);
    LookupAll(table_.get(), {0});  // ends both
    EXPECT_EQ(table_->Stats().prefetched, 1);
    env_.now += kHour;
    EXPECT_EQ(table_->Stats().prefetched, 0);
    MT_ASSERT_OK(table_->Prefetch(Range(0, 1), ~uint64_t{0}, &pinned));
    env_.now += 1000000 * kHour;
    EXPECT_EQ(table_->Stats().prefetched, 1) << "no time is too long";
    // Put off again and again: what remembers it does not grow.
    for (uint64_t round = 1; round < 1000; ++round) MT_ASSERT_OK(table_->Prefetch(Range(1, 2), round * kHour, nullptr));
    EXPECT_EQ(table_->Stats().prefetched, 2);
    env_.now += 998 * kHour;
    EXPECT_EQ(table_->Stats().prefetched, 2);
    env_.now += kHour;
    EXPECT_EQ(table_->Stats().prefetched, 1);
  }
}

TEST_F(PrefetchTest, PinsWhoseTimeIsOverLeaveTheirPlaceToOthers) {
  int64_t pinned = 0;
  for (int round = 0; round < 100; ++round) {
    MT_ASSERT_OK(table_->Prefetch(Range(0, 2), 0, &pinned));
    ASSERT_EQ(pinned, 2) << round;
  }
  EXPECT_EQ(table_->Stats().prefetched, 0);
  // Behind one that ends later, too.
  MT_ASSERT_OK(table_->Prefetch(Range(0, 1), kHour, &pinned));
  EXPECT_EQ(pinned, 1);
  for (int round = 0; round < 3; ++round) {
    MT_ASSERT_OK(table_->Prefetch(Range(5, 8), 0, &pinned));
    EXPECT_EQ(pinned, 1);
    EXPECT_EQ(table_->Stats().prefetched, 1);
  }
  // Used and kept again and again: what remembers the pins does not grow, nor ends them.
  for (int round = 0; round < 1000; ++round) {
    MT_ASSERT_OK(table_->Prefetch(Range(10, 11), kHour, &pinned));
    ASSERT_EQ(pinned, 1) << round;
    LookupAll(table_.get(), {10});
  }
  EXPECT_EQ(table_->Stats().prefetched, 1);
  table_->ReleasePrefetched();
  EXPECT_EQ(table_->Stats().prefetched, 0);
}

}  // namespace
}  // namespace multitier::prefetch_test
