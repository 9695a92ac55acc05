// Adds one entry, for a default key, to each row of a sparse batch that has no entry.
//
//   entries   0    1    2                    indices = 0 0 2, batch = 4
//   rows      0    0    1    2    3          one place for each entry and for each row without entries, in order of rows
//   entries   0    1    3    2    3          the entry at each place; 3, the number of entries, for a row without entries
//
// Thread-safe: plain functions.

#ifndef CC_GROUP_LOOKUP_FILL_EMPTY_ROWS_H_
#define CC_GROUP_LOOKUP_FILL_EMPTY_ROWS_H_

#include <cstdint>

#include "cc/base/span.h"
#include "cc/base/status.h"

namespace multitier {

// The number of places that FillEmptyRows writes. InvalidArgument, with the first entry that is out of order or range, or with
// a batch so large that the number of places does not fit in 64 bits.
Result<int64_t> FilledSize(Span<const int64_t> indices, int64_t batch);

// rows, entries: [FilledSize]. REQUIRES: FilledSize is OK
void FillEmptyRows(Span<const int64_t> indices, int64_t batch, int64_t* rows, int64_t* entries);

}  // namespace multitier

#endif  // CC_GROUP_LOOKUP_FILL_EMPTY_ROWS_H_
