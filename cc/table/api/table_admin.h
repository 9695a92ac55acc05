// TableAdmin: what concerns a table as a whole: snapshots, rows that come in and go out, its bounds, its counts. Every
// EmbeddingTable is one (embedding_table.h).

#ifndef CC_TABLE_API_TABLE_ADMIN_H_
#define CC_TABLE_API_TABLE_ADMIN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cc/base/executor.h"
#include "cc/base/status.h"
#include "cc/table/api/rows.h"
#include "cc/table/api/table_options.h"
#include "cc/table/api/table_snapshot.h"
#include "cc/table/api/table_stats.h"

namespace multitier {

class TableAdmin {
 public:
  TableAdmin() = default;
  virtual ~TableAdmin() = default;
  TableAdmin(const TableAdmin&) = delete;
  TableAdmin& operator=(const TableAdmin&) = delete;

  // With a tier above, those of the table below it.
  virtual const TableOptions& options() const = 0;

  // Removes the rows that are expired at `step` by options().expiry, and counted keys by steps. `expired` may be null. A row
  // that cannot be read stays; its error is returned after all other rows were checked.
  virtual Status Expire(int64_t step, int64_t* expired) = 0;
  // Removes every key.
  virtual Status Clear() = 0;

  // Everything in the table, as of one moment. `all_columns` false: the value column only.
  Result<Rows> Export(bool all_columns);
  // The same in chunks of max_rows, in any order. Its memory does not grow with the table: about 64 MiB for copies of rows that
  // change before their turn, the copies that it has taken along and is giving, and one bit for each slot of DRAM and each
  // record below. `visit` may move a chunk away; its first error ends the snapshot. The last chunk, which may have no rows, has
  // applies and filter_counters. Operations wait while the moment is marked: milliseconds. Afterwards they run during the
  // snapshot. Operations that change rows faster than `visit` takes the copies wait for it; those that `visit` itself runs on
  // its thread do not, and their copies stay in memory until it returns. One snapshot of a table at a time: `visit` must not
  // begin another, nor call Clear, AddSlots with new slots, Import of a filter's counters, or Flush of a table whose last tier
  // has a size. `marked` (may be null) is called when the moment is marked.
  Status TakeSnapshot(bool all_columns, int64_t max_rows, const std::function<Status(Rows*)>& visit,
                      const std::function<void()>& marked = nullptr);
  // The steps of a snapshot (table_snapshot.h), for snapshots of several tables (snapshot_together.h) and of what changed.
  // Waits for the one that is being taken. InvalidArgument if max_rows < 1. FailedPrecondition if changes since request.since
  // are not known: none or others are tracked, or too many rows left DRAM for it (ChangedRows).
  virtual Result<std::unique_ptr<TableSnapshot>> PrepareSnapshot(SnapshotRequest request) = 0;
  // The name of the moment since which changes are tracked (SnapshotRequest::track_as). 0: they are not. Clear ends it.
  virtual int64_t ChangesSince() const = 0;
  // Rows from the cursor on, until there are max_rows or a few more; *next is the cursor of the next call, 0 at the end. A key
  // that is present from the first call to the last is given exactly once. A key that comes or leaves in between may be given.
  // One that leaves and comes again may be given by two calls, and one that is admitted as a counted key and then as a row.
  // Nothing moves and nothing counts as used. A damaged record is an error, or is left out if on_corruption says so (as in
  // Export). InvalidArgument: no such column or cursor.
  virtual Result<Rows> Scan(const ScanRequest& request, uint64_t* next) = 0;
  // Sets rows, frequencies, versions and counted entries, replacing what a key had. Missing columns of the table get their
  // initial value; columns the table lacks are added. InvalidArgument where the value dim differs. Rows go in chunks of at most
  // 64 Ki: an error leaves those of the chunks before. The executor's threads take the shards side by side.
  virtual Status Import(const Rows& rows, Executor* executor = nullptr) = 0;
  // Sets columns, frequencies and versions of rows; keys without a row get one, and no filter is asked. All of the batch, or
  // nothing: InvalidArgument before anything changes (columns the table lacks, numbers out of range, a key that is there
  // twice), AlreadyExists, and the errors of an apply. A key that another thread creates during the call is replaced. Returns
  // how many rows were written.
  virtual Result<int64_t> Upsert(const UpsertRequest& request) = 0;

  // Keys that the last tier dropped since the last call (see drop_coldest, on_corruption), the oldest first, as many as
  // options().dropped_bytes hold. Stats has the number of those that were lost.
  virtual std::vector<int64_t> PopDropped() = 0;
  // The same with all columns, frequencies and versions; NaN, 0 and -1 for a damaged row. FailedPrecondition unless
  // options().dropped is kRows.
  virtual Result<Rows> PopDroppedRows() = 0;

  // Keys without a row that had one at this version of the table (NewestStep) or later, and those that left at the newest
  // version before it: removed, expired or dropped. Each once, sorted. FailedPrecondition where removals of that version are
  // not known: before the table was cleared, restored or opened, or beyond options().removed_bytes. The error of its file.
  virtual Result<std::vector<int64_t>> RemovedSince(int64_t version) = 0;

  virtual TableStats Stats() const = 0;
  // Waits for the work that was due at the call, retries a failed trim, and returns the sticky error.
  virtual Status Drain() = 0;
  // Once this returns OK, everything trained, imported and removed before the call is durable (see the class comment). Other
  // operations run at the same time. FailedPrecondition if the last tier does not survive the process. ResourceExhausted, with
  // nothing lost, if the disk is full or a last tier of given size cannot hold all rows.
  virtual Status Flush() = 0;
  // Changes the DRAM budget. options().dram_budget_bytes keeps the first one; Stats has the one in force. A larger budget holds
  // at once. A smaller one is reached in the background, and Drain waits for it; until then operations keep DRAM at what the
  // background has reached. The table keeps memory that it has taken, its number of shards and the order of its rows.
  // FailedPrecondition if DRAM has no budget. InvalidArgument below one row. ResourceExhausted if the present rows do not fit
  // and cannot leave (no tier below, or one of given size that drops nothing).
  virtual Status SetDramBudget(Budget budget) = 0;
  // Allocates the memory of index and DRAM for `rows` keys in all, but not for more than the tiers may hold. ResourceExhausted
  // if there is not enough memory; what was allocated stays.
  virtual Status Reserve(uint64_t rows) = 0;
  // Gives back the space of dead records in the lower tiers' files (Tier::Compact). Other operations run at the same time. An
  // error loses nothing: ResourceExhausted if the disk has no room for the records that must be moved.
  virtual Status Compact() = 0;

 protected:
  static constexpr size_t kScratchBytesOfKey = 512;  // at most: what the containers of an operation need of each of its keys
  static constexpr size_t kChunkKeys = 64 * 1024;    // at most: what an operation over many rows does at a time

  // Every operation on many keys begins with it. ResourceExhausted if there is no memory for its containers (CanAllocate).
  Status CheckMemory(size_t keys) const;
};

}  // namespace multitier

#endif  // CC_TABLE_API_TABLE_ADMIN_H_
