// What a row is.
//
// A row is a header and a run-time list of columns: the value first, then the optimizer's slots, contiguous:
//
//   | RowHeader 32 B | value, dim x dtype, to 16 B | slot 1, to 16 B | ... | slot n, to 16 B | padding |
//                    ^ "row data"
//
// Columns are only ever appended: rows written when the layout had c columns are the prefix of rows with more, so every
// holder of rows (slab, segment, file) names the number of columns it was written with, and readers widen, filling a new
// column with its initial value. `row_bytes` (what storage_size counts) is the sum over columns of their bytes rounded up
// to 16; header and padding are overhead, bounded by kMaxOverheadBytes with the index's share.
//
// A RowLayout is immutable: adding a column makes another. Thread-safe as values.

#ifndef CC_ROW_ROW_LAYOUT_H_
#define CC_ROW_ROW_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"

namespace multitier {

enum class DType : uint8_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };
size_t DTypeSize(DType dtype);
const char* DTypeName(DType dtype);  // "float32", ...

// A column before it has a place.
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

// In front of every row in memory. Written under the lock of the row's shard.
struct RowHeader {
  int64_t key;
  int64_t version;     // global step of the last update; -1 before the first
  uint32_t frequency;  // occurrences trained on, saturating
  uint32_t below;      // location of the clean copy in the last tier; kNoLocation where there is none
  uint32_t recency;    // of the replacement policy
  uint16_t pins;       // operations that hold the row's address
  uint16_t flags;      // RowFlags

  bool has(uint16_t flag) const { return (flags & flag) != 0; }
};
static_assert(sizeof(RowHeader) == 32, "the overhead bound counts on it");

enum RowFlags : uint16_t {
  kRowUncommitted = 1,     // created by an apply whose update has not run: reads as absent
  kRowFree = 2,        // a slot of the slab that holds no row
  kRowDemoting = 8,    // being written below as it is now; whoever changes the row clears it
  kRowUse = 16,        // two bits: uses since the replacement policy last looked, at most 3
  kRowUses = 48,
  kRowPrefetched = 64, // brought up ahead of its use, and kept until then
  kRowEverBelow = 4,   // a record of this key may exist in a lower tier: removal must leave a tombstone there
};

constexpr uint32_t kNoLocation = 0xffffffffu;
constexpr size_t kMaxOverheadBytes = 64;       // beside row_bytes: header, padding, index
constexpr size_t kIndexBytesPerKeyBound = 25;  // the index's share of it

class RowLayout {
 public:
  // A row with only a value column. InvalidArgument where dim is not in [1, 1 << 20].
  static Result<RowLayout> Create(int dim, DType value_dtype);

  // This layout with one more column. InvalidArgument where the name is empty or exists, the dim is not in [1, 1 << 20], or
  // row_bytes would pass 1 GiB.
  Result<RowLayout> WithColumn(const ColumnSpec& spec) const;

  const std::vector<Column>& columns() const { return columns_; }
  const Column& value() const { return columns_[0]; }
  int dim() const { return columns_[0].dim; }
  // Index of the named column, or -1.
  int Find(const std::string& name) const;
  // Bytes of row data: what storage_size counts.
  size_t row_bytes() const { return row_bytes_; }
  // Distance between two rows in memory: header + row_bytes, padded to whole cache lines only while header + padding +
  // index stay within kMaxOverheadBytes.
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
