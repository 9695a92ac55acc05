#include "cc/table/demotion_pool.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace multitier {
namespace {

constexpr uint64_t kNotNowMicros = 10000;

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

void DemotionPool::Enqueue(Job* job, uint64_t pause_us) {
  job->place_ = Place(Clock::now() + std::chrono::microseconds(pause_us), ++arrivals_);
  job->queued_ = true;
  queue_.emplace(job->place_, job);
  work_.notify_one();
}

void DemotionPool::Dequeue(Job* job) {
  if (job->queued_) queue_.erase(job->place_);
  job->queued_ = false;
}

void DemotionPool::Schedule(Job* job, uint64_t pause_us) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (job->cancelled_ || (job->in_round_ && !job->running_)) return;  // what is left of the round will see what there is
  job->wanted_ = true;
  if (job->running_) return;
  if (job->queued_ && job->place_.first <= Clock::now() + std::chrono::microseconds(pause_us)) return;
  Dequeue(job);
  Enqueue(job, pause_us);
  if (idle_ == 0 && started_ < threads_) {
    ++started_;
    std::thread([this] { Work(); }).detach();
  }
}

void DemotionPool::Work() {
  pthread_setname_np(pthread_self(), "mt-demotion");
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    if (queue_.empty() || queue_.begin()->first.first > Clock::now()) {
      ++idle_;
      if (queue_.empty()) {
        work_.wait(lock);
      } else {
        work_.wait_until(lock, Clock::time_point(queue_.begin()->first.first));
      }
      --idle_;
      continue;
    }
    Job* const job = queue_.begin()->second;
    Dequeue(job);
    if (!queue_.empty()) work_.notify_one();  // somebody else sees to what is due next
    RunStep(job, &lock);
  }
}

void DemotionPool::RunStep(Job* job, std::unique_lock<std::mutex>* lock) {
  if (!job->in_round_) job->wanted_ = false;
  job->in_round_ = job->running_ = true;
  lock->unlock();
  const uint64_t pause_us = job->step_();
  lock->lock();
  job->running_ = false;
  if (pause_us == kDone || job->cancelled_) {
    job->in_round_ = false;
    ++job->rounds_;
    job->hurried_ = job->hurried_ && job->wanted_;
    if (job->wanted_ && !job->cancelled_) Enqueue(job, 0);
    done_.notify_all();
  } else {
    Enqueue(job, pause_us == kNotNow ? kNotNowMicros : job->hurried_ ? 0 : pause_us);
  }
}

void DemotionPool::Wait(Job* job) {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t due = job->rounds_ + (job->in_round_ ? 1 : 0) + (job->wanted_ ? 1 : 0);
  if (job->rounds_ == due) return;
  job->hurried_ = true;
  if (job->queued_ && job->place_.first > Clock::now()) {
    Dequeue(job);
    Enqueue(job, 0);
  }
  done_.wait(lock, [&] { return job->rounds_ >= due || (job->cancelled_ && !job->running_); });
}

void DemotionPool::Cancel(Job* job) {
  std::unique_lock<std::mutex> lock(mutex_);
  job->cancelled_ = true;
  job->wanted_ = false;
  Dequeue(job);
  done_.notify_all();
  done_.wait(lock, [&] { return !job->running_; });
}

}  // namespace multitier
