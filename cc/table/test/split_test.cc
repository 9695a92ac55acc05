// The split of a small table's only shard: a table that is split is the table that had its shards from the start, whatever
// happens before, at the split and afterwards.

#include <atomic>
#include <cstdio>
#include <map>
#include <set>
#include <thread>

#include "cc/base/executor.h"
#include "cc/env/fault_env.h"
#include "cc/table/test/table_test_util.h"

namespace multitier::split_test {
namespace {

constexpr int kDim = 4;
constexpr uint64_t kOneShardRows = 600;
constexpr int kShards = 8;

TableOptions SmallOptions() {
  TableOptions options = BasicOptions(kDim);
  options.one_shard_bytes = kOneShardRows * RowLayout::Create(kDim, DType::kFloat32)->stride();
  options.expiry.steps_to_live = 40;
  return options;
}

int ShardsOf(const EmbeddingTable& table) { return table.Stats().num_shards; }

// The rows of a snapshot: of all of them, or of what changed since a moment.
Rows Snapshot(EmbeddingTable* table, int64_t since, int64_t track_as) {
  Rows all;
  SnapshotRequest request;
  request.since = since;
  request.track_as = track_as;
  request.max_rows = 64 * 1024;
  request.visit = [&](Rows* chunk) {
    EXPECT_TRUE(all.columns.empty()) << "a second chunk";
    all = std::move(*chunk);
    return OkStatus();
  };
  const auto snapshot = table->PrepareSnapshot(std::move(request));
  EXPECT_TRUE(snapshot.ok()) << snapshot.status().ToString();
  if (snapshot.ok()) MT_EXPECT_OK((*snapshot)->TakeAlone());
  std::sort(all.removed_keys.begin(), all.removed_keys.end());
  return all;
}

void ExpectSameChanges(const Rows& a, const Rows& b) {
  ExpectSameRows(a, b);
  EXPECT_EQ(a.removed_keys, b.removed_keys);
}

// The same calls, drawn at random, of a table that is split and of one with its shards from the start.
TEST(Split, ATableThatIsSplitIsTheTableThatHadItsShardsFromTheStart) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  Training training;
  training.rule = *FindUpdateRule("adam");
  training.hyper = SomeHyper(*training.rule);
  for (int round = 0; round < 8; ++round) {
    TableOptions options = SmallOptions();
    const auto split = MakeTable(options);
    options.num_shards = kShards;
    const auto whole = MakeTable(options);
    const auto on_both = [&](auto call) {
      call(split.get());
      call(whole.get());
    };
    bool was_split = false, tracks = false;
    for (int64_t moment = 0, i = 0; i < 120; ++i) {
      std::vector<int64_t> keys(1 + random() % 40);
      for (int64_t& key : keys) key = static_cast<int64_t>(random() % 1200);
      switch (random() % 8) {
        case 0:
          on_both([&](EmbeddingTable* table) { MT_ASSERT_OK(table->Remove(keys, nullptr)); });
          break;
        case 1:
          on_both([&](EmbeddingTable* table) { MT_ASSERT_OK(table->Expire(table->NewestStep(), nullptr)); });
          break;
        case 2: {
          UpsertRequest request;
          request.keys = keys;
          request.last_of_repeats = true;
          on_both([&](EmbeddingTable* table) { MT_ASSERT_OK(table->Upsert(request).status()); });
          break;
        }
        case 3: {
          // The changes since the moment before; at first, everything.
          const Rows a = Snapshot(split.get(), moment, moment + 1), b = Snapshot(whole.get(), moment, moment + 1);
          ExpectSameChanges(a, b);
          ++moment;
          tracks = true;
          break;
        }
        default:
          training.keys = keys;
          training.grads.assign(keys.size() * kDim, static_cast<float>(random() % 9) - 4.0f);
          on_both([&](EmbeddingTable* table) { MT_ASSERT_OK(training.Run(table)); });
      }
      ASSERT_EQ(ShardsOf(*whole), kShards);
      if (!was_split && ShardsOf(*split) == kShards) {
        was_split = true;
        if (tracks) ExpectSameChanges(Snapshot(split.get(), moment, 0), Snapshot(whole.get(), moment, 0));
        tracks = false;
        moment = 0;
        ExpectSameTables(split.get(), whole.get());
      }
      ASSERT_TRUE(SameBits(LookupAll(split.get(), keys), LookupAll(whole.get(), keys)));
      if (HasFailure()) return;
    }
    EXPECT_TRUE(was_split);
    ExpectSameTables(split.get(), whole.get());
    EXPECT_EQ(FrequencyOf(split.get(), Range(0, 1200)), FrequencyOf(whole.get(), Range(0, 1200)));
    const TableStats a = split->Stats(), b = whole->Stats();
    EXPECT_EQ(a.created, b.created);
    EXPECT_EQ(a.updates, b.updates);
    EXPECT_EQ(a.removed, b.removed);
    EXPECT_EQ(a.expired, b.expired);
    EXPECT_EQ(a.tiers[0].rows, b.tiers[0].rows);
    EXPECT_EQ(a.tiers[0].hits, b.tiers[0].hits);
  }
}

// Pieces of several sizes: the split comes in the middle of homes of the new shards.
TEST(Split, AScanGoesOnOverIt) {
  for (const int64_t piece : {1, 7, 50, 333}) {
    const auto table = MakeTable(SmallOptions());
    MT_ASSERT_OK(Sgd(Range(0, 500), 1.0f, kDim).Run(table.get()));
    std::map<int64_t, int> times;
    int64_t given = 0, next_key = 500;
    ScanRequest request{0, piece, {"value"}};
    do {
      const auto rows = table->Scan(request, &request.cursor);
      ASSERT_TRUE(rows.ok()) << rows.status().ToString();
      for (const int64_t key : rows->keys) ++times[key];
      if (given < 200 && given + static_cast<int64_t>(rows->keys.size()) >= 200) {
        MT_ASSERT_OK(Sgd(Range(next_key, next_key + 300), 1.0f, kDim).Run(table.get()));
        ASSERT_EQ(ShardsOf(*table), kShards);
      }
      given += static_cast<int64_t>(rows->keys.size());
    } while (request.cursor != 0);
    for (int64_t key = 0; key < 500; ++key) ASSERT_EQ(times[key], 1) << key << ", pieces of " << piece;
    for (const auto& [key, n] : times) ASSERT_EQ(n, 1) << key;
  }
}

TEST(Split, WaitsForASnapshot) {
  const auto table = MakeTable(SmallOptions());
  MT_ASSERT_OK(Sgd(Range(0, 500), 1.0f, kDim).Run(table.get()));
  SnapshotRequest request;
  request.max_rows = 100;
  int64_t given = 0;
  request.visit = [&](Rows* chunk) {
    given += static_cast<int64_t>(chunk->keys.size());
    MT_RETURN_IF_ERROR(Sgd(Range(0, 1000), 1.0f, kDim).Run(table.get()));
    EXPECT_EQ(ShardsOf(*table), 1);
    return OkStatus();
  };
  {
    const auto snapshot = table->PrepareSnapshot(std::move(request));
    ASSERT_TRUE(snapshot.ok());
    MT_ASSERT_OK((*snapshot)->TakeAlone());
  }
  EXPECT_EQ(given, 500);
  MT_ASSERT_OK(Sgd({0}, 1.0f, kDim).Run(table.get()));
  EXPECT_EQ(ShardsOf(*table), kShards);
}

TEST(Split, IsPutOffWhereMemoryIsShort) {
  UpsertRequest nothing;  // of rows that exist: needs no memory itself
  const std::vector<int64_t> keys = Range(0, 20);
  nothing.keys = keys;
  nothing.if_exists = IfExists::kKeep;
  for (const FaultKind kind : {FaultKind::kAllocate, FaultKind::kReserve, FaultKind::kCommit}) {
    uint64_t n = 1;
    for (bool put_off = true; put_off && n < 100; ++n) {
      FaultEnv env(Env::Posix());
      TableOptions options = SmallOptions();
      options.env = &env;
      const auto table = MakeTable(options);
      MT_ASSERT_OK(Sgd(Range(0, kOneShardRows - 10), 1.0f, kDim).Run(table.get()));
      const Rows before = *table->Export(true);
      env.FailNth(kind, n, ResourceExhaustedError("no memory"));
      MT_ASSERT_OK(table->Upsert(nothing).status());
      put_off = env.Disarm();
      EXPECT_EQ(ShardsOf(*table), put_off ? 1 : kShards);
      ExpectSameRows(before, *table->Export(true));
      MT_ASSERT_OK(table->Reserve(3 * kOneShardRows));  // it is tried again at twice the rows
      EXPECT_EQ(ShardsOf(*table), kShards);
      ExpectSameRows(before, *table->Export(true));
    }
    EXPECT_GT(n, 2u) << "no call of kind " << static_cast<int>(kind);
    EXPECT_LT(n, 100u);
  }
}

class OneAfterTheOther : public Executor {
 public:
  void ParallelFor(int n, const std::function<void(int)>& task) override {
    for (int i = 0; i < n; ++i) task(i);
  }
};

TEST(Split, ComesWithThreadsThatAreLentToAnUpdate) {
  const auto table = MakeTable(SmallOptions());
  EXPECT_EQ(ShardsOf(*table), 1);
  const Training training = Sgd(Range(0, 10), 1.0f, kDim);
  ApplyRequest request;
  request.keys = training.keys;
  request.grads = training.grads.data();
  request.rule = training.rule;
  request.hyper = training.hyper;
  OneAfterTheOther executor;
  MT_ASSERT_OK(table->Apply(request, &executor));
  EXPECT_EQ(ShardsOf(*table), kShards);
}

TEST(Split, OnlyATableOfDramAloneBeginsWithOneShard) {
  const auto shards_of = [](auto change) {
    TableOptions options = SmallOptions();
    change(&options);
    return ShardsOf(*MakeTable(std::move(options)));
  };
  EXPECT_EQ(shards_of([](TableOptions*) {}), 1);
  EXPECT_EQ(shards_of([](TableOptions* options) { options->num_shards = kShards; }), kShards);
  EXPECT_EQ(shards_of([](TableOptions* options) { options->initial_rows = kOneShardRows; }), kShards);
  EXPECT_EQ(shards_of([](TableOptions* options) {
              options->filter.kind = AdmissionKind::kCounter;
              options->filter.filter_freq = 2;
            }),
            kShards);
  EXPECT_EQ(shards_of([](TableOptions* options) {
              options->dram_budget_rows = 1 << 20;
              options->lower_tiers.push_back({std::make_shared<MemoryTier>(), 0});
            }),
            kShards);
}

// Every thread has keys of its own, which it trains, removes and counts, while it scans and reads those that stay.
TEST(Split, NothingIsLostWhileThreadsUseTheTable) {
  constexpr int kThreads = 4;
  constexpr int64_t kStay = 300, kOfThread = 100;
  for (int round = 0; round < 12; ++round) {
    TableOptions options = SmallOptions();
    options.one_shard_bytes = options.one_shard_bytes * (kStay + 2 * kOfThread) / kOneShardRows;
    options.initializer.kind = InitializerKind::kConstant;
    options.initializer.a = 0.0f;
    const auto table = MakeTable(options);
    MT_ASSERT_OK(Sgd(Range(0, kStay), -1.0f, kDim).Run(table.get()));
    std::vector<std::thread> threads;
    std::atomic<int64_t> moment{0};
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(static_cast<uint64_t>(100 * round + t));
        const int64_t first = kStay + t * kOfThread;
        std::map<int64_t, float> trained;
        for (int i = 0; i < 40; ++i) {
          std::set<int64_t> some;
          for (int n = 0; n < 10; ++n) some.insert(first + static_cast<int64_t>(random() % kOfThread));
          const std::vector<int64_t> keys(some.begin(), some.end());
          if (random() % 8 == 0) {
            MT_EXPECT_OK(table->Remove(keys, nullptr));
            for (const int64_t key : keys) trained.erase(key);
          } else {
            MT_EXPECT_OK(Sgd(keys, -1.0f, kDim).Run(table.get()));
            for (const int64_t key : keys) ++trained[key];
          }
          for (const int64_t key : keys) {
            const auto found = trained.find(key);
            EXPECT_EQ(LookupAll(table.get(), {key})[0], found == trained.end() ? 0.0f : found->second);
          }
          if (i % 4 == t) {
            std::map<int64_t, int> times;
            ScanRequest request{0, 1 + static_cast<int64_t>(random() % 100), {"value"}};
            do {
              const auto rows = table->Scan(request, &request.cursor);
              ASSERT_TRUE(rows.ok()) << rows.status().ToString();
              for (const int64_t key : rows->keys) ++times[key];
              EXPECT_GE(table->TotalCount(), kStay);
            } while (request.cursor != 0);
            for (int64_t key = 0; key < kStay; ++key) EXPECT_EQ(times[key], 1) << key;
            for (const auto& [key, n] : trained) EXPECT_EQ(times[key], 1) << key;
          }
          if (t == 0 && i % 10 == 5) {
            const Rows rows = Snapshot(table.get(), 0, 1);
            const std::set<int64_t> keys_of(rows.keys.begin(), rows.keys.end());
            EXPECT_EQ(keys_of.size(), rows.keys.size());
            for (int64_t key = 0; key < kStay; ++key) EXPECT_EQ(keys_of.count(key), 1u);
          }
        }
        for (const auto& [key, value] : trained) EXPECT_EQ(LookupAll(table.get(), {key})[0], value) << key;
      });
    }
    for (std::thread& thread : threads) thread.join();
    MT_ASSERT_OK(Sgd(Range(0, kStay), -1.0f, kDim).Run(table.get()));
    EXPECT_EQ(ShardsOf(*table), kShards);
    for (const float value : LookupAll(table.get(), Range(0, kStay))) ASSERT_EQ(value, 2.0f);
  }
}

}  // namespace
}  // namespace multitier::split_test
