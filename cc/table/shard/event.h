// Event: something that happens under a shard's lock, again and again, and that threads wait for.
//
// Owns the list of waiting threads. Every call needs the shard's lock. Costs next to nothing while no thread waits.

#ifndef CC_TABLE_SHARD_EVENT_H_
#define CC_TABLE_SHARD_EVENT_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "cc/base/shared_mutex.h"

namespace multitier {

class Event {
 public:
  // How often it has happened.
  uint64_t count() const { return count_; }
  void Happen() {
    ++count_;
    if (waiting_ > 0) changed_.notify_all();
  }
  // Gives the lock up until the condition holds, which is asked after each time.
  template <typename Condition>
  void Wait(std::unique_lock<SharedMutex>* lock, Condition condition) {
    ++waiting_;
    changed_.wait(*lock, condition);
    --waiting_;
  }

 private:
  std::condition_variable_any changed_;
  uint64_t count_ = 0;
  int waiting_ = 0;
};

}  // namespace multitier

#endif  // CC_TABLE_SHARD_EVENT_H_
