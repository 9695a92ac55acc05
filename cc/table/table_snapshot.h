// TableSnapshot: a table as of one moment, in steps, so that several tables can share the moment (group_snapshot.h).
//
//   EmbeddingTable::PrepareSnapshot   waits for the snapshot that is being taken of the table, and keeps others out
//   Hold       operations in flight have left, new ones wait
//   Mark       the moment: memory only, cannot fail
//   Release    operations go on
//   Run        gives every row as of the moment to the visitor. In the meantime a row that changes is copied first
//   GiveCopies gives the copies that wait; from Release on until Run begins
// Its destruction ends the snapshot, in any step.
//
// The steps are called in this order, one at a time, from any threads. The table must outlive it.

#ifndef CC_TABLE_TABLE_SNAPSHOT_H_
#define CC_TABLE_TABLE_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "cc/base/status.h"
#include "cc/table/rows.h"

namespace multitier {

class WaitingCopies;

struct SnapshotRequest {
  bool all_columns = true;  // false: the value alone
  int64_t max_rows = 0;     // of one chunk that Run gives
  // Takes rows; may move them away. An error ends Run or GiveCopies.
  std::function<Status(Rows*)> visit;
  // Not 0: from the moment on the table tracks what changes, under this name of the moment. If the snapshot does not succeed,
  // it tracks nothing.
  int64_t track_as = 0;
  // Not 0: only what changed since the moment of this name: rows and counted keys as they are now, and Rows::removed_keys,
  // which the table does not have any more. The filter's counters are given whole.
  int64_t since = 0;
  // Of all tables of the moment; null: of this table alone.
  std::shared_ptr<WaitingCopies> waiting;
};

class TableSnapshot {
 public:
  virtual ~TableSnapshot() = default;

  virtual Status Hold() = 0;
  virtual void Mark() = 0;
  virtual void Release() = 0;
  virtual Status Run() = 0;
  virtual Status GiveCopies() = 0;
  // Bytes of copies that wait.
  virtual size_t copied_bytes() const = 0;
};

}  // namespace multitier

#endif  // CC_TABLE_TABLE_SNAPSHOT_H_
