// Rows: rows and counted keys outside a table, column by column.

#ifndef CC_TABLE_ROWS_H_
#define CC_TABLE_ROWS_H_

#include <cstdint>
#include <vector>

#include "cc/row/row_layout.h"

namespace multitier {

// Rows outside a table: what Export gives and Import takes.
struct Rows {
  std::vector<ColumnSpec> columns;   // value first
  std::vector<int64_t> keys;         // [n]
  std::vector<int64_t> frequencies;  // [n]
  std::vector<int64_t> versions;     // [n]
  std::vector<float> data;           // [n, sum of column dims], columns back to back, no padding
  // Keys counted by the counter filter but not admitted.
  std::vector<int64_t> counted_keys;         // [m]
  std::vector<int64_t> counted_frequencies;  // [m]
  std::vector<int64_t> counted_versions;     // [m]
  // Export only: the table's own count of applies, and the Bloom filter's state: counter bits fixed32, hashes fixed32, number
  // of counters fixed64, counters. An Import into a table whose filter has the same three numbers takes the counters over;
  // with any other, keys not yet admitted are counted from zero.
  int64_t applies = 0;
  std::vector<uint8_t> filter_counters;

  int64_t row_elements() const {
    int64_t n = 0;
    for (const ColumnSpec& c : columns) n += c.dim;
    return n;
  }
};

}  // namespace multitier

#endif  // CC_TABLE_ROWS_H_
