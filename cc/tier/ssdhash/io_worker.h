// IoWorker: the process's threads for what SSD tiers do in the background (writing segments, syncing, deleting files,
// compaction), and the process's bound on write buffers. Shared by all tiers. How jobs run: cc/base/background.h.
//
// A long job does a slice and schedules itself again, so that every tier has its turn.
//
// Write buffers: kWriteBufferBytes for all heads of all tiers together. A tier that is refused uses a small buffer of its own,
// or writes what it has itself: no tier waits for another.
//
// Made at the first use and never destroyed. A forked child has no threads of its parent: it gets a new one.
//
// Thread-safe.

#ifndef CC_TIER_SSDHASH_IO_WORKER_H_
#define CC_TIER_SSDHASH_IO_WORKER_H_

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "cc/base/background.h"

namespace multitier {

class IoWorker : public BackgroundPool {
 public:
  static constexpr int kThreads = 2;  // one may hang in a sync while the other writes
  static constexpr uint64_t kWriteBufferBytes = 64 << 20;

  // A job of one step.
  class Job : public BackgroundPool::Job {
   public:
    explicit Job(std::function<void()> run)
        : BackgroundPool::Job([run = std::move(run)] {
            run();
            return kDone;
          }) {}
  };

  IoWorker() : BackgroundPool("mt-ssdhash", kThreads) {}
  static IoWorker* Get();

  // Whether `bytes` more of write buffers may be used; they are given back with GiveBuffer.
  bool TakeBuffer(uint64_t bytes);
  void GiveBuffer(uint64_t bytes);
  uint64_t buffer_bytes();

 private:
  std::mutex buffer_mutex_;
  uint64_t buffer_bytes_ = 0;  // guarded by buffer_mutex_
};

}  // namespace multitier

#endif  // CC_TIER_SSDHASH_IO_WORKER_H_
