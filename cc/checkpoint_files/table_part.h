// A table part: the data of one table, or of one partition of a partitioned variable, in a full checkpoint. All parts of a save
// are as of one moment: cc/table/snapshot/snapshot_together.h.
//
//   manifest         describes the part: JSON that people can read (docs/formats/table_part.md), in TensorFlow's bundle
//   part file        all data (part_file.h): rows with keys, values, slots, frequencies and versions; counted keys; the initial
//                    matrix; the Bloom filter, which is valid only for the same partition and number of partitions
//   linked files     rows that the save did not write again: segments of the table's last tier (linked_rows.h)
//
// The rows come from a snapshot of the table, which is of one moment: cc/table/host/snapshot.cc.
//
// Thread-safe as values.

#ifndef CC_CHECKPOINT_FILES_TABLE_PART_H_
#define CC_CHECKPOINT_FILES_TABLE_PART_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"
#include "cc/options/options.h"
#include "cc/row/initializer.h"
#include "cc/row/row_layout.h"
#include "cc/table/api/embedding_table.h"

namespace multitier {

struct Manifest {
  // It rises when a reader of this one could not read what is written. Readers ignore unknown members.
  static constexpr int64_t kFormatVersion = 1;

  // A linked file: its name as in `file`, its size, and how many rows of the part it has.
  struct Linked {
    std::string file;
    int64_t bytes = 0;
    int64_t rows = 0;
  };

  std::vector<ColumnSpec> columns;      // value first
  KeyType key_dtype = KeyType::kInt64;  // int32, too. The file has uint64 as its 64 bits, uint32 extended by zeros
  int64_t num_rows = 0;
  int64_t partition_index = 0;
  int64_t num_partitions = 1;
  int64_t applies = 0;  // the table's own count of applies
  std::string file;     // name of the part file, without the checkpoint's prefix and the dot after it
  // crc32c of the checksums of the part file's blocks. It tells the file from another one with as many rows
  uint32_t checksum = 0;
  // Of absent keys, without its matrix. Unless has_initializer, the variable that reads the part keeps its own: a part that was
  // made from rows of another system.
  InitializerSpec initializer;
  // Of a save that begins or continues a chain: its name, a random number; and of a delta, the name of the save that it
  // continues, and how many keys it removes. 0: none.
  int64_t save_id = 0;
  int64_t since = 0;
  int64_t num_removed = 0;
  bool has_initializer = true;
  // The rows are for serving: keys and values alone, in the dtype of the one column.
  bool frozen = false;
  std::vector<Linked> linked;  // none in a frozen part

  int dim() const { return columns.empty() ? 0 : columns[0].dim; }
  int64_t row_elements() const;

  std::string ToJson() const;
  // InvalidArgument if the text is not a manifest or a member is out of range. Unimplemented, with both versions, for another
  // format version.
  static Result<Manifest> Parse(std::string_view json);
};

// InvalidArgument if no table has such an initializer. Of a matrix, which is in a file of its own, only the rows are checked.
Status CheckInitializer(const InitializerSpec& spec, int dim, DType dtype);

// Moves the rows at `kept`, which increases, to the front, and drops the others. Counted and removed keys stay.
void KeepRows(const std::vector<size_t>& kept, Rows* rows);

// Removes the keys that another partition owns (partition/partition.h) from `rows`.
void KeepPartition(int64_t partition_index, int64_t num_partitions, Rows* rows);

// The positions of the keys in increasing order of keys: [n]
std::vector<int64_t> OrderByKey(const std::vector<int64_t>& keys);

}  // namespace multitier

#endif  // CC_CHECKPOINT_FILES_TABLE_PART_H_
