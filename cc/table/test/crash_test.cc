// Crashes of a table over SSDHASH at any call of its files, in several lives: each key is found as it was flushed, or as it was
// at some time since; its row is whole, and its own.

#include <map>
#include <random>

#include "cc/env/crash_env.h"
#include "cc/table/test/storage_test_util.h"

namespace multitier::crash_test {
namespace {

constexpr int kDim = 5;
constexpr int64_t kKeys = 300;

// A table of 20 rows in memory, maybe 40 more in a tier between, over files in `env`. Each update takes 1 from a value that
// begins with 0: the value tells how often the row was trained, as its frequency does.
struct Shape {
  bool middle = false, async_compaction = false, direct_io = true;
};
std::unique_ptr<EmbeddingTable> OpenTable(Env* env, const Shape& shape, bool recover) {
  SsdHashOptions ssdhash;
  ssdhash.env = env;
  ssdhash.directory = "d";
  ssdhash.keep = true;
  ssdhash.recover = recover && *env->FileExists("d/ssd.id");  // else the crash came before the tier was open
  ssdhash.min_segment_bytes = 16 << 10;
  ssdhash.async_compaction = shape.async_compaction;
  ssdhash.direct_io = shape.direct_io;
  TableOptions options = TieredOptions(kDim, 20, Must(SsdHashTier::Open(ssdhash)));
  if (options.lower_tiers[0].tier == nullptr) return nullptr;
  options.initializer.kind = InitializerKind::kConstant;
  options.initializer.a = 0.0f;
  options.adopt = recover;
  if (shape.middle) {
    options.lower_tiers.insert(options.lower_tiers.begin(), {std::make_shared<MemoryTier>(), 2 * options.dram_budget_bytes});
  }
  return MakeTable(options);
}

std::vector<int64_t> AllKeys() {
  std::vector<int64_t> keys(kKeys);
  for (int64_t key = 0; key < kKeys; ++key) keys[static_cast<size_t>(key)] = key;
  return keys;
}

CrashHistory::States RecoverFrom(const Crash& crash, const Shape& shape) {
  SCOPED_TRACE(crash.power_lost ? "the power was lost" : "the process died");
  InMemoryEnv memory;
  MT_EXPECT_OK(crash.CopyTo(&memory, "d"));
  CrashHistory::States found;
  auto table = OpenTable(&memory, shape, true);
  if (table == nullptr) return found;
  std::vector<int64_t> frequency(kKeys);
  MT_EXPECT_OK(table->Frequency(AllKeys(), frequency.data()));
  const std::vector<float> values = LookupAll(table.get(), AllKeys());
  int wrong = 0, torn = 0;
  for (int64_t key = 0; key < kKeys; ++key) {
    const int64_t state = found[key] = frequency[static_cast<size_t>(key)];
    for (int d = 0; d < kDim; ++d) torn += values[static_cast<size_t>(key * kDim + d)] == -static_cast<float>(state) ? 0 : 1;
    if (crash.Allows(key, state) || wrong++ > 0) continue;
    ADD_FAILURE() << "key " << key << ": found " << state << ", known " << crash.Known(key);
  }
  EXPECT_EQ(wrong, 0) << "of " << kKeys << " keys";
  EXPECT_EQ(torn, 0) << "values that are not those of their row's frequency";
  return found;
}

TEST(TableCrash, AtAnyCall) {
  std::mt19937_64 random(CrashSeed());
  size_t crashes = 0;
  const int rounds = CrashRounds(10, 800);
  for (int round = 0; round < rounds; ++round) {
    std::map<std::string, Crash::File> files;
    CrashHistory history;
    CrashHistory::States found;
    for (int life = 0; life < 4; ++life) {
      const Shape shape{random() % 2 == 0, random() % 2 == 0, random() % 3 != 0};
      SCOPED_TRACE(StrCat("round ", round, ", life ", life, shape.middle ? ", three tiers" : ", two tiers", ", compaction ",
                          shape.async_compaction ? "beside" : "in", " writes, ", shape.direct_io ? "direct" : "buffered"));
      CrashEnv env("d", files, random(), &history);
      auto table = OpenTable(&env, shape, life > 0);
      ASSERT_NE(table, nullptr);
      CrashHistory::States now = found;
      const uint64_t per_flush = random() % 2 == 0 ? 50 : 8;
      for (uint64_t left = 20 + random() % 150; left > 0; --left) {
        const int64_t from = static_cast<int64_t>(random() % kKeys);
        std::vector<int64_t> keys;
        for (uint64_t i = 1 + random() % 60; i > 0; --i) keys.push_back((from + static_cast<int64_t>(random() % 80)) % kKeys);
        const bool removes = random() % 6 == 0;
        for (const int64_t key : keys) {
          now[key] = removes ? 0 : now[key] + 1;
          history.Begin(key, now[key]);
        }
        if (removes) {
          MT_ASSERT_OK(table->Remove(keys, nullptr));
        } else {
          MT_ASSERT_OK(Sgd(keys, 1.0f, kDim).Run(table.get()));
        }
        if (random() % per_flush != 0) continue;
        MT_ASSERT_OK(table->Flush());
        history.Acknowledge(now);
      }
      table.reset();
      const std::vector<Crash> taken = env.Take();  // closing included
      if (taken.empty()) break;
      crashes += taken.size();
      for (const Crash& crash : taken) {
        found = RecoverFrom(crash, shape);
        if (testing::Test::HasFailure()) return;
      }
      files = taken.back().files;
      history = taken.back().history;
      history.Found(found, taken.back().power_lost);
    }
  }
  std::printf("%zu crashes\n", crashes);
  EXPECT_GT(crashes, static_cast<size_t>(rounds));
}

}  // namespace
}  // namespace multitier::crash_test
