// RowMover: writes rows of a shard's DRAM to a tier. Either the record becomes the row, which leaves DRAM (demotion), or it
// becomes the row's clean copy (flush).
//
//   1. choose   under the shard's lock: rows are copied and flagged kRowDemoting. They stay where they are, readable and
//               writable. Right above the last tier a row that has a clean copy needs no write: its word is switched at once
//   2. write    the copies in one call of the tier, no lock held
//   3. switch   under the lock. A row that still has the flag has not changed since it was copied: its word is switched to the
//               record and its slot freed (demotion), or the record becomes its copy (flush). Of any other row the record is
//               freed, except that a pinned row, in a tier that keeps copies, takes it as its clean copy
//
// A failed write puts everything back: the rows are still where they were. A copy for the first of two lower tiers takes the
// row's `below` along.
//
// Owns no state. Its callers hold the shard's ShardWriter and no lock, pin or pending word. Thread-safe.

#ifndef CC_TABLE_TIERING_ROW_MOVER_H_
#define CC_TABLE_TIERING_ROW_MOVER_H_

#include <cstdint>

#include "cc/table/tiering/record_mover.h"

namespace multitier {

class RowMover {
 public:
  RowMover(TableBase* base, RecordMover* records, DroppedRows* dropped)
      : base_(*base), tiers_(base->tiers), records_(*records), dropped_(*dropped) {}

  // Up to n rows, the coldest first, leave DRAM for the first tier below; without one they are dropped. *moved: how many did.
  // The tier's own coldest records make room for them.
  Status Demote(const ShardWriter& writer, size_t n, size_t* moved);
  // Rows from slot *from on that have no record in the last tier are written there, some thousand of them; they stay in DRAM.
  // *from: where to go on; kNoLocation at the end.
  Status Flush(const ShardWriter& writer, uint32_t* from);

 private:
  class Copies;

  // Steps 2 and 3. *moved: of rows that left DRAM.
  Status Write(const ShardWriter& writer, int level, Copies* copies, bool keep, size_t* moved);

  TableBase& base_;
  TierStack& tiers_;
  RecordMover& records_;
  DroppedRows& dropped_;
};

}  // namespace multitier

#endif  // CC_TABLE_TIERING_ROW_MOVER_H_
