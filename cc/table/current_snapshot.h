// CurrentSnapshot: the snapshot that is being taken of a table, if one is, as its operations see it.
//
// Rows that change before the snapshot comes to them are copied, and the copies wait for its visitor. Where they are many,
// operations that change rows wait at their start (Await), or between two slices of what they do to many rows, where they hold
// nothing; jobs of the background, which must not wait, look at far_behind() and come back later. A holder above the table
// (table_above.h) awaits before it takes locks of its own, which the visitor may need; then it asks the table inside a
// WithoutAwait.
//
// Owns the place of the SnapshotState. Thread-safe.

#ifndef CC_TABLE_CURRENT_SNAPSHOT_H_
#define CC_TABLE_CURRENT_SNAPSHOT_H_

#include <atomic>
#include <memory>
#include <utility>

#include "cc/base/mutex.h"
#include "cc/base/turn.h"
#include "cc/table/snapshot_state.h"

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
  // Held by a snapshot from its beginning to its end, and by an operation that must not run during one. Taken before the gate.
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
  // Whether one is being taken. An operation inside the gate sees it begin only before it entered.
  bool taken() const { return taken_; }
  // Null where none is.
  std::shared_ptr<SnapshotState> state() const {
    MutexLock lock(mutex_);
    return state_;
  }
  // Whether this thread takes it: the call is its visitor's.
  bool is_mine() const {
    const std::shared_ptr<SnapshotState> state = this->state();
    return state != nullptr && state->thread == std::this_thread::get_id();
  }
  // How long the last one held operations back: from closing the gate to opening it again.
  void set_held_us(int64_t us) { held_us_ = us; }
  int64_t held_us() const { return held_us_; }
  // More copies wait than its visitor should find at once.
  bool far_behind() const {
    const std::shared_ptr<SnapshotState> state = this->state();
    if (state == nullptr) return false;
    return !state->over && state->waiting->far_behind();
  }
  // Waits while it is far behind; not the visitor's own thread. REQUIRES: the thread holds no lock, pin or pending word
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
};

}  // namespace multitier

#endif  // CC_TABLE_CURRENT_SNAPSHOT_H_
