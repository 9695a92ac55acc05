// IoWorker: the process's threads for what SSD tiers do beside their callers (writing segments, syncing, deleting files,
// compaction), and the process's bound on write buffers. Shared by all tiers.
//
//   Job: idle -- Schedule --> queued -- a thread takes it --> running --> idle
//                                            ^                  |
//                                            '-- Schedule meanwhile
//
// A job is queued at most once and runs on one thread at a time. Threads start at the first Schedule, sleep while the queue
// is empty, and never end. A job must not wait for one that no thread has begun, and must not cancel itself; a long one does a
// slice and schedules itself again, so that every tier has its turn.
//
// Write buffers: kWriteBufferBytes for all heads of all tiers together. Who is refused uses a small buffer of its own, or
// writes what it has itself: nobody waits for another tier.
//
// Made at the first use and never destroyed. A forked child has no threads of its parent: it gets a new one.
//
// Thread-safe.

#ifndef CC_TIER_SSDHASH_IO_WORKER_H_
#define CC_TIER_SSDHASH_IO_WORKER_H_

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

namespace multitier {

class IoWorker {
 public:
  static constexpr int kThreads = 2;  // one may hang in a sync while the other writes
  static constexpr uint64_t kWriteBufferBytes = 64 << 20;

  class Job {
   public:
    explicit Job(std::function<void()> run) : run_(std::move(run)) {}
    ~Job() = default;
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

   private:
    friend class IoWorker;
    const std::function<void()> run_;
    // Guarded by the worker's mutex.
    bool queued_ = false;
    bool running_ = false;
    bool cancelled_ = false;
  };

  static IoWorker* Get();

  // Runs the job, once more if it is running now. Nothing happens to a cancelled job.
  void Schedule(Job* job);
  // Takes the job out of the queue, waits until it does not run, and lets it never run again.
  void Cancel(Job* job);

  // Whether `bytes` more of write buffers may be used; they are given back with GiveBuffer.
  bool TakeBuffer(uint64_t bytes);
  void GiveBuffer(uint64_t bytes);
  uint64_t buffer_bytes();

 private:
  IoWorker();
  void Work();

  const pid_t pid_;
  std::mutex mutex_;
  std::condition_variable work_, done_;
  // Guarded by mutex_.
  std::deque<Job*> queue_;
  int started_ = 0;
  int idle_ = 0;
  uint64_t buffer_bytes_ = 0;
};

}  // namespace multitier

#endif  // CC_TIER_SSDHASH_IO_WORKER_H_
