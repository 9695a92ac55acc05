// Demoter: keeps DRAM and every bounded tier below within its budget, and writes rows down.
//
//   demoter.cc         when, and how many: the background's jobs, the sticky error and its retry
//   demoter_flush.cc   what Flush writes
//   RowMover, RecordMover   how: they move one slice at a time. A slice is a limited number of rows of one shard
//
// Owns four things:
//   ceiling        after SetDramBudget has lowered the budget, operations demote to the ceiling, not to the budget. It falls
//                  as the pool demotes. 0: unused
//   sticky error   of the last write or removal that failed
//   jobs           of the pool, the process's threads that demote (demotion_pool.h)
//   dropped keys   those that no tier could hold, or whose record was damaged
//
// Its callers:
//   - operations that have entered the gate (operation_scope.h). They hold no shard's lock, no pin on a row, and no word of the
//     index that says "being read" (pending_words.h). AwaitJobs and Stop need no gate;
//   - the pool's threads;
//   - TierStack, which hands over the error of a refused removal.
// Thread-safe. mutex_ guards the error; the pool's lock is taken while mutex_ is held.

#ifndef CC_TABLE_TIERING_DEMOTER_H_
#define CC_TABLE_TIERING_DEMOTER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/table/api/demotion_pool.h"
#include "cc/table/tiering/row_mover.h"

namespace multitier {

class Demoter {
 public:
  explicit Demoter(TableBase* base);
  Demoter(const Demoter&) = delete;
  Demoter& operator=(const Demoter&) = delete;

  // Makes the jobs of a table with lower tiers. in_background: the pool demotes, and operations demote only what is still
  // beyond the budget. Otherwise each operation ends by demoting rows until DRAM is within the budget. After SetDramBudget has
  // lowered the budget, the pool demotes in both cases.
  Status Start(bool in_background);
  // Ends the jobs; operations demote from then on. REQUIRES: called before the destructor, except in a forked process
  void Stop();

  // See EmbeddingTable::SetDramBudget.
  Status SetDramBudget(Budget budget);

  // --- Demotion.
  // Repeats the removals that tiers refused, and demotes what is beyond the DRAM budget, or the ceiling if that is larger.
  // Returns the error of the removals, or that of the demotion. Rows whose write fails stay in memory.
  Status Trim();
  // The same, but keeps the error as the sticky error.
  void TrimAndRemember() { Remember(Trim()); }
  // As Trim. First demotes what is beyond the budgets of the tiers below.
  Status TrimLower();
  // Waits until the pool has ended the jobs that demote. The retry job may go on.
  void AwaitJobs();
  // Retries what failed, then demotes what is beyond the budget.
  Status Drain();

  // --- The sticky error: of a write or removal that failed. A job tries again a second later. The first is printed to stderr:
  // the operation in which it failed has ended without it.
  void Remember(Status status);
  // Tries again now. Returns the error if a write fails again; a removal that fails again stays the sticky error.
  Status Retry();
  bool failed() const { return failed_; }
  Status sticky_error() const;
  void Forget();

  // --- Flush.
  // Finds the rows of a shard that have no record in the last tier, and writes them there. Rows in DRAM stay where they are.
  Status FlushShard(Shard* shard);
  // Moves all rows into the last tier, out of DRAM and the tiers between. Used if the last tier has a size. Such a tier cannot
  // hold a record of a row that is also in DRAM, so FlushShard cannot be used there. REQUIRES: the gate is closed
  Status MoveAllToLast();

  // --- Keys that leave the table because no tier can hold them, or because their record is damaged.
  RecordMover& records() { return records_; }
  DroppedRows& dropped() { return dropped_; }
  const DroppedRows& dropped() const { return dropped_; }
  std::vector<int64_t> PopDropped() { return dropped_.Pop(); }

 private:
  // The pool's job that demotes rows of a shard. demoting: it has done a slice and has more to do.
  struct ShardJob {
    std::unique_ptr<DemotionPool::Job> job;
    bool demoting = false;
  };

  // Demotes what is beyond `percent` of the DRAM budget, or of the ceiling if that is larger. Repeats no removals.
  Status TrimTo(int percent);
  // Lets the pool demote. False: it has no thread. REQUIRES: a pool
  bool ScheduleDemotion();
  // A step of a shard's job: demotes one slice, as long as the shard has more rows in DRAM than its share of 95 % of the budget
  // (small tables: of the budget).
  uint64_t DemoteInBackground(size_t shard);
  // A step of the retry job: one slice of Retry.
  uint64_t RetryInBackground();
  // Lowers the ceiling to the rows that are in DRAM now, or to 0 if these are within the budget.
  void LowerCeiling(int64_t budget);
  // The number of errors that were remembered so far.
  uint64_t error_count() const;
  // Forgets the sticky error, unless another has come since a call of error_count() returned `errors`.
  void ForgetUpTo(uint64_t errors);
  // Demotes rows of a shard until it holds no more than target_rows in DRAM, or no more can go.
  // Stops after max_slices slices. *more: whether the last slice moved a row.
  Status TrimShard(Shard* shard, size_t target_rows, size_t slice_rows, int max_slices = 0x7fffffff, bool* more = nullptr);

  std::shared_ptr<const RowLayout> layout() const { return base_.layout(); }

  TableBase& base_;
  const TableOptions& options_;
  const TierLevels& levels_;
  ShardCommon& common_;
  const ShardSet& shards_;
  TierStack& tiers_;
  CurrentSnapshot& snapshot_;
  DemotionPool* pool_ = nullptr;  // of tables with a lower tier
  bool in_background_ = false;
  std::vector<ShardJob> jobs_;  // by shard
  std::unique_ptr<DemotionPool::Job> retry_;
  std::atomic<int> demoting_{0};  // shards whose job is between slices
  // The number of rows that operations leave in DRAM. Used only while it is above the budget.
  std::atomic<int64_t> ceiling_{0};
  std::atomic<bool> failed_{false};
  mutable Mutex mutex_;
  Status error_ MT_GUARDED_BY(mutex_);
  uint64_t errors_ MT_GUARDED_BY(mutex_) = 0;  // all that were remembered, also those forgotten since
  DroppedRows dropped_{options_.dropped, options_.dropped_bytes, options_.is_below&& options_.drop_coldest};
  RecordMover records_{&base_, &dropped_};
  RowMover rows_{&base_, &records_, &dropped_};
};

}  // namespace multitier

#endif  // CC_TABLE_TIERING_DEMOTER_H_
