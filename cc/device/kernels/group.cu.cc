// A group of members, each with a table of its own, in the arrays of one batch.
//
//   concat     the keys of all members, one after the other
//   dedup, find                                                    as for one table
//   members    where the distinct keys of each member begin, and how many there are. Keys are numbered in the order of their
//              first occurrence, so those of a member are neighbours.
//   localize   numbers and positions count from the member's own first one; counts the misses of each member
//
// Afterwards a slice of each array is what a batch of that member alone would have given.

#include "cc/device/kernels/member_of.h"
#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

__device__ __forceinline__ uint32_t BeginOf(const uint32_t* ends, uint32_t member) {
  return member == 0 ? 0 : ends[member - 1];
}

__global__ void __launch_bounds__(kBlock) ConcatKernel(ConcatArgs args) {
  const uint32_t n = args.ends[args.num_members - 1];
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const uint32_t member = MemberOf(args.ends, args.num_members, i), at = i - BeginOf(args.ends, member);
    const ConcatArgs::Keys& keys = args.keys[member];
    args.out[i] = keys.is_int32 ? static_cast<const int32_t*>(keys.data)[at] : static_cast<const int64_t*>(keys.data)[at];
  }
}

__global__ void __launch_bounds__(kBlock) MembersKernel(LocalizeArgs args) {
  for (uint32_t m = blockIdx.x * blockDim.x + threadIdx.x; m < args.num_members; m += gridDim.x * blockDim.x) {
    const uint32_t first = args.inverse[BeginOf(args.ends, m)];
    const uint32_t end = m == args.num_members - 1 ? *args.num_distinct : args.inverse[args.ends[m]];
    args.counts[m] = MemberCounts{first, end - first, 0};
  }
}

__global__ void __launch_bounds__(kBlock) LocalizeKernel(LocalizeArgs args) {
  const uint32_t n = args.ends[args.num_members - 1], distinct = *args.num_distinct;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const uint32_t member = MemberOf(args.ends, args.num_members, i);
    const uint32_t number = args.inverse[i] - args.counts[member].first;
    args.inverse[i] = number;
    args.entries[i] = static_cast<uint64_t>(number) << 32 | (i - BeginOf(args.ends, member));
    if (i < distinct && args.missed[i] != 0) AtomicAdd<kRelaxed>(&args.counts[args.distinct_members[i]].misses, 1u);
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status Concat(Stream stream, const ConcatArgs& args) {
  return MT_LAUNCH(stream, Grid(args.n, kBlock), kBlock, ConcatKernel, args);
}

Status Localize(Stream stream, const LocalizeArgs& args) {
  MT_RETURN_IF_ERROR(MT_LAUNCH(stream, Grid(args.num_members, kBlock), kBlock, MembersKernel, args));
  return MT_LAUNCH(stream, Grid(args.n, kBlock), kBlock, LocalizeKernel, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
