// The table under threads. Values count: under SGD with learning rate 1 and gradient -1, a row's value is its initial value
// plus the number of updates, so any lost, doubled or torn update shows.

#include <atomic>
#include <thread>

#include "cc/table/test/table_test_util.h"

namespace multitier::concurrency_test {
namespace {

constexpr int kDim = 8;
constexpr int kThreads = 4;

constexpr ChainCase kDramAlone = {"Dram", true, -1, false, 0};

TableOptions CountingOptions(const ChainCase& chain) {
  TableOptions options = BasicOptions(kDim);
  const uint64_t row_bytes = kDim * sizeof(float);
  if (std::string(chain.name) != kDramAlone.name) {
    options.dram_budget_bytes = 16 * row_bytes;
    ChainCase wider = chain;
    if (wider.middle_rows >= 0) wider.middle_rows *= 8;  // every shard has its share
    PutChain(wider, row_bytes, 7, &options);
  }
  options.initializer.kind = InitializerKind::kConstant;
  options.initializer.a = 0.0f;
  options.num_shards = 4;
  return options;
}

// Runs body(thread) on kThreads threads.
template <typename Body>
void OnThreads(Body body) {
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(body, t);
  for (std::thread& thread : threads) thread.join();
}

std::vector<int64_t> SomeKeys(std::mt19937_64* random, int64_t distinct) {
  std::vector<int64_t> keys(1 + (*random)() % 32);
  for (int64_t& key : keys) key = static_cast<int64_t>((*random)() % static_cast<uint64_t>(distinct));
  return keys;
}

bool RowsAreWhole(const std::vector<float>& out) {
  for (size_t i = 0; i < out.size(); i += kDim) {
    for (size_t d = 1; d < kDim; ++d) {
      if (out[i + d] != out[i]) return false;
    }
  }
  return true;
}

class Concurrency : public testing::TestWithParam<ChainCase> {};

TEST_P(Concurrency, NoUpdateIsLostAndNoRowIsTorn) {
  auto table = MakeTable(CountingOptions(GetParam()));
  constexpr int64_t kKeys = 200;
  std::vector<std::atomic<int64_t>> updates(kKeys);
  std::atomic<bool> torn{false};
  OnThreads([&](int t) {
    std::mt19937_64 random(t);
    for (int i = 0; i < Rounds(500); ++i) {
      const std::vector<int64_t> keys = SomeKeys(&random, kKeys);
      if (!Sgd(keys, -1.0f, kDim).Run(table.get()).ok()) std::abort();
      for (const int64_t key : keys) ++updates[static_cast<size_t>(key)];
      if (!RowsAreWhole(LookupAll(table.get(), SomeKeys(&random, kKeys)))) torn = true;
    }
  });
  EXPECT_FALSE(torn);
  for (int64_t key = 0; key < kKeys; ++key) {
    EXPECT_EQ(LookupAll(table.get(), {key})[0], static_cast<float>(updates[static_cast<size_t>(key)])) << "key " << key;
    int64_t frequency = 0;
    MT_ASSERT_OK(table->Frequency(std::vector<int64_t>{key}, &frequency));
    EXPECT_EQ(frequency, updates[static_cast<size_t>(key)]) << "key " << key;
  }
  MT_ASSERT_OK(table->Drain());
  ExpectTiersInOrder(table.get());
}

TEST_P(Concurrency, NoUpdateIsLostWhileTheBudgetChangesAndTiersAreCompacted) {
  TableOptions options = CountingOptions(GetParam());
  if (options.dram_budget_bytes == 0) GTEST_SKIP() << "no budget of DRAM";
  auto table = MakeTable(options);
  constexpr int64_t kKeys = 200;
  std::vector<std::atomic<int64_t>> updates(kKeys);
  std::atomic<bool> torn{false};
  OnThreads([&](int t) {
    std::mt19937_64 random(t);
    for (int i = 0; i < Rounds(300); ++i) {
      if (t == 0) {
        MT_EXPECT_OK(table->SetDramBudget(Budget::Bytes((4 + random() % 200) * kDim * sizeof(float))));
        MT_EXPECT_OK(i % 8 == 0 ? table->Compact() : i % 8 == 1 ? table->Drain() : OkStatus());
      }
      const std::vector<int64_t> keys = SomeKeys(&random, kKeys);
      if (!Sgd(keys, -1.0f, kDim).Run(table.get()).ok()) std::abort();
      for (const int64_t key : keys) ++updates[static_cast<size_t>(key)];
      if (!RowsAreWhole(LookupAll(table.get(), SomeKeys(&random, kKeys)))) torn = true;
    }
  });
  EXPECT_FALSE(torn);
  MT_ASSERT_OK(table->SetDramBudget(Budget::Bytes(8 * kDim * sizeof(float))));
  MT_ASSERT_OK(table->Drain());
  const std::vector<TableStats::PerTier> tiers = table->Stats().tiers;
  EXPECT_LE(tiers[tiers.size() - options.lower_tiers.size() - 1].rows, 8);  // DRAM: HBM may be above it
  for (int64_t key = 0; key < kKeys; ++key) {
    EXPECT_EQ(LookupAll(table.get(), {key})[0], static_cast<float>(updates[static_cast<size_t>(key)])) << "key " << key;
  }
  MT_ASSERT_OK(table->Drain());
  ExpectTiersInOrder(table.get());
}

TEST_P(Concurrency, EveryOperationTogetherKeepsTheTableConsistent) {
  TableOptions options = CountingOptions(GetParam());
  options.filter.kind = AdmissionKind::kCounter;
  options.filter.filter_freq = 2;
  options.expiry.steps_to_live = 100;
  auto table = MakeTable(options);
  OnThreads([&](int t) {
    std::mt19937_64 random(100 + t);
    for (int i = 0; i < Rounds(300); ++i) {
      const std::vector<int64_t> keys = SomeKeys(&random, 300);
      std::vector<int64_t> facts(keys.size());
      std::vector<int32_t> tiers(keys.size());
      uint64_t cursor = 0;
      switch (random() % 12) {
        case 0:
          MT_EXPECT_OK(table->Remove(keys, nullptr));
          break;
        case 1:
          MT_EXPECT_OK(table->Expire(i, nullptr));
          break;
        case 2:
          EXPECT_TRUE(table->Export(true).ok());
          break;
        case 3:
          EXPECT_TRUE(table->Scan(ScanRequest{0, 10, {}}, &cursor).ok());
          break;
        case 4:
          MT_EXPECT_OK(table->Drain());
          break;
        case 5:
          MT_EXPECT_OK(table->Prefetch(keys, 1000, nullptr));
          MT_EXPECT_OK(table->Frequency(keys, facts.data()));
          MT_EXPECT_OK(table->LookupTier(keys, tiers.data()));
          break;
        case 6: {
          Training training = Sgd(keys, -1.0f, kDim);
          training.rule = *FindUpdateRule(random() % 2 == 0 ? "adagrad" : "ftrl");  // widens every row once
          training.hyper = SomeHyper(*training.rule);
          MT_EXPECT_OK(training.Run(table.get()));
          break;
        }
        default: {
          Training training = Sgd(keys, -1.0f, kDim);
          training.step = i;
          MT_EXPECT_OK(training.Run(table.get()));
          LookupAll(table.get(), keys);
        }
      }
    }
  });
  const auto rows = table->Export(true);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(static_cast<int64_t>(rows->keys.size()), table->TotalCount());
  EXPECT_EQ(static_cast<int64_t>(rows->counted_keys.size()), table->Stats().counted_keys);
  std::vector<int64_t> keys = rows->keys;
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::adjacent_find(keys.begin(), keys.end()), keys.end()) << "a key has two rows";
  MT_ASSERT_OK(table->Drain());
  ExpectTiersInOrder(table.get());
}

// Of the keys, some stay, and others expire and come back. Rows move between the tiers all the time.
TEST_P(Concurrency, AScanGivesEachKeyThatStaysOnceAndWhole) {
  constexpr int64_t kStay = 100, kCome = 200, kNever = 1 << 20;
  TableOptions options = CountingOptions(GetParam());
  options.expiry.steps_to_live = 5;
  auto table = MakeTable(options);
  auto train = [&](std::vector<int64_t> keys, int64_t first, int64_t step) {
    for (int64_t& key : keys) key += first;
    Training training = Sgd(keys, -1.0f, kDim);
    training.step = step;
    if (!training.Run(table.get()).ok()) std::abort();
  };
  std::vector<int64_t> stay(kStay);
  std::iota(stay.begin(), stay.end(), 0);
  train(stay, 0, kNever);
  std::atomic<bool> done{false};
  std::atomic<int64_t> expired{0};
  OnThreads([&](int t) {
    std::mt19937_64 random(200 + t);
    if (t == 0) {
      for (int i = 0; i < Rounds(60) || (expired == 0 && i < 100000); ++i) {
        std::vector<int64_t> times(kStay + kCome);
        uint64_t cursor = 0;
        do {
          const Result<Rows> rows = table->Scan(ScanRequest{cursor, 17, {}}, &cursor);
          if (!rows.ok()) std::abort();
          for (const int64_t key : rows->keys) ++times[static_cast<size_t>(key)];
          EXPECT_TRUE(RowsAreWhole(rows->data));
        } while (cursor != 0);
        for (const int64_t key : stay) EXPECT_EQ(times[static_cast<size_t>(key)], 1) << "key " << key << ", scan " << i;
      }
      done = true;
    }
    for (int64_t i = 1; !done; ++i) {
      if (t == 1) {
        int64_t removed = 0;
        MT_EXPECT_OK(table->Expire(10 * i, &removed));
        expired += removed;
        LookupAll(table.get(), SomeKeys(&random, kStay));
      } else {
        train(SomeKeys(&random, kStay), 0, kNever);
        train(SomeKeys(&random, kCome), kStay, i);
      }
    }
  });
  EXPECT_GT(expired, 0);
}

// A budget of 64 Ki rows and more demotes in the background.
TEST_P(Concurrency, BackgroundDemotionLosesNoUpdateAndKeepsTheBound) {
  constexpr int64_t kRows = 64 * 1024, kKeys = 3 * kRows, kBatch = 8192;
  TableOptions options = CountingOptions(GetParam());
  if (options.lower_tiers.empty() || !options.dram_named) GTEST_SKIP() << "nothing is demoted in the background";
  const uint64_t row_bytes = kDim * sizeof(float);
  options.dram_budget_bytes = kRows * row_bytes;
  for (LowerTierOptions& lower : options.lower_tiers) lower.budget_bytes *= 512;
  auto table = MakeTable(options);
  const auto rows_of_dram = [&] {
    const std::vector<TableStats::PerTier> tiers = table->Stats().tiers;
    return tiers[tiers.size() - options.lower_tiers.size() - 1].rows;  // HBM may be above it, and is full
  };
  OnThreads([&](int t) {
    for (int64_t from = 0; from < kKeys; from += kBatch) {
      std::vector<int64_t> keys(kBatch);
      std::iota(keys.begin(), keys.end(), (from + t * kRows) % kKeys);
      if (!Sgd(keys, -1.0f, kDim).Run(table.get()).ok()) std::abort();
      EXPECT_LE(rows_of_dram(), kRows + kThreads * kBatch);
      if (t == 0 && from % (8 * kBatch) == 0) MT_EXPECT_OK(table->Drain());
    }
  });
  std::vector<int64_t> keys(kKeys);
  std::iota(keys.begin(), keys.end(), 0);
  for (const float value : LookupAll(table.get(), keys)) ASSERT_EQ(value, static_cast<float>(kThreads));
  MT_ASSERT_OK(table->Drain());
  EXPECT_LE(rows_of_dram(), kRows * 97 / 100 + kRows / 100);
  ExpectTiersInOrder(table.get());
  LookupAll(table.get(), keys);  // and goes away with its jobs queued
}

std::vector<ChainCase> DramAndAllChains() {
  std::vector<ChainCase> chains = AllChains();
  chains.insert(chains.begin(), kDramAlone);
  return chains;
}

INSTANTIATE_TEST_SUITE_P(Tables, Concurrency, testing::ValuesIn(DramAndAllChains()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace multitier::concurrency_test
