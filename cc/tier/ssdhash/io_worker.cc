#include "cc/tier/ssdhash/io_worker.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

namespace multitier {

IoWorker::IoWorker() : pid_(::getpid()) {}

IoWorker* IoWorker::Get() {
  static std::atomic<IoWorker*> current{nullptr};
  IoWorker* worker = current.load();
  if (worker != nullptr && worker->pid_ == ::getpid()) return worker;
  auto* made = new IoWorker;
  if (current.compare_exchange_strong(worker, made)) return made;
  delete made;
  return worker;
}

void IoWorker::Schedule(Job* job) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (job->cancelled_ || job->queued_) return;
  job->queued_ = true;
  if (job->running_) return;  // queued when it ends
  queue_.push_back(job);
  if (idle_ < static_cast<int>(queue_.size()) && started_ < kThreads) {
    ++started_;
    std::thread([this] { Work(); }).detach();
  }
  work_.notify_one();
}

void IoWorker::Cancel(Job* job) {
  std::unique_lock<std::mutex> lock(mutex_);
  job->cancelled_ = true;
  job->queued_ = false;
  queue_.erase(std::remove(queue_.begin(), queue_.end(), job), queue_.end());
  done_.wait(lock, [job] { return !job->running_; });
}

void IoWorker::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    ++idle_;
    work_.wait(lock, [this] { return !queue_.empty(); });
    --idle_;
    Job* job = queue_.front();
    queue_.pop_front();
    job->queued_ = false;
    job->running_ = true;
    lock.unlock();
    job->run_();
    lock.lock();
    job->running_ = false;
    if (job->queued_) queue_.push_back(job);
    // Under the lock: whoever cancelled may destroy the job as soon as it sees it.
    if (job->cancelled_) done_.notify_all();
  }
}

bool IoWorker::TakeBuffer(uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (buffer_bytes_ + bytes > kWriteBufferBytes) return false;
  buffer_bytes_ += bytes;
  return true;
}

void IoWorker::GiveBuffer(uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  buffer_bytes_ -= bytes;
}

uint64_t IoWorker::buffer_bytes() {
  std::lock_guard<std::mutex> lock(mutex_);
  return buffer_bytes_;
}

}  // namespace multitier
