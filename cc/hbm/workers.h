// Workers: threads that wait for devices, so that callers do not.
//
// A task may block for long: on the device, on a tier below, on a closed gate. Tasks wait for one another (an operation that
// closes a gate waits for those inside), so none is kept waiting for a free thread: if all threads are busy, another one
// starts. There are as many threads as there were tasks at the same time, that is, operations which the framework had begun.
//
// Thread-safe.

#ifndef CC_HBM_WORKERS_H_
#define CC_HBM_WORKERS_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>

#include "cc/base/mutex.h"

namespace multitier::hbm {

class Workers {
 public:
  // Runs the task on a thread of its own, or on the calling thread if no thread can be started.
  void Run(std::function<void()> task);

 private:
  void Work();

  Mutex mutex_;
  std::condition_variable work_;
  std::deque<std::function<void()>> tasks_ MT_GUARDED_BY(mutex_);  // never more than there are idle threads
  size_t idle_ MT_GUARDED_BY(mutex_) = 0;
};

// Those of this process.
void RunOnWorker(std::function<void()> task);

// Runs task(0) ... task(n - 1) on this thread and on some workers, and returns when all have returned. Tasks never wait for one
// another.
void RunSideBySide(size_t n, const std::function<void(size_t)>& task);

}  // namespace multitier::hbm

#endif  // CC_HBM_WORKERS_H_
