// BackgroundPool: a few threads that run jobs in the background.
//
//   Job: idle -- Schedule --> due at some time -- a thread takes it --> a step runs --> kDone: idle, the round is over
//                                   ^                                      |
//                                   '----- due again after a pause --------'
//
// A round of a job consists of its steps from Schedule to kDone. Steps are short. Jobs take turns, in the order of the times at
// which they are due. So no job waits for all the work of another job, and a job that pauses frees its thread. Threads start as
// jobs are scheduled, sleep while nothing is due, and never end.
//
// A step must not wait for another job. A step must not cancel a job or wait for one.
//
// If no thread can be started, the callers do the work: Schedule returns false, and Wait and Help run the job's steps on the
// calling thread. The next Schedule tries again to start a thread.
//
// A pool is never destroyed once a thread runs in it: see OfThisProcess (thread.h). Thread-safe.

#ifndef CC_BASE_BACKGROUND_H_
#define CC_BASE_BACKGROUND_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "cc/base/mutex.h"
#include "cc/base/status.h"

namespace multitier {

class BackgroundPool {
 public:
  static constexpr uint64_t kDone = ~uint64_t{0};
  static constexpr uint64_t kNotNow = kDone - 1;

 private:
  using Clock = std::chrono::steady_clock;
  using Place = std::pair<Clock::time_point, uint64_t>;  // in the queue: when it is due, and the order of arrival

 public:
  class Job {
   public:
    // step: runs one step and returns the microseconds to pause before the next step, or kDone. It returns kNotNow if it would
    // have to wait; then it runs again later, and not earlier even if a thread waits for the job.
    explicit Job(std::function<uint64_t()> step) : step_(std::move(step)) {}
    ~Job() = default;
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

   private:
    friend class BackgroundPool;
    const std::function<uint64_t()> step_;
    // Guarded by the pool's mutex, which an annotation of a job cannot name.
    bool wanted_ = false;  // a round was scheduled and has not begun
    bool in_round_ = false;
    bool running_ = false;  // a step is running
    bool queued_ = false;
    bool hurried_ = false;  // a thread waits for the job: no pauses
    bool cancelled_ = false;
    Place place_;          // if queued
    uint64_t rounds_ = 0;  // number of rounds that ended
  };

  // threads: maximal number of threads. name: their name in tools, at most 15 characters.
  BackgroundPool(const char* name, int threads) : name_(name), threads_(threads) {}
  BackgroundPool(const BackgroundPool&) = delete;
  BackgroundPool& operator=(const BackgroundPool&) = delete;

  // Schedules a round of the job after a pause. If a round is due earlier, that one counts. If a step is running now, another
  // round follows. A cancelled job is ignored. False: the pool has no thread and cannot start one; the job stays queued.
  bool Schedule(Job* job, uint64_t pause_us = 0);
  // Waits until the rounds that were scheduled before the call are over. They run without pauses.
  // REQUIRES: the caller holds nothing that a step of the job may wait for
  void Wait(Job* job);
  // If the pool has no thread and the job is queued, runs one step of it on the calling thread. REQUIRES: see Wait
  void Help(Job* job);
  // Removes the job from the queue and waits until no step of it runs. The job never runs again.
  void Cancel(Job* job);

  int threads() const { return threads_; }

 private:
  void Work();
  // Starts another thread if the queue has more jobs than idle threads. Returns whether the pool has a thread.
  bool StartThreads() MT_REQUIRES(mutex_);
  void Enqueue(Job* job, uint64_t pause_us) MT_REQUIRES(mutex_);
  void Dequeue(Job* job) MT_REQUIRES(mutex_);
  // Runs a step of a job that was removed from the queue. Releases the mutex while the step runs.
  void RunStep(Job* job) MT_REQUIRES(mutex_);

  const char* const name_;
  const int threads_;
  Mutex mutex_;
  std::condition_variable work_, done_;
  std::map<Place, Job*> queue_ MT_GUARDED_BY(mutex_);
  uint64_t arrivals_ MT_GUARDED_BY(mutex_) = 0;
  int started_ MT_GUARDED_BY(mutex_) = 0;
  int idle_ MT_GUARDED_BY(mutex_) = 0;
};

}  // namespace multitier

#endif  // CC_BASE_BACKGROUND_H_
