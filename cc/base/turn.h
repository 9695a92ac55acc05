// Turn: one holder at a time, from one function to another and from one thread to another. Unlike std::mutex, any thread may
// give it back.
//
// Thread-safe.

#ifndef CC_BASE_TURN_H_
#define CC_BASE_TURN_H_

#include <condition_variable>
#include <optional>
#include <utility>

#include "cc/base/mutex.h"

namespace multitier {

class Turn {
 public:
  // Waits until no caller has it.
  void Take() {
    MutexLock lock(mutex_);
    lock.Wait(free_, [this]() MT_REQUIRES(mutex_) { return !taken_; });
    taken_ = true;
  }
  // Non-blocking variant of Take. False, without the turn, if another has it.
  bool TryTake() {
    MutexLock lock(mutex_);
    return !std::exchange(taken_, true);
  }
  void GiveBack() {
    MutexLock lock(mutex_);
    taken_ = false;
    free_.notify_one();
  }

 private:
  Mutex mutex_;
  std::condition_variable free_;
  bool taken_ MT_GUARDED_BY(mutex_) = false;
};

// Has the turn until it is destroyed.
class TurnHold {
 public:
  explicit TurnHold(Turn* turn) : turn_(turn) { turn_->Take(); }
  // Nothing where another has the turn.
  static std::optional<TurnHold> Try(Turn* turn) {
    if (!turn->TryTake()) return std::nullopt;
    return TurnHold(turn, Taken());
  }
  TurnHold(TurnHold&& other) noexcept : turn_(std::exchange(other.turn_, nullptr)) {}
  ~TurnHold() {
    if (turn_ != nullptr) turn_->GiveBack();
  }

 private:
  struct Taken {};
  TurnHold(Turn* turn, Taken) : turn_(turn) {}

  Turn* turn_;
};

}  // namespace multitier

#endif  // CC_BASE_TURN_H_
