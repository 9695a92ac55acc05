#include "cc/base/helpers.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <utility>

#include "cc/base/mutex.h"
#include "cc/base/thread.h"

namespace multitier {
namespace {

constexpr std::chrono::seconds kIdle(1);

// A batch. The caller waits for the last helper to leave.
struct Batch {
  Batch(size_t n, const std::function<void(size_t)>* body) : n(n), body(body) {}

  void Work() {
    for (size_t i = next++; i < n; i = next++) (*body)(i);
  }

  const size_t n;
  const std::function<void(size_t)>* const body;
  std::atomic<size_t> next{0};
  int helpers_inside = 0;  // guarded by the helpers' mutex, which an annotation here cannot name
};

class Helpers {
 public:
  void Run(Batch* batch, int helpers) {
    {
      MutexLock lock(mutex_);
      while (threads_ < helpers && StartThread("mt-helper", [this] { Help(); }).ok()) ++threads_;
      offers_.insert(offers_.end(), static_cast<size_t>(std::min(helpers, threads_)), batch);
    }
    for (int i = 0; i < helpers; ++i) has_offer_.notify_one();
    batch->Work();
    MutexLock lock(mutex_);
    offers_.erase(std::remove(offers_.begin(), offers_.end(), batch), offers_.end());
    lock.Wait(left_, [batch] { return batch->helpers_inside == 0; });
  }

 private:
  void Help() {
    MutexLock lock(mutex_);
    for (;;) {
      lock.Wait(has_offer_, [this]() MT_REQUIRES(mutex_) { return !offers_.empty(); });
      Batch* const batch = offers_.front();
      offers_.pop_front();
      ++batch->helpers_inside;
      lock.Unlock();
      batch->Work();
      lock.Lock();
      if (--batch->helpers_inside == 0) left_.notify_all();
    }
  }

  Mutex mutex_;
  std::condition_variable has_offer_, left_;
  std::deque<Batch*> offers_ MT_GUARDED_BY(mutex_);  // a batch is in it once for each helper it may have
  int threads_ MT_GUARDED_BY(mutex_) = 0;
};

class ApartThreads {
 public:
  bool Run(const std::function<void()>& body) {
    MutexLock lock(mutex_);
    if (idle_ <= static_cast<int>(queue_.size()) && !StartThread("mt-waiting", [this] { Work(); }).ok()) return false;
    queue_.push_back(body);
    has_work_.notify_one();
    return true;
  }

 private:
  void Work() {
    MutexLock lock(mutex_);
    for (;;) {
      ++idle_;
      const bool found = lock.WaitFor(has_work_, kIdle, [this]() MT_REQUIRES(mutex_) { return !queue_.empty(); });
      --idle_;
      if (!found) return;
      {
        const std::function<void()> body = std::move(queue_.front());
        queue_.pop_front();
        lock.Unlock();
        body();
      }
      lock.Lock();
    }
  }

  Mutex mutex_;
  std::condition_variable has_work_;
  std::deque<std::function<void()>> queue_ MT_GUARDED_BY(mutex_);
  int idle_ MT_GUARDED_BY(mutex_) = 0;
};

}  // namespace

void RunOnHelpers(size_t n, int max_helpers, const std::function<void(size_t)>& body) {
  const int helpers = static_cast<int>(std::min<size_t>(n == 0 ? 0 : n - 1, std::min(max_helpers, kMaxHelpers)));
  Batch batch(n, &body);
  helpers <= 0 ? batch.Work() : OfThisProcess<Helpers>()->Run(&batch, helpers);
}

bool RunApart(const std::function<void()>& body) { return OfThisProcess<ApartThreads>()->Run(body); }

}  // namespace multitier
