#include "cc/base/background.h"

#include "cc/base/thread.h"

namespace multitier {
namespace {

constexpr uint64_t kNotNowMicros = 10000;

}  // namespace

void BackgroundPool::Enqueue(Job* job, uint64_t pause_us) {
  job->place_ = Place(Clock::now() + std::chrono::microseconds(pause_us), ++arrivals_);
  job->queued_ = true;
  queue_.emplace(job->place_, job);
  work_.notify_one();
}

void BackgroundPool::Dequeue(Job* job) {
  if (job->queued_) queue_.erase(job->place_);
  job->queued_ = false;
}

bool BackgroundPool::StartThreads() {
  if (idle_ < static_cast<int>(queue_.size()) && started_ < threads_ && StartThread(name_, [this] { Work(); }).ok()) ++started_;
  return started_ > 0;
}

bool BackgroundPool::Schedule(Job* job, uint64_t pause_us) {
  MutexLock lock(mutex_);
  const bool left_over = job->in_round_ && !job->running_;  // the rest of the round will see the new work
  if (!job->cancelled_ && !left_over) {
    job->wanted_ = true;
    const bool sooner = !job->queued_ || job->place_.first > Clock::now() + std::chrono::microseconds(pause_us);
    if (!job->running_ && sooner) {
      Dequeue(job);
      Enqueue(job, pause_us);
    }
  }
  return StartThreads();
}

void BackgroundPool::Work() {
  MutexLock lock(mutex_);
  for (;;) {
    if (queue_.empty() || queue_.begin()->first.first > Clock::now()) {
      ++idle_;
      if (queue_.empty()) {
        lock.Wait(work_);
      } else {
        lock.WaitUntil(work_, Clock::time_point(queue_.begin()->first.first));
      }
      --idle_;
      continue;
    }
    Job* const job = queue_.begin()->second;
    Dequeue(job);
    if (!queue_.empty()) work_.notify_one();  // another thread runs the job that is due next
    RunStep(job);
  }
}

void BackgroundPool::RunStep(Job* job) {
  if (!job->in_round_) job->wanted_ = false;
  job->in_round_ = job->running_ = true;
  mutex_.unlock();
  const uint64_t pause_us = job->step_();
  mutex_.lock();
  job->running_ = false;
  // Under the lock: a caller that cancelled may destroy the job as soon as it sees that it does not run.
  if (pause_us == kDone || job->cancelled_ || job->hurried_) done_.notify_all();
  if (pause_us == kDone || job->cancelled_) {
    job->in_round_ = false;
    ++job->rounds_;
    job->hurried_ = job->hurried_ && job->wanted_;
    if (job->wanted_ && !job->cancelled_) Enqueue(job, 0);
  } else {
    Enqueue(job, pause_us == kNotNow ? kNotNowMicros : job->hurried_ ? 0 : pause_us);
  }
}

void BackgroundPool::Wait(Job* job) {
  MutexLock lock(mutex_);
  const uint64_t due = job->rounds_ + (job->in_round_ ? 1 : 0) + (job->wanted_ ? 1 : 0);
  if (job->rounds_ == due) return;
  job->hurried_ = true;
  if (job->queued_ && job->place_.first > Clock::now()) {
    Dequeue(job);
    Enqueue(job, 0);
  }
  while (job->rounds_ < due && !(job->cancelled_ && !job->running_)) {
    if (job->running_ || StartThreads()) {
      lock.Wait(done_);
    } else if (job->place_.first > Clock::now()) {
      lock.WaitUntil(done_, Clock::time_point(job->place_.first));
    } else {
      Dequeue(job);
      RunStep(job);
    }
  }
}

void BackgroundPool::Help(Job* job) {
  MutexLock lock(mutex_);
  if (!job->queued_ || StartThreads()) return;
  Dequeue(job);
  RunStep(job);
}

void BackgroundPool::Cancel(Job* job) {
  MutexLock lock(mutex_);
  job->cancelled_ = true;
  job->wanted_ = false;
  Dequeue(job);
  done_.notify_all();
  lock.Wait(done_, [&] { return !job->running_; });
}

}  // namespace multitier
