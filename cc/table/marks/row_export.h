// What is added to Rows, one row or counted key at a time, and taken back where a step fails.

#ifndef CC_TABLE_MARKS_ROW_EXPORT_H_
#define CC_TABLE_MARKS_ROW_EXPORT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/row/row_layout.h"
#include "cc/table/api/rows.h"
#include "cc/table/marks/counted_keys.h"

namespace multitier {

// Adds a row: all its columns, or the value alone. row_data: [layout.row_bytes()]
void AppendRow(const RowLayout& layout, bool all_columns, int64_t key, uint32_t frequency, int64_t version,
               const uint8_t* row_data, Rows* rows);
// How many floats AppendRow adds.
size_t ElementsOf(const RowLayout& layout, bool all_columns);
// The same with chosen columns, by their indexes in the layout.
void AppendColumns(const RowLayout& layout, const std::vector<int>& columns, int64_t key, uint32_t frequency, int64_t version,
                   const uint8_t* row_data, Rows* rows);
// Adds a counted key. An entry without a count is skipped.
void AppendCounted(const CountedKey& counted, Rows* rows);
// Adds the rows, counted keys and removed keys of `from`, at most `most` of them, beginning with the one of number *next among
// all of them. Advances *next. Returns whether some are left.
bool AppendSome(const Rows& from, size_t most, size_t* next, Rows* to);
// Cuts off all rows behind the first `keys`, and all counted keys behind the first `counted`.
void CutOff(size_t keys, size_t counted, Rows* rows);

}  // namespace multitier

#endif  // CC_TABLE_MARKS_ROW_EXPORT_H_
