// Prefetched rows come into HBM and stay there: until they are used, until their time is over, or until they are released.

#include <chrono>
#include <future>
#include <thread>

#include "cc/env/clock_env.h"
#include "cc/hbm/test/device_caller.h"
#include "cc/hbm/test/hbm_test_util.h"

namespace multitier::hbm::hbm_prefetch_test {
namespace {

constexpr uint64_t kHour = 3600ull * 1000000;

// Of forty rows, eight are in HBM, so that two may be kept there. Eight may be in DRAM, and two are kept there.
class HbmPrefetch : public testing::Test {
 protected:
  void Make(Replacement strategy, uint64_t first_operation = 0) {
    TableOptions options = TieredOptions(4, 8, std::make_shared<MemoryTier>());
    options.env = &env_;
    options.cache_strategy = strategy;
    table_ = MakeHbmTable(options, 8, NewEmulatedDevice(), first_operation);
    plain_ = MakeTable(BasicOptions(4));
    MT_ASSERT_OK(Train(Sgd(Range(0, 40), 1.0f, 4), table_.get()));
    MT_ASSERT_OK(Sgd(Range(0, 40), 1.0f, 4).Run(plain_.get()));
    UseOthers();
  }
  // Takes each place in HBM that is not pinned.
  void UseOthers() {
    for (int i = 0; i < 3; ++i) {
      for (int64_t key = 16; key < 40; key += 8) LookupAll(table_.get(), Range(key, key + 8));
    }
  }
  int64_t Prefetch(const std::vector<int64_t>& keys, uint64_t timeout = kHour) {
    int64_t pinned = -1;
    MT_EXPECT_OK(table_->Prefetch(keys, timeout, &pinned));
    return pinned;
  }
  bool InHbm(int64_t key) { return TierOf(table_.get(), {key})[0] == 0; }

  ClockEnv env_;
  std::unique_ptr<HbmTable> table_;
  std::unique_ptr<EmbeddingTable> plain_;
};

TEST_F(HbmPrefetch, RowsStayInHbmUntilTheyAreUsed) {
  for (const Replacement strategy : {Replacement::kLru, Replacement::kLfu}) {
    Make(strategy);
    EXPECT_EQ(Prefetch({1, 2, 1}), 2);
    EXPECT_EQ(table_->Stats().prefetched, 2);
    UseOthers();
    EXPECT_TRUE(InHbm(1) && InHbm(2));
    EXPECT_TRUE(SameBits(LookupAll(table_.get(), {2}), LookupAll(plain_.get(), {2})));
    EXPECT_EQ(table_->Stats().prefetched, 1);
    if (strategy == Replacement::kLru) {
      UseOthers();
      EXPECT_TRUE(InHbm(1) && !InHbm(2));
    }
    MT_ASSERT_OK(Train(Sgd({1}, 1.0f, 4), table_.get()));
    MT_ASSERT_OK(Sgd({1}, 1.0f, 4).Run(plain_.get()));
    EXPECT_EQ(table_->Stats().prefetched, 0);
    ExpectSameTables(plain_.get(), table_.get());
  }
}

TEST_F(HbmPrefetch, RowsAreLetGoExplicitlyAndInTime) {
  Make(Replacement::kLru);
  EXPECT_EQ(Prefetch({1, 2}), 2);
  table_->ReleasePrefetched();
  EXPECT_EQ(table_->Stats().prefetched, 0);
  UseOthers();
  EXPECT_FALSE(InHbm(1) || InHbm(2));
  EXPECT_EQ(Prefetch({3}, 10), 1);
  EXPECT_EQ(Prefetch({4}, 1000), 1);
  UseOthers();
  EXPECT_TRUE(InHbm(3) && InHbm(4));
  env_.now = 100;
  UseOthers();  // rows that come up look at the clock
  EXPECT_TRUE(!InHbm(3) && InHbm(4));
  EXPECT_EQ(table_->Stats().prefetched, 1);
  EXPECT_EQ(Prefetch({4}, kHour), 0);  // kept already; now for longer
  EXPECT_EQ(Prefetch({4}, 10), 0);     // not for less
  env_.now = 10000;
  UseOthers();
  EXPECT_TRUE(InHbm(4));
  ExpectSameTables(plain_.get(), table_.get());
}

TEST_F(HbmPrefetch, AQuarterOfHbmIsKeptAndTheRestWaitsBelow) {
  Make(Replacement::kLru);
  EXPECT_EQ(Prefetch(Range(0, 6)), 4);
  EXPECT_EQ(TierOf(table_.get(), Range(0, 4)), (std::vector<int32_t>{0, 0, 1, 1}));
  EXPECT_EQ(table_->Stats().prefetched, 4);
  UseOthers();
  EXPECT_EQ(TierOf(table_.get(), Range(0, 4)), (std::vector<int32_t>{0, 0, 1, 1}));
  EXPECT_EQ(Prefetch({0, 1}), 0);
  ExpectSameTables(plain_.get(), table_.get());
}

TEST_F(HbmPrefetch, ThreadsTogetherKeepAQuarterOfHbmAtMost) {
  constexpr int64_t kQuarter = 64 / 4;
  TableOptions options = TieredOptions(4, 64, std::make_shared<MemoryTier>());
  options.env = &env_;
  options.cache_strategy = Replacement::kLru;
  table_ = MakeHbmTable(options, 64, NewEmulatedDevice());
  MT_ASSERT_OK(Train(Sgd(Range(0, 260), 1.0f, 4), table_.get()));
  for (int round = 0; round < 5; ++round) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([this, t, round] { Prefetch(Range(40 * t + round, 40 * t + round + 12)); });
    }
    for (std::thread& thread : threads) thread.join();
    const int64_t kept = table_->Stats().prefetched;
    // Others take each place in HBM that is not pinned.
    for (int64_t key = 160; key < 260; key += 20) LookupAll(table_.get(), Range(key, key + 20));
    const std::vector<int32_t> tiers = TierOf(table_.get(), Range(0, 160));
    const int64_t in_hbm = std::count(tiers.begin(), tiers.end(), 0);
    EXPECT_GE(in_hbm, 12) << round;
    EXPECT_LE(in_hbm, kQuarter) << round;
    EXPECT_LE(kept - in_hbm, kQuarter) << round;  // in DRAM
    EXPECT_EQ(table_->Stats().prefetched, kept) << round;
    table_->ReleasePrefetched();
    EXPECT_EQ(table_->Stats().prefetched, 0);
  }
}

TEST_F(HbmPrefetch, ARowThatIsPrefetchedAgainIsKeptForTheLongerTime) {
  Make(Replacement::kLru);
  EXPECT_EQ(Prefetch({1, 2}, 10), 2);
  EXPECT_EQ(Prefetch({1, 2, 3}, 1000), 1);  // HBM has no room for another; 3 waits below
  EXPECT_EQ(Prefetch({1, 2}, 10), 0);
  env_.now = 100;
  UseOthers();
  EXPECT_TRUE(InHbm(1) && InHbm(2));
  env_.now = 10000;
  UseOthers();
  EXPECT_FALSE(InHbm(1) || InHbm(2));
}

TEST_F(HbmPrefetch, AReleasedRowLeavesBeforeThoseThatWereUsedSinceItsPrefetch) {
  Make(Replacement::kLru);
  EXPECT_EQ(Prefetch({1, 2}), 2);
  LookupAll(table_.get(), Range(10, 16));  // the other six places
  table_->ReleasePrefetched();
  LookupAll(table_.get(), {20, 21});
  EXPECT_EQ(TierOf(table_.get(), {10, 11, 12, 13, 14, 15}), std::vector<int32_t>(6, 0));
  EXPECT_FALSE(InHbm(1) || InHbm(2));
}

TEST_F(HbmPrefetch, AbsentAndRemovedKeysAreNotKept) {
  Make(Replacement::kLru);
  EXPECT_EQ(Prefetch({500, 501}), 0);
  EXPECT_EQ(table_->TotalCount(), 40);
  EXPECT_EQ(Prefetch({1, 2}), 2);
  MT_ASSERT_OK(table_->Remove(std::vector<int64_t>{1}, nullptr));
  EXPECT_EQ(table_->Stats().prefetched, 1);
  MT_ASSERT_OK(table_->Clear());
  EXPECT_EQ(table_->Stats().prefetched, 0);
}

TEST_F(HbmPrefetch, StatisticsWaitNeitherForTheDeviceNorForTheTurn) {
  auto device = std::make_shared<HeldDevice>();
  table_ = MakeHbmTable(TieredOptions(4, 8, std::make_shared<MemoryTier>()), 8, device);
  MT_ASSERT_OK(Train(Sgd(Range(0, 40), 1.0f, 4), table_.get()));
  EXPECT_EQ(Prefetch({1, 2}), 2);
  device->Hold(table_->queue()->stream());
  std::thread prefetches([this] { Prefetch({3}); });  // HBM may pin no more: it looks which pins are left, with the turn
  while (device->waiting() == 0) std::this_thread::yield();
  auto stats = std::async(std::launch::async, [this] { return table_->Stats(); });
  EXPECT_EQ(stats.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  device->Let();
  prefetches.join();
  EXPECT_EQ(stats.get().prefetched, 2);
}

TEST_F(HbmPrefetch, StatisticsCountUsesByUpdatesAndOnTheDevice) {
  Make(Replacement::kLru);
  DeviceCaller caller(std::shared_ptr<device::Device>(table_->device(), [](device::Device*) {}));
  EXPECT_EQ(Prefetch({1, 2}), 2);
  caller.LookupAll(table_.get(), {1, 30});
  EXPECT_EQ(table_->Stats().prefetched, 1);
  MT_ASSERT_OK(caller.Apply(Sgd({2, 31}, 1.0f, 4), table_.get()));
  EXPECT_EQ(table_->Stats().prefetched, 0);
  auto other = MakeHbmTable(TieredOptions(4, 8, std::make_shared<MemoryTier>()), 8,
                            std::shared_ptr<device::Device>(table_->device(), [](device::Device*) {}));
  MT_ASSERT_OK(Train(Sgd(Range(0, 8), 1.0f, 4), other.get()));
  EXPECT_EQ(Prefetch({3, 4}), 2);
  int64_t pinned = 0;
  MT_ASSERT_OK(other->Prefetch(Range(5, 7), kHour, &pinned));
  EXPECT_EQ(pinned, 2);
  MT_ASSERT_OK(caller.Lookup({caller.Plain(table_.get(), {3}), caller.Plain(other.get(), {5, 6})}));  // one set of launches
  EXPECT_EQ(table_->Stats().prefetched, 1);
  EXPECT_EQ(other->Stats().prefetched, 0);
}

// Numbers of operations wrap, and old ones are raised, while rows are pinned.
TEST_F(HbmPrefetch, PinsOutliveTheNumbersOfOperations) {
  for (const uint64_t first : {(uint64_t{1} << 29) - 30, (uint64_t{1} << 32) - 30, (uint64_t{3} << 30) - 30}) {
    Make(Replacement::kLru, first);
    EXPECT_EQ(Prefetch({1, 2}), 2);
    for (int i = 0; i < 4; ++i) UseOthers();
    EXPECT_TRUE(InHbm(1) && InHbm(2));
    EXPECT_EQ(table_->Stats().prefetched, 2);
    LookupAll(table_.get(), {1, 2});
    UseOthers();
    EXPECT_FALSE(InHbm(1) || InHbm(2));
    ExpectSameTables(plain_.get(), table_.get());
  }
}

TEST_F(HbmPrefetch, HbmAloneBringsRowsUpAndHasNothingToKeep) {
  const auto table = GrowingTable(BasicOptions(4), NewEmulatedDevice());
  auto trained = MakeTable(BasicOptions(4));
  MT_ASSERT_OK(Sgd(Range(0, 9), 1.0f, 4).Run(trained.get()));
  MT_ASSERT_OK(table->Import(*trained->Export(true), nullptr));  // none is in HBM
  int64_t pinned = -1;
  MT_ASSERT_OK(table->Prefetch(Range(3, 12), kHour, &pinned));
  EXPECT_EQ(pinned, 0);
  EXPECT_EQ(TierOf(table.get(), {2, 3, 8, 11}), (std::vector<int32_t>{1, 0, 0, -1}));
}

}  // namespace
}  // namespace multitier::hbm::hbm_prefetch_test
