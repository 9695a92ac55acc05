#include "cc/partition/partition_keys.h"

#include "cc/partition/partition.h"

namespace multitier {

PartitionedKeys PartitionKeys(Span<const int64_t> keys, int num_partitions) {
  PartitionedKeys out;
  out.keys.resize(keys.size());
  out.positions.resize(keys.size());
  out.begins.assign(num_partitions + 1, 0);
  // A counting sort: owners, begins, then every key to its place.
  std::vector<uint16_t> owners(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    owners[i] = static_cast<uint16_t>(PartitionOf(keys[i], num_partitions));
    ++out.begins[owners[i] + 1];
  }
  for (int p = 0; p < num_partitions; ++p) out.begins[p + 1] += out.begins[p];
  std::vector<size_t> next(out.begins.begin(), out.begins.end() - 1);
  for (size_t i = 0; i < keys.size(); ++i) {
    const size_t place = next[owners[i]]++;
    out.keys[place] = keys[i];
    out.positions[place] = static_cast<int32_t>(i);
  }
  return out;
}

}  // namespace multitier
