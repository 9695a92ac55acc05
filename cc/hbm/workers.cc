#include "cc/hbm/workers.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "cc/base/thread.h"

namespace multitier::hbm {

void Workers::Run(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    if (idle_ > tasks_.size()) {
      tasks_.push_back(std::move(task));
      work_.notify_one();
      return;
    }
  }
  const auto first = std::make_shared<std::function<void()>>(std::move(task));
  const Status started = StartThread("multitier_hbm", [this, first] {
    (*first)();
    *first = nullptr;  // what it owns ends before the thread waits for the next task
    Work();
  });
  if (!started.ok()) (*first)();
}

void Workers::Work() {
  MutexLock lock(mutex_);
  for (;;) {
    ++idle_;
    lock.Wait(work_, [this]() MT_REQUIRES(mutex_) { return !tasks_.empty(); });
    --idle_;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.Unlock();
    task();
    task = nullptr;
    lock.Lock();
  }
}

void RunOnWorker(std::function<void()> task) { OfThisProcess<Workers>()->Run(std::move(task)); }

namespace {

// Tasks that threads take one after the other. A worker that comes late finds none left.
struct TasksTogether {
  TasksTogether(size_t num_tasks, const std::function<void(size_t)>* the_task) : n(num_tasks), task(the_task) {}

  const size_t n;
  const std::function<void(size_t)>* const task;  // lives until all have returned
  std::atomic<size_t> taken{0};
  Mutex mutex;
  std::condition_variable all_done;
  size_t done MT_GUARDED_BY(mutex) = 0;

  void Work() {
    for (size_t i = taken++; i < n; i = taken++) {
      (*task)(i);
      MutexLock lock(mutex);
      if (++done == n) all_done.notify_all();
    }
  }
};

}  // namespace

void RunSideBySide(size_t n, const std::function<void(size_t)>& task) {
  constexpr size_t kMostHelpers = 7;
  if (n == 0) return;
  const auto tasks = std::make_shared<TasksTogether>(n, &task);
  for (size_t helper = 0; helper < std::min(n - 1, kMostHelpers); ++helper) RunOnWorker([tasks] { tasks->Work(); });
  tasks->Work();
  MutexLock lock(tasks->mutex);
  lock.Wait(tasks->all_done, [&]() MT_REQUIRES(tasks->mutex) { return tasks->done == n; });
}

}  // namespace multitier::hbm
