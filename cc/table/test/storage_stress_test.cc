// The table over real tiers under threads, against plain models: every operation while every other runs, with eviction,
// compaction inline and on its own thread. Under SGD with learning rate 1 and gradient -1 a value is its number of updates, so
// any lost or doubled update shows. MT_STRESS_ROUNDS makes it longer.

#include <atomic>
#include <thread>

#include "cc/table/test/storage_test_util.h"

namespace multitier::storage_stress_test {
namespace {

constexpr int kDim = 8;
constexpr int kThreads = 4;

int Rounds(int rounds) {
  const char* factor = std::getenv("MT_STRESS_ROUNDS");
  return factor != nullptr ? rounds * std::atoi(factor) : rounds;
}

struct StressCase {
  const char* name;
  std::vector<std::string> lower;
  bool async_compaction;
  int last_rows;
};

template <typename Body>
void OnThreads(Body body) {
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(body, t);
  for (std::thread& thread : threads) thread.join();
}

std::vector<int64_t> SomeKeys(std::mt19937_64* random, int64_t from, int64_t distinct) {
  std::vector<int64_t> keys(1 + (*random)() % 32);
  for (int64_t& key : keys) key = from + static_cast<int64_t>((*random)() % static_cast<uint64_t>(distinct));
  return keys;
}

class StorageStress : public testing::TestWithParam<StressCase> {
 protected:
  TableOptions Options(int last_rows) {
    const uint64_t row_bytes = kDim * sizeof(float);
    TableOptions options = BasicOptions(kDim);
    options.initializer.kind = InitializerKind::kConstant;
    options.initializer.a = 0.0f;
    options.num_shards = 4;
    options.dram_budget_bytes = 64 * row_bytes;
    for (const std::string& type : GetParam().lower) {
      options.lower_tiers.push_back({root_.Open(type, type, false, GetParam().async_compaction), 0});
    }
    if (GetParam().lower.size() > 1) options.lower_tiers[0].budget_bytes = 64 * row_bytes;
    options.lower_tiers.back().budget_bytes = static_cast<uint64_t>(last_rows) * row_bytes;
    return options;
  }
  // One operation that changes no value.
  void AnyOther(EmbeddingTable* table, std::mt19937_64* random, int64_t distinct) {
    const std::vector<int64_t> keys = SomeKeys(random, 0, distinct);
    std::vector<int64_t> facts(keys.size());
    std::vector<int32_t> tiers(keys.size());
    switch ((*random)() % 8) {
      case 0:
        EXPECT_TRUE(table->Export(true).ok());
        break;
      case 1: {
        uint64_t cursor = 0;
        EXPECT_TRUE(table->Scan(ScanRequest{0, 50, {}}, &cursor).ok());
        break;
      }
      case 2:
        MT_EXPECT_OK(table->Drain());
        break;
      case 3:
        MT_EXPECT_OK(table->Prefetch(keys, 1000, nullptr));
        break;
      case 4:
        MT_EXPECT_OK(table->Frequency(keys, facts.data()));
        MT_EXPECT_OK(table->LookupTier(keys, tiers.data()));
        break;
      case 5:
        if (table->options().lower_tiers.back().tier->capabilities().durable) MT_EXPECT_OK(table->Flush());
        break;
      case 6:
        table->ReleasePrefetched();
        break;
      default:
        MT_EXPECT_OK(table->Expire(0, nullptr));  // nothing is due
    }
  }

  // What the table says is what its files say after a flush.
  void ExpectFilesAgree(std::unique_ptr<EmbeddingTable> table) {
    const auto rows = table->Export(false);
    ASSERT_TRUE(rows.ok()) << rows.status().ToString();
    ExpectTiersInOrder(table.get());
    if (!table->options().lower_tiers.back().tier->capabilities().durable) return;
    MT_ASSERT_OK(table->Flush());
    table.reset();
    TableOptions again = BasicOptions(kDim);
    again.dram_budget_bytes = 1 << 20;
    again.lower_tiers.push_back({root_.Open(GetParam().lower.back(), GetParam().lower.back(), true), 0});
    again.adopt = true;
    table = MakeTable(again);
    ASSERT_NE(table, nullptr);
    const auto recovered = table->Export(false);
    ASSERT_TRUE(recovered.ok());
    ExpectSameRows(*rows, *recovered);
  }

  StorageDirectory root_{std::string("stress_") + GetParam().name};
};

TEST_P(StorageStress, EveryUpdateCountsOnceWhateverRunsConcurrently) {
  constexpr int64_t kKeys = 2000;
  TableOptions options = Options(GetParam().last_rows);
  options.expiry.steps_to_live = 1000000;
  auto table = MakeTable(options);
  std::vector<std::atomic<int64_t>> updates(kKeys);
  OnThreads([&](int t) {
    std::mt19937_64 random(t);
    for (int i = 0; i < Rounds(300); ++i) {
      const std::vector<int64_t> keys = SomeKeys(&random, 0, kKeys);
      MT_EXPECT_OK(Sgd(keys, -1.0f, kDim).Run(table.get()));
      for (const int64_t key : keys) ++updates[static_cast<size_t>(key)];
      if (random() % 8 == 0) AnyOther(table.get(), &random, kKeys);
      const std::vector<float> out = LookupAll(table.get(), SomeKeys(&random, 0, kKeys));
      for (size_t e = 0; e < out.size(); ++e) EXPECT_EQ(out[e], out[e / kDim * kDim]) << "a torn row";
    }
  });
  MT_ASSERT_OK(table->Drain());
  std::vector<int64_t> all(kKeys), frequencies(kKeys);
  std::iota(all.begin(), all.end(), 0);
  const std::vector<float> values = LookupAll(table.get(), all);
  MT_ASSERT_OK(table->Frequency(all, frequencies.data()));
  for (size_t key = 0; key < kKeys; ++key) {
    ASSERT_EQ(values[key * kDim], static_cast<float>(updates[key])) << key;
    ASSERT_EQ(frequencies[key], updates[key]) << key;
  }
  ExpectTiersInOrder(table.get());
}

// Each thread trains, removes and creates again keys of its own, so that it knows what each must read; what others do moves
// them. Afterwards the files hold exactly what the table does.
TEST_P(StorageStress, RemovedAndCreatedAgainIsWhatTheTableAndItsFilesSay) {
  constexpr int64_t kKeys = 200;
  auto table = MakeTable(Options(GetParam().last_rows));
  std::vector<std::vector<int64_t>> counts(kThreads, std::vector<int64_t>(kKeys));
  OnThreads([&](int t) {
    std::mt19937_64 random(100 + t);
    std::vector<int64_t>& count = counts[static_cast<size_t>(t)];
    for (int i = 0; i < Rounds(400); ++i) {
      const std::vector<int64_t> keys = SomeKeys(&random, t * kKeys, kKeys);
      if (random() % 3 == 0) {
        MT_EXPECT_OK(table->Remove(keys, nullptr));
        for (const int64_t key : keys) count[static_cast<size_t>(key - t * kKeys)] = 0;
      } else {
        MT_EXPECT_OK(Sgd(keys, -1.0f, kDim).Run(table.get()));
        for (const int64_t key : keys) ++count[static_cast<size_t>(key - t * kKeys)];
      }
      if (random() % 16 == 0) AnyOther(table.get(), &random, kThreads * kKeys);
      const std::vector<int64_t> asked = SomeKeys(&random, t * kKeys, kKeys);
      const std::vector<float> out = LookupAll(table.get(), asked);
      for (size_t e = 0; e < asked.size(); ++e) {
        EXPECT_EQ(out[e * kDim], static_cast<float>(count[static_cast<size_t>(asked[e] - t * kKeys)])) << asked[e];
      }
    }
  });
  int64_t present = 0;
  for (const auto& count : counts) {
    for (const int64_t n : count) present += n > 0;
  }
  EXPECT_EQ(table->TotalCount(), present);
  ExpectFilesAgree(std::move(table));
}

// The same keys for all: while one thread removes a key, others create it again and demote it.
TEST_P(StorageStress, RemovalDuringTrainingOfTheSameKeysLeavesConsistentFiles) {
  constexpr int64_t kKeys = 150;  // about twice what memory holds
  auto table = MakeTable(Options(GetParam().last_rows));
  OnThreads([&](int t) {
    std::mt19937_64 random(200 + t);
    for (int i = 0; i < Rounds(400); ++i) {
      const std::vector<int64_t> keys = SomeKeys(&random, 0, kKeys);
      if (t == 0) {
        MT_EXPECT_OK(table->Remove(keys, nullptr));
      } else {
        MT_EXPECT_OK(Sgd(keys, -1.0f, kDim).Run(table.get()));
      }
    }
  });
  ExpectFilesAgree(std::move(table));
}

// A scan while rows are trained and move between the tiers all the time: each key is given exactly once.
TEST_P(StorageStress, ScanGivesEachKeyOnceWhileRowsMove) {
  constexpr int64_t kKeys = 300;
  auto table = MakeTable(Options(GetParam().last_rows));
  std::vector<int64_t> all(kKeys);
  std::iota(all.begin(), all.end(), 0);
  MT_ASSERT_OK(Sgd(all, -1.0f, kDim).Run(table.get()));
  std::atomic<bool> stop{false};
  std::thread scanner([&] {
    for (int i = 0; i < Rounds(40); ++i) {
      std::vector<int64_t> seen;
      uint64_t cursor = 0;
      do {
        const auto rows = table->Scan(ScanRequest{cursor, 7, {"value"}}, &cursor);
        ASSERT_TRUE(rows.ok()) << rows.status().ToString();
        seen.insert(seen.end(), rows->keys.begin(), rows->keys.end());
      } while (cursor != 0);
      std::sort(seen.begin(), seen.end());
      ASSERT_EQ(seen, all);
    }
  });
  std::thread trainer([&] {
    std::mt19937_64 random(1);
    while (!stop) MT_EXPECT_OK(Sgd(SomeKeys(&random, 0, kKeys), -1.0f, kDim).Run(table.get()));
  });
  scanner.join();
  stop = true;
  trainer.join();
}

// Every update changes a pair of keys alike, so that a snapshot of two moments would tell, while records move, go and are
// compacted between its chunks.
TEST_P(StorageStress, SnapshotsAreOfOneMomentWhileRowsMove) {
  constexpr int64_t kPairs = 600;
  auto table = MakeTable(Options(GetParam().last_rows));
  std::atomic<bool> stop{false};
  std::atomic<int64_t> trained{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads - 1; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(300 + t);
      while (!stop) {
        std::vector<int64_t> keys;
        for (int i = 0; i < 12; ++i) {
          const int64_t key = static_cast<int64_t>(random() % (kPairs / 3)) * 3 + t;  // its own
          keys.push_back(key);
          keys.push_back(key + kPairs);
        }
        MT_EXPECT_OK(Sgd(keys, -1.0f, kDim).Run(table.get()));
        ++trained;
        if (random() % 16 == 0) MT_EXPECT_OK(table->Drain());
        if (random() % 4 == 0) LookupAll(table.get(), SomeKeys(&random, 0, 2 * kPairs));
      }
    });
  }
  threads.emplace_back([&] {
    std::mt19937_64 random(400);
    while (!stop) {
      const std::vector<int64_t> passing = SomeKeys(&random, 10000, 500);
      MT_EXPECT_OK(Sgd(passing, -1.0f, kDim).Run(table.get()));
      if (random() % 4 == 0) MT_EXPECT_OK(table->Remove(passing, nullptr));
    }
  });
  std::vector<int64_t> last(2 * kPairs);
  for (int snapshot = 0; snapshot < Rounds(4); ++snapshot) {
    std::vector<int64_t> frequency(2 * kPairs, -1);
    MT_ASSERT_OK(table->TakeSnapshot(true, 32, [&](Rows* chunk) {
      for (size_t i = 0; i < chunk->keys.size(); ++i) {
        const auto key = static_cast<size_t>(chunk->keys[i]);
        EXPECT_EQ(chunk->data[i * kDim], static_cast<float>(chunk->frequencies[i])) << "key " << key;
        if (key >= frequency.size()) continue;
        EXPECT_EQ(frequency[key], -1) << "key " << key << " twice";
        frequency[key] = chunk->frequencies[i];
      }
      for (const int64_t seen = trained; trained == seen;) std::this_thread::yield();
      return OkStatus();
    }));
    for (size_t key = 0; key < kPairs; ++key) {
      ASSERT_EQ(frequency[key], frequency[key + kPairs]) << "snapshot " << snapshot << " key " << key;
      ASSERT_GE(std::max<int64_t>(frequency[key], 0), last[key]) << "snapshot " << snapshot << " key " << key;
      last[key] = std::max<int64_t>(frequency[key], 0);
    }
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  ExpectFilesAgree(std::move(table));
}

INSTANTIATE_TEST_SUITE_P(Tiers, StorageStress,
                         testing::Values(StressCase{"ssdhash", {"ssdhash"}, false, 0},
                                         StressCase{"ssdhash_async", {"ssdhash"}, true, 0},
                                         StressCase{"ssdhash_bounded", {"ssdhash"}, true, 40000},
                                         StressCase{"leveldb", {"leveldb"}, false, 0}, StressCase{"pmem", {"pmem"}, false, 0},
                                         StressCase{"pmem_ssdhash", {"pmem", "ssdhash"}, true, 0},
                                         StressCase{"pmem_leveldb", {"pmem", "leveldb"}, false, 0}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace multitier::storage_stress_test
