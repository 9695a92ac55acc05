// RestoreProgress: how far a running restore is. Restores that take long say so in the log, and MultitierProcessState gives
// the rows of all restores of the process.
//
// Thread-safe: ReadRows. A RestoreProgress belongs to one thread.

#ifndef CC_TENSORFLOW_CHECKPOINT_RESTORE_PROGRESS_H_
#define CC_TENSORFLOW_CHECKPOINT_RESTORE_PROGRESS_H_

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

  // The rows of all restores since the process started: an object done, total. A restore that is over counts in both with the
  // rows that it read, so that one who looks rarely sees short restores, too.
  static Json ReadRows();

 private:
  const std::string variable_;
  const std::string checkpoint_;
  const int64_t total_;
  int64_t done_ = 0;
  std::chrono::steady_clock::time_point logged_ = std::chrono::steady_clock::now();
};

}  // namespace multitier

#endif  // CC_TENSORFLOW_CHECKPOINT_RESTORE_PROGRESS_H_
