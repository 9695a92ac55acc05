// A table part: everything a full checkpoint holds of one table or of one partition of a partitioned one.
//
//   manifest         what the rest is: JSON, so that a person can read it (docs/formats/table_part.md); in TensorFlow's bundle
//   part file        everything else (part_file.h): rows with keys, values, slots, frequencies and versions; counted keys; the
//                    initial matrix; the Bloom filter, good for the same partition of the same number of partitions only
//
// Thread-safe as values.

#ifndef CC_CHECKPOINT_TABLE_PART_H_
#define CC_CHECKPOINT_TABLE_PART_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"
#include "cc/row/initializer.h"
#include "cc/row/row_layout.h"
#include "cc/table/embedding_table.h"

namespace multitier {

struct Manifest {
  // Raised when a reader of the older form could not read the newer one. Readers ignore members they do not know.
  static constexpr int64_t kFormatVersion = 2;

  std::vector<ColumnSpec> columns;  // value first
  int64_t num_rows = 0;
  int64_t partition_index = 0;
  int64_t num_partitions = 1;
  int64_t applies = 0;              // the table's own count of applies
  std::string file;                 // name of the part file: what follows the checkpoint's prefix and a dot
  InitializerSpec initializer;      // without its matrix

  int dim() const { return columns.empty() ? 0 : columns[0].dim; }
  int64_t row_elements() const;

  std::string ToJson() const;
  // InvalidArgument: not such a manifest, or what is out of range in it; Unimplemented naming both versions: another format.
  static Result<Manifest> Parse(std::string_view json);
};

// Drops from `rows` the keys that another partition owns (base/partition.h).
void KeepPartition(int64_t partition_index, int64_t num_partitions, Rows* rows);

// Positions of rows.keys in increasing order of keys. [n]
std::vector<int64_t> OrderByKey(const std::vector<int64_t>& keys);

}  // namespace multitier

#endif  // CC_CHECKPOINT_TABLE_PART_H_
