// A table in HBM against a plain one, and against the rules of its own: which rows leave, what is counted, what a failure
// changes.

#include "cc/hbm/hbm_table.h"

#include <list>
#include <map>
#include <optional>
#include <thread>

#include "cc/hbm/hbm_test_util.h"
#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier::hbm {
namespace {

TEST(HbmTable, EveryRuleGivesTheBitsOfAPlainTableOverFourRowsOfHbm) {
  uint64_t seed = 1;
  for (const UpdateRule* rule : RulesWithKernels()) {
    std::mt19937_64 random(++seed);
    const int dim = std::vector<int>{1, 3, 8, 17}[seed % 4];
    const Pair pair(dim, 16, seed, /*dram_rows=*/16);
    HbmTable* const table = pair.table.get();
    EmbeddingTable* const plain = pair.plain.get();
    for (int step = 0; step < (kSanitized ? 2 : 8); ++step) {
      const Training training = SomeTraining(rule, SomeKeys(14, &random), dim, &random);
      MT_ASSERT_OK(training.Run(plain));
      MT_ASSERT_OK(Train(training, table));
      const std::vector<int64_t> keys = SomeKeys(14, &random);
      ASSERT_TRUE(SameBits(multitier::LookupAll(plain, keys), LookupAll(table, keys))) << rule->name() << " step " << step;
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

// Keys in HBM, hottest first, as an exact LRU keeps them; where LFU, the least used leaves, of equals the oldest.
struct CacheModel {
  size_t capacity;
  bool lfu;
  struct Entry {
    int64_t key;
    int uses;
  };
  std::list<Entry> entries;  // most recent first
  int64_t evicted = 0, hits = 0, inserted = 0;

  void Use(int64_t key) {
    for (auto at = entries.begin(); at != entries.end(); ++at) {
      if (at->key != key) continue;
      ++hits;
      ++at->uses;
      entries.splice(entries.begin(), entries, at);
      return;
    }
    if (entries.size() == capacity) {
      auto leaves = std::prev(entries.end());
      for (auto at = leaves; lfu && at != entries.begin();) {  // from the oldest on
        --at;
        if (at->uses < leaves->uses) leaves = at;
      }
      entries.erase(leaves);
      ++evicted;
    }
    ++inserted;
    entries.push_front({key, 1});
  }
};

TEST(HbmTable, WithOneBucketLruEqualsAListAndLfuACounter) {
  for (const bool lfu : {false, true}) {
    TableOptions options = TieredOptions(4, 100, std::make_shared<MemoryTier>());
    options.cache_strategy = lfu ? Replacement::kLfu : Replacement::kLru;
    auto table = MakeHbmTable(options, 20, NewEmulatedDevice(lfu));
    MT_ASSERT_OK(Train(Sgd(Range(0, 60), 1.0f, 4), table.get()));
    MT_ASSERT_OK(table->AddSlots(SlotColumns(**FindUpdateRule("adagrad"), 4)));  // HBM is empty now
    CacheModel model{10, lfu, {}};
    const int64_t hits = table->Stats().tiers[0].hits;
    std::mt19937_64 random(9);
    for (int i = 0; i < (kSanitized ? 60 : 300); ++i) {
      const auto key = static_cast<int64_t>(std::min(random() % 60, random() % 60));
      LookupAll(table.get(), {key});
      model.Use(key);
    }
    EXPECT_EQ(table->Stats().tiers[0].hits - hits, model.hits);
    EXPECT_EQ(table->Stats().tiers[0].rows, 10);
    std::set<int64_t> in_hbm, expected;
    const std::vector<int32_t> tiers = TierOf(table.get(), Range(0, 60));
    for (int64_t key = 0; key < 60; ++key) {
      if (tiers[static_cast<size_t>(key)] == 0) in_hbm.insert(key);
    }
    for (const auto& entry : model.entries) expected.insert(entry.key);
    EXPECT_EQ(in_hbm, expected) << (lfu ? "lfu" : "lru");
  }
}

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

TEST(HbmTable, RowsThatTheTableBelowRefusesAreOwedAndCountAsThere) {
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
  EXPECT_TRUE(SameBits(LookupAll(table.get(), Range(0, 18)), multitier::LookupAll(plain.get(), Range(0, 18))));
  EXPECT_EQ(table->TotalCount(), 16);
  int64_t removed = 0;
  MT_ASSERT_OK(table->Remove(Range(4, 10), &removed));  // some of them are owed
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
      EXPECT_TRUE(SameBits(out, multitier::LookupAll(plain, keys)));
    }
  }
  std::vector<int64_t> facts(2);
  expect(table->Version(std::vector<int64_t>{1, 2}, facts.data()));
  if (expect(table->Remove(std::vector<int64_t>{2, 77}, nullptr)))
    MT_ASSERT_OK(plain->Remove(std::vector<int64_t>{2}, nullptr));
  expect(ExportAll(table).status());
  device->FailCall(-1);
}

TEST(HbmTable, WhicheverDeviceCallFailsNoRowIsLost) {
  int64_t calls = 1;
  int failures = 0;
  for (int64_t fails_at = -1; fails_at < calls; fails_at += kSanitized ? 9 : 1) {  // first none
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
  EXPECT_GT(failures, kSanitized ? 5 : 50);
}

TEST(HbmTable, OutOfHbmSaysWhatWasAskedForAndWhatWasFree) {
  device::EmulatedDevice::Options small;
  small.memory_bytes = 16 << 10;
  auto device = std::make_shared<device::EmulatedDevice>(small, &device::EmulatedKernels());
  auto below = MakeTable(TieredOptions(4, 8, std::make_shared<MemoryTier>()));
  auto refused = HbmTable::Create({device, Budget::Bytes(1 << 20), 0}, std::move(below));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("bytes are free"), std::string::npos) << refused.status().message();
  below = MakeTable(TieredOptions(4, 8, std::make_shared<MemoryTier>()));
  auto tiny = HbmTable::Create({device, Budget::Bytes(15), 0}, std::move(below));
  EXPECT_EQ(tiny.status().code(), StatusCode::kInvalidArgument) << tiny.status().ToString();
  EXPECT_EQ(device->used_bytes(), 0u);
}

// Two operations, their parts in every order: find a < finish a, find b < finish b.
TEST(HbmTable, TwoOperationsInEveryOrderOfTheirPartsLoseNoUpdate) {
  const std::vector<std::vector<int>> orders = {{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 1, 0},
                                                {1, 0, 0, 1}, {1, 0, 1, 0}, {1, 1, 0, 0}};
  const std::vector<std::vector<int64_t>> batches = {{1, 2}, {2, 3, 4}, {5}, {1, 2, 3, 4, 5, 6}};
  for (const int rows : {1, 3, 100}) {
    for (const auto& order : orders) {
      for (size_t pair = 0; pair < batches.size() * batches.size() * 2; pair += kSanitized ? 11 : rows == 3 ? 1 : 3) {
        const bool bounded = (pair / 2 + pair / 8 + static_cast<size_t>(rows)) % 2 == 0;  // rows are born in the table below
        const std::vector<int64_t> keys[2] = {batches[pair / 2 % 4], batches[pair / 8]};
        const bool lookup = pair % 2 == 1;  // the second operation
        TableOptions tiered = TieredOptions(4, 2, std::make_shared<MemoryTier>()), basic = BasicOptions(4);
        for (TableOptions* options : {&tiered, &basic}) {  // sums are exact, in any order
          options->initializer = InitializerSpec();
        }
        if (bounded) tiered.lower_tiers[0].budget_rows = 6;
        auto table = MakeHbmTable(tiered, rows, NewEmulatedDevice(pair));
        auto plain = MakeTable(basic);
        const Training before = Sgd(Range(0, 4), 1.0f, 4);
        MT_ASSERT_OK(before.Run(plain.get()));
        MT_ASSERT_OK(Train(before, table.get()));
        const Training trainings[2] = {Sgd(keys[0], 0.5f, 4), Sgd(keys[1], 0.25f, 4)};
        std::vector<float> out(keys[1].size() * 4);
        HbmTable::Operation operations[2] = {HbmTable::Operation(table.get()), HbmTable::Operation(table.get())};
        bool found[2] = {false, false};
        for (const int o : order) {
          if (!found[o]) {
            MT_ASSERT_OK(table->Find(&operations[o], keys[o]));
          } else if (o == 1 && lookup) {
            MT_ASSERT_OK(table->FinishLookup(&operations[o], out.data(), 0, ReadFor::kTraining));
          } else {
            MT_ASSERT_OK(table->FinishApply(&operations[o], RequestOf(trainings[o])));
          }
          found[o] = true;
        }
        MT_ASSERT_OK(trainings[0].Run(plain.get()));
        if (!lookup) MT_ASSERT_OK(trainings[1].Run(plain.get()));
        const std::vector<int64_t> all = Range(0, 8);
        ASSERT_TRUE(SameBits(LookupAll(table.get(), all), multitier::LookupAll(plain.get(), all)))
            << rows << " rows, pair " << pair << ", order " << order[0] << order[1] << order[2] << order[3];
      }
    }
  }
}

// One operation of a test that drives its parts: it begins (takes its number), finds, finishes and ends.
struct Driven {
  std::vector<int64_t> keys;
  bool lookup = false;
  std::optional<HbmTable::Operation> operation;
  int parts = 0;  // done so far
  std::vector<float> out;

  Training training() const { return Sgd(keys, -1.0f, 4); }
  void Next(HbmTable* table) {
    const int part = parts++;
    if (part == 0) {
      operation.emplace(table);
    } else if (part == 1) {
      MT_ASSERT_OK(table->Find(&*operation, keys));
    } else if (lookup) {
      out.resize(keys.size() * 4);
      MT_ASSERT_OK(table->FinishLookup(&*operation, out.data(), 0, ReadFor::kTraining));
      operation.reset();
    } else {
      MT_ASSERT_OK(table->FinishApply(&*operation, RequestOf(training())));
      operation.reset();
    }
  }
};

TableOptions CountingOptions(int64_t dram_rows) {
  TableOptions options = TieredOptions(4, dram_rows, std::make_shared<MemoryTier>());
  options.initializer = InitializerSpec();
  return options;
}

TEST(HbmTable, AnOldOperationThatLooksAgainDoesNotFreeTheRowOfALaterOne) {
  auto table = MakeHbmTable(CountingOptions(8), 1, NewEmulatedDevice());
  MT_ASSERT_OK(Train(Sgd({1}, -1.0f, 4), table.get()));  // in the one row of HBM
  Driven older, later, evicting;
  older.keys = {1, 2};
  later.keys = {1};
  evicting.keys = {3};
  for (int part = 0; part < 2; ++part) older.Next(table.get());
  for (int part = 0; part < 2; ++part) later.Next(table.get());  // has the address of key 1's row
  older.Next(table.get());                                       // misses key 2, so it looks again for both
  for (int part = 0; part < 3; ++part) evicting.Next(table.get());
  later.Next(table.get());
  const std::vector<float> values = LookupAll(table.get(), {1, 2, 3});
  for (size_t k = 0; k < 3; ++k) EXPECT_EQ(values[k * 4], k == 0 ? 3.0f : 1.0f) << "key " << k + 1;
}

TEST(HbmTable, ThreeOperationsInAnyOrderOfTheirPartsLoseNoUpdate) {
  std::mt19937_64 random(11);
  for (int round = 0; round < (kSanitized ? 60 : 600); ++round) {
    TableOptions options = CountingOptions(2);
    if (round % 8 >= 4) options.lower_tiers[0].budget_rows = 4;  // rows are born in the table below
    auto table = MakeHbmTable(options, 1 + round % 4, NewEmulatedDevice(random()));
    std::map<int64_t, float> updates;
    std::vector<int> order;
    Driven driven[4];  // the first one runs alone, before the others
    for (Driven& one : driven) {
      for (size_t i = 0, n = 1 + random() % 4; i < n; ++i) one.keys.push_back(static_cast<int64_t>(random() % 6));
      one.lookup = random() % 3 == 0;
      for (const int64_t key : one.keys) updates[key] += one.lookup ? 0.0f : 1.0f;
    }
    for (int part = 0; part < 3; ++part) driven[0].Next(table.get());
    for (const int o : {1, 2, 3}) order.insert(order.end(), 3, o);
    std::shuffle(order.begin(), order.end(), random);
    for (const int o : order) driven[o].Next(table.get());
    const std::vector<float> values = LookupAll(table.get(), Range(0, 6));
    for (const auto& [key, count] : updates) {
      ASSERT_EQ(values[static_cast<size_t>(key) * 4], count) << "round " << round << ", key " << key;
    }
  }
}

TEST(HbmTable, ThreadsThatTrainLookUpPrefetchAndSaveSeeWholeRows) {
  auto table = MakeHbmTable(TieredOptions(8, 10, std::make_shared<MemoryTier>()), 20, NewEmulatedDevice());
  MT_ASSERT_OK(Train(Sgd(Range(0, 40), 0.0f, 8), table.get()));
  const std::vector<float> initial = LookupAll(table.get(), Range(0, 40));
  constexpr int kSteps = kSanitized ? 4 : 12;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      for (int i = 0; i < kSteps; ++i) MT_EXPECT_OK(Train(Sgd(Range(0, 40), -1.0f, 8), table.get()));
    });
  }
  threads.emplace_back([&] {
    for (int i = 0; i < kSteps; ++i) {
      const std::vector<int64_t> keys = {i, 39 - i, 20};
      const std::vector<float> now = LookupAll(table.get(), keys);
      for (size_t k = 0; k < 3; ++k) {  // a row moved by a whole number, all elements alike up to rounding
        for (size_t d = 0; d < 8; ++d) {
          const float moved = now[k * 8 + d] - initial[static_cast<size_t>(keys[k]) * 8 + d];
          const float first = now[k * 8] - initial[static_cast<size_t>(keys[k]) * 8];
          EXPECT_NEAR(moved, first, 1e-3f);
        }
      }
    }
  });
  threads.emplace_back([&] {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(ExportAll(table.get())->keys.size(), 40u);
  });
  threads.emplace_back([&] {
    for (int i = 0; i < kSteps; ++i) MT_EXPECT_OK(table->Prefetch(Range(i, i + 20), 1000000, nullptr));
  });
  for (std::thread& thread : threads) thread.join();
  std::vector<int64_t> frequencies(40);
  MT_ASSERT_OK(table->Frequency(Range(0, 40), frequencies.data()));
  EXPECT_EQ(frequencies, std::vector<int64_t>(40, 1 + 2 * kSteps));
}

}  // namespace
}  // namespace multitier::hbm
