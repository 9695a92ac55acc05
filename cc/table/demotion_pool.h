// DemotionPool: the process's threads for demotion in the background, shared by all tables.
//
//   Job: idle -- Schedule --> queued -- a thread takes it --> running --> idle
//                                            ^                  |
//                                            '-- Schedule meanwhile
//
// A job is queued at most once and runs on one thread at a time, so the queue holds no more than there are jobs. Threads
// start at the first Schedule, sleep while the queue is empty, and never end. Jobs run to their end: they must not wait for
// another job, and must not be cancelled or waited for from within a job.
//
// Made at the first use and never destroyed. A forked child has no threads of its parent's pool: it gets a new one.
//
// Thread-safe.

#ifndef CC_TABLE_DEMOTION_POOL_H_
#define CC_TABLE_DEMOTION_POOL_H_

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "cc/base/status.h"

namespace multitier {

class DemotionPool {
 public:
  static constexpr const char* kThreadsVariable = "TF_MULTI_TIER_EV_EVICTION_THREADS";
  static constexpr int kMaxThreads = 64;

  class Job {
   public:
    explicit Job(std::function<void()> run) : run_(std::move(run)) {}
    ~Job() = default;
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

   private:
    friend class DemotionPool;
    const std::function<void()> run_;
    // Guarded by the pool's mutex.
    bool queued_ = false;
    bool running_ = false;
    bool cancelled_ = false;
    uint64_t runs_ = 0;  // that ended
  };

  // The pool of this process, with as many threads as the variable says when it is made (1 where it is unset).
  // InvalidArgument naming the variable where its value is not a number from 1 to 64; a later other value is warned of once.
  static Result<DemotionPool*> Get();
  // The value of the variable; 1 where it is unset.
  static Result<int> ThreadsFromEnvironment();

  // Runs the job, once more if it is running now. Nothing happens to a cancelled job.
  void Schedule(Job* job);
  // Waits until what was queued or running when it was called has run.
  void Wait(Job* job);
  // Takes the job out of the queue, waits until it does not run, and lets it never run again.
  void Cancel(Job* job);

  int threads() const { return threads_; }

 private:
  explicit DemotionPool(int threads) : threads_(threads) {}
  void Work();

  const int threads_;
  std::mutex mutex_;
  std::condition_variable work_, done_;
  // Guarded by mutex_.
  std::deque<Job*> queue_;
  int started_ = 0;
  int idle_ = 0;
};

}  // namespace multitier

#endif  // CC_TABLE_DEMOTION_POOL_H_
