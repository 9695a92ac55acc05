#include "cc/tier/leveldb/read_helpers.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

namespace multitier {
namespace {

struct Job {
  Job(size_t n, const std::function<void(size_t)>* body) : n(n), body(body) {}

  void Work() {
    for (size_t i = next++; i < n; i = next++) (*body)(i);
  }

  const size_t n;
  const std::function<void(size_t)>* const body;
  std::atomic<size_t> next{0};
  int helpers_inside = 0;  // guarded by the pool's mutex
};

class Pool {
 public:
  Pool() {
    for (int i = 0; i < kNumReadHelpers; ++i) std::thread([this] { Help(); }).detach();
  }

  void Run(Job* job, int helpers) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (int i = 0; i < helpers; ++i) offers_.push_back(job);
    }
    for (int i = 0; i < helpers; ++i) has_offer_.notify_one();
    job->Work();
    std::unique_lock<std::mutex> lock(mutex_);
    offers_.erase(std::remove(offers_.begin(), offers_.end(), job), offers_.end());
    left_.wait(lock, [job] { return job->helpers_inside == 0; });
  }

  const pid_t pid = ::getpid();

 private:
  void Help() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      has_offer_.wait(lock, [this] { return !offers_.empty(); });
      Job* job = offers_.front();
      offers_.pop_front();
      ++job->helpers_inside;
      lock.unlock();
      job->Work();
      lock.lock();
      if (--job->helpers_inside == 0) left_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable has_offer_, left_;
  std::deque<Job*> offers_;  // a job stands here once for each helper it may have
};

Pool* GetPool() {
  static std::atomic<Pool*> current{nullptr};
  static std::mutex making;
  Pool* pool = current.load();
  if (pool != nullptr && pool->pid == ::getpid()) return pool;
  std::lock_guard<std::mutex> lock(making);
  pool = current.load();
  if (pool == nullptr || pool->pid != ::getpid()) current = pool = new Pool;  // never destroyed: its threads live on
  return pool;
}

}  // namespace

void RunOnReadHelpers(size_t n, int max_helpers, const std::function<void(size_t)>& body) {
  const int helpers = static_cast<int>(std::min<size_t>(n == 0 ? 0 : n - 1, std::min(max_helpers, kNumReadHelpers)));
  Job job(n, &body);
  helpers <= 0 ? job.Work() : GetPool()->Run(&job, helpers);
}

}  // namespace multitier
