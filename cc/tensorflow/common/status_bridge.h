// Converts the engine's Status to TensorFlow's status and back. Both use the canonical codes.

#ifndef CC_TENSORFLOW_COMMON_STATUS_BRIDGE_H_
#define CC_TENSORFLOW_COMMON_STATUS_BRIDGE_H_

#include <string>

#include "absl/status/status.h"
#include "cc/base/status.h"

namespace multitier {

inline absl::Status ToAbsl(const Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(static_cast<int>(status.code())), status.message());
}

inline Status FromAbsl(const absl::Status& status) {
  if (status.ok()) return OkStatus();
  return Status(static_cast<StatusCode>(static_cast<int>(status.code())), std::string(status.message()));
}

}  // namespace multitier

#endif  // CC_TENSORFLOW_COMMON_STATUS_BRIDGE_H_
