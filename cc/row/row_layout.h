// RowLayout: the columns of a row and their places.
//
// A row is a header and a list of columns, which is set at run time. The columns are contiguous: the value, then the
// optimizer's slots:
//
//   | RowHeader 32 B | value, dim x dtype, to 16 B | slot 1, to 16 B | ... | slot n, to 16 B | padding |
//                    ^ "row data"
//
// This is a row in memory. A record on disk has bytes of its own: see cc/tier/ssdhash/segment_format.h,
// cc/tier/leveldb/leveldb_entry.h and cc/tier/pmem/pmem_file.h.
//
// Columns are only appended, never removed. A row that was written with c columns is a prefix of a row with more columns. So
// every holder of rows (slab, segment, file) records the number of columns with which it was written. Readers widen such rows:
// a new column gets its initial value.
//
// `row_bytes` is the sum of the columns' bytes, each rounded up to 16. storage_size counts these bytes. Header, padding and the
// index are overhead: at most kMaxOverheadBytes per row.
//
// A RowLayout is immutable: adding a column makes a new one. Thread-safe as a value.

#ifndef CC_ROW_ROW_LAYOUT_H_
#define CC_ROW_ROW_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/row/dtype.h"

namespace multitier {

size_t DTypeSize(DType dtype);
const char* DTypeName(DType dtype);  // "float32", ...
Result<DType> ParseDType(const std::string& name);

// A column without its place in the row.
struct ColumnSpec {
  std::string name;  // unique in its row: "value", or the slot variable's name
  DType dtype = DType::kFloat32;
  int dim = 0;                 // elements, > 0
  float initial_value = 0.0f;  // of slots; the value column is filled by the table's Initializer
};

struct Column : ColumnSpec {
  uint32_t offset = 0;  // bytes from the start of the row data, a multiple of 16
  uint32_t bytes = 0;   // dim elements rounded up to 16
};

// The header in front of every row in memory. Written under the lock of the row's shard.
struct RowHeader {
  int64_t key;
  int64_t version;     // global step of the last update; -1 before the first
  uint32_t frequency;  // number of occurrences in training, saturating
  uint32_t below;      // location of the clean copy in the last tier; kNoLocation if there is none
  uint32_t recency;    // used by the replacement policy
  uint16_t pins;       // operations that hold the row's address
  uint16_t flags;      // RowFlags

  bool has(uint16_t flag) const { return (flags & flag) != 0; }
};
static_assert(sizeof(RowHeader) == 32, "the overhead bound counts on it");

enum RowFlags : uint16_t {
  kRowUncommitted = 1,  // created by an apply whose update has not run: reads as absent
  kRowFree = 2,         // a slot of the slab that holds no row
  kRowDemoting = 8,     // a copy of the row is being written to a lower tier; a change of the row clears the flag
  kRowUse = 16,         // two bits: uses since the replacement policy last visited the row, at most 3
  kRowUses = 48,
  kRowPrefetched = 64,  // prefetched, and pinned until its next use
  kRowEverBelow = 4,    // a lower tier may have a record of this key: removal must leave a tombstone there
};

constexpr uint32_t kNoLocation = 0xffffffffu;
constexpr size_t kMaxOverheadBytes = 64;       // per row, in addition to row_bytes: header, padding, index
constexpr size_t kIndexBytesPerKeyBound = 25;  // the part of it for the index

class RowLayout {
 public:
  // A row with only a value column. InvalidArgument if dim is not in [1, 1 << 20].
  static Result<RowLayout> Create(int dim, DType value_dtype);

  // This layout with one more column. InvalidArgument if the name is empty or exists, the dim is not in [1, 1 << 20], or
  // row_bytes would exceed 1 GiB.
  Result<RowLayout> WithColumn(const ColumnSpec& spec) const;

  const std::vector<Column>& columns() const { return columns_; }
  const Column& value() const { return columns_[0]; }
  int dim() const { return columns_[0].dim; }
  // Index of the named column, or -1.
  int Find(const std::string& name) const;
  // Bytes of row data, as storage_size counts them.
  size_t row_bytes() const { return row_bytes_; }
  // Distance between two rows in memory: header + row_bytes. It is padded to whole cache lines only if header, padding and
  // index together are at most kMaxOverheadBytes.
  size_t stride() const { return stride_; }

  // Fills columns [first_column, end) of the row data with their initial values.
  void FillSlots(uint8_t* row_data, size_t first_column) const;

 private:
  RowLayout() = default;
  void Place();

  std::vector<Column> columns_;
  size_t row_bytes_ = 0;
  size_t stride_ = 0;
};

}  // namespace multitier

#endif  // CC_ROW_ROW_LAYOUT_H_
