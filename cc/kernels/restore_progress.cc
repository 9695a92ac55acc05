#include "cc/kernels/restore_progress.h"

#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/platform/logging.h"

namespace multitier {
namespace {

constexpr std::chrono::seconds kBetweenLogs(10);

struct Running {
  absl::Mutex mutex;
  std::set<const RestoreProgress*> restores ABSL_GUARDED_BY(mutex);
};

Running& AllRunning() {
  static auto* const running = new Running;
  return *running;
}

}  // namespace

RestoreProgress::RestoreProgress(std::string variable, std::string checkpoint, int64_t total)
    : variable_(std::move(variable)), checkpoint_(std::move(checkpoint)), total_(total) {
  absl::MutexLock lock(&AllRunning().mutex);
  AllRunning().restores.insert(this);
}

RestoreProgress::~RestoreProgress() {
  absl::MutexLock lock(&AllRunning().mutex);
  AllRunning().restores.erase(this);
}

void RestoreProgress::Add(int64_t rows) {
  const int64_t done = done_ += rows;
  const auto now = std::chrono::steady_clock::now();
  if (now - logged_ < kBetweenLogs) return;
  logged_ = now;
  LOG(INFO) << "restoring embedding variable '" << variable_ << "' from checkpoint " << checkpoint_ << ": read " << done
            << " of " << total_ << " rows";
}

Json RestoreProgress::List() {
  absl::MutexLock lock(&AllRunning().mutex);
  Json list = Json::Array();
  for (const RestoreProgress* restore : AllRunning().restores) {
    Json json = Json::Object();
    json.Set("variable", Json::String(restore->variable_));
    json.Set("checkpoint", Json::String(restore->checkpoint_));
    json.Set("done", Json::Int(restore->done_));
    json.Set("total", Json::Int(restore->total_));
    list.Append(std::move(json));
  }
  return list;
}

}  // namespace multitier
