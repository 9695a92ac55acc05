// BackgroundPool: a few threads of the process that run jobs in the background.
//
//   Job: idle -- Schedule --> due at some time -- a thread takes it --> a step runs --> kDone: idle, its round is over
//                                   ^                                      |
//                                   '----- due again after a pause --------'
//
// A round of a job is its steps from Schedule to kDone. Steps are short and jobs take turns by the time at which they are due,
// so no job waits for all of another's work, and a job that pauses leaves its thread to others. Threads start as jobs are
// scheduled, sleep while nothing is due, and never end. A step must not wait for another job, and a job must not be cancelled
// or waited for from within one.
//
// Where no thread can be started the callers do the work: Schedule says so, Wait and Help run the job's steps on the calling
// thread. The next Schedule tries to start a thread again.
//
// Never destroyed once a thread runs in it: see OfThisProcess (thread.h). Thread-safe.

#ifndef CC_BASE_BACKGROUND_H_
#define CC_BASE_BACKGROUND_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "cc/base/status.h"

namespace multitier {

class BackgroundPool {
 public:
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
    friend class BackgroundPool;
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

  // At most `threads` threads, which tools show as `name`, of at most 15 characters.
  BackgroundPool(const char* name, int threads) : name_(name), threads_(threads) {}
  BackgroundPool(const BackgroundPool&) = delete;
  BackgroundPool& operator=(const BackgroundPool&) = delete;

  // Runs a round of the job after a pause, or earlier where one is due earlier; once more if a step runs now. Nothing happens
  // to a cancelled job. False: the pool has no thread and none can be started; the job stays queued.
  bool Schedule(Job* job, uint64_t pause_us = 0);
  // Waits until the rounds that were asked for when it was called are over, which run without pauses then.
  // REQUIRES: the caller holds nothing that a step of the job may wait for
  void Wait(Job* job);
  // Where the pool has no thread and the job is queued: runs one step of it here. REQUIRES: as Wait
  void Help(Job* job);
  // Takes the job out of the queue, waits until it does not run, and lets it never run again.
  void Cancel(Job* job);

  int threads() const { return threads_; }

 private:
  void Work();
  // REQUIRES of these: mutex_ held.
  // Another thread where the queue is longer than the idle ones can serve. Whether there is any thread.
  bool StartThreads();
  void Enqueue(Job* job, uint64_t pause_us);
  void Dequeue(Job* job);
  // Runs a step of a job that was taken out of the queue.
  void RunStep(Job* job, std::unique_lock<std::mutex>* lock);

  const char* const name_;
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

#endif  // CC_BASE_BACKGROUND_H_
