// CurrentSnapshot: what the operations of a table see of the snapshot that is being taken, if there is one.
//
// If a row changes before the snapshot has read it, the row is copied first, and the copy waits for the snapshot's visitor. If
// many copies wait, operations that change rows wait too (Await): at their start, or between two slices of a long operation,
// when they hold no lock. Background jobs must not wait. They check far_behind() and are scheduled again later. A table that is
// above this one (table_below.h) calls Await before it takes its own locks, which the visitor may need. It then calls this
// table within a WithoutAwait.
//
// Owns the reference to the SnapshotState. Thread-safe.

#ifndef CC_TABLE_MARKS_CURRENT_SNAPSHOT_H_
#define CC_TABLE_MARKS_CURRENT_SNAPSHOT_H_

#include <atomic>
#include <memory>
#include <utility>

#include "cc/base/mutex.h"
#include "cc/base/turn.h"
#include "cc/table/marks/snapshot_state.h"

namespace multitier {

// While one exists, Await() of this thread does not wait, in any table.
class WithoutAwait {
 public:
  WithoutAwait() : before_(std::exchange(here(), true)) {}
  ~WithoutAwait() { here() = before_; }
  WithoutAwait(const WithoutAwait&) = delete;
  WithoutAwait& operator=(const WithoutAwait&) = delete;

  static bool& here() {
    thread_local bool here = false;
    return here;
  }

 private:
  const bool before_;
};

class CurrentSnapshot {
 public:
  // A snapshot holds this from its beginning to its end. An operation that must not run during a snapshot holds it too.
  // Acquired before the gate.
  Turn& one_at_a_time() { return one_at_a_time_; }

  // REQUIRES: the table's gate is closed
  void Begin(std::shared_ptr<SnapshotState> state) {
    MutexLock lock(mutex_);
    state_ = std::move(state);
    taken_ = true;
  }
  void End() {
    taken_ = false;
    MutexLock lock(mutex_);
    state_ = nullptr;
  }
  // Whether a snapshot is being taken. It cannot begin while an operation is inside the gate.
  bool taken() const { return taken_; }
  // Null if no snapshot is being taken.
  std::shared_ptr<SnapshotState> state() const {
    MutexLock lock(mutex_);
    return state_;
  }
  // Whether this thread takes the snapshot, that is, the visitor makes the call.
  bool is_mine() const {
    const std::shared_ptr<SnapshotState> state = this->state();
    return state != nullptr && state->thread == std::this_thread::get_id();
  }
  // How long the last snapshot held operations back: the time between closing and opening the gate.
  void set_held_us(int64_t us) { held_us_ = us; }
  int64_t held_us() const { return held_us_; }
  // Bytes of the files that the last snapshot of all rows linked.
  void set_linked_bytes(int64_t bytes) { linked_bytes_ = bytes; }
  int64_t linked_bytes() const { return linked_bytes_; }
  // Whether too many copies wait for the visitor.
  bool far_behind() const {
    const std::shared_ptr<SnapshotState> state = this->state();
    if (state == nullptr) return false;
    return !state->over && state->waiting->far_behind();
  }
  // Waits while too many copies wait. Returns at once in the visitor's thread. REQUIRES: the thread holds no lock, pin or
  // pending word
  void Await() const {
    if (!taken_ || WithoutAwait::here()) return;
    const std::shared_ptr<SnapshotState> state = this->state();
    if (state == nullptr || state->thread == std::this_thread::get_id()) return;
    state->waiting->Await(state->over);
  }

 private:
  Turn one_at_a_time_;
  mutable Mutex mutex_;
  std::shared_ptr<SnapshotState> state_ MT_GUARDED_BY(mutex_);
  std::atomic<bool> taken_{false};
  std::atomic<int64_t> held_us_{0};
  std::atomic<int64_t> linked_bytes_{0};
};

}  // namespace multitier

#endif  // CC_TABLE_MARKS_CURRENT_SNAPSHOT_H_
