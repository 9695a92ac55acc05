#include "cc/policy/probation_clock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace multitier::probation_clock_test {
namespace {

const ProbationClock::Pinned kNonePinned = [](uint32_t) { return false; };

class ProbationClockTest : public testing::Test {
 protected:
  void Insert(uint32_t location, uint32_t frequency = 1, uint64_t idle = 0) {
    const RowUse row{location, frequency, idle};
    policy_.Insert(Span<const RowUse>(&row, 1));
  }
  void Touch(uint32_t location, uint32_t frequency = 1) {
    const RowUse row{location, frequency, 0};
    policy_.Touch(Span<const RowUse>(&row, 1));
  }
  void Remove(uint32_t location) { policy_.Remove(Span<const uint32_t>(&location, 1)); }
  std::vector<uint32_t> Choose(size_t n, const ProbationClock::Pinned& pinned = kNonePinned) {
    std::vector<uint32_t> victims;
    policy_.ChooseVictims(n, pinned, &victims);
    return victims;
  }

  ProbationClock policy_;
};

using Locations = std::vector<uint32_t>;

TEST_F(ProbationClockTest, LetsRowsUsedOncePassThrough) {
  for (uint32_t location = 0; location < 100; ++location) Insert(location);
  for (uint32_t location = 0; location < 40; ++location) Touch(location, 2);
  EXPECT_EQ(Choose(10), (Locations{40, 41, 42, 43, 44, 45, 46, 47, 48, 49}));
  // A scan: each new row takes the place of one of the scan, none of those in use.
  std::set<uint32_t> used_twice;
  for (uint32_t location = 0; location < 40; ++location) used_twice.insert(location);
  for (int i = 0; i < 1000; ++i) {
    const Locations victim = Choose(1);
    ASSERT_EQ(victim.size(), 1u);
    ASSERT_EQ(used_twice.count(victim[0]), 0u) << "after " << i;
    Remove(victim[0]);
    Insert(victim[0]);
  }
}

TEST_F(ProbationClockTest, KeepsRowsThatComeBackFrequent) {
  for (uint32_t location = 0; location < 100; ++location) Insert(location, location < 20 ? 3 : 2);
  for (const uint32_t victim : Choose(60)) EXPECT_GE(victim, 20u);
  // A frequency that was earned long ago counts for less.
  policy_.Clear();
  for (uint32_t location = 0; location < 100; ++location) Insert(location, location < 20 ? 3 : 1, location < 20 ? 100000 : 0);
  EXPECT_EQ(Choose(3), (Locations{0, 1, 2}));
}

TEST_F(ProbationClockTest, RandomOperationsKeepTheContract) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  std::map<uint32_t, uint32_t> frequency;  // of rows that are there
  Locations free;
  for (uint32_t location = 0; location < 300; ++location) free.push_back(location);
  for (int step = 0; step < 5000; ++step) {
    const int operation = static_cast<int>(random() % 4);
    std::vector<RowUse> rows;
    Locations removed;
    if (operation == 0) {
      std::shuffle(free.begin(), free.end(), random);
      for (size_t n = random() % 20; n > 0 && !free.empty(); --n, free.pop_back()) {
        rows.push_back(RowUse{free.back(), static_cast<uint32_t>(random() % 6), random() % 4000});
        frequency[free.back()] = rows.back().frequency;
      }
      policy_.Insert(rows);
    } else if (operation == 1) {
      for (auto& [location, f] : frequency) {
        if (random() % 8 == 0) rows.push_back(RowUse{location, f += random() % 3, 0});
      }
      policy_.Touch(rows);
    } else {
      const size_t n = random() % 30;
      const uint32_t remainder = random() % 3;
      const auto pinned = [&](uint32_t location) { return location % 3 == remainder; };
      const Locations victims = Choose(n, pinned);
      size_t unpinned = 0;
      for (const auto& [location, f] : frequency) unpinned += !pinned(location);
      ASSERT_EQ(victims.size(), std::min(n, unpinned)) << "step " << step;
      ASSERT_EQ(std::set<uint32_t>(victims.begin(), victims.end()).size(), victims.size());
      for (const uint32_t victim : victims) {
        ASSERT_EQ(frequency.count(victim), 1u);
        ASSERT_FALSE(pinned(victim));
        if (operation == 3 && random() % 4 != 0) removed.push_back(victim);  // some demotions fail
      }
    }
    if (random() % 16 == 0 && !frequency.empty()) removed.push_back(frequency.begin()->first);
    std::sort(removed.begin(), removed.end());
    removed.erase(std::unique(removed.begin(), removed.end()), removed.end());
    policy_.Remove(removed);
    for (const uint32_t location : removed) {
      frequency.erase(location);
      free.push_back(location);
    }
    ASSERT_EQ(policy_.rows(), frequency.size());
  }
  EXPECT_LT(policy_.resident_bytes(), 300u * 40);
}

// The policy as its definition reads, slowly. Locations are never used twice here.
class ProbationClockModel {
 public:
  void Insert(const RowUse& row) {
    const size_t rows = std::max<size_t>(probation_.size() + main_.size(), 1);
    uint32_t frequency = std::min(row.frequency, 15u);
    for (uint64_t idle = row.idle; idle >= 8 * rows; idle -= 8 * rows) frequency /= 2;
    if (frequency >= 3) {
      main_[row.location] = 0;
    } else {
      probation_.emplace_back(row.location, 0);
    }
  }
  void Touch(const RowUse& row) {
    for (auto& [location, count] : probation_) {
      if (location == row.location) ++count;
    }
    if (const auto it = main_.find(row.location); it != main_.end()) it->second = std::min(it->second + 1, 3);
  }
  void Remove(uint32_t location) {
    main_.erase(location);
    probation_.remove_if([&](const auto& row) { return row.first == location; });
  }
  Locations Choose(size_t n, const ProbationClock::Pinned& pinned) {
    Locations victims;
    const auto chosen = [&](uint32_t location) { return std::find(victims.begin(), victims.end(), location) != victims.end(); };
    while (victims.size() < n) {
      size_t in_probation = 0;
      for (const auto& [location, count] : probation_) in_probation += !chosen(location);
      const size_t rows = probation_.size() + main_.size() - victims.size();
      const uint32_t victim = in_probation * 2 > rows ? FromProbation(pinned, chosen) : FromMain(pinned, chosen);
      if (victim == kNone) break;
      victims.push_back(victim);
    }
    return victims;
  }

 private:
  static constexpr uint32_t kNone = 0xffffffffu;
  template <typename Chosen>
  uint32_t FromProbation(const ProbationClock::Pinned& pinned, const Chosen& chosen) {
    for (size_t left = probation_.size(); left > 0; --left) {
      const auto row = probation_.front();
      probation_.pop_front();
      if (row.second > 0) {
        main_[row.first] = 0;
        continue;
      }
      probation_.push_back(row);
      if (!chosen(row.first) && !pinned(row.first)) return row.first;
    }
    return FromMain(pinned, chosen);
  }
  template <typename Chosen>
  uint32_t FromMain(const ProbationClock::Pinned& pinned, const Chosen& chosen) {
    for (size_t left = 4 * main_.size() + 4; left > 0 && !main_.empty(); --left) {
      auto it = main_.lower_bound(hand_);
      if (it == main_.end()) it = main_.begin();
      hand_ = it->first + 1;
      if (chosen(it->first)) continue;
      if (it->second > 0) {
        --it->second;
      } else if (!pinned(it->first)) {
        return it->first;
      }
    }
    return kNone;
  }

  std::list<std::pair<uint32_t, int>> probation_;
  std::map<uint32_t, int> main_;  // location -> count
  uint32_t hand_ = 0;
};

// A cache of 200 rows under batches of 16: both name the same victims each time.
TEST_F(ProbationClockTest, TraceGivesTheVictimsOfTheModel) {
  ProbationClockModel model;
  std::mt19937_64 random(3);
  std::map<int, uint32_t> location_of, frequency;
  std::map<uint32_t, int> key_at;
  std::map<int, uint64_t> last_use;
  uint64_t uses = 0;
  uint32_t next_location = 0;
  for (int step = 0; step < 1500; ++step) {
    std::set<int> keys;
    for (int i = 0; i < 16; ++i) {
      const double u = static_cast<double>(random() % 100000 + 1) / 100001.0;
      keys.insert(static_cast<int>(1000.0 * u * u * u));
    }
    std::vector<RowUse> inserted, touched;
    for (const int key : keys) {
      const RowUse row{0, ++frequency[key], uses - last_use[key]};
      last_use[key] = ++uses;
      const auto at = location_of.find(key);
      if (at == location_of.end()) {
        inserted.push_back(RowUse{next_location, row.frequency, row.idle});
        key_at[next_location] = key;
        location_of[key] = next_location++;
      } else {
        touched.push_back(RowUse{at->second, row.frequency, 0});
      }
    }
    policy_.Insert(inserted);
    policy_.Touch(touched);
    for (const RowUse& row : inserted) model.Insert(row);
    for (const RowUse& row : touched) model.Touch(row);
    const size_t excess = location_of.size() > 200 ? location_of.size() - 200 : 0;
    const auto pinned = [&](uint32_t location) { return location % 7 == static_cast<uint32_t>(step) % 7; };
    const Locations victims = Choose(excess, pinned);
    ASSERT_EQ(victims, model.Choose(excess, pinned)) << "step " << step;
    ASSERT_EQ(victims.size(), excess);
    policy_.Remove(victims);
    for (const uint32_t victim : victims) {
      model.Remove(victim);
      location_of.erase(key_at[victim]);
    }
  }
}

}  // namespace
}  // namespace multitier::probation_clock_test
