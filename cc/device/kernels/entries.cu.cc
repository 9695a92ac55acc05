// What a caller gives in device memory, in the form that the other steps read: keys of 64 bits, and the row of each entry of a
// sparse batch. Also the gradient of clipping.
//
// Rows are checked here, as only the device sees them. A row that is out of range is moved into it, so that the steps behind
// stay inside of their memory until the host has read first_bad.

#include <cmath>

#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

__global__ void __launch_bounds__(kBlock) WidenKernel(WidenArgs args) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < args.n; i += gridDim.x * blockDim.x) args.to[i] = args.from[i];
}

__device__ __forceinline__ int64_t Clamped(int64_t x, int64_t end) { return x < 0 ? 0 : x >= end ? end - 1 : x; }

// The row before clamping. *step: in its sequence.
__device__ __forceinline__ int64_t RowOfEntry(const EntryRowsArgs& args, uint32_t i, int64_t* step) {
  *step = 0;
  if (args.indices == nullptr) return i;
  if (!args.splits) {
    if (args.columns == 2) *step = args.indices[static_cast<size_t>(i) * 2 + 1];
    return args.indices[static_cast<size_t>(i) * args.columns];
  }
  uint32_t low = 0, high = args.batch;  // the last row that begins at or before i
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (args.indices[middle] <= i) {
      low = middle;
    } else {
      high = middle;
    }
  }
  *step = i - args.indices[low];
  return low;
}

// The row of the output; *bad: the entry's row or step is out of range.
__device__ __forceinline__ int64_t OutputRow(const EntryRowsArgs& args, uint32_t i, bool* bad) {
  int64_t step;
  const int64_t row = RowOfEntry(args, i, &step);
  *bad = row < 0 || row >= args.batch || (args.steps > 0 && (step < 0 || step >= args.steps));
  if (args.steps == 0) return Clamped(row, args.batch);
  return Clamped(row, args.batch) * args.steps + Clamped(step, args.steps);
}

__global__ void __launch_bounds__(kBlock) EntryRowsKernel(EntryRowsArgs args) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < args.entries; i += gridDim.x * blockDim.x) {
    bool bad, bad_before = false;
    args.rows[i] = OutputRow(args, i, &bad);
    if (i > 0) bad |= args.rows[i] < OutputRow(args, i - 1, &bad_before);
    if (bad) AtomicMin<kRelaxed>(args.first_bad, i);
  }
}

__global__ void __launch_bounds__(kBlock) CheckSplitsKernel(EntryRowsArgs args) {
  for (uint32_t r = blockIdx.x * blockDim.x + threadIdx.x; r < args.batch; r += gridDim.x * blockDim.x) {
    const int64_t begin = args.indices[r], end = args.indices[r + 1];
    const bool bad =
        begin > end || (r == 0 && begin != 0) || (r == args.batch - 1 && end != static_cast<int64_t>(args.entries));
    if (bad) AtomicMin<kRelaxed>(args.first_bad, r);
  }
}

// One thread a key: the products are added in the order of the elements, as on the CPU.
__global__ void __launch_bounds__(kBlock) ClipGradientKernel(ClipGradientArgs args) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < args.n; i += gridDim.x * blockDim.x) {
    const float* const v = args.values + static_cast<size_t>(i) * args.dim;
    float* const g = args.sums + static_cast<size_t>(i) * args.dim;
    float squares = 0.0f, dot = 0.0f;
    for (uint32_t d = 0; d < args.dim; ++d) {
      squares += v[d] * v[d];
      dot += v[d] * g[d];
    }
    const float norm = std::sqrt(squares);
    if (norm < args.max_norm || norm == 0.0f) continue;
    const float scale = args.max_norm / norm, along = dot / squares;
    for (uint32_t d = 0; d < args.dim; ++d) g[d] = (g[d] - v[d] * along) * scale;
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status Widen(Stream stream, const WidenArgs& args) {
  return MT_LAUNCH(stream, Grid(args.n, kBlock), kBlock, WidenKernel, args);
}

Status EntryRows(Stream stream, const EntryRowsArgs& args) {
  if (args.splits) MT_RETURN_IF_ERROR(MT_LAUNCH(stream, Grid(args.batch, kBlock), kBlock, CheckSplitsKernel, args));
  return MT_LAUNCH(stream, Grid(args.entries, kBlock), kBlock, EntryRowsKernel, args);
}

Status ClipGradient(Stream stream, const ClipGradientArgs& args) {
  return MT_LAUNCH(stream, Grid(args.n, kBlock), kBlock, ClipGradientKernel, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
