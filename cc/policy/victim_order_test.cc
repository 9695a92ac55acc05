#include "cc/policy/victim_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace multitier::victim_order_test {
namespace {

class VictimOrderTest : public ::testing::Test {
 protected:
  VictimOrderTest() : dram_(Env::Posix(), std::make_shared<const RowLayout>(*RowLayout::Create(4, DType::kFloat32))) {}
  // Rows 0 .. n-1, row i last used at access `uses[i]`.
  void Fill(VictimOrder* order, const std::vector<uint32_t>& uses) {
    ASSERT_TRUE(dram_.Reserve(uses.size()).ok());
    for (const uint32_t use : uses) {
      const uint32_t slot = dram_.Allocate();
      dram_.Header(slot)->recency = use;
      dram_.Header(slot)->frequency = 1;
      order->Insert(RowUse{slot, 1, 0}, kClock);
    }
  }
  static constexpr uint64_t kClock = 1000;
  RowSlab dram_;
};

TEST_F(VictimOrderTest, TheLeastRecentlyUsedRowsComeFirst) {
  VictimOrder order(&dram_, Replacement::kLru, /*exact=*/true);
  Fill(&order, {50, 10, 30, 20});
  EXPECT_EQ(order.Choose(3, kClock), (std::vector<uint32_t>{1, 3, 2}));
  EXPECT_EQ(order.Choose(1, kClock), std::vector<uint32_t>{1});  // they stay in the order
}

TEST_F(VictimOrderTest, AUseIsSeenWhenItsRowComesUp) {
  VictimOrder order(&dram_, Replacement::kLru, /*exact=*/true);
  Fill(&order, {50, 10, 30});
  NoteUse(dram_.Header(1), 60, 1);
  EXPECT_EQ(order.Choose(1, kClock), std::vector<uint32_t>{2});
}

TEST_F(VictimOrderTest, AfterManyWereChosenAtOnceTheRestIsInOrderAgain) {
  VictimOrder order(&dram_, Replacement::kLru, /*exact=*/true);
  std::vector<uint32_t> uses;
  for (uint32_t i = 0; i < 64; ++i) uses.push_back(1 + i * 37 % 64);
  Fill(&order, uses);
  std::vector<uint32_t> left;
  for (uint32_t i = 0; i < 64; ++i) left.push_back(i);
  std::sort(left.begin(), left.end(), [&](uint32_t a, uint32_t b) { return uses[a] < uses[b]; });
  for (const size_t n : {40, 1, 1, 8, 1}) {
    const std::vector<uint32_t> victims = order.Choose(n, kClock);
    EXPECT_EQ(victims, std::vector<uint32_t>(left.begin(), left.begin() + static_cast<long>(n)));
    for (const uint32_t victim : victims) order.Erase(victim);
    left.erase(left.begin(), left.begin() + static_cast<long>(n));
    EXPECT_EQ(order.Coldest(kClock).recency, uses[left[0]]);
    dram_.Header(left[0])->recency = uses[left[0]] = static_cast<uint32_t>(200 + n);
    std::rotate(left.begin(), left.begin() + 1, left.end());
  }
}

TEST_F(VictimOrderTest, LfuGoesByFrequencyAndThenByRecency) {
  VictimOrder order(&dram_, Replacement::kLfu, /*exact=*/true);
  Fill(&order, {10, 20, 30});
  dram_.Header(0)->frequency = 9;
  EXPECT_EQ(order.Choose(3, kClock), (std::vector<uint32_t>{1, 2, 0}));
}

TEST_F(VictimOrderTest, ScoreGoesByVersionAndThenByRecency) {
  VictimOrder order(&dram_, Replacement::kScore, /*exact=*/true);
  Fill(&order, {10, 20, 30, 40});
  dram_.Header(0)->version = 7;
  dram_.Header(3)->version = INT64_MAX;
  EXPECT_EQ(order.Choose(4, kClock), (std::vector<uint32_t>{1, 2, 0, 3}));
}

TEST_F(VictimOrderTest, ALowerVersionIsSeenOnceItIsReported) {
  VictimOrder order(&dram_, Replacement::kScore, /*exact=*/true);
  Fill(&order, {10, 20, 30});
  dram_.Header(2)->version = -5;
  order.Refresh(2, kClock);
  EXPECT_EQ(order.Coldest(kClock), (Rank{RankOfVersion(-5), 30}));
  EXPECT_EQ(order.Choose(1, kClock), std::vector<uint32_t>{2});
}

TEST_F(VictimOrderTest, ALargeTableLooksAtNewRowsWhereTheScoreDecides) {
  VictimOrder order(&dram_, Replacement::kScore, /*exact=*/false, /*by_score=*/true);
  Fill(&order, std::vector<uint32_t>(1000, 1));
  for (uint32_t slot = 0; slot < 1000; ++slot) dram_.Header(slot)->version = 1;
  EXPECT_EQ(order.Choose(10, kClock).size(), 10u);
  Fill(&order, {1});
  dram_.Header(1000)->version = 0;  // the hand is far from it
  const std::vector<uint32_t> next = order.Choose(10, kClock);
  EXPECT_EQ(next.size(), 10u);
  EXPECT_EQ(next[0], 1000u);
  EXPECT_EQ(order.Coldest(kClock), (Rank{RankOfVersion(1), 1}));
}

TEST_F(VictimOrderTest, PinnedUncommittedAndPrefetchedRowsAreNotChosen) {
  VictimOrder order(&dram_, Replacement::kLru, /*exact=*/true);
  Fill(&order, {1, 2, 3, 4});
  dram_.Header(0)->pins = 1;
  dram_.Header(1)->flags = kRowUncommitted;
  dram_.Header(2)->flags = kRowPrefetched;
  EXPECT_EQ(order.Choose(4, kClock), std::vector<uint32_t>{3});
}

TEST_F(VictimOrderTest, AnErasedRowIsNotChosen) {
  VictimOrder order(&dram_, Replacement::kLru, /*exact=*/true);
  Fill(&order, {1, 2, 3});
  order.Erase(0);
  EXPECT_EQ(order.Choose(3, kClock), (std::vector<uint32_t>{1, 2}));
}

TEST_F(VictimOrderTest, TheDefaultOfLargeTablesSparesUsedRows) {
  VictimOrder order(&dram_, Replacement::kDefault, /*exact=*/false);
  Fill(&order, std::vector<uint32_t>(100, 1));
  for (uint32_t slot = 0; slot < 50; ++slot) NoteUse(dram_.Header(slot), 900, 1);
  for (const uint32_t slot : order.Choose(20, kClock)) EXPECT_GE(slot, 50u);
}

TEST_F(VictimOrderTest, WindowsChooseAsManyAsAreAskedFor) {
  VictimOrder order(&dram_, Replacement::kLru, /*exact=*/false);
  Fill(&order, std::vector<uint32_t>(200, 1));
  EXPECT_EQ(order.Choose(30, kClock).size(), 30u);
  EXPECT_EQ(order.Choose(500, kClock).size(), 200u);
}

TEST(RankTest, ARowTouchedAfterTheClockWasReadIsTheWarmest) {
  EXPECT_GT(RankOf(Replacement::kLru, 0, 1, 1001, 1000), RankOf(Replacement::kLru, 0, 1, 999, 1000));
}

TEST(NoteUseTest, TwoUsesWithinAStepAreOne) {
  RowHeader row{};
  NoteUse(&row, 100, 10);
  const uint16_t once = row.flags;
  NoteUse(&row, 105, 10);
  EXPECT_EQ(row.flags, once);
  NoteUse(&row, 200, 10);
  EXPECT_NE(row.flags, once);
}

TEST(LowerOrderTest, TheColdestEntryComesFirst) {
  LowerOrder order;
  order.Push({Rank{30, 0}, 3, 3});
  order.Push({Rank{10, 0}, 1, 1});
  order.Push({Rank{20, 0}, 2, 2});
  EXPECT_EQ(order.Pop().key, 1);
  EXPECT_EQ(order.Pop().key, 2);
}

TEST(LowerOrderTest, KeepDropsStaleEntriesAndOlderOnesOfAPlace) {
  LowerOrder order;
  order.Push({Rank{10, 0}, 7, 1});
  order.Push({Rank{20, 0}, 7, 1});
  order.Push({Rank{5, 0}, 8, 2});
  order.Push({Rank{90, 0}, 7, 3});  // a warmer row, which was at the place before
  order.Keep([](const LowerOrder::Entry& entry) { return entry.key == 1; });
  EXPECT_EQ(order.Pop().rank.first, 20u);
  EXPECT_TRUE(order.empty());
}

}  // namespace
}  // namespace multitier::victim_order_test
