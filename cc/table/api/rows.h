// Rows outside a table, column by column, and the requests that move them: Rows, ScanRequest, UpsertRequest.

#ifndef CC_TABLE_API_ROWS_H_
#define CC_TABLE_API_ROWS_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cc/base/span.h"
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
  std::vector<int64_t> removed_keys;         // a snapshot of what changed only: keys that the table does not have any more
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
  // Makes room for n rows of the columns, with undefined content, and drops the rest.
  void Resize(size_t n) {
    keys.resize(n);
    frequencies.resize(n);
    versions.resize(n);
    data.resize(n * static_cast<size_t>(row_elements()));
    for (auto* of_keys : {&counted_keys, &counted_frequencies, &counted_versions, &removed_keys}) of_keys->clear();
    applies = 0;
    filter_counters.clear();
  }
};

// One call of a scan.
struct ScanRequest {
  uint64_t cursor = 0;               // 0 at first, then what the call before returned
  int64_t max_rows = 64 * 1024;      // of the result, or a few more
  std::vector<std::string> columns;  // names, in the order wanted; empty: all
  // Rows and counted keys below one of these are left out.
  int64_t min_version = std::numeric_limits<int64_t>::min();
  int64_t min_frequency = 0;

  bool Wants(int64_t version, int64_t frequency) const { return version >= min_version && frequency >= min_frequency; }
};

// What an upsert does with a key that has a row.
enum class IfExists {
  kReplace,  // sets what is given
  kKeep,     // leaves the row as it is
  kError,    // AlreadyExists, and nothing changes
};

// Rows to put into a table. What is not given stays as it is in a row that exists. A new row then has initial values, frequency
// 0 (or its count, if a counter filter counted the key), and the newest step as its version.
struct UpsertRequest {
  Span<const int64_t> keys;  // [n]
  struct Columns {
    std::string name;
    int dim = 0;
    const float* data = nullptr;  // [n, dim]
  };
  std::vector<Columns> columns;     // of those of the table
  Span<const int64_t> frequencies;  // [n], or empty: not given
  Span<const int64_t> versions;     // [n], or empty: not given
  IfExists if_exists = IfExists::kReplace;
  bool last_of_repeats = false;  // false: repeated keys are InvalidArgument
  bool check_only = false;       // writes no row; refuses what an upsert would refuse now. Rows may move between tiers
};

}  // namespace multitier

#endif  // CC_TABLE_API_ROWS_H_
