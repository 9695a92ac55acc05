// Which member of a batch an element belongs to, for files of kernels.

#ifndef CC_DEVICE_KERNELS_MEMBER_OF_H_
#define CC_DEVICE_KERNELS_MEMBER_OF_H_

#include "cc/device/device_code.h"

namespace multitier::device {
namespace {

// The member whose elements include position i. ends: [num_members] ascending, where the elements of each end.
__device__ inline uint32_t MemberOf(const uint32_t* ends, uint32_t num_members, uint32_t i) {
  uint32_t low = 0, high = num_members - 1;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (i < ends[middle]) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Where the elements of the member begin.
__device__ __forceinline__ uint32_t BeginOf(const uint32_t* ends, uint32_t member) {
  return member == 0 ? 0 : ends[member - 1];
}

}  // namespace
}  // namespace multitier::device

#endif  // CC_DEVICE_KERNELS_MEMBER_OF_H_
