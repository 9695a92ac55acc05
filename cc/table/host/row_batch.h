// RowBatch: whole rows of some keys in the caller's memory. A table on a GPU keeps its rows so, above an EmbeddingTable that is
// the home of every row: CopyOut copies rows up, PutBack brings those that changed back.
//
//   keys   7         3         9
//   facts  v=4 f=2   absent    v=9 f=1
//   data   |row 7....|initial..|row 9....|      `stride` bytes from one row to the next
//
// The data of a row are those of RowLayout: the value, then the slots, each to 16 bytes. Owns nothing.

#ifndef CC_TABLE_HOST_ROW_BATCH_H_
#define CC_TABLE_HOST_ROW_BATCH_H_

#include <cstddef>
#include <cstdint>

#include "cc/base/span.h"

namespace multitier {

struct RowFacts {
  int64_t version = -1;    // step of the last update
  uint32_t frequency = 0;  // occurrences trained on
  bool has_row = false;    // false: the key is absent, or only counted by a filter
};

struct RowBatch {
  Span<const int64_t> keys;          // [n] distinct
  RowFacts* facts = nullptr;         // [n]
  uint8_t* data = nullptr;           // [n, row_bytes], `stride` bytes apart, aligned to 16 bytes
  size_t stride = 0;                 // >= row_bytes, a multiple of 16
  size_t row_bytes = 0;              // of the layout that the caller knows: another one than the table's is refused
  Span<const uint16_t> tables = {};  // [n] of the keys, for CopyOut; empty: 0, or not known
};

// Whether CopyOut counts as a use of the rows.
enum class CopyOutAs {
  kUse,   // as a lookup does: rows come up from lower tiers, count as used, and are counted in the statistics
  kPeek,  // nothing moves and nothing is counted
};

}  // namespace multitier

#endif  // CC_TABLE_HOST_ROW_BATCH_H_
