#include "cc/partition/partition_keys.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

#include "cc/partition/partition.h"

namespace multitier::partition_keys_test {
namespace {

TEST(PartitionKeysTest, EveryKeyGoesToItsOwnerInOrder) {
  std::vector<int64_t> keys;
  for (int64_t i = 0; i < 3000; ++i) keys.push_back((i * 7919) % 1000 - 500);  // with repeats
  for (int num_partitions : {1, 2, 3, 1024}) {
    const PartitionedKeys routed = PartitionKeys(keys, num_partitions);
    std::set<int32_t> seen;
    for (int p = 0; p < num_partitions; ++p) {
      int32_t previous = -1;
      for (size_t i = 0; i < routed.keys_of(p).size(); ++i) {
        const int32_t position = routed.positions_of(p)[i];
        EXPECT_GT(position, previous);
        EXPECT_EQ(keys[position], routed.keys_of(p)[i]);
        EXPECT_EQ(PartitionOf(keys[position], num_partitions), p);
        seen.insert(position);
        previous = position;
      }
    }
    EXPECT_EQ(seen.size(), keys.size());
  }
}

TEST(PartitionKeysTest, NoKeysGiveEmptyPartitions) {
  const PartitionedKeys routed = PartitionKeys(Span<const int64_t>(), 3);
  for (int p = 0; p < 3; ++p) EXPECT_TRUE(routed.keys_of(p).empty());
}

}  // namespace
}  // namespace multitier::partition_keys_test
