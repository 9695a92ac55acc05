// Division by what a row's sum is divided by, for files of kernels.

#ifndef CC_DEVICE_KERNELS_DIVIDED_H_
#define CC_DEVICE_KERNELS_DIVIDED_H_

#include "cc/device/device_code.h"

namespace multitier::device {
namespace {

__device__ __forceinline__ float Divided(float x, float divisor) {
  if (divisor == 1.0f) return x;
  return divisor == 0.0f ? 0.0f : x / divisor;
}

}  // namespace
}  // namespace multitier::device

#endif  // CC_DEVICE_KERNELS_DIVIDED_H_
