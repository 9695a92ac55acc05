// The sum of each key's gradients, in batch order: the bits of the CPU's sum. Those of members: member_gradient.cu.cc.
//
//   begins    the entries of a key are neighbours, in batch order, since entries ascend; its first one marks where they begin
//   sum       a warp sums the gradients of a key, a lane an element
//
// A key's entries are added one after the other, so a key that fills much of a large batch takes long.

#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

__global__ void __launch_bounds__(kBlock) BeginsKernel(BeginsArgs args) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < args.n; i += gridDim.x * blockDim.x) {
    const auto key = static_cast<uint32_t>(args.entries[i] >> 32);
    if (i == 0 || static_cast<uint32_t>(args.entries[i - 1] >> 32) != key) args.begins[key] = i;
  }
}

__device__ __forceinline__ const float* GradOf(const SumArgs& args, uint32_t entry) {
  return args.grads + static_cast<size_t>(static_cast<uint32_t>(args.entries[entry])) * args.dim;
}

__global__ void __launch_bounds__(kBlock) SumKernel(SumArgs args) {
  const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32,
                 lane = threadIdx.x % 32;
  const uint32_t n = *args.num_keys;
  for (uint32_t key = warp; key < n; key += warps) {
    const uint32_t begin = args.begins[key], end = begin + args.counts[key];
    for (uint32_t d = lane; d < args.dim; d += 32) {
      float sum = GradOf(args, begin)[d];
      for (uint32_t i = begin + 1; i < end; ++i) sum += GradOf(args, i)[d];
      args.sums[static_cast<size_t>(key) * args.dim + d] = sum;
    }
    if (lane != 0) continue;
    uint64_t occurrences = end - begin;
    if (args.entry_occurrences != nullptr) {
      occurrences = 0;
      for (uint32_t i = begin; i < end; ++i)
        occurrences += static_cast<uint64_t>(args.entry_occurrences[static_cast<uint32_t>(args.entries[i])]);
    }
    args.occurrences[key] = occurrences;
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status Begins(Stream stream, const BeginsArgs& args) {
  return MT_LAUNCH(stream, Grid(args.n, kBlock), kBlock, BeginsKernel, args);
}

Status Sum(Stream stream, const SumArgs& args) {
  const BeginsArgs begins{args.entries, args.n, args.begins};
  MT_RETURN_IF_ERROR(Begins(stream, begins));
  return MT_LAUNCH(stream, Grid(args.max_keys, kBlock / 32), kBlock, SumKernel, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
