// IoWorker: the process's threads for the background work of SSD tiers (writing segments, syncing, deleting files, compaction),
// and the process's limit on write buffers. All tiers share it. cc/base/background.h describes how jobs run.
//
// A long job does one slice and schedules itself again, so that every tier gets its turn.
//
// Write buffers: kWriteBufferBytes for all heads of all tiers together. A tier that gets no buffer falls back to its own small
// buffer, or writes its data itself. No tier waits for another.
//
// Created at the first use and never destroyed. A forked child creates a new one, because it has no threads of its parent.
//
// Thread-safe.

#ifndef CC_TIER_SSDHASH_IO_WORKER_H_
#define CC_TIER_SSDHASH_IO_WORKER_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "cc/base/background.h"
#include "cc/base/mutex.h"

namespace multitier {

class IoWorker : public BackgroundPool {
 public:
  static constexpr int kThreads = 2;  // one thread can write while the other is in a slow sync
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

  // Reserves `bytes` for a write buffer. False: the limit is reached. Return them with GiveBuffer.
  bool TakeBuffer(uint64_t bytes);
  void GiveBuffer(uint64_t bytes);
  uint64_t buffer_bytes();

 private:
  Mutex buffer_mutex_;
  uint64_t buffer_bytes_ MT_GUARDED_BY(buffer_mutex_) = 0;
};

}  // namespace multitier

#endif  // CC_TIER_SSDHASH_IO_WORKER_H_
