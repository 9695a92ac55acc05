#include "cc/table/demotion_pool.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace multitier {
namespace {

// A lock and a pool for each process: what a child has of its parent's it cannot use, and it is left alone.
struct OfProcess {
  explicit OfProcess(pid_t p) : pid(p) {}
  const pid_t pid;
  std::mutex mutex;
  DemotionPool* pool = nullptr;
  bool warned = false;
};

OfProcess* ThisProcess() {
  static std::atomic<OfProcess*> current{nullptr};
  OfProcess* known = current.load();
  while (known == nullptr || known->pid != getpid()) {
    OfProcess* mine = new OfProcess(getpid());
    if (current.compare_exchange_strong(known, mine)) return mine;
    delete mine;
  }
  return known;
}

}  // namespace

Result<int> DemotionPool::ThreadsFromEnvironment() {
  const char* text = std::getenv(kThreadsVariable);
  if (text == nullptr || *text == '\0') return 1;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0' || value < 1 || value > kMaxThreads) {
    return InvalidArgumentError(kThreadsVariable, ": expected a number of threads from 1 to ", kMaxThreads, ", found '", text,
                                "'");
  }
  return static_cast<int>(value);
}

Result<DemotionPool*> DemotionPool::Get() {
  MT_ASSIGN_OR_RETURN(const int threads, ThreadsFromEnvironment());
  OfProcess* const process = ThisProcess();
  std::lock_guard<std::mutex> lock(process->mutex);
  if (process->pool == nullptr) process->pool = new DemotionPool(threads);
  if (process->pool->threads() != threads && !process->warned) {
    process->warned = true;
    std::fprintf(stderr, "%s is %d now, but this process has its %d eviction threads since its first table\n", kThreadsVariable,
                 threads, process->pool->threads());
  }
  return process->pool;
}

void DemotionPool::Schedule(Job* job) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (job->queued_ || job->cancelled_) return;
  job->queued_ = true;
  queue_.push_back(job);
  if (idle_ == 0 && started_ < threads_) {
    ++started_;
    std::thread([this] { Work(); }).detach();
  }
  work_.notify_one();
}

void DemotionPool::Work() {
  pthread_setname_np(pthread_self(), "mt-demotion");
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    // A job that runs is left to the thread that runs it.
    const auto next = std::find_if(queue_.begin(), queue_.end(), [](const Job* job) { return !job->running_; });
    if (next == queue_.end()) {
      ++idle_;
      work_.wait(lock);
      --idle_;
      continue;
    }
    Job* const job = *next;
    queue_.erase(next);
    job->queued_ = false;
    job->running_ = true;
    lock.unlock();
    job->run_();
    lock.lock();
    job->running_ = false;
    ++job->runs_;
    done_.notify_all();
  }
}

void DemotionPool::Wait(Job* job) {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t due = job->runs_ + (job->running_ ? 1 : 0) + (job->queued_ ? 1 : 0);
  done_.wait(lock, [&] { return job->runs_ >= due || (job->cancelled_ && !job->running_); });
}

void DemotionPool::Cancel(Job* job) {
  std::unique_lock<std::mutex> lock(mutex_);
  job->cancelled_ = true;
  if (job->queued_) queue_.erase(std::find(queue_.begin(), queue_.end(), job));
  job->queued_ = false;
  done_.notify_all();
  done_.wait(lock, [&] { return !job->running_; });
}

}  // namespace multitier
