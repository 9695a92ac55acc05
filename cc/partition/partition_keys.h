// Divides the keys of a batch by the partition that owns them (partition.h).

#ifndef CC_PARTITION_PARTITION_KEYS_H_
#define CC_PARTITION_PARTITION_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/span.h"

namespace multitier {

struct PartitionedKeys {
  std::vector<int64_t> keys;       // [n] keys of partition 0 first; within a partition in the order of the batch
  std::vector<int32_t> positions;  // [n] position of each key in the batch
  std::vector<size_t> begins;      // [num_partitions + 1] index of the first key of each partition

  Span<const int64_t> keys_of(int partition) const {
    return Span<const int64_t>(keys.data() + begins[partition], begins[partition + 1] - begins[partition]);
  }
  Span<const int32_t> positions_of(int partition) const {
    return Span<const int32_t>(positions.data() + begins[partition], begins[partition + 1] - begins[partition]);
  }
};

// REQUIRES: keys.size() < 2^31, 1 <= num_partitions <= kPartitionBuckets
PartitionedKeys PartitionKeys(Span<const int64_t> keys, int num_partitions);

}  // namespace multitier

#endif  // CC_PARTITION_PARTITION_KEYS_H_
