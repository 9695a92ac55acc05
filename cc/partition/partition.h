// Which partition of a partitioned variable owns a key. Lookups, training and checkpoints use this rule.
//
// The hash of a key selects one of 1024 buckets. Partition p of P owns the buckets [p * 1024 / P, (p + 1) * 1024 / P). To read
// a checkpoint of n partitions with m, buckets move. A change here changes every checkpoint.
//
// The bucket is computed from the hash times a constant. The index of a table uses the low and high bits of the hash itself. If
// partitions used them too, all keys of a partition would share these bits, and most of the index would stay empty.

#ifndef CC_PARTITION_PARTITION_H_
#define CC_PARTITION_PARTITION_H_

#include <cstdint>

#include "cc/base/hash.h"

namespace multitier {

constexpr int kPartitionBuckets = 1024;

inline int PartitionBucket(int64_t key) {
  return static_cast<int>((HashKey(key) * 0x9e3779b97f4a7c15u) >> 54);  // the top 10 bits
}

// The first bucket of a partition. For partition == num_partitions: kPartitionBuckets.
constexpr int PartitionBegin(int partition, int num_partitions) {
  return static_cast<int>(int64_t{partition} * kPartitionBuckets / num_partitions);
}

// REQUIRES: 1 <= num_partitions <= kPartitionBuckets
inline int PartitionOf(int64_t key, int num_partitions) {
  // The largest p with p * 1024 / P <= bucket, that is p * 1024 < (bucket + 1) * P.
  return ((PartitionBucket(key) + 1) * num_partitions - 1) / kPartitionBuckets;
}

// Whether partition p of P and partition q of Q have a bucket in common.
constexpr bool PartitionsOverlap(int p, int num_p, int q, int num_q) {
  return PartitionBegin(p, num_p) < PartitionBegin(q + 1, num_q) && PartitionBegin(q, num_q) < PartitionBegin(p + 1, num_p);
}

}  // namespace multitier

#endif  // CC_PARTITION_PARTITION_H_
