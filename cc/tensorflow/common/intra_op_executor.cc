#include "cc/tensorflow/common/intra_op_executor.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/framework/device_base.h"

namespace multitier {
namespace {

// One ParallelFor, shared by the caller and its helpers. A helper that starts after the caller has returned finds no task left
// and accesses only this object.
class Job {
 public:
  Job(int n, const std::function<void(int)>* task) : n_(n), task_(task) {}

  // Takes tasks until none is left.
  void Work() {
    int finished = 0;
    for (int i = next_.fetch_add(1); i < n_; i = next_.fetch_add(1)) {
      (*task_)(i);
      ++finished;
    }
    if (finished == 0) return;
    absl::MutexLock lock(&mutex_);
    done_ += finished;
  }

  void WaitUntilDone() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(+[](Job* job) { return job->done_ == job->n_; }, this));
  }

 private:
  const int n_;
  const std::function<void(int)>* const task_;  // valid while a task is left
  std::atomic<int> next_{0};
  absl::Mutex mutex_;
  int done_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

IntraOpExecutor::IntraOpExecutor(tensorflow::OpKernelContext* context)
    : pool_(context->device()->tensorflow_cpu_worker_threads() == nullptr
                ? nullptr
                : context->device()->tensorflow_cpu_worker_threads()->workers),
      num_threads_(pool_ == nullptr ? 1 : context->device()->tensorflow_cpu_worker_threads()->num_threads) {}

void IntraOpExecutor::ParallelFor(int n, const std::function<void(int)>& task) {
  const int helpers = std::min(n, num_threads_) - 1;
  if (helpers <= 0) {
    for (int i = 0; i < n; ++i) task(i);
    return;
  }
  auto job = std::make_shared<Job>(n, &task);
  for (int i = 0; i < helpers; ++i) pool_->Schedule([job] { job->Work(); });
  job->Work();
  job->WaitUntilDone();
}

}  // namespace multitier
