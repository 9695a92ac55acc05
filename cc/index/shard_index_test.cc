#include "cc/index/shard_index.h"

#include <algorithm>
#include <random>
#include <unordered_map>
#include <vector>

#include "cc/base/hash.h"
#include "cc/env/env.h"
#include "cc/env/fault_env.h"
#include "gtest/gtest.h"

namespace multitier {
namespace {

constexpr uint64_t kUnbounded = uint64_t{1} << 32;

// An index whose keys are numbers: key i is at location i and has any hash that a test chooses.
class Keys {
 public:
  Keys(Env* env, bool frozen, uint64_t max_words = kUnbounded) : index(env, frozen, {max_words}) {}

  Status Insert(uint64_t hash, WordState state = WordState::kDram) {
    const uint32_t id = static_cast<uint32_t>(hashes.size());
    hashes.push_back(hash);
    Status status = index.Insert(hash, state, id, hash_of());
    if (!status.ok()) hashes.pop_back();
    return status;
  }
  uint64_t* Find(uint32_t id) const {
    return index.Find(hashes[id], [id](uint64_t word) { return ShardIndex::location(word) == id; });
  }
  ShardIndex::HashOfWord hash_of() {
    return [this](WordState, uint32_t location) { return hashes[location]; };
  }
  // How many of the keys [0, hashes.size()) are found.
  size_t CountFound() const {
    size_t found = 0;
    for (uint32_t id = 0; id < hashes.size(); ++id) found += Find(id) != nullptr;
    return found;
  }
  size_t CountWords() const {
    size_t n = 0;
    index.ForEach([&n](uint64_t) { ++n; });
    return n;
  }

  ShardIndex index;
  std::vector<uint64_t> hashes;
};

uint64_t Seed() {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

class ShardIndexTest : public testing::TestWithParam<bool> {
 protected:
  bool frozen() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(TagBase, ShardIndexTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Frozen" : "Moving"; });

TEST_P(ShardIndexTest, EmptyIndexFindsNothingAndTakesNoMemory) {
  Keys keys(Env::Posix(), frozen());
  EXPECT_EQ(keys.index.Find(HashKey(7), [](uint64_t) { return true; }), nullptr);
  EXPECT_EQ(keys.index.FindHomeDram(HashKey(7)), ShardIndex::kNone);
  EXPECT_EQ(keys.index.words(), 0u);
  EXPECT_EQ(keys.index.bytes(), 0u);
}

TEST_P(ShardIndexTest, WordKeepsStateAndLocationAndCanBeSwitched) {
  Keys keys(Env::Posix(), frozen());
  ASSERT_TRUE(keys.Insert(~uint64_t{0}, WordState::kLower2).ok());
  uint64_t* word = keys.Find(0);
  ASSERT_NE(word, nullptr);
  EXPECT_EQ(ShardIndex::state(*word), WordState::kLower2);
  EXPECT_EQ(keys.index.FindHomeDram(~uint64_t{0}), ShardIndex::kNone);
  ShardIndex::Switch(word, WordState::kDram, 0xfffffffeu);
  EXPECT_EQ(keys.index.FindHomeDram(~uint64_t{0}), 0xfffffffeu);
  ShardIndex::Switch(word, WordState::kPending, 0);
  EXPECT_EQ(keys.Find(0), word);
  EXPECT_EQ(ShardIndex::state(*word), WordState::kPending);
}

// Random inserts, finds, switches and erasures, against a map.
TEST_P(ShardIndexTest, RandomOperationsAgreeWithMap) {
  std::mt19937_64 random(Seed());
  Keys keys(Env::Posix(), frozen());
  std::unordered_map<uint32_t, WordState> model;
  std::vector<uint32_t> present;
  for (int step = 0; step < 600000; ++step) {
    // Waves of growth and shrinkage, so that tombstones come and go at every size.
    const bool grow = (step / 60000) % 2 == 0;
    if (present.empty() || random() % 100 < (grow ? 70u : 30u)) {
      const WordState state = static_cast<WordState>(1 + random() % 5);
      ASSERT_TRUE(keys.Insert(HashKey(static_cast<int64_t>(random())), state).ok());
      present.push_back(static_cast<uint32_t>(keys.hashes.size() - 1));
      model[present.back()] = state;
    } else {
      std::swap(present[random() % present.size()], present.back());
      const uint32_t id = present.back();
      uint64_t* word = keys.Find(id);
      ASSERT_NE(word, nullptr);
      ASSERT_EQ(ShardIndex::state(*word), model[id]);
      if (random() % 4 == 0) {
        model[id] = WordState::kLower1;
        ShardIndex::Switch(word, WordState::kLower1, id);
      } else {
        keys.index.Erase(word);
        model.erase(id);
        present.pop_back();
      }
    }
    ASSERT_EQ(keys.index.words(), model.size());
  }
  for (uint32_t id = 0; id < keys.hashes.size(); ++id) {
    ASSERT_EQ(keys.Find(id) != nullptr, model.count(id) == 1) << id;
  }
  EXPECT_EQ(keys.CountWords(), model.size());
}

// From 2^15 buckets (2 MiB) on the array grows in place; a quarter of a million keys end in 2^16 buckets, a million in 2^18.
TEST_P(ShardIndexTest, GrowthToAMillionKeysLosesNoneAndStaysWithinItsBytes) {
  Keys keys(Env::Posix(), frozen());
  size_t bytes = 0;
  int log2 = 0;
  for (int64_t key = 0; key < 1100000; ++key) {
    ASSERT_TRUE(keys.Insert(HashKey(key)).ok());
    if (keys.index.bytes() == bytes) continue;
    bytes = keys.index.bytes();
    if (keys.index.words() > 1000) {
      EXPECT_LE(static_cast<double>(bytes), 25.0 * static_cast<double>(keys.index.words()));
    }
    if (keys.index.log2_buckets() == log2) continue;
    log2 = keys.index.log2_buckets();
    ASSERT_EQ(keys.CountFound(), keys.hashes.size()) << "after growth to " << bytes << " bytes";
  }
  EXPECT_EQ(keys.CountWords(), keys.hashes.size());
  EXPECT_GE(bytes, size_t{64} << 18);
}

// A doubling in place needs as many bytes again. It finds them ready: they came page by page.
TEST_P(ShardIndexTest, AnArrayTakesThePagesOfItsDoublingOneByOne) {
  Keys keys(Env::Posix(), frozen());
  size_t bytes = 0, words = 0;
  for (int64_t key = 0; key < 900000; ++key) {
    ASSERT_TRUE(keys.Insert(HashKey(key)).ok());
    const size_t now = keys.index.bytes();
    if (now == bytes) continue;
    if (bytes >= 4u << 20) {
      EXPECT_EQ(now - bytes, 2u << 20) << "at " << key << " keys";
      EXPECT_GT(keys.index.words() - words, 10000u) << "at " << key << " keys";
    }
    bytes = now;
    words = keys.index.words();
  }
  EXPECT_EQ(keys.CountFound(), keys.hashes.size());
  keys.index.Clear();
  EXPECT_EQ(keys.index.bytes(), 0u);
}

// Without room in the reservation the array moves; the words survive that too.
TEST_P(ShardIndexTest, GrowthBeyondItsReservationCopies) {
  FaultEnv env(Env::Posix());
  Keys keys(&env, frozen(), /*max_words=*/1);
  for (int64_t key = 0; key < 800000; ++key) ASSERT_TRUE(keys.Insert(HashKey(key)).ok());
  EXPECT_GE(env.calls(FaultKind::kReserve), 3u);
  EXPECT_EQ(keys.CountFound(), 800000u);
}

TEST_P(ShardIndexTest, GrowthWithinItsReservationDoesNotMoveTheArray) {
  FaultEnv env(Env::Posix());
  Keys keys(&env, frozen());
  for (int64_t key = 0; key < 800000; ++key) ASSERT_TRUE(keys.Insert(HashKey(key)).ok());
  EXPECT_EQ(env.calls(FaultKind::kReserve), 1u);
}

TEST_P(ShardIndexTest, ReserveMakesInsertsFreeOfAllocation) {
  FaultEnv env(Env::Posix());
  Keys keys(&env, frozen());
  ASSERT_TRUE(keys.index.Reserve(100000, keys.hash_of()).ok());
  env.FailFrom(FaultKind::kAny, 1, ResourceExhaustedError("no memory"));
  for (int64_t key = 0; key < 100000; ++key) ASSERT_TRUE(keys.Insert(HashKey(key)).ok());
  EXPECT_FALSE(env.Disarm());
}

TEST_P(ShardIndexTest, KeysInSeveralMatchingWordsAreAllVisited) {
  Keys keys(Env::Posix(), frozen());
  // Tag and home are bits 0 to 33 at most: these differ in none of them.
  for (uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(keys.Insert((i << 40) | 0x123456789).ok());
  int visited = 0;
  EXPECT_EQ(keys.index.Find(0x123456789, [&visited](uint64_t) { return ++visited == 0; }), nullptr);
  EXPECT_EQ(visited, 40);
  EXPECT_EQ(keys.CountFound(), 40u);
  EXPECT_NE(keys.index.FindHomeDram(0x123456789), ShardIndex::kNone);
  for (uint32_t id = 0; id < 40; id += 2) keys.index.Erase(keys.Find(id));
  for (uint32_t id = 0; id < 40; ++id) EXPECT_EQ(keys.Find(id) != nullptr, id % 2 == 1);
}

// 128 words fill the 16 buckets that a walk reaches. One more makes the array grow as far as is reasonable, then it is
// refused, and everything else stays as it was.
TEST_P(ShardIndexTest, MoreKeysThanAProbeReachesAreRefusedWhenTheirHashesAreEqual) {
  Keys keys(Env::Posix(), frozen());
  for (uint64_t i = 0; i < 128; ++i) ASSERT_TRUE(keys.Insert(i << 48).ok()) << i;
  const Status status = keys.Insert(uint64_t{128} << 48);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
  EXPECT_LE(keys.index.bytes(), size_t{2} << 20);
  EXPECT_EQ(keys.CountFound(), 128u);
  EXPECT_TRUE(keys.Insert(5).ok());
  keys.index.Erase(keys.Find(17));
  EXPECT_TRUE(keys.Insert(uint64_t{500} << 48).ok());
  EXPECT_EQ(keys.CountFound(), 129u);
}

TEST_P(ShardIndexTest, CrowdedHomeGrowsWhereHashBitsTellTheKeysApart) {
  Keys keys(Env::Posix(), frozen());
  for (uint64_t i = 0; i < 400; ++i) ASSERT_TRUE(keys.Insert(HashKey(static_cast<int64_t>(i)) << 10).ok()) << i;
  EXPECT_EQ(keys.CountFound(), 400u);
}

// Homes from a narrow window at its very capacity: free words have to be brought nearer, over several steps, around the
// end of the array, with tombstones between.
TEST_P(ShardIndexTest, CrowdedWindowMovesWordsWithoutLosingAny) {
  std::mt19937_64 random(Seed());
  Keys keys(Env::Posix(), frozen());
  ASSERT_TRUE(keys.index.Reserve(5000, keys.hash_of()).ok());
  const size_t bytes = keys.index.bytes();
  ASSERT_EQ(bytes, size_t{64} << 10);
  std::vector<bool> present;
  size_t live = 0;
  for (int step = 0; step < 30000; ++step) {
    // Window of 100 buckets, over the wrap: 800 words, of which 740 may be used.
    const uint64_t home = (1000 + random() % 100) & 1023;
    if (live < 740 && random() % 2 == 0) {
      ASSERT_TRUE(keys.Insert((random() << 10) | home).ok());
      present.push_back(true);
      ++live;
    } else if (live > 0) {
      uint32_t id = static_cast<uint32_t>(random() % present.size());
      while (!present[id]) id = (id + 1) % static_cast<uint32_t>(present.size());
      uint64_t* word = keys.Find(id);
      ASSERT_NE(word, nullptr) << "step " << step;
      if (live > 700) {
        keys.index.Erase(word);
        present[id] = false;
        --live;
      }
    }
    ASSERT_EQ(keys.index.words(), live);
  }
  for (uint32_t id = 0; id < present.size(); ++id) ASSERT_EQ(keys.Find(id) != nullptr, present[id]) << id;
  EXPECT_EQ(keys.index.bytes(), bytes);
}

// A free word is brought half of the way, then no word may move further: the words that did move must be found all the same.
TEST_P(ShardIndexTest, InsertThatMovesWordsAndFailsLosesNone) {
  FaultEnv env(Env::Posix());
  Keys keys(&env, frozen());
  ASSERT_TRUE(keys.index.Reserve(5000, keys.hash_of()).ok());
  for (uint64_t i = 0; i < 128; ++i) ASSERT_TRUE(keys.Insert((i << 40) | 100).ok());  // buckets 100 to 115
  for (uint64_t i = 0; i < 80; ++i) ASSERT_TRUE(keys.Insert((i << 40) | (116 + i / 8)).ok());
  env.FailFrom(FaultKind::kAny, 1, ResourceExhaustedError("no memory"));
  EXPECT_EQ(keys.Insert((uint64_t{500} << 40) | 100).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(keys.CountFound(), 208u);
  EXPECT_EQ(keys.CountWords(), 208u);
  EXPECT_TRUE(keys.Insert((uint64_t{500} << 40) | 116).ok());
  EXPECT_EQ(keys.CountFound(), 209u);
}

// As many keys come as go. Buckets that were full once keep tombstones; sweeping them is enough, and the array stays.
TEST_P(ShardIndexTest, ChurnAtConstantSizeDoesNotGrowTheArray) {
  std::mt19937_64 random(Seed());
  Keys keys(Env::Posix(), frozen());
  const size_t live = static_cast<size_t>(0.9 * 0.7 * 8 * 4096);
  std::vector<uint32_t> present;
  for (size_t i = 0; i < live; ++i) {
    ASSERT_TRUE(keys.Insert(HashKey(static_cast<int64_t>(random()))).ok());
    present.push_back(static_cast<uint32_t>(i));
  }
  ASSERT_EQ(keys.index.bytes(), size_t{64} << 12);
  for (size_t i = 0; i < 40 * live; ++i) {
    uint32_t& id = present[random() % live];
    uint64_t* word = keys.Find(id);
    ASSERT_NE(word, nullptr);
    keys.index.Erase(word);
    ASSERT_TRUE(keys.Insert(HashKey(static_cast<int64_t>(random()))).ok());
    id = static_cast<uint32_t>(keys.hashes.size() - 1);
  }
  EXPECT_EQ(keys.index.bytes(), size_t{64} << 12);
  EXPECT_EQ(keys.CountWords(), live);
  for (const uint32_t id : present) ASSERT_NE(keys.Find(id), nullptr);
}

// The n-th request for memory fails, for every n: the insert says so, no word is lost, and the next try succeeds.
TEST_P(ShardIndexTest, FailedAllocationLeavesTheIndexAsItWas) {
  constexpr int64_t kKeys = 420000;
  for (const FaultKind kind : {FaultKind::kAllocate, FaultKind::kReserve, FaultKind::kCommit, FaultKind::kAny}) {
    int fired = 0;
    for (uint64_t n = 1;; ++n) {
      FaultEnv env(Env::Posix());
      Keys keys(&env, frozen());
      env.FailNth(kind, n, ResourceExhaustedError("no memory"));
      for (int64_t key = 0; key < kKeys; ++key) {
        const size_t bytes = keys.index.bytes();
        const Status status = keys.Insert(HashKey(key));
        if (status.ok()) continue;
        ASSERT_EQ(status.code(), StatusCode::kResourceExhausted);
        ASSERT_EQ(keys.index.bytes(), bytes);
        ASSERT_EQ(keys.index.words(), static_cast<size_t>(key));
        ASSERT_EQ(keys.CountFound(), static_cast<size_t>(key));
        ASSERT_TRUE(keys.Insert(HashKey(key)).ok());
      }
      ASSERT_EQ(keys.CountFound(), static_cast<size_t>(kKeys));
      if (!env.Disarm()) break;
      ++fired;
    }
    EXPECT_GE(fired, 1) << FaultKindName(kind);
  }
}

TEST_P(ShardIndexTest, ReserveThatMemoryCannotMeetIsRefusedAndTheIndexStaysUsable) {
  FaultEnv env(Env::Posix());
  Keys keys(&env, frozen());
  ASSERT_TRUE(keys.Insert(1).ok());
  env.FailFrom(FaultKind::kCommit, 6, ResourceExhaustedError("no memory"));  // 2 MiB << 5
  EXPECT_EQ(keys.index.Reserve(size_t{1} << 40, keys.hash_of()).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(env.Disarm());
  EXPECT_TRUE(keys.Insert(2).ok());
  EXPECT_EQ(keys.CountFound(), 2u);
}

TEST_P(ShardIndexTest, ClearForgetsEverythingAndGivesMemoryBack) {
  Keys keys(Env::Posix(), frozen());
  for (int64_t key = 0; key < 300000; ++key) ASSERT_TRUE(keys.Insert(HashKey(key)).ok());
  keys.index.Clear();
  EXPECT_EQ(keys.index.words(), 0u);
  EXPECT_EQ(keys.index.bytes(), 0u);
  EXPECT_EQ(keys.CountFound(), 0u);
  EXPECT_EQ(keys.CountWords(), 0u);
  keys.hashes.clear();
  for (int64_t key = 0; key < 1000; ++key) ASSERT_TRUE(keys.Insert(HashKey(-key)).ok());
  EXPECT_EQ(keys.CountFound(), 1000u);
}

}  // namespace
}  // namespace multitier
