// HBM over tiers that drop their coldest rows, next to the same tiers without HBM.

#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>
#include <thread>

#include "cc/hbm/hbm_above.h"
#include "cc/hbm/test/device_caller.h"
#include "cc/hbm/test/hbm_test_util.h"
#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier::hbm::full_table_test {
namespace {

constexpr int kDim = 4;
constexpr int kKeys = 20;

using Sizes = std::vector<uint64_t>;  // rows of DRAM and the tiers below

// A table that drops the rows of the lowest score.
TableOptions Dropping(const Sizes& sizes, bool refuses, Score score = Score::kCustom) {
  TableOptions options = BasicOptions(kDim);
  options.dram_budget_rows = sizes[0];
  for (size_t i = 1; i < sizes.size(); ++i) {
    LowerTierOptions lower;
    lower.tier = std::make_shared<MemoryTier>();
    lower.budget_rows = sizes[i];
    options.lower_tiers.push_back(lower);
  }
  options.cache_strategy = Replacement::kScore;
  options.score = score;
  options.drop_coldest = true;
  options.refuse_colder = refuses;
  return options;
}

// grows: every row may be in HBM, as in type HBM.
std::unique_ptr<EmbeddingTable> WithHbm(TableOptions options, std::shared_ptr<device::Device> device, uint64_t rows,
                                        bool grows) {
  options.above = HbmOver(std::move(device), grows ? 2 : 0);
  options.hbm_budget_rows = rows;
  return MakeTable(std::move(options));
}

void SetScore(EmbeddingTable* table, int64_t score) {
  bool decreased = false;
  MT_EXPECT_OK(table->SetScore(score, &decreased));
}

struct FullCase {
  Sizes sizes;
  uint64_t hbm_rows;
  bool grows;
  bool filters = false;
};

TEST(FullTable, DropsAndRefusesTheRowsThatItWouldWithoutHbm) {
  for (const FullCase& its : {FullCase{{6}, 6, true}, FullCase{{6}, 3, false}, FullCase{{2, 5}, 3, false},
                              FullCase{{2, 3, 4}, 4, false}, FullCase{{6}, 6, true, true}}) {
    for (const bool refuses : {false, true}) {
      TableOptions options[2] = {Dropping(its.sizes, refuses), Dropping(its.sizes, refuses)};
      for (TableOptions& one : options) {
        if (its.filters) one.filter.kind = AdmissionKind::kCounter;
        if (its.filters) one.filter.filter_freq = 2;
      }
      auto plain = MakeTable(options[0]);
      auto table = WithHbm(options[1], NewEmulatedDevice(), its.hbm_rows, its.grows);
      std::mt19937_64 random(its.hbm_rows);
      std::vector<int64_t> scores(kSanitized ? 30 : 150);
      std::iota(scores.begin(), scores.end(), 1);
      std::shuffle(scores.begin(), scores.end(), random);
      int64_t dropped = 0, refused = 0;
      for (const int64_t score : scores) {
        const auto key = static_cast<int64_t>(random() % kKeys);
        for (EmbeddingTable* each : {plain.get(), table.get()}) {
          SetScore(each, score);
          MT_ASSERT_OK(Sgd({key}, 1.0f, kDim).Run(each));
          MT_ASSERT_OK(each->Drain());
        }
        ASSERT_EQ(table->LastUpdate().refused, plain->LastUpdate().refused);
        ASSERT_EQ(table->LastUpdate().dropped, plain->LastUpdate().dropped);
        refused += plain->LastUpdate().refused;
        const std::vector<int64_t> gone = plain->PopDropped();
        ASSERT_EQ(table->PopDropped(), gone);
        dropped += static_cast<int64_t>(gone.size());
        for (const int64_t one : gone) ASSERT_EQ(TierOf(table.get(), {one})[0], -1);
        const auto read = static_cast<int64_t>(random() % kKeys);
        ASSERT_TRUE(SameBits(LookupAll(plain.get(), {read}), LookupAll(table.get(), {read})));
      }
      EXPECT_GT(dropped, its.filters ? 0 : 3);
      EXPECT_TRUE((refused > 0) == refuses || its.filters);
      multitier::ExpectSameTables(plain.get(), table.get());
    }
  }
}

// Of several keys of one update, some are in HBM, some below, and some new.
TEST(FullTable, AnUpdateTrainsEveryKeyOnceAndKeepsTheWarmest) {
  for (const bool grows : {false, true}) {
    auto table = WithHbm(Dropping({16}, false, Score::kStep), NewEmulatedDevice(), grows ? 16 : 5, grows);
    std::mt19937_64 random(4);
    std::map<int64_t, int64_t> versions, counts;  // of rows that may be there
    for (int64_t step = 1; step <= (kSanitized ? 8 : 40); ++step) {
      std::vector<int64_t> keys(1 + random() % 7);
      for (int64_t& key : keys) key = static_cast<int64_t>(random() % 40);
      Training training = Sgd(keys, 1.0f, kDim);
      training.step = step;
      MT_ASSERT_OK(training.Run(table.get()));
      for (const int64_t key : keys) {
        versions[key] = step;
        ++counts[key];
      }
      int64_t warmest_gone = 0;
      for (const int64_t key : table->PopDropped()) {
        warmest_gone = std::max(warmest_gone, versions[key]);
        versions.erase(key);
        counts.erase(key);
      }
      ASSERT_EQ(table->TotalCount(), static_cast<int64_t>(versions.size()));
      ASSERT_LE(versions.size(), 16u);
      for (const auto& [key, version] : versions) {
        ASSERT_GE(version, warmest_gone);
        const std::vector<int64_t> one = {key};
        int64_t found = 0;
        MT_ASSERT_OK(table->Version(one, &found));
        ASSERT_EQ(found, version) << "key " << key << " step " << step;
        MT_ASSERT_OK(table->Frequency(one, &found));
        ASSERT_EQ(found, counts[key]) << "key " << key << " step " << step;
      }
    }
  }
}

// A row that comes up takes a place of DRAM below. Where another shard is over its share, that costs its coldest row.
TEST(FullTable, RowsThatLookupsDropAreGoneFromHbmAndThoseThatHadChangedAreBack) {
  int64_t dropped_by_others = 0;
  for (const uint64_t seed : {9, 14, 29}) {  // with 29, rows that were dropped came back before they were popped
    const bool grows = seed % 2 == 0;
    TableOptions options = Dropping({8, 8}, false, Score::kStep);
    options.num_shards = 4;
    auto table = WithHbm(options, NewEmulatedDevice(), grows ? 64 : 10, grows);
    std::mt19937_64 random(seed);
    std::map<int64_t, int64_t> counts;  // updates of the rows that are there
    for (int64_t step = 1; step <= 200; ++step) {
      std::set<int64_t> keys;
      for (uint64_t i = 0; i <= random() % 3; ++i) keys.insert(static_cast<int64_t>(random() % 40));
      const uint64_t what = random() % 6;
      if (what < 1) {
        Training training = Sgd({keys.begin(), keys.end()}, 1.0f, kDim);
        training.step = step;
        MT_ASSERT_OK(training.Run(table.get()));
        for (const int64_t key : keys) ++counts[key];
      } else if (what == 1) {
        const int64_t key = *keys.begin();
        MT_ASSERT_OK(table->Remove(std::vector<int64_t>{key}, nullptr));
        counts.erase(key);
      } else if (what == 2) {
        MT_ASSERT_OK(step % 2 == 0 ? table->Drain() : table->Export(false).status());
      } else {
        LookupAll(table.get(), {keys.begin(), keys.end()});
      }
      for (const int64_t key : table->PopDropped()) {
        dropped_by_others += what >= 1;
        ASSERT_EQ(TierOf(table.get(), {key})[0], -1) << "key " << key << ", step " << step;
        counts.erase(key);
      }
      ASSERT_EQ(table->TotalCount(), static_cast<int64_t>(counts.size())) << "step " << step;
      std::vector<int64_t> there, expected;
      for (const auto& [key, count] : counts) {
        there.push_back(key);
        expected.push_back(count);
      }
      std::vector<int64_t> found(there.size());
      MT_ASSERT_OK(table->Frequency(there, found.data()));
      ASSERT_EQ(found, expected) << "step " << step;
      if (seed % 3 != 0) MT_ASSERT_OK(table->Export(false).status());  // nothing has changed then
    }
    EXPECT_EQ(table->Export(true)->keys.size(), counts.size());
  }
  EXPECT_GT(dropped_by_others, 0);
}

// The lookup's plan is of rows that another update drops.
TEST(FullTable, APlanWhoseRowsAreDroppedMakesThemAgain) {
  auto device = NewEmulatedDevice();
  auto made = WithHbm(Dropping({4}, false), device, 4, true);
  auto* const table = HbmTableOf(made.get());
  DeviceCaller caller(device);
  SetScore(table, 1);
  MT_ASSERT_OK(Train(Sgd({1, 2, 3, 4}, 1.0f, kDim), table));
  caller.LookupAll(table, {1, 2, 3, 4});  // they come into HBM
  DevicePlan plan;
  caller.LookupAll(table, {1, 2}, &plan);
  SetScore(table, 2);
  MT_ASSERT_OK(Train(Sgd({3, 4, 5, 6}, 1.0f, kDim), table));
  EXPECT_EQ(table->PopDropped().size(), 2u);
  SetScore(table, 3);
  MT_ASSERT_OK(caller.Update(plan, {caller.UpdateOf(Sgd({1, 2}, 1.0f, kDim), 0)}));
  EXPECT_EQ(table->TotalCount(), 4);
  std::vector<int64_t> versions(2);
  MT_ASSERT_OK(table->Version(std::vector<int64_t>{1, 2}, versions.data()));
  EXPECT_EQ(versions, (std::vector<int64_t>{3, 3}));
  auto plain = MakeTable(Dropping({4}, false));
  SetScore(plain.get(), 3);
  MT_ASSERT_OK(Sgd({1, 2}, 1.0f, kDim).Run(plain.get()));
  EXPECT_TRUE(SameBits(caller.LookupAll(table, {1, 2}), LookupAll(plain.get(), {1, 2})));
}

TEST(FullTable, RowsThatASmallerBudgetDropsLeaveHbm) {
  for (const Sizes& sizes : {Sizes{8}, Sizes{4, 4}}) {
    auto table = WithHbm(Dropping(sizes, false, Score::kStep), NewEmulatedDevice(), 8, true);
    for (int64_t key = 0; key < 8; ++key) MT_ASSERT_OK(Sgd({key}, 1.0f, kDim).Run(table.get()));
    LookupAll(table.get(), Range(0, 8));  // they come into HBM
    MT_ASSERT_OK(table->SetDramBudget(Budget::Rows(1)));
    const std::vector<int64_t> dropped = table->PopDropped();
    EXPECT_EQ(dropped.size(), sizes.size() == 1 ? 7u : 3u);
    for (const int64_t key : dropped) EXPECT_EQ(TierOf(table.get(), {key})[0], -1);
    EXPECT_EQ(table->TotalCount(), static_cast<int64_t>(8 - dropped.size()));
    EXPECT_EQ(table->Export(true)->keys.size(), 8 - dropped.size());
  }
}

TEST(FullTable, ThreadsThatTrainTogetherKeepItsSize) {
  auto table = WithHbm(Dropping({12}, false, Score::kStep), NewEmulatedDevice(), 12, true);
  std::atomic<int64_t> dropped{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      for (int step = 0; step < (kSanitized ? 5 : 20); ++step) {
        std::vector<int64_t> keys(3);
        for (int64_t& key : keys) key = static_cast<int64_t>(random() % 30);
        LookupAll(table.get(), keys);
        MT_EXPECT_OK(Sgd(keys, 1.0f, kDim).Run(table.get()));
        dropped += static_cast<int64_t>(table->PopDropped().size());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Rows rows = *table->Export(true);
  EXPECT_EQ(rows.keys.size(), 12u);
  EXPECT_EQ(table->TotalCount(), 12);
  EXPECT_EQ(table->Stats().dropped, dropped);
  EXPECT_GT(dropped, 3);
}

}  // namespace
}  // namespace multitier::hbm::full_table_test
