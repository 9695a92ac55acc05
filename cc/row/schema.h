// The columns of a row as JSON, for files with rows and for their readers.

#ifndef CC_ROW_SCHEMA_H_
#define CC_ROW_SCHEMA_H_

#include <vector>

#include "cc/base/json.h"
#include "cc/row/row_layout.h"

namespace multitier {

// An array of objects, value first: name, dtype ("float32", ...), dim, initial_value, offset (bytes from the start of the row
// data).
Json ColumnsToJson(const RowLayout& layout);
// Parses one of these objects. Its offset is ignored. InvalidArgument if a member is missing or wrong.
Result<ColumnSpec> ColumnFromJson(const Json& json);

// Of columns that were read from a file: InvalidArgument unless a row can have them. They are a value and slots of 1 to 1 << 20
// elements, whose names are distinct and not empty, of at most 1 GiB in all.
Status CheckColumns(const std::vector<ColumnSpec>& columns);
// Whether the shorter list is the beginning of the longer one, as it is where both are of one table.
bool AreOfOneTable(const std::vector<ColumnSpec>& a, const std::vector<ColumnSpec>& b);

}  // namespace multitier

#endif  // CC_ROW_SCHEMA_H_
