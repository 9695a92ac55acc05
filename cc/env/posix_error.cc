#include "cc/env/posix_error.h"

#include <errno.h>

#include <cstring>

namespace multitier {

Status PosixError(const char* call, const std::string& path, int error) {
  std::string message = StrCat(call, " of '", path, "': ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR: return NotFoundError(message);
    case EEXIST:
    case ENOTEMPTY: return AlreadyExistsError(message);
    case EACCES:
    case EPERM:
    case EROFS: return PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM: return ResourceExhaustedError(message);
    default: return UnavailableError(message);
  }
}

}  // namespace multitier
