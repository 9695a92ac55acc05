#include "cc/tensorflow/checkpoint/restore_progress.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cc/base/status.h"
#include "tensorflow/core/platform/logging.h"

namespace multitier {
namespace {

constexpr std::chrono::seconds kBetweenLogs(10);

struct RestoredRows {
  absl::Mutex mutex;
  int64_t done ABSL_GUARDED_BY(mutex) = 0;
  int64_t total ABSL_GUARDED_BY(mutex) = 0;
};

RestoredRows& AllRows() {
  static auto* const rows = new RestoredRows;
  return *rows;
}

}  // namespace

RestoreProgress::RestoreProgress(std::string variable, std::string checkpoint, int64_t total)
    : variable_(std::move(variable)), checkpoint_(std::move(checkpoint)), total_(total) {
  absl::MutexLock lock(&AllRows().mutex);
  AllRows().total += total_;
}

RestoreProgress::~RestoreProgress() {
  absl::MutexLock lock(&AllRows().mutex);
  AllRows().total += done_ - total_;
}

void RestoreProgress::Add(int64_t rows) {
  done_ += rows;
  {
    absl::MutexLock lock(&AllRows().mutex);
    AllRows().done += rows;
  }
  const auto now = std::chrono::steady_clock::now();
  if (now - logged_ < kBetweenLogs) return;
  logged_ = now;
  LOG(INFO) << StrCat("restoring embedding variable '", variable_, "' from checkpoint ", checkpoint_, ": read ", done_, " of ",
                      total_, " rows");
}

Json RestoreProgress::ReadRows() {
  absl::MutexLock lock(&AllRows().mutex);
  Json json = Json::Object();
  json.Set("done", Json::Int(AllRows().done));
  json.Set("total", Json::Int(AllRows().total));
  return json;
}

}  // namespace multitier
