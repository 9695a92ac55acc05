#include "cc/tier/leveldb/live_locations.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "cc/row/row_layout.h"

namespace multitier {
namespace {

TEST(LiveLocationsTest, RandomInsertsAndErasesAgreeWithASet) {
  std::mt19937_64 random(7);
  LiveLocations live;
  std::set<uint32_t> model;
  for (int i = 0; i < 20000; ++i) {
    const uint32_t location = static_cast<uint32_t>(random() % 10000);
    if (random() % 2 == 0) {
      live.Insert(location);
      model.insert(location);
    } else {
      EXPECT_EQ(live.Erase(location), model.erase(location) == 1);
    }
    ASSERT_EQ(live.size(), static_cast<int64_t>(model.size()));
  }
  for (uint32_t location = 0; location < 10100; ++location) {
    ASSERT_EQ(live.Contains(location), model.count(location) == 1);
  }
}

TEST(LiveLocationsTest, NextFreeSkipsLiveOnesAndGoesOnFromZero) {
  LiveLocations live;
  for (const uint32_t location : {0u, 1u, 5u, kNoLocation - 1}) live.Insert(location);
  EXPECT_EQ(live.NextFree(3), 3u);
  EXPECT_EQ(live.NextFree(5), 6u);
  EXPECT_EQ(live.NextFree(kNoLocation - 1), 2u);
  EXPECT_EQ(live.NextFree(kNoLocation), 2u);
}

TEST(LiveLocationsTest, MemoryFollowsWhatLives) {
  LiveLocations live;
  for (uint32_t location = 0; location < 1u << 20; ++location) live.Insert(location);
  EXPECT_LT(live.resident_bytes(), (1u << 20) / 8 * 5 / 4);
  for (uint32_t location = 0; location < 1u << 20; ++location) live.Erase(location);
  EXPECT_LT(live.resident_bytes(), 10000u);
}

}  // namespace
}  // namespace multitier
