// The values of members: those of their keys, or values of a sparse batch combined to one vector a row, with the arithmetic of
// cc/group_lookup/pooling.h, bit for bit.
//
//   scales   of max_norm: what each distinct value is divided by. What the sum of each row is divided by, and, for the gradient
//            without weights, multiplied by
//   values   a warp combines a row, a lane an element. It also copies values that the gradient of clipping needs

#include <cmath>

#include "cc/device/kernels/divided.h"
#include "cc/device/kernels/member_of.h"
#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

// Whether the member gets no values: keys miss, or rows are out of range.
__device__ __forceinline__ bool IsSkipped(const OutputMember& m) {
  return (m.misses != nullptr && *m.misses != 0) || (m.pooled && *m.first_bad != kNone);
}

__device__ __forceinline__ const float* ValueOf(const OutputMember& m, uint32_t key) {
  if (m.values != nullptr) return m.values + static_cast<size_t>(key) * m.dim;
  const uint32_t first = m.first != nullptr ? *m.first : 0;
  return reinterpret_cast<const float*>(m.rows[first + key] + sizeof(DeviceRowHeader));
}

// Squares are added in the order of the elements.
__device__ __forceinline__ float NormOf(const OutputMember& m, uint32_t key) {
  const float* const value = ValueOf(m, key);
  float squares = 0.0f;
  for (uint32_t d = 0; d < m.dim; ++d) squares += value[d] * value[d];
  const float norm = std::sqrt(squares);
  return norm < m.max_norm ? m.max_norm : norm;
}

__device__ __forceinline__ void ScaleRow(const OutputMember& m, uint32_t row) {
  const uint32_t begin = m.splits[row], end = m.splits[row + 1];
  const auto n = static_cast<float>(end - begin);
  float divisor = 1.0f, factor = 1.0f;
  if (m.combiner != PoolCombiner::kSum && m.weights == nullptr) {
    const auto count = static_cast<double>(end - begin);
    divisor = m.combiner == PoolCombiner::kMean ? n : std::sqrt(n);
    factor = static_cast<float>(m.combiner == PoolCombiner::kMean ? 1.0 / count : 1.0 / std::sqrt(count));
  } else if (m.combiner != PoolCombiner::kSum) {
    float sum = 0.0f;
    for (uint32_t i = begin; i < end; ++i) {
      const float w = m.weights[i];
      sum += m.combiner == PoolCombiner::kMean ? w : w * w;
    }
    divisor = m.combiner == PoolCombiner::kMean ? sum : std::sqrt(sum);
  }
  m.divisors[row] = divisor;
  m.factors[row] = factor;
}

__global__ void __launch_bounds__(kBlock) ScalesKernel(OutputArgs args) {
  for (uint32_t item = blockIdx.x * blockDim.x + threadIdx.x; item < args.items; item += gridDim.x * blockDim.x) {
    const uint32_t member = MemberOf(args.ends, args.num_members, item), i = item - BeginOf(args.ends, member);
    const OutputMember& m = args.members[member];
    if (IsSkipped(m)) continue;
    if (m.norms != nullptr && i < (m.num_keys != nullptr ? *m.num_keys : m.max_keys)) m.norms[i] = NormOf(m, i);
    if (i < m.num_rows) ScaleRow(m, i);
  }
}

__device__ __forceinline__ float EntryValue(const OutputMember& m, uint32_t entry, uint32_t d) {
  const uint32_t key = m.inverse != nullptr ? m.inverse[entry] : entry;
  float x = ValueOf(m, key)[d];
  if (m.norms != nullptr && m.norms[key] != 0.0f) x = x * m.max_norm / m.norms[key];
  return m.weights != nullptr ? x * m.weights[entry] : x;
}

__device__ __forceinline__ void PoolRow(const OutputMember& m, uint32_t row, uint32_t lane) {
  const uint32_t begin = m.splits[row], end = m.splits[row + 1];
  float* const out = m.out + static_cast<size_t>(row) * m.stride;
  for (uint32_t d = lane; d < m.dim; d += 32) {
    float sum = begin < end ? EntryValue(m, begin, d) : 0.0f;
    for (uint32_t i = begin + 1; i < end; ++i) sum += EntryValue(m, i, d);
    out[d] = begin < end ? Divided(sum, m.divisors[row]) : 0.0f;
  }
}

__device__ __forceinline__ void CopyValue(const OutputMember& m, uint32_t key, float* out, uint32_t lane) {
  const float* const value = ValueOf(m, key);
  for (uint32_t d = lane; d < m.dim; d += 32) out[d] = value[d];
}

__global__ void __launch_bounds__(kBlock) ValuesKernel(OutputArgs args) {
  const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32;
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t item = warp; item < args.items; item += warps) {
    const uint32_t member = MemberOf(args.ends, args.num_members, item), i = item - BeginOf(args.ends, member);
    const OutputMember& m = args.members[member];
    if (IsSkipped(m)) continue;
    if (i >= m.num_rows) {
      const uint32_t key = i - m.num_rows;
      if (key < *m.num_keys) CopyValue(m, key, m.unclipped + static_cast<size_t>(key) * m.dim, lane);
    } else if (m.pooled) {
      PoolRow(m, i, lane);
    } else {
      CopyValue(m, m.inverse[i], m.out + static_cast<size_t>(i) * m.stride, lane);
    }
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status Scales(Stream stream, const OutputArgs& args) {
  return MT_LAUNCH(stream, Grid(args.items, kBlock), kBlock, ScalesKernel, args);
}

Status Values(Stream stream, const OutputArgs& args) {
  return MT_LAUNCH(stream, Grid(args.items, kBlock / 32), kBlock, ValuesKernel, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
