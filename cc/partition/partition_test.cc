#include "cc/partition/partition.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace multitier::partition_test {
namespace {

TEST(PartitionTest, OwnerIsTheRangeThatHoldsTheBucket) {
  for (int num_partitions : {1, 2, 3, 5, 7, 100, 1000, 1024}) {
    for (int64_t key = -5000; key < 5000; ++key) {
      const int partition = PartitionOf(key, num_partitions);
      ASSERT_GE(partition, 0);
      ASSERT_LT(partition, num_partitions);
      ASSERT_LE(PartitionBegin(partition, num_partitions), PartitionBucket(key));
      ASSERT_LT(PartitionBucket(key), PartitionBegin(partition + 1, num_partitions));
    }
  }
}

TEST(PartitionTest, KeysOfAPartitionFillItsIndexEvenly) {
  // Homes and shards of the index are the low and the high bits of the hash.
  int homes[64] = {}, shards[64] = {};
  int keys = 0;
  for (int64_t key = 0; key < 64000; ++key) {
    if (PartitionOf(key, 8) != 3) continue;
    ++homes[HashKey(key) % 64];
    ++shards[HashKey(key) >> 58];
    ++keys;
  }
  EXPECT_NEAR(keys, 8000, 500);
  for (int i = 0; i < 64; ++i) {
    EXPECT_NEAR(homes[i], 125, 60);
    EXPECT_NEAR(shards[i], 125, 60);
  }
}

TEST(PartitionTest, RangesCoverAllBuckets) {
  for (int num_partitions = 1; num_partitions <= kPartitionBuckets; ++num_partitions) {
    EXPECT_EQ(PartitionBegin(0, num_partitions), 0);
    EXPECT_EQ(PartitionBegin(num_partitions, num_partitions), kPartitionBuckets);
  }
}

TEST(PartitionTest, OverlapIsABucketInCommon) {
  for (int num_p : {1, 2, 3, 7}) {
    for (int num_q : {1, 2, 5}) {
      for (int p = 0; p < num_p; ++p) {
        for (int q = 0; q < num_q; ++q) {
          bool common = false;
          for (int64_t key = 0; key < 20000 && !common; ++key) {
            common = PartitionOf(key, num_p) == p && PartitionOf(key, num_q) == q;
          }
          EXPECT_EQ(PartitionsOverlap(p, num_p, q, num_q), common) << p << "/" << num_p << " " << q << "/" << num_q;
        }
      }
    }
  }
}

TEST(PartitionTest, ExtremeKeysHaveAnOwner) {
  for (int64_t key : {std::numeric_limits<int64_t>::min(), int64_t{-1}, int64_t{0}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_GE(PartitionOf(key, 3), 0);
    EXPECT_LT(PartitionOf(key, 3), 3);
  }
}

TEST(PartitionTest, ConsecutiveKeysSpreadEvenly) {
  int64_t counts[4] = {};
  constexpr int64_t kKeys = 100000;
  for (int64_t key = 0; key < kKeys; ++key) ++counts[PartitionOf(key, 4)];
  for (int64_t count : counts) EXPECT_NEAR(count, kKeys / 4, kKeys / 100);
}

}  // namespace
}  // namespace multitier::partition_test
