// Which member of a batch an element belongs to, and the members whose items a warp does, for files of kernels.

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

constexpr uint32_t kFewestItems = 4, kMostItems = 128;  // of a warp at one time: powers of two

// Items are done in runs of this number.
__device__ __forceinline__ uint32_t RunOf(uint32_t items, uint32_t warps) {
  uint32_t run = kFewestItems;
  while (run < items / warps && run < kMostItems) run *= 2;
  return run;
}

// Calls work(begin, end) for the items of this warp, a run or the rest of one at a time; work returns where it stopped. All
// lanes of the warp make the same calls. Meanwhile it keeps nothing in registers but where it was.
template <typename Work>
__device__ __forceinline__ void ForItems(uint32_t items, Work work) {
  const uint32_t warps = gridDim.x * blockDim.x / 32;
  uint32_t run = RunOf(items, warps);
  uint32_t at = (blockIdx.x * blockDim.x + threadIdx.x) / 32 * run;
  while (at < items) {
    const uint32_t rest = run - at % run;
    at = work(at, items - at < rest ? items : at + rest);
    run = RunOf(items, Again(warps));
    if (at % run != 0) continue;
    if (items - at <= (warps - 1) * run) return;  // a sum might be too large
    at += (warps - 1) * run;
  }
}

// Calls work(member, begin, end) for the items [begin, end) of a member that are items of this warp. Args: OutputArgs and its
// like.
template <typename Args, typename Work>
__device__ __forceinline__ void ForItemsOfMembers(const Args& args, Work work) {
  ForItems(args.items, [&](uint32_t begin, uint32_t end) {
    const uint32_t number = MemberOf(args.ends, args.num_members, begin), first = BeginOf(args.ends, number);
    const uint32_t stop = end < args.ends[number] ? end : args.ends[number];
    work(args.members[number], begin - first, stop - first);
    return stop;
  });
}

}  // namespace
}  // namespace multitier::device

#endif  // CC_DEVICE_KERNELS_MEMBER_OF_H_
