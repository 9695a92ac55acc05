// The bits of a float32, and back. For CPU and GPU.

#ifndef CC_BASE_FLOAT_BITS_H_
#define CC_BASE_FLOAT_BITS_H_

#include <cstdint>
#include <cstring>

#include "cc/base/host_device.h"

namespace multitier {

MT_HOST_DEVICE uint32_t FloatBits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

MT_HOST_DEVICE float BitsFloat(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

}  // namespace multitier

#endif  // CC_BASE_FLOAT_BITS_H_
