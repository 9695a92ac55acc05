// InitializerSet: the initial values of a list of tables, which share the keys and rows of one embedding table.
//
//   table 0    uniform ..................    one segment
//   table 1    normal .... | constant ...    two: columns [0, 8) and [8, dim)
//
// Column c of key k of table t is what the initializer of the segment would give at column c of key k if it had all the
// columns of the row: c is the number of the column in the row, not in the segment. So a list with one segment gives the bits
// of its initializer, and (seed, k, c, initializer of t and c) alone decide.
//
// A specification without a list (InitializerSpec::tables) is a set of one table.
//
// Immutable. Thread-safe.

#ifndef CC_ROW_INITIALIZER_SET_H_
#define CC_ROW_INITIALIZER_SET_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/status.h"
#include "cc/row/initializer.h"

namespace multitier {

// A segment: from its first column to that of the next segment, or to the end of the row.
struct ColumnInitializer {
  int first_column = 0;
  InitializerSpec initializer;  // without a matrix, and without a list
};

struct TableInitializer {
  std::vector<ColumnInitializer> columns;
};

inline constexpr size_t kMostTables = 65535;
// In an update: the number is not known. Such a key must have a row.
inline constexpr uint16_t kNoTable = 0xffff;

class InitializerSet {
 public:
  // InvalidArgument, "initializers: expected X, found Y: cure": no segment at column 0, columns that do not ascend or are not
  // below dim, more than kMostTables tables, a matrix; and the errors of Initializer::Create.
  static Result<InitializerSet> Create(const InitializerSpec& spec, int dim, DType dtype = DType::kFloat32);

  size_t tables() const { return first_segment_.size() - 1; }
  // Whether two tables have different initializers.
  bool differ_by_table() const { return differ_by_table_; }

  // What computes the values of a set of one table, in the order of the columns. Empty: they need more than that.
  std::vector<ComputedColumns> Computed() const;

  // Writes the initial values of n keys: out[i] points to dim floats. tables: [n] the table of each key, below tables(). A set
  // of one table does not read it, so that it may be null.
  void FillBatch(const int64_t* keys, const uint16_t* tables, size_t n, float* const* out) const;
  // FillBatch into the value columns of n rows: out[i] points to the row data.
  void FillRows(const int64_t* keys, const uint16_t* tables, size_t n, uint8_t* const* out) const;

 private:
  template <typename Fill>
  void EachRun(const uint16_t* tables, size_t n, Fill fill) const;

  // Of all tables, one after the other. The initializer of a segment fills every column up to the segment's end: the last
  // segment is filled first, and each one before it replaces what comes before its own end.
  std::vector<Initializer> segments_;
  std::vector<size_t> first_segment_;  // [tables + 1]
  bool differ_by_table_ = false;
};

}  // namespace multitier

#endif  // CC_ROW_INITIALIZER_SET_H_
