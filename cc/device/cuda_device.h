// CudaDevice: a Device on a GPU. Only in builds with CUDA (configure.py
// --cuda), and in the check of a GPU (cc/hbm/check/gpu_check.sh).

#ifndef CC_DEVICE_CUDA_DEVICE_H_
#define CC_DEVICE_CUDA_DEVICE_H_

#include <memory>

#include "cc/base/status.h"
#include "cc/device/device.h"

namespace multitier::device {

// GPU number `ordinal`. FailedPrecondition with CUDA's own reason where the
// machine has no such GPU, or its driver is too old.
Result<std::shared_ptr<Device>> OpenCudaDevice(int ordinal = 0);

}  // namespace multitier::device

#endif  // CC_DEVICE_CUDA_DEVICE_H_
