// CountedKeys: entries keep their place and what they hold, freed ones are used again, memory comes a chunk at a time.

#include "cc/table/marks/counted_keys.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/status.h"
#include "cc/env/fault_env.h"

namespace multitier::counted_keys_test {
namespace {

constexpr size_t kChunkBytes = 24 * 1024;
constexpr size_t kPerChunk = kChunkBytes / sizeof(CountedKey);

TEST(CountedKeysTest, EntriesStayWhereTheyAreWhileOthersCome) {
  CountedKeys keys(Env::Posix());
  std::vector<CountedKey*> entries;
  for (size_t i = 0; i < 2 * kPerChunk + 1; ++i) {
    ASSERT_TRUE(keys.Reserve(1));
    const uint32_t location = keys.Allocate(static_cast<int64_t>(i));
    EXPECT_EQ(location, i);
    entries.push_back(keys.at(location));
    entries.back()->frequency = static_cast<uint32_t>(i) + 1;
  }
  EXPECT_EQ(keys.bytes(), 3 * kChunkBytes);
  EXPECT_EQ(keys.end(), 2 * kPerChunk + 1);
  for (size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(entries[i], keys.at(static_cast<uint32_t>(i)));
    EXPECT_EQ(entries[i]->key, static_cast<int64_t>(i));
    EXPECT_EQ(entries[i]->frequency, i + 1);
    EXPECT_EQ(entries[i]->version, -1);
  }
}

TEST(CountedKeysTest, AFreedEntryIsUsedAgainAndBeginsAnew) {
  CountedKeys keys(Env::Posix());
  ASSERT_TRUE(keys.Reserve(3));
  for (int64_t key : {10, 11, 12}) keys.at(keys.Allocate(key))->frequency = 5;
  keys.Release(0);
  keys.Release(2);
  EXPECT_EQ(keys.at(0)->frequency, 0u);  // reads as absent
  EXPECT_EQ(keys.Allocate(20), 2u);      // the last that was freed
  EXPECT_EQ(keys.Allocate(21), 0u);
  EXPECT_EQ(keys.Allocate(22), 3u);
  EXPECT_EQ(keys.at(2)->key, 20);
  EXPECT_EQ(keys.at(2)->frequency, 0u);
  EXPECT_EQ(keys.at(2)->pins, 0u);
  EXPECT_EQ(keys.at(1)->key, 11);
  EXPECT_EQ(keys.at(1)->frequency, 5u);
}

TEST(CountedKeysTest, FreedEntriesCountAsReserved) {
  CountedKeys keys(Env::Posix());
  ASSERT_TRUE(keys.Reserve(kPerChunk));
  for (size_t i = 0; i < kPerChunk; ++i) (void)keys.Allocate(1);
  for (uint32_t location : {3, 4, 5}) keys.Release(location);
  ASSERT_TRUE(keys.Reserve(3));
  EXPECT_EQ(keys.bytes(), kChunkBytes);
  ASSERT_TRUE(keys.Reserve(4));
  EXPECT_EQ(keys.bytes(), 2 * kChunkBytes);
}

TEST(CountedKeysTest, ReserveWithoutMemoryChangesNoEntry) {
  FaultEnv env(Env::Posix());
  CountedKeys keys(&env);
  ASSERT_TRUE(keys.Reserve(1));
  const uint32_t location = keys.Allocate(7);
  env.FailFrom(FaultKind::kAllocate, 1, ResourceExhaustedError("no memory"));
  EXPECT_TRUE(keys.Reserve(kPerChunk - 1));  // of the chunk that there is
  EXPECT_FALSE(keys.Reserve(kPerChunk));
  EXPECT_EQ(keys.at(location)->key, 7);
  EXPECT_EQ(keys.bytes(), kChunkBytes);
}

TEST(CountedKeysTest, ClearGivesTheMemoryBack) {
  CountedKeys keys(Env::Posix());
  ASSERT_TRUE(keys.Reserve(kPerChunk + 1));
  keys.Release(keys.Allocate(1));
  keys.Clear();
  EXPECT_EQ(keys.bytes(), 0u);
  EXPECT_EQ(keys.end(), 0u);
  ASSERT_TRUE(keys.Reserve(1));
  EXPECT_EQ(keys.Allocate(2), 0u);
}

}  // namespace
}  // namespace multitier::counted_keys_test
