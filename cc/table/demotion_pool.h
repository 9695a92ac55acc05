// DemotionPool: the process's threads for what tables do in the background, shared by all of them: demotion, and retries of
// what failed.
//
//   Job: idle -- Schedule --> due at some time -- a thread takes it --> a step runs --> kDone: idle, its round is over
//                                   ^                                      |
//                                   '----- due again after a pause --------'
//
// A round of a job is its steps from Schedule to kDone. Steps are short and jobs take turns by the time at which they are due,
// so no table waits for all of another's work, and a job that pauses leaves its thread to others. Threads start at the first
// Schedule, sleep while nothing is due, and never end. A step must not wait for another job, and a job must not be cancelled
// or waited for from within one.
//
// Made at the first use and never destroyed. A forked child has no threads of its parent's pool: it gets a new one.
//
// Thread-safe.

#ifndef CC_TABLE_DEMOTION_POOL_H_
#define CC_TABLE_DEMOTION_POOL_H_

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "cc/base/status.h"

namespace multitier {

class DemotionPool {
 public:
  static constexpr const char* kThreadsVariable = "TF_MULTI_TIER_EV_EVICTION_THREADS";
  static constexpr int kMaxThreads = 64;

  static constexpr uint64_t kDone = ~uint64_t{0};
  static constexpr uint64_t kNotNow = kDone - 1;

 private:
  using Clock = std::chrono::steady_clock;
  using Place = std::pair<Clock::time_point, uint64_t>;  // in the queue: when due, and the order of arrival

 public:
  class Job {
   public:
    // One step of the job: the microseconds to pause before the next, or kDone; or kNotNow: it could do nothing without
    // waiting, and is asked again in a while, no sooner where somebody waits for the job.
    explicit Job(std::function<uint64_t()> step) : step_(std::move(step)) {}
    ~Job() = default;
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

   private:
    friend class DemotionPool;
    const std::function<uint64_t()> step_;
    // Guarded by the pool's mutex.
    bool wanted_ = false;    // a round that has not begun
    bool in_round_ = false;
    bool running_ = false;   // a step of it
    bool queued_ = false;
    bool hurried_ = false;   // somebody waits: no pauses
    bool cancelled_ = false;
    Place place_;            // where queued
    uint64_t rounds_ = 0;    // that ended
  };

  // The pool of this process, with as many threads as the variable says when it is made (1 where it is unset).
  // InvalidArgument naming the variable where its value is not a number from 1 to 64; a later other value is warned of once.
  static Result<DemotionPool*> Get();
  // The value of the variable; 1 where it is unset.
  static Result<int> ThreadsFromEnvironment();

  // Runs a round of the job after a pause, or earlier where one is due earlier; once more if a step runs now. Nothing happens
  // to a cancelled job.
  void Schedule(Job* job, uint64_t pause_us = 0);
  // Waits until the rounds that were asked for when it was called are over, which run without pauses then.
  void Wait(Job* job);
  // Takes the job out of the queue, waits until it does not run, and lets it never run again.
  void Cancel(Job* job);

  int threads() const { return threads_; }

 private:
  explicit DemotionPool(int threads) : threads_(threads) {}
  void Work();
  // REQUIRES of these: mutex_ held.
  void Enqueue(Job* job, uint64_t pause_us);
  void Dequeue(Job* job);
  // Runs a step of a job that was taken out of the queue.
  void RunStep(Job* job, std::unique_lock<std::mutex>* lock);

  const int threads_;
  std::mutex mutex_;
  std::condition_variable work_, done_;
  // Guarded by mutex_.
  std::map<Place, Job*> queue_;
  uint64_t arrivals_ = 0;
  int started_ = 0;
  int idle_ = 0;
};

}  // namespace multitier

#endif  // CC_TABLE_DEMOTION_POOL_H_
