// System calls: the Status of one that failed, and the repetition of one that a signal interrupted.

#ifndef CC_ENV_POSIX_ERROR_H_
#define CC_ENV_POSIX_ERROR_H_

#include <cerrno>
#include <string>

#include "cc/base/status.h"

namespace multitier {

// The Status for `call` of 'path' that failed with `error` (an errno): NotFound, AlreadyExists, InvalidArgument (an impossible
// path), PermissionDenied, ResourceExhausted (disk, quota, descriptors or memory), else Unavailable.
Status PosixError(const char* call, const std::string& path, int error);

// Whether the process or the system has no descriptor left.
bool IsOutOfDescriptors(const Status& status);

// Whether the disk or a quota is full, so that deleting files would help.
bool IsOutOfSpace(const Status& status);

// The result of call(), which is repeated for as long as a signal interrupts it.
template <typename Call>
auto RetryIfInterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace multitier

#endif  // CC_ENV_POSIX_ERROR_H_
