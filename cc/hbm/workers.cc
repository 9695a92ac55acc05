#include "cc/hbm/workers.h"

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

}  // namespace multitier::hbm
