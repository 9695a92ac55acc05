// Kernels of a watch: it ends a collective that waits too long for other processes.
//
//   MultitierWatch                    -> watch    the executor of the step's collectives is watched while this tensor lives
//   a collective
//   MultitierWatched(result, watch)   -> result       the end of the watch
//   MultitierProgress                 -> progress     what the process has begun. A rank that ends asks the others
//
// TensorFlow's own timeout has a thread for each collective, which sleeps for the whole timeout, also when the collective has
// ended. A few hundred steps per second are then tens of thousands of threads, and the process ends. One thread serves all
// watches here. A step that fails between the two ops drops the tensor, and so its watch.
//
// When a watch ends a collective, the thread first asks the other processes whether they live, at most kAnswerMillis: its error
// names those that do not answer.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc/base/mutex.h"
#include "cc/base/thread.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/tensor.h"

namespace multitier {
namespace {

using Clock = std::chrono::steady_clock;
using tensorflow::CollectiveExecutor;
using ExecutorPtr = tensorflow::core::RefCountPtr<CollectiveExecutor>;

constexpr int64_t kAnswerMillis = 2000;

// Which of other processes answer a question. The question may outlive its asker, and the callbacks of TensorFlow use the
// executor. Thread-safe.
class Question {
 public:
  Question(ExecutorPtr executor, size_t processes)
      : executor_(std::move(executor)), answers_(processes, false), open_(processes) {}
  // Asks the processes of a world: "/job:worker/replica:0/task:0", ...
  static std::shared_ptr<Question> Ask(CollectiveExecutor* executor, const std::vector<std::string>& processes) {
    executor->Ref();
    auto asked = std::make_shared<Question>(ExecutorPtr(executor), processes.size());
    for (size_t i = 0; i < processes.size(); ++i) {
      executor->remote_access()->CheckPeerHealth(processes[i], kAnswerMillis,
                                                 [asked, i](const absl::Status& found) { asked->Answer(i, found.ok()); });
    }
    return asked;
  }
  // "all ranks answer", or "no answer from rank 1, 3".
  std::string Await() {
    const auto until = Clock::now() + std::chrono::milliseconds(kAnswerMillis + 500);
    MutexLock lock(mutex_);
    while (open_ > 0 && Clock::now() < until) lock.WaitUntil(answered_, until);
    std::vector<size_t> silent;
    for (size_t i = 0; i < answers_.size(); ++i) {
      if (!answers_[i]) silent.push_back(i);
    }
    return silent.empty() ? "all ranks answer" : absl::StrCat("no answer from rank ", absl::StrJoin(silent, ", "));
  }

 private:
  void Answer(size_t process, bool found) {
    const MutexLock lock(mutex_);
    answers_[process] = found;
    --open_;
    answered_.notify_all();
  }

  const ExecutorPtr executor_;
  Mutex mutex_;
  std::condition_variable answered_;
  std::vector<bool> answers_ MT_GUARDED_BY(mutex_);
  size_t open_ MT_GUARDED_BY(mutex_);
};

// All watches of the process, and the thread that serves them. Thread-safe.
class Watches {
 public:
  using Place = std::pair<Clock::time_point, int64_t>;  // deadline, number

  static Watches* Get() {
    static auto* const watches = new Watches;
    return watches;
  }

  // The error of a collective that is late: "<message> (collective 12 of this process, <who answers>)<cure>".
  struct Error {
    std::string message, cure;
    std::vector<std::string> processes;  // of the world
  };

  // ResourceExhausted if the thread cannot start.
  absl::Status Begin(ExecutorPtr executor, Clock::duration timeout, std::shared_ptr<const Error> error, Place* place) {
    MutexLock lock(mutex_);
    if (!started_) TF_RETURN_IF_ERROR(ToAbsl(StartThread("mt_watch", [this] { Serve(); })));
    started_ = true;
    *place = {Clock::now() + timeout, next_number_++};
    watched_.emplace(*place, Watched{std::move(executor), std::move(error)});
    if (place->first < wakes_) changed_.notify_one();
    return absl::OkStatus();
  }
  // Soon ends the collectives of all watches that there are then. A launcher may end the process before.
  void FailSoon(const std::string& message) {
    const MutexLock lock(mutex_);
    fails_at_ = Clock::now() + std::chrono::seconds(10);
    failure_ = message;
    changed_.notify_one();
  }
  struct Progress {
    int64_t begun;  // watches
    int64_t open;   // those that wait
    bool late;      // one has ended its collective
  };
  Progress progress() {
    const MutexLock lock(mutex_);
    return {next_number_, static_cast<int64_t>(watched_.size()), late_};
  }
  void End(const Place& place) {
    Watched ended;  // destroyed without the lock
    MutexLock lock(mutex_);
    const auto found = watched_.find(place);
    if (found == watched_.end()) return;
    ended = std::move(found->second);
    watched_.erase(found);
    lock.Unlock();
  }

 private:
  struct Watched {
    ExecutorPtr executor;
    std::shared_ptr<const Error> error;
  };

  // A watch seldom reaches its deadline. So the thread sleeps until that of a watch which may have ended, and looks then.
  void Serve() {
    MutexLock lock(mutex_);
    while (true) {
      const auto now = Clock::now();
      std::vector<Watched> late;
      const int64_t first = watched_.empty() ? 0 : watched_.begin()->first.second + 1;
      while (!watched_.empty() && watched_.begin()->first.first <= now) {
        late.push_back(std::move(watched_.extract(watched_.begin()).mapped()));
      }
      if (!late.empty()) {
        late_ = true;
        lock.Unlock();
        const std::string found = absl::StrCat(" (collective ", first, " of this process, ", WhoAnswers(late.front()), ")");
        for (const auto& [executor, error] : late) {
          executor->StartAbort(absl::DeadlineExceededError(absl::StrCat(error->message, found, error->cure)));
        }
        late.clear();  // destroyed without the lock
        lock.Lock();
      }
      if (fails_at_ <= now) {
        std::map<Place, Watched> failed;
        failed.swap(watched_);
        late_ = late_ || !failed.empty();
        fails_at_ = Clock::time_point::max();
        const auto error = absl::FailedPreconditionError(failure_);
        lock.Unlock();
        for (auto& [place, watched] : failed) watched.executor->StartAbort(error);
        failed.clear();  // without the lock
        lock.Lock();
      }
      wakes_ = watched_.empty() ? fails_at_ : std::min(fails_at_, watched_.begin()->first.first);
      if (wakes_ == Clock::time_point::max()) {
        lock.Wait(changed_);
      } else {
        lock.WaitUntil(changed_, wakes_);
      }
    }
  }

  // In the thread alone.
  std::string WhoAnswers(const Watched& late) {
    if (late.executor->remote_access() == nullptr) return "nobody can be asked";
    const auto is_done = [](const auto& each) { return each.use_count() == 1; };
    asked_.erase(std::remove_if(asked_.begin(), asked_.end(), is_done), asked_.end());
    asked_.push_back(Question::Ask(late.executor.get(), late.error->processes));
    return asked_.back()->Await();
  }

  std::vector<std::shared_ptr<Question>> asked_;  // of the thread. The last owner of an executor is never one of its callbacks
  Mutex mutex_;
  std::condition_variable changed_;
  std::map<Place, Watched> watched_ MT_GUARDED_BY(mutex_);
  Clock::time_point wakes_ MT_GUARDED_BY(mutex_) = Clock::time_point::max();  // when the thread looks again
  Clock::time_point fails_at_ MT_GUARDED_BY(mutex_) = Clock::time_point::max();
  std::string failure_ MT_GUARDED_BY(mutex_);
  int64_t next_number_ MT_GUARDED_BY(mutex_) = 0;
  bool started_ MT_GUARDED_BY(mutex_) = false;
  bool late_ MT_GUARDED_BY(mutex_) = false;
};

// Of the process.
std::atomic<int64_t> succeeded = 0;  // collectives
std::atomic<bool> ended = false;     // its program

// The buffer of a watch's tensor: its life is that of the watch.
class WatchBuffer : public tensorflow::TensorBuffer {
 public:
  explicit WatchBuffer(const Watches::Place& place) : TensorBuffer(&number_), number_(place.second), place_(place) {}
  ~WatchBuffer() override { Watches::Get()->End(place_); }

  size_t size() const override { return sizeof(number_); }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription* proto) const override {
    proto->set_requested_bytes(sizeof(number_));
  }
  const Watches::Place& place() const { return place_; }
  // No op writes its result here.
  bool OwnsMemory() const override { return false; }

 private:
  alignas(EIGEN_MAX_ALIGN_BYTES) int64_t number_ = 0;
  const Watches::Place place_;
};

class WatchKernel : public OpKernel {
 public:
  explicit WatchKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("seconds", &seconds_));
    Watches::Error error;
    OP_REQUIRES_OK(context, context->GetAttr("message", &error.message));
    OP_REQUIRES_OK(context, context->GetAttr("cure", &error.cure));
    OP_REQUIRES_OK(context, context->GetAttr("processes", &error.processes));
    error_ = std::make_shared<const Watches::Error>(std::move(error));
  }

  void Compute(OpKernelContext* context) override {
    CollectiveExecutor* executor = context->collective_executor();
    OP_REQUIRES(context, executor != nullptr,
                absl::FailedPreconditionError("MultitierWatch: expected a step with collectives, found one without"));
    executor->Ref();
    Watches::Place place;
    const auto timeout = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds_));
    OP_REQUIRES_OK(context, Watches::Get()->Begin(ExecutorPtr(executor), timeout, error_, &place));
    const tensorflow::core::RefCountPtr<WatchBuffer> buffer(new WatchBuffer(place));
    context->set_output(0, Tensor(tensorflow::DT_INT64, {}, buffer.get()));
  }

 private:
  float seconds_ = 0;
  std::shared_ptr<const Watches::Error> error_;
};

class WatchedKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    // A tape may hold the tensor for longer.
    const auto* watch = dynamic_cast<const WatchBuffer*>(tensorflow::DMAHelper::buffer(&context->input(1)));
    OP_REQUIRES(context, watch != nullptr,
                absl::InvalidArgumentError("MultitierWatched: watch: expected that of MultitierWatch"));
    Watches::Get()->End(watch->place());
    ++succeeded;
    context->set_output(0, context->input(0));
  }
};

class ProgressKernel : public OpKernel {
 public:
  explicit ProgressKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("ends", &ends_));
    OP_REQUIRES_OK(context, context->GetAttr("error", &error_));
  }
  void Compute(OpKernelContext* context) override {
    if (ends_) ended = true;
    if (!error_.empty()) Watches::Get()->FailSoon(error_);
    Tensor* progress;
    OP_REQUIRES_OK(context, context->allocate_output(0, {5}, &progress));
    auto numbers = progress->vec<int64_t>();
    const auto [begun, open, late] = Watches::Get()->progress();
    numbers(0) = begun;
    numbers(1) = succeeded;
    numbers(2) = ended;
    numbers(3) = open;
    numbers(4) = late;
  }

 private:
  bool ends_ = false;
  std::string error_;
};

REGISTER_KERNEL_BUILDER(Name("MultitierWatch").Device(tensorflow::DEVICE_CPU), WatchKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierWatched").Device(tensorflow::DEVICE_CPU), WatchedKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierProgress").Device(tensorflow::DEVICE_CPU), ProgressKernel);

}  // namespace
}  // namespace multitier
