#include "cc/table/tiering/table_score.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace multitier::table_score_test {
namespace {

TEST(TableScoreTest, TheStepIsTheScoreUnlessAnotherIsChosen) {
  for (const Score kind : {Score::kStep, Score::kFrequency}) {
    std::atomic<int64_t> newest{-1};
    TableScore score(kind, &newest);
    EXPECT_EQ(score.Take(7), 7);
    EXPECT_EQ(score.Take(3), 3);
    EXPECT_EQ(newest, 7);
  }
}

TEST(TableScoreTest, TimeDoesNotDecreaseWhenTheClockDoes) {
  std::atomic<int64_t> newest{-1};
  int64_t now = 1000;
  TableScore score(Score::kTime, &newest, [&now] { return now; });
  EXPECT_EQ(score.Take(1), 1000);
  now = 900;
  EXPECT_EQ(score.Take(2), 1000);
  now = 1001;
  EXPECT_EQ(score.Take(3), 1001);
}

TEST(TableScoreTest, TimeIsTheWallClockInMicroseconds) {
  std::atomic<int64_t> newest{-1};
  TableScore score(Score::kTime, &newest);
  const int64_t before = WallMicros(), taken = score.Take(1);
  EXPECT_GE(taken, before);
  EXPECT_LE(taken, WallMicros());
}

TEST(TableScoreTest, AnUpdateThatMaySetVersionsReadsTheFirstScore) {
  for (int round = 0; round < 300; ++round) {
    std::atomic<int64_t> newest{-1};
    TableScore score(Score::kCustom, &newest);
    std::atomic<bool> starts{false};
    std::thread setter([&] {
      while (!starts.load()) std::this_thread::yield();
      bool decreased;
      ASSERT_TRUE(score.Set(7, &decreased).ok());
    });
    starts = true;
    while (!score.Check().ok()) std::this_thread::yield();
    EXPECT_EQ(score.Peek(0), 7);
    setter.join();
  }
}

TEST(TableScoreTest, ACustomScoreHasToBeSetAndWarnsOnceWhenItDecreases) {
  std::atomic<int64_t> newest{-1};
  TableScore score(Score::kCustom, &newest);
  EXPECT_EQ(score.Check().code(), StatusCode::kFailedPrecondition);
  bool decreased = true;
  for (const auto& [number, expected] : {std::pair<int64_t, bool>{-5, false}, {9, false}, {3, true}, {INT64_MIN, false}}) {
    ASSERT_TRUE(score.Set(number, &decreased).ok());
    EXPECT_EQ(decreased, expected);
    EXPECT_EQ(score.Take(1), number);
  }
  EXPECT_TRUE(score.Check().ok());
  EXPECT_EQ(newest, 9);
}

TEST(TableScoreTest, OnlyACustomScoreCanBeSet) {
  std::atomic<int64_t> newest{-1};
  bool decreased = false;
  EXPECT_EQ(TableScore(Score::kStep, &newest).Set(1, &decreased).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace multitier::table_score_test
