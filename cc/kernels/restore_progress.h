// RestoreProgress: how far a running restore is. Restores that take long say so in the log, and MultitierProcessState lists
// them.
//
// Thread-safe: List. A RestoreProgress belongs to one thread.

#ifndef CC_KERNELS_RESTORE_PROGRESS_H_
#define CC_KERNELS_RESTORE_PROGRESS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "cc/base/json.h"

namespace multitier {

class RestoreProgress {
 public:
  // total: the rows that will be read.
  RestoreProgress(std::string variable, std::string checkpoint, int64_t total);
  ~RestoreProgress();
  RestoreProgress(const RestoreProgress&) = delete;
  RestoreProgress& operator=(const RestoreProgress&) = delete;

  // Logs every ten seconds.
  void Add(int64_t rows);

  // The restores that run in this process: an array of objects variable, checkpoint, done, total.
  static Json List();

 private:
  const std::string variable_;
  const std::string checkpoint_;
  const int64_t total_;
  std::atomic<int64_t> done_{0};
  std::chrono::steady_clock::time_point logged_ = std::chrono::steady_clock::now();
};

}  // namespace multitier

#endif  // CC_KERNELS_RESTORE_PROGRESS_H_
