// LevelDbCompactor: compacts a LevelDB in the background when dead entries take up much of its files, and bounds the files.
//
// LevelDB compacts a level when its files exceed a fixed size. It does not know how much of them is dead: a replaced entry and
// a removed one stay until compaction merges them with the newer entry or the deletion. If few rows are replaced often, the
// levels fill with dead entries.
//
//   due       the files have more than 2 * base + allowance bytes; base = max(live, left)
//     live      bytes of the entries that the tier holds
//     left      bytes that the last round left, less what was removed since. It includes entries that the tier has freed but
//               that are still the newest of their keys: no round can drop them, and none is to be repeated for them
//   round     compacts ranges of keys of about `range_bytes` each, one in each step of a job
//   behind    the files have more than base / 2 + headroom bytes on top of that: writers wait for one range after another
//
// Bound of the files. N: the entries of all keys that have one, one entry each; live <= N, and left <= N. B: the write buffer.
// F: a table file. allowance = 2 * B + F, headroom = B.
//
//     2.5 * N + 3 * B + F     where writers wait; the logs are included
//   +                 B       a full buffer that is written to a table file before its log is deleted
//   + 2 * min(N, 25 * F)      new files of a compaction, before LevelDB deletes the old ones. LevelDB does not widen a
//   compaction
//                             beyond 25 table files. Twice, because a read of an older state keeps old files until the next
//                             compaction ends
//
// and a batch for each writer. It does not hold while no round can run: after a range that could not be compacted (too little
// free space, a failed write), the round ends, the next one begins `retry_us` later at the earliest, and writers do not wait.
//
// Rounds run on the process's compaction threads. LevelDB does the work on its own thread and refuses no writes meanwhile; it
// has the same limits on files that wait for compaction as at other times. A range is short, so that the tables take turns, and
// so that the destructor, which waits for the range that runs, does not wait long. If no thread can be started, writers that
// would wait do the work.
//
// Thread-safe.

#ifndef CC_TIER_LEVELDB_LEVELDB_COMPACTOR_H_
#define CC_TIER_LEVELDB_LEVELDB_COMPACTOR_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "cc/base/background.h"
#include "cc/base/mutex.h"

namespace multitier {

class LevelDbCompactor {
 public:
  // The database. The compactor calls these functions without a lock of its own, the last two on the pool's threads.
  struct Database {
    std::function<int64_t()> live_bytes;      // of the entries that the tier holds
    std::function<int64_t()> stored_bytes;    // of the files
    std::function<int64_t()> appended_bytes;  // of all entries and removals so far
    // About n keys of held entries, in any order.
    std::function<std::vector<int64_t>(size_t n)> sample_keys;
    // Compacts the entries of the keys from *first to *last; null: no bound. `bytes`: about what their files have. False: it
    // failed, or there is too little room.
    std::function<bool(const int64_t* first, const int64_t* last, int64_t bytes)> compact_range;
  };
  struct Options {
    int64_t allowance_bytes = 0;
    int64_t headroom_bytes = 0;
    int64_t range_bytes = 64 << 20;
    uint64_t retry_us = 0;
  };

  LevelDbCompactor(Database database, const Options& options);
  // Waits for the range that is being compacted, and begins no other one. REQUIRES: no other call runs
  ~LevelDbCompactor();

  // Call it before entries or removals are written: waits while a round is behind, and schedules it.
  // REQUIRES: the caller holds nothing that compact_range may wait for
  void WaitIfBehind();
  // Call it when entries were written: schedules a round if one is due. Does no I/O.
  void CompactIfDue();
  // Call it when entries of that many bytes were removed.
  void NoteRemoved(int64_t bytes);

  // Test only. Waits until the rounds that were scheduled before the call are over. The number of rounds that have begun.
  void Wait() { pool_->Wait(&job_); }
  int64_t rounds() const { return rounds_; }
  int64_t waiting() const { return waiting_; }  // writers

 private:
  // The threads of all compactors of the process: a table with a slow disk does not hold up the others.
  struct Pool : BackgroundPool {
    Pool() : BackgroundPool("mt-compaction", 2) {}
  };

  // Whether the files have more bytes than where a round becomes due and `halves` halves of the base, and a round may run.
  bool Exceeds(int halves, int64_t more_bytes) const;
  bool Due() const { return Exceeds(0, 0); }
  bool Behind() const { return Exceeds(1, options_.headroom_bytes); }
  // A step of the job (see BackgroundPool::Job): compacts the next range. Returns the pause before the next step.
  uint64_t Step();
  uint64_t CompactNext();
  // The bounds between the ranges of a round.
  std::vector<int64_t> ChooseBounds() const;

  const Database database_;
  const Options options_;

  mutable Mutex mutex_;
  int64_t left_bytes_ MT_GUARDED_BY(mutex_) = 0;     // after the last round
  int64_t removed_bytes_ MT_GUARDED_BY(mutex_) = 0;  // since that round began
  uint64_t not_before_us_ MT_GUARDED_BY(mutex_) = 0;
  int64_t steps_ MT_GUARDED_BY(mutex_) = 0;  // that ended
  std::condition_variable progress_;         // a step ended

  // Of the round that runs; used by the job's steps, which run one at a time.
  bool in_round_ = false;
  std::vector<int64_t> bounds_;
  size_t next_ = 0;            // range: from bounds_[next_ - 1] to bounds_[next_]
  int64_t stored_before_ = 0;  // when it began, as the next two
  int64_t appended_before_ = 0;
  int64_t removed_before_ = 0;

  std::atomic<int64_t> rounds_{0}, waiting_{0};

  Pool* const pool_;
  BackgroundPool::Job job_;
};

}  // namespace multitier

#endif  // CC_TIER_LEVELDB_LEVELDB_COMPACTOR_H_
