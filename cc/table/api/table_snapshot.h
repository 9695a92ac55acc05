// TableSnapshot: a snapshot of one table, in steps, so that several tables can share the moment (snapshot_together.h).
//
//   EmbeddingTable::PrepareSnapshot   waits until another snapshot of the table has ended, and blocks further ones
//   Hold        waits until running operations have ended; new ones wait
//   Mark        the moment: works only on memory and cannot fail
//   Release     operations continue
//   GiveFile    gives a file of the last tier, if the request takes files; called until none is left
//   Run         gives every row as of the moment to the visitor; a row that changes before is copied first
//   GiveCopies  gives the copies that wait; may be called between Release and Run
// The destructor ends the snapshot, after any step.
//
// The steps are called in this order, one at a time, from any threads. The table must outlive it.

#ifndef CC_TABLE_API_TABLE_SNAPSHOT_H_
#define CC_TABLE_API_TABLE_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cc/base/status.h"
#include "cc/table/api/rows.h"
#include "cc/tier/tier.h"

namespace multitier {

class WaitingCopies;

struct SnapshotRequest {
  bool all_columns = true;  // false: the value alone
  int64_t max_rows = 0;     // of one chunk that Run gives
  // Receives rows, and may move from them. An error ends Run or GiveCopies.
  std::function<Status(Rows*)> visit;
  // Not 0: the table tracks changes from the moment on. This number names the moment. If the snapshot fails, tracking stops.
  int64_t track_as = 0;
  // Not 0: gives only what changed since the moment with this name: rows and counted keys as they are now, and the keys that
  // were removed (Rows::removed_keys). The filter's counters are given completely.
  int64_t since = 0;
  // Shared by all tables of the moment. Null: this table has its own.
  std::shared_ptr<WaitingCopies> waiting = nullptr;
  // Not null: takes a file of the last tier in place of its rows, as many as file.rows, if the tier can give its files names
  // like `link_name`, which is not empty (snapshot.cc says which files). link(to) gives the file the name `to`; where that
  // fails, the taker may read the rows from file.path until it returns.
  using LinkTo = std::function<Status(const std::string& to)>;
  std::function<Status(const SealedFile& file, const LinkTo& link)> take_file = nullptr;
  std::string link_name = {};
  // Where files are taken: first writes the rows of DRAM that the last tier has no record of down to it. So the files have
  // them, also in the next snapshot, if they do not change until then.
  bool write_down = false;
};

class TableSnapshot {
 public:
  virtual ~TableSnapshot() = default;

  virtual Status Hold() = 0;
  virtual void Mark() = 0;
  virtual void Release() = 0;
  virtual Result<bool> GiveFile() { return false; }  // false: none was left
  virtual Status Run() = 0;
  virtual Status GiveCopies() = 0;
  // Hold to Run: a snapshot of this table alone.
  Status TakeAlone() {
    MT_RETURN_IF_ERROR(Hold());
    Mark();
    Release();
    for (bool more = true; more;) {
      MT_ASSIGN_OR_RETURN(more, GiveFile());
    }
    return Run();
  }
  // Bytes of copies that wait.
  virtual size_t copied_bytes() const = 0;
};

}  // namespace multitier

#endif  // CC_TABLE_API_TABLE_SNAPSHOT_H_
