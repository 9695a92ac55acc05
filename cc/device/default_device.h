// DefaultDevice: the GPU of tables with HBM, where this build and this machine have one.

#ifndef CC_DEVICE_DEFAULT_DEVICE_H_
#define CC_DEVICE_DEFAULT_DEVICE_H_

#include <memory>

#include "cc/base/status.h"
#include "cc/device/device.h"

namespace multitier::device {

// The first GPU that CUDA shows to this process. The first call that finds one opens it, and it stays open. Errors:
// Unimplemented in a build without CUDA; FailedPrecondition, with CUDA's own reason, where there is no GPU, and in a process
// that was forked from the one that opened it. Thread-safe.
Result<std::shared_ptr<Device>> DefaultDevice();

}  // namespace multitier::device

#endif  // CC_DEVICE_DEFAULT_DEVICE_H_
