#include "cc/table/api/key_batch.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "cc/base/hash.h"

namespace multitier::key_batch_test {
namespace {

std::vector<int64_t> RandomKeys(uint64_t seed, size_t n, uint64_t distinct) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> keys(n);
  for (int64_t& key : keys) key = static_cast<int64_t>(random() % distinct) - 5;
  return keys;
}

TEST(KeyBatch, PartitionKeepsEveryKeyWithItsPositionInItsShard) {
  const std::vector<int64_t> keys = RandomKeys(1, 1000, 300);
  for (const int log2 : {0, 3, 6}) {
    KeyBatch batch;
    batch.SortByShard(keys, log2);
    std::set<uint32_t> positions;
    for (int s = 0; s < (1 << log2); ++s) {
      for (uint32_t e = batch.begin(s); e < batch.end(s); ++e) {
        EXPECT_EQ(keys[batch.first_position(e)], batch.key(e));
        EXPECT_EQ(batch.hash(e), HashKey(batch.key(e)));
        if (log2 > 0) {
          EXPECT_EQ(batch.hash(e) >> (64 - log2), static_cast<uint64_t>(s));
        }
        positions.insert(batch.first_position(e));
      }
    }
    EXPECT_EQ(positions.size(), keys.size());
  }
}

TEST(KeyBatch, DedupChainsPositionsInBatchOrder) {
  for (const uint64_t distinct : {1u, 10u, 1000u}) {
    const std::vector<int64_t> keys = RandomKeys(distinct, 2000, distinct);
    std::map<int64_t, std::vector<uint32_t>> expected;
    for (uint32_t i = 0; i < keys.size(); ++i) expected[keys[i]].push_back(i);
    KeyBatch batch;
    batch.SortByShard(keys, 2);
    batch.PrepareDedup();
    std::map<int64_t, std::vector<uint32_t>> found;
    for (int s = 0; s < 4; ++s) {
      batch.Dedup(s);
      for (uint32_t e = batch.begin(s); e < batch.end(s); ++e) {
        for (uint32_t p = batch.first_position(e); p != KeyBatch::kEnd; p = batch.next(p)) found[batch.key(e)].push_back(p);
      }
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(KeyBatch, ReuseForASmallerBatchForgetsTheLargerOne) {
  KeyBatch batch;
  batch.SortByShard(RandomKeys(1, 500, 50), 1);
  batch.PrepareDedup();
  batch.Dedup(0);
  batch.Dedup(1);
  const std::vector<int64_t> keys{7, 7};
  batch.SortByShard(keys, 0);
  batch.PrepareDedup();
  batch.Dedup(0);
  ASSERT_EQ(batch.end(0) - batch.begin(0), 1u);
  EXPECT_EQ(batch.first_position(0), 0u);
  EXPECT_EQ(batch.next(0), 1u);
  EXPECT_EQ(batch.next(1), KeyBatch::kEnd);
}

TEST(KeyBatch, EmptyBatchHasNoEntries) {
  KeyBatch batch;
  batch.SortByShard({}, 3);
  for (int s = 0; s < 8; ++s) EXPECT_EQ(batch.begin(s), batch.end(s));
}

}  // namespace
}  // namespace multitier::key_batch_test
