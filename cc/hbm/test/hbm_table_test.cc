// A table in HBM against a plain one, and against the rules of its own: which rows leave, what is counted, what a failure
// changes.

#include "cc/hbm/hbm_table.h"

#include <algorithm>
#include <list>
#include <map>
#include <thread>

#include "cc/hbm/test/hbm_test_util.h"
#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier::hbm::hbm_table_test {
namespace {

TEST(HbmTable, EveryRuleGivesTheBitsOfAPlainTableOverFourRowsOfHbm) {
  uint64_t seed = 1;
  for (const UpdateRule* rule : RulesWithKernels()) {
    std::mt19937_64 random(++seed);
    const int dim = std::vector<int>{1, 3, 8, 17}[seed % 4];
    const Pair pair(dim, 16, seed, /*dram_rows=*/16, /*values=*/seed);
    HbmTable* const table = pair.table.get();
    EmbeddingTable* const plain = pair.plain.get();
    for (int step = 0; step < (kSanitized ? 2 : 8); ++step) {
      const Training training = SomeTraining(rule, SomeKeys(14, &random), dim, &random);
      MT_ASSERT_OK(training.Run(plain));
      MT_ASSERT_OK(Train(training, table));
      const std::vector<int64_t> keys = SomeKeys(14, &random);
      ASSERT_TRUE(SameBits(LookupAll(plain, keys), LookupAll(table, keys))) << rule->name() << " step " << step;
    }
    ExpectSameTables(plain, table);
  }
}

TEST(HbmTable, ABatchLargerThanHbmAndDramWorks) {
  auto table = MakeHbmTable(TieredOptions(3, 8, std::make_shared<MemoryTier>()), 1, NewEmulatedDevice());
  auto plain = MakeTable(BasicOptions(3));
  std::mt19937_64 random(3);
  for (int step = 0; step < 2; ++step) {
    std::vector<int64_t> keys = Range(0, 300);
    keys.insert(keys.end(), {5, 5, 7, 299});
    const Training training = SomeTraining(*FindUpdateRule("sgd"), keys, 3, &random);
    MT_ASSERT_OK(training.Run(plain.get()));
    MT_ASSERT_OK(Train(training, table.get()));
  }
  ExpectSameTables(plain.get(), table.get());
  EXPECT_EQ(table->Stats().tiers[0].name, "hbm");
  EXPECT_EQ(table->Stats().tiers[0].rows, 1);
}

TEST(HbmTable, ALookupCreatesNothingAndBringsRowsUp) {
  auto table = MakeHbmTable(TieredOptions(4, 8, std::make_shared<MemoryTier>()), 4, NewEmulatedDevice());
  MT_ASSERT_OK(Train(Sgd({1, 2}, 1.0f, 4), table.get()));
  LookupAll(table.get(), {1, 77, 78});
  EXPECT_EQ(table->TotalCount(), 2);
  EXPECT_EQ(TierOf(table.get(), {1, 2, 77}), (std::vector<int32_t>{0, 0, -1}));
  std::vector<float> out(4);
  MT_ASSERT_OK(table->Peek(std::vector<int64_t>{2}, out.data()));
  EXPECT_TRUE(SameBits(out, LookupAll(table.get(), {2})));
}

// Keys in HBM, most recent first. The one of the lowest rank leaves, of equals the oldest.
struct CacheModel {
  size_t capacity;
  std::map<int64_t, int64_t> ranks;  // of all keys; none: 0
  std::list<int64_t> keys;
  int64_t evicted = 0, hits = 0, inserted = 0;

  void Use(int64_t key) {
    if (const auto at = std::find(keys.begin(), keys.end(), key); at != keys.end()) {
      ++hits;
      keys.splice(keys.begin(), keys, at);
      return;
    }
    if (keys.size() == capacity) {
      const auto leaves =
          std::min_element(keys.rbegin(), keys.rend(), [this](int64_t a, int64_t b) { return ranks[a] < ranks[b]; });
      keys.erase(std::next(leaves).base());
      ++evicted;
    }
    ++inserted;
    keys.push_front(key);
  }
};

// Which rows leave HBM. Where `by_rank`, some of the uses are updates.
struct CacheCase {
  const char* name;
  Replacement strategy;
  Score score;
  bool by_rank() const { return strategy != Replacement::kLru; }
  bool counts() const { return strategy == Replacement::kLfu || score == Score::kFrequency; }
};

class HbmCache : public testing::TestWithParam<CacheCase> {};

TEST_P(HbmCache, WithOneBucketTheRowsAreThoseOfAList) {
  TableOptions options = TieredOptions(4, 100, std::make_shared<MemoryTier>());
  options.cache_strategy = GetParam().strategy;
  options.score = GetParam().score;
  HbmOptions hbm;
  hbm.device = NewEmulatedDevice(2);
  hbm.budget = Budget::Rows(10);
  auto table = *HbmTable::Create(hbm, MakeTableBelow(options));
  auto trained = MakeTable(BasicOptions(4));
  bool decreased = false;
  if (options.score == Score::kCustom) MT_ASSERT_OK(table->SetScore(0, &decreased));
  MT_ASSERT_OK(Sgd(Range(0, 60), 1.0f, 4).Run(trained.get()));
  Rows rows = *trained->Export(true);
  std::fill(rows.versions.begin(), rows.versions.end(), 0);
  MT_ASSERT_OK(table->Import(rows, nullptr));  // none is in HBM
  CacheModel model{10, {}, {}};
  const TableStats before = table->Stats();
  std::mt19937_64 random(9);
  for (int i = 0; i < (kSanitized ? 60 : 300); ++i) {
    const auto key = static_cast<int64_t>(std::min(random() % 60, random() % 60));
    LookupAll(table.get(), {key});
    model.Use(key);
    if (i == 20) MT_ASSERT_OK(table->AddSlots(SlotColumns(**FindUpdateRule("adagrad"), 4)));  // the rows stay what they are
    if (!GetParam().by_rank() || random() % 2 == 0) continue;
    const int64_t score = static_cast<int64_t>(random() % 20) - 10;
    if (options.score == Score::kCustom) MT_ASSERT_OK(table->SetScore(score, &decreased));
    Training training = Sgd({key}, 1.0f, 4);
    training.step = 100 + i;
    MT_ASSERT_OK(Train(training, table.get()));
    model.Use(key);
    int64_t& rank = model.ranks[key];
    if (options.score == Score::kCustom) {
      rank = score;
    } else {
      rank = GetParam().counts() ? rank + 1 : training.step;
    }
  }
  const TableStats after = table->Stats();
  EXPECT_EQ(after.tiers[0].hits - before.tiers[0].hits, model.hits);
  EXPECT_EQ(after.tiers[0].misses - before.tiers[0].misses, model.inserted);
  EXPECT_EQ(after.tiers[1].promotions - before.tiers[1].promotions, model.inserted);
  EXPECT_EQ(after.tiers[0].rows, 10);
  EXPECT_EQ(before.tiers[0].rows + model.inserted - model.evicted, after.tiers[0].rows);
  if (!GetParam().by_rank()) {  // rows that no update changed leave without a copy
    EXPECT_EQ(after.tiers[1].demotions, before.tiers[1].demotions);
  }
  std::set<int64_t> in_hbm;
  const std::vector<int32_t> tiers = TierOf(table.get(), Range(0, 60));
  for (int64_t key = 0; key < 60; ++key) {
    if (tiers[static_cast<size_t>(key)] == 0) in_hbm.insert(key);
  }
  EXPECT_EQ(in_hbm, std::set<int64_t>(model.keys.begin(), model.keys.end()));
}

INSTANTIATE_TEST_SUITE_P(All, HbmCache,
                         testing::Values(CacheCase{"Lru", Replacement::kLru, Score::kStep},
                                         CacheCase{"Lfu", Replacement::kLfu, Score::kStep},
                                         CacheCase{"Step", Replacement::kScore, Score::kStep},
                                         CacheCase{"Custom", Replacement::kScore, Score::kCustom},
                                         CacheCase{"Frequency", Replacement::kScore, Score::kFrequency}),
                         [](const auto& info) { return info.param.name; });

TEST(HbmTable, EverySeedOfTheDeviceGivesTheSameBitsAndTheSameVictims) {
  std::vector<int32_t> tiers[3];
  std::vector<float> values[3];
  for (size_t i = 0; i < 3; ++i) {
    std::mt19937_64 random(5);
    auto table = MakeHbmTable(TieredOptions(5, 50, std::make_shared<MemoryTier>()), 130, NewEmulatedDevice(100 + i));
    for (int step = 0; step < 5; ++step) {
      std::vector<int64_t> keys(90);
      for (int64_t& key : keys) key = static_cast<int64_t>(random() % 400);
      MT_ASSERT_OK(Train(SomeTraining(*FindUpdateRule("sgd"), keys, 5, &random), table.get()));
    }
    tiers[i] = TierOf(table.get(), Range(0, 400));
    values[i] = LookupAll(table.get(), Range(0, 400));
  }
  for (const size_t i : {1u, 2u}) {
    EXPECT_EQ(tiers[i], tiers[0]);
    EXPECT_TRUE(SameBits(values[i], values[0]));
  }
}

TEST(HbmTable, NumbersOfOperationsWrap) {
  for (const uint64_t first : {(uint64_t{1} << 29) - 4, (uint64_t{1} << 32) - 6, (uint64_t{1} << 31) - 5}) {
    std::mt19937_64 random(2);
    auto table = MakeHbmTable(TieredOptions(4, 8, std::make_shared<MemoryTier>()), 6, NewEmulatedDevice(), first);
    auto plain = MakeTable(BasicOptions(4));
    for (int step = 0; step < 12; ++step) {
      const Training training = SomeTraining(*FindUpdateRule("sgd"), SomeKeys(14, &random), 4, &random);
      MT_ASSERT_OK(training.Run(plain.get()));
      MT_ASSERT_OK(Train(training, table.get()));
    }
    ExpectSameTables(plain.get(), table.get());
  }
}

TEST(HbmTable, ARuleWithoutAKernelIsRefusedBeforeAnythingChanges) {
  auto table = MakeHbmTable(TieredOptions(4, 8, std::make_shared<MemoryTier>()), 4, NewEmulatedDevice());
  std::mt19937_64 random(1);
  const Status status = Train(SomeTraining(*FindUpdateRule("adadelta"), {1, 2}, 4, &random), table.get());
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("table 't'"), std::string::npos) << status.message();
  EXPECT_EQ(table->TotalCount(), 0);
}

TEST(HbmTable, RowsThatTheTableBelowRefusesArePendingAndCountAsThere) {
  auto lower = std::make_shared<MemoryTier>();
  auto table = MakeHbmTable(TieredOptions(4, 6, lower), 4, NewEmulatedDevice());
  auto plain = MakeTable(BasicOptions(4));
  lower->FailWrite(1, ResourceExhaustedError("disk full"), 1000);
  for (const auto& keys : {Range(0, 4), Range(4, 8), Range(8, 12), Range(12, 16)}) {
    MT_ASSERT_OK(Sgd(keys, 1.0f, 4).Run(plain.get()));
    MT_ASSERT_OK(Train(Sgd(keys, 1.0f, 4), table.get()));  // the third eviction finds no room
  }
  EXPECT_EQ(Train(Sgd({20}, 1.0f, 4), table.get()).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(table->Drain().code(), StatusCode::kResourceExhausted);
  MT_ASSERT_OK(Sgd({12, 13}, 1.0f, 4).Run(plain.get()));
  MT_ASSERT_OK(Train(Sgd({12, 13}, 1.0f, 4), table.get()));  // in HBM
  EXPECT_TRUE(SameBits(LookupAll(table.get(), Range(0, 18)), LookupAll(plain.get(), Range(0, 18))));
  EXPECT_EQ(table->TotalCount(), 16);
  int64_t removed = 0;
  MT_ASSERT_OK(table->Remove(Range(4, 10), &removed));  // some of them are pending
  EXPECT_EQ(removed, 6);
  MT_ASSERT_OK(plain->Remove(Range(4, 10), nullptr));
  lower->FailWrite(1, OkStatus(), 0);
  MT_ASSERT_OK(table->Drain());
  ExpectSameTables(plain.get(), table.get());
}

TEST(HbmTable, AFailedReadBelowChangesNothing) {
  auto lower = std::make_shared<MemoryTier>();
  auto table = MakeHbmTable(TieredOptions(4, 2, lower), 2, NewEmulatedDevice());
  auto plain = MakeTable(BasicOptions(4));
  MT_ASSERT_OK(Sgd(Range(0, 9), 1.0f, 4).Run(plain.get()));
  MT_ASSERT_OK(Train(Sgd(Range(0, 9), 1.0f, 4), table.get()));
  lower->FailRead(1, UnavailableError("cable"), 1);
  EXPECT_EQ(Train(Sgd(Range(0, 12), 1.0f, 4), table.get()).code(), StatusCode::kUnavailable);
  ExpectSameTables(plain.get(), table.get());
}

// One sequence of every operation. Errors of the device end an operation, and nothing else.
void RunSequence(HbmTable* table, EmbeddingTable* plain, int64_t fails_at, device::EmulatedDevice* device, bool* failed) {
  std::mt19937_64 random(4);
  const auto expect = [&](const Status& status) {
    if (!status.ok()) {
      EXPECT_NE(status.message().find("emulated device"), std::string::npos) << status.ToString();
      *failed = true;
    }
    return status.ok();
  };
  device->FailCall(fails_at);
  for (int step = 0; step < 2; ++step) {
    const Training training = SomeTraining(*FindUpdateRule("adagrad"), {1, 2, 3, 2, 4 + step, 9 + step}, 3, &random);
    if (expect(Train(training, table))) MT_ASSERT_OK(training.Run(plain));
    expect(table->Prefetch(std::vector<int64_t>{1, 9}, 1000000, nullptr));
    std::vector<float> out(9);
    const std::vector<int64_t> keys = {1, 8, 4 + step};
    if (expect(table->Lookup(keys, out.data()))) {
      EXPECT_TRUE(SameBits(out, LookupAll(plain, keys)));
    }
  }
  std::vector<int64_t> facts(2);
  expect(table->Version(std::vector<int64_t>{1, 2}, facts.data()));
  if (expect(table->Remove(std::vector<int64_t>{2, 77}, nullptr)))
    MT_ASSERT_OK(plain->Remove(std::vector<int64_t>{2}, nullptr));
  expect(table->Export(true).status());
  device->FailCall(-1);
}

TEST(HbmTable, WhicheverDeviceCallFailsNoRowIsLost) {
  int64_t calls = 1;
  int failures = 0;
  const int64_t stride = Stride(8, 9);
  for (int64_t fails_at = -1; fails_at < calls; fails_at += stride) {  // first none
    auto device = NewEmulatedDevice();
    auto table = MakeHbmTable(TieredOptions(3, 2, std::make_shared<MemoryTier>()), 8, device);
    auto plain = MakeTable(BasicOptions(3));
    const int64_t before = device->calls();
    bool failed = false;
    RunSequence(table.get(), plain.get(), fails_at, device.get(), &failed);
    calls = std::max(calls, device->calls() - before);
    failures += failed;
    MT_ASSERT_OK(plain->AddSlots(SlotColumns(**FindUpdateRule("adagrad"), 3)));
    MT_ASSERT_OK(table->AddSlots(SlotColumns(**FindUpdateRule("adagrad"), 3)));
    ExpectSameTables(plain.get(), table.get());
    if (testing::Test::HasFailure()) FAIL() << "call " << fails_at;
  }
  EXPECT_GT(failures * stride, 45);
}

TEST(HbmTable, OutOfHbmSaysWhatWasAskedForAndWhatWasFree) {
  device::EmulatedDevice::Options small;
  small.memory_bytes = 16 << 10;
  auto device = std::make_shared<device::EmulatedDevice>(small, &device::EmulatedKernels());
  auto below = MakeTableBelow(TieredOptions(4, 8, std::make_shared<MemoryTier>()));
  auto refused = HbmTable::Create({device, Budget::Bytes(1 << 20), 0}, std::move(below));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("bytes are free"), std::string::npos) << refused.status().message();
  below = MakeTableBelow(TieredOptions(4, 8, std::make_shared<MemoryTier>()));
  auto tiny = HbmTable::Create({device, Budget::Bytes(15), 0}, std::move(below));
  EXPECT_EQ(tiny.status().code(), StatusCode::kInvalidArgument) << tiny.status().ToString();
  EXPECT_EQ(device->used_bytes(), 0u);
}

// Element d of a row starts at 0, and each update adds 1 + d to it. So element d is (1 + d) times the first, and
// the first says how many updates the row has seen. A row with elements of two updates breaks this.
TEST(HbmTable, ThreadsThatTrainLookUpPrefetchAndSaveSeeWholeRows) {
  constexpr int kDim = 8, kSteps = kSanitized ? 6 : 60, kSaves = kSanitized ? 3 : 10;
  constexpr int64_t kKeys = 40;
  TableOptions options = TieredOptions(kDim, 10, std::make_shared<MemoryTier>());
  options.initializer = InitializerSpec();
  auto table = MakeHbmTable(options, 20, NewEmulatedDevice());
  Training training = Sgd(Range(0, kKeys), 0.0f, kDim);
  for (size_t i = 0; i < training.grads.size(); ++i) training.grads[i] = -static_cast<float>(1 + i % kDim);
  MT_ASSERT_OK(Train(training, table.get()));
  // The updates that a row has seen, by each of its elements.
  const auto updates_of = [](const float* row, int64_t key, const char* where) {
    for (int d = 1; d < kDim; ++d) {
      EXPECT_EQ(row[d], row[0] * static_cast<float>(1 + d)) << where << ": key " << key << ", a torn row";
    }
    EXPECT_EQ(row[0], static_cast<float>(static_cast<int>(row[0]))) << where << ": key " << key;
    return static_cast<int>(row[0]);
  };
  std::atomic<int> running{2};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kSteps; ++i) MT_EXPECT_OK(Train(training, table.get()));
      --running;
    });
  }
  threads.emplace_back([&] {
    std::vector<int> seen(kKeys, 1);
    for (int64_t i = 0; i < kSteps || running > 0; ++i) {
      const std::vector<int64_t> keys = {i % kKeys, kKeys - 1 - i % kKeys, 20};
      const std::vector<float> now = LookupAll(table.get(), keys);
      for (size_t k = 0; k < keys.size(); ++k) {
        int& before = seen[static_cast<size_t>(keys[k])];
        const int updates = updates_of(&now[k * kDim], keys[k], "lookup");
        EXPECT_GE(updates, before) << "an old row of key " << keys[k];
        EXPECT_LE(updates, 1 + 2 * kSteps);
        before = updates;
      }
    }
  });
  threads.emplace_back([&] {
    std::vector<int> saved(kKeys, 1);
    for (int i = 0; i < kSaves; ++i) {
      const auto rows = table->Export(true);
      EXPECT_TRUE(rows.ok()) << rows.status().ToString();
      if (!rows.ok()) return;
      EXPECT_EQ(rows->keys.size(), static_cast<size_t>(kKeys));
      EXPECT_EQ(rows->row_elements(), kDim);
      std::set<int> moments;  // of the rows of one save: every update changes all rows
      for (size_t r = 0; r < rows->keys.size(); ++r) {
        const int updates = updates_of(&rows->data[r * kDim], rows->keys[r], "save");
        moments.insert(updates);
        EXPECT_EQ(rows->frequencies[r], updates) << "save: key " << rows->keys[r];
        int& before = saved[static_cast<size_t>(rows->keys[r])];
        EXPECT_GE(updates, before) << "save: an old row of key " << rows->keys[r];
        before = updates;
      }
      EXPECT_EQ(moments.size(), 1u) << "a save between the rows of an update";
    }
  });
  threads.emplace_back([&] {
    for (int64_t i = 0; i < kSteps; ++i) {
      MT_EXPECT_OK(table->Prefetch(Range(i % kKeys, std::min(i % kKeys + 20, kKeys)), 1000000, nullptr));
    }
  });
  for (std::thread& thread : threads) thread.join();
  std::vector<int64_t> frequencies(kKeys);
  MT_ASSERT_OK(table->Frequency(Range(0, kKeys), frequencies.data()));
  EXPECT_EQ(frequencies, std::vector<int64_t>(kKeys, 1 + 2 * kSteps));
}

}  // namespace
}  // namespace multitier::hbm::hbm_table_test
