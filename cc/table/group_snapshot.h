// SnapshotTogether: several tables as of one moment.
//
//   1. each table's snapshot is prepared, in the order of addresses: two groups never wait for each other
//   2. updates of several tables end (UpdateOfSeveral), then the operations of each table; new ones wait
//   3. every table is marked: the moment
//   4. all operations go on: they were held back for 2 and 3 alone
//   5. a few threads run the snapshots, one table each at a time. Copies of rows of tables whose turn is to come are given to
//      their visitors in between, so that they do not pile up
//
// Memory does not grow with the number of tables: kMaxStreams chunks and reads, the copies of all tables (WaitingCopies), and
// what TakeSnapshot needs for marks. A Bloom filter's counters are copied at the moment.
//
// Thread-safe: plain functions.

#ifndef CC_TABLE_GROUP_SNAPSHOT_H_
#define CC_TABLE_GROUP_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "cc/base/gate.h"
#include "cc/base/status.h"
#include "cc/table/embedding_table.h"

namespace multitier {

constexpr int kMaxStreams = 4;                  // tables that are given at the same time
constexpr size_t kStreamChunkBytes = 2u << 20;  // of row data, of one chunk; at least one row

struct TableInGroup {
  EmbeddingTable* table = nullptr;
  // Takes chunks of all columns; see EmbeddingTable::TakeSnapshot. Called by one thread at a time.
  std::function<Status(Rows*)> visit;
  // All rows were given.
  std::function<Status()> finish;
  // As in SnapshotRequest.
  int64_t since = 0;
  int64_t track_as = 0;
};

// The first error ends all snapshots. InvalidArgument if a table is there twice.
Status SnapshotTogether(const std::vector<TableInGroup>& group);

// Held by a call that updates several tables: no moment of SnapshotTogether lies between its updates. REQUIRES: the calling
// thread is inside no table
class UpdateOfSeveral {
 public:
  UpdateOfSeveral();

 private:
  const InsideGate inside_;
};

}  // namespace multitier

#endif  // CC_TABLE_GROUP_SNAPSHOT_H_
