// The row of the output of each entry, and where the entries of each row begin.
//
// Rows are checked here, as only the device sees them. A row that is out of range is moved into it, so that the steps behind
// stay inside of their memory; a member with such a row gets no values.

#include "cc/device/kernels/member_of.h"
#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

__global__ void __launch_bounds__(kBlock) WidenKernel(WidenArgs args) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < args.n; i += gridDim.x * blockDim.x) args.to[i] = args.from[i];
}

__global__ void __launch_bounds__(kBlock) PiecesKernel(PiecesArgs args) {
  const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32,
                 lane = threadIdx.x % 32;
  for (uint32_t i = warp; i < args.n; i += warps) {
    const Piece& piece = args.pieces[i];
    for (uint32_t w = lane; w < piece.words; w += 32) piece.to[w] = piece.from[w];
  }
}

__device__ __forceinline__ int64_t Clamped(int64_t x, int64_t end) { return x < 0 ? 0 : x >= end ? end - 1 : x; }

// The row before clamping. *step: in its sequence.
__device__ __forceinline__ int64_t RowOfEntry(const OutputMember& m, uint32_t i, int64_t* step) {
  *step = 0;
  if (m.indices == nullptr) return i;
  if (!m.splits_given) {
    if (m.columns == 2) *step = m.indices[static_cast<size_t>(i) * 2 + 1];
    return m.indices[static_cast<size_t>(i) * m.columns];
  }
  uint32_t low = 0, high = m.batch;  // the last row that begins at or before i
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (m.indices[middle] <= i) {
      low = middle;
    } else {
      high = middle;
    }
  }
  *step = i - m.indices[low];
  return low;
}

// The row of the output; *bad: the entry's row or step is out of range.
__device__ __forceinline__ int64_t OutputRow(const OutputMember& m, uint32_t i, bool* bad) {
  int64_t step;
  const int64_t row = RowOfEntry(m, i, &step);
  *bad = row < 0 || row >= m.batch || (m.steps > 0 && (step < 0 || step >= m.steps));
  if (m.steps == 0) return Clamped(row, m.batch);
  return Clamped(row, m.batch) * m.steps + Clamped(step, m.steps);
}

__device__ __forceinline__ bool BadSplit(const OutputMember& m, uint32_t r) {
  const int64_t begin = m.indices[r], end = m.indices[r + 1];
  return begin > end || (r == 0 && begin != 0) || (r == m.batch - 1 && end != static_cast<int64_t>(m.entries));
}

// An item is an entry, the end of the entries, or a split to check.
__global__ void __launch_bounds__(kBlock) EntryRowsKernel(OutputArgs args) {
  for (uint32_t item = blockIdx.x * blockDim.x + threadIdx.x; item < args.items; item += gridDim.x * blockDim.x) {
    const uint32_t member = MemberOf(args.ends, args.num_members, item), i = item - BeginOf(args.ends, member);
    const OutputMember& m = args.members[member];
    if (m.splits_given && i < m.batch && BadSplit(m, i)) AtomicMin<kRelaxed>(m.first_bad, i);
    if (i > m.entries) continue;
    bool bad = false, bad_before = false;
    const int64_t before = i == 0 ? -1 : OutputRow(m, i - 1, &bad_before);
    const int64_t row = i == m.entries ? static_cast<int64_t>(m.num_rows) : OutputRow(m, i, &bad);
    // Atomic: entries out of order share rows. The values of such rows are not read.
    for (int64_t r = before + 1; r <= row; ++r) AtomicStore<kRelaxed>(m.splits + r, i);
    if (i == m.entries) continue;
    m.entry_rows[i] = row;
    if (bad || row < before) AtomicMin<kRelaxed>(m.first_bad, i);
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status Widen(Stream stream, const WidenArgs& args) {
  return MT_LAUNCH(stream, Grid(args.n, kBlock), kBlock, WidenKernel, args);
}

Status Pieces(Stream stream, const PiecesArgs& args) {
  return MT_LAUNCH(stream, Grid(args.n, kBlock / 32), kBlock, PiecesKernel, args);
}

Status EntryRows(Stream stream, const OutputArgs& args) {
  return MT_LAUNCH(stream, Grid(args.items, kBlock), kBlock, EntryRowsKernel, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
