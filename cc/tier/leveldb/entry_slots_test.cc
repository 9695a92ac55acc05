#include "cc/tier/leveldb/entry_slots.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace multitier::entry_slots_test {
namespace {

TEST(EntrySlotsTest, RandomUseAgreesWithAMapAndStaysDense) {
  std::mt19937_64 random(7);
  EntrySlots slots;
  std::map<uint32_t, int64_t> model;
  for (int i = 0; i < 20000; ++i) {
    if (model.size() < 1000 && random() % 2 == 0) {
      const uint32_t location = slots.Take();
      ASSERT_FALSE(slots.IsHeld(location));
      ASSERT_EQ(model.count(location), 0u);
      if (random() % 8 == 0) {
        slots.GiveBack(location);  // the write failed
        continue;
      }
      slots.Hold(location, i, static_cast<uint32_t>(i));
      model[location] = i;
    } else if (!model.empty()) {
      const auto it = std::next(model.begin(), static_cast<long>(random() % model.size()));
      slots.GiveBack(it->first);
      model.erase(it);
    }
    ASSERT_EQ(slots.num_held(), static_cast<int64_t>(model.size()));
  }
  for (uint32_t location = 0; location < slots.end() + 10; ++location) {
    ASSERT_EQ(slots.IsHeld(location), model.count(location) == 1);
  }
  for (const auto& [location, key] : model) {
    EXPECT_EQ(slots.key(location), key);
    EXPECT_EQ(slots.generation(location), static_cast<uint32_t>(key));
  }
  EXPECT_LE(slots.end(), 1001u);
  EXPECT_LT(slots.resident_bytes(), 2048u * 13);
}

}  // namespace
}  // namespace multitier::entry_slots_test
