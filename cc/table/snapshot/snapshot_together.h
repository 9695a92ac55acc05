// SnapshotTogether: takes a snapshot of several tables as of one moment.
//
//   1. Prepare the snapshot of each table, in the order of their addresses. This order prevents a deadlock of two groups.
//   2. Wait until each running call that updates more than one table (UpdateOfSeveral) has ended. Then wait until the running
//      operations of each table have ended. New ones wait.
//   3. Mark every table. This is the moment.
//   4. Let all operations continue. Until here they waited only during steps 2 and 3.
//   5. Pass the sealed files of each table to its take_file. The rows in them are not visited.
//   6. A few threads run the snapshots, each thread one table at a time. Tables that have not been started collect copies of
//      rows that change. Between two chunks, a thread gives these copies to the visitors of their tables. It rests between
//      chunks while the rest of the process needs the processors (SavePace).
//
// Memory does not grow with the number of tables: kMaxStreams chunks and reads, the copies of all tables (WaitingCopies), and
// the marks of each snapshot. Step 3 copies the counters of Bloom filters.
//
// Thread-safe: plain functions.

#ifndef CC_TABLE_SNAPSHOT_SNAPSHOT_TOGETHER_H_
#define CC_TABLE_SNAPSHOT_SNAPSHOT_TOGETHER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cc/base/gate.h"
#include "cc/base/status.h"
#include "cc/table/api/embedding_table.h"
#include "cc/table/api/table_snapshot.h"

namespace multitier {

constexpr int kMaxStreams = 4;                  // tables whose snapshots run at the same time
constexpr size_t kStreamChunkBytes = 2u << 20;  // of row data, of one chunk; at least one row

struct TableInGroup {
  EmbeddingTable* table = nullptr;
  // Takes chunks of all columns; see EmbeddingTable::TakeSnapshot. Called by one thread at a time.
  std::function<Status(Rows*)> visit;
  // Called once visit has received all rows.
  std::function<Status()> finish;
  // As in SnapshotRequest.
  int64_t since = 0;
  int64_t track_as = 0;
  decltype(SnapshotRequest::take_file) take_file = nullptr;
  std::string link_name = {};
  bool write_down = false;
};

// The first error ends all snapshots. InvalidArgument if the group has a table twice.
Status SnapshotTogether(const std::vector<TableInGroup>& group);

// A call that updates several tables holds this, so that no moment of SnapshotTogether falls between its updates. REQUIRES: the
// calling thread runs no operation of a table
class UpdateOfSeveral {
 public:
  UpdateOfSeveral();

 private:
  const InsideGate inside_;
};

// Non-blocking variant: check `inside()`. The object may be destroyed on another thread.
class MaybeUpdateOfSeveral {
 public:
  MaybeUpdateOfSeveral();
  bool inside() const { return inside_.inside(); }

 private:
  const MaybeInsideGate inside_;
};

}  // namespace multitier

#endif  // CC_TABLE_SNAPSHOT_SNAPSHOT_TOGETHER_H_
