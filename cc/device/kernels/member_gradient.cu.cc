// The gradients of members: of the values of their distinct keys, and of weights. The arithmetic of cc/group_lookup/pooling.h,
// bit for bit.
//
//   gradients     a warp sums the gradients of a key, a lane an element: as gradient.cu.cc, of the gradients of entries, which
//                 are computed on the way. After the keys: the products of weights' gradients, a thread an entry
//   corrections   of clipping, a thread a key: the sums of gradients of clipped values become those of the values. Of weights,
//                 a thread a row: what the divisor, which has the weights in it, adds

#include <cmath>

#include "cc/device/kernels/divided.h"
#include "cc/device/kernels/member_of.h"
#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

// The gradient of element d of the value of an entry. sorted: its place among the batch's entries. kGiven: see GradientMember.
template <bool kGiven>
__device__ __forceinline__ float EntryGradient(const GradientMember& g, uint32_t sorted, uint32_t d) {
  const OutputMember& m = g.output;
  const uint32_t entry = kGiven ? sorted : static_cast<uint32_t>(g.entries[sorted]) - g.first_entry;
  if (!m.pooled) return g.grads[static_cast<size_t>(entry) * g.stride + d];
  const auto row = static_cast<size_t>(m.entry_rows[entry]);
  const float x = g.grads[row * g.stride + d];
  if (m.weights == nullptr) return x * m.factors[row];
  return Divided(x, m.divisors[row]) * m.weights[entry];
}

template <bool kGiven>
__device__ __forceinline__ void SumKey(const GradientMember& g, uint32_t key, uint32_t lane) {
  const uint32_t begin = kGiven ? key : g.begins[key], count = kGiven ? 1 : g.counts[key], dim = g.output.dim;
  if (g.sums != nullptr) {
    for (uint32_t d = lane; d < dim; d += 32) {
      float sum = EntryGradient<kGiven>(g, begin, d);
      for (uint32_t i = begin + 1; i < begin + count; ++i) sum += EntryGradient<kGiven>(g, i, d);
      g.sums[static_cast<size_t>(key) * dim + d] = sum;
    }
  }
  if (lane == 0 && g.keys_out != nullptr) g.keys_out[key] = g.keys[key];
  if (lane == 0 && g.counts_out != nullptr) g.counts_out[key] = count;
}

// The product of its row's gradient and its value, in the order of the elements.
template <bool kGiven>
__device__ __forceinline__ float WeightProduct(const GradientMember& g, uint32_t entry) {
  const OutputMember& m = g.output;
  const uint32_t key = kGiven ? entry : m.inverse[entry];
  const float* const value = (kGiven ? m.values : m.unclipped) + static_cast<size_t>(key) * m.dim;
  const float* const grad = g.grads + static_cast<size_t>(m.entry_rows[entry]) * g.stride;
  const bool clips = m.norms != nullptr && m.norms[key] != 0.0f;
  float sum = 0.0f;
  for (uint32_t d = 0; d < m.dim; ++d) {
    const float x = clips ? value[d] * m.max_norm / m.norms[key] : value[d];
    sum += grad[d] * x;
  }
  return sum;
}

template <bool kGiven>
__global__ void __launch_bounds__(kBlock) GradientsKernel(GradientArgs args) {
  const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32;
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t item = warp; item < args.items; item += warps) {
    const uint32_t member = MemberOf(args.ends, args.num_members, item), i = item - BeginOf(args.ends, member);
    const GradientMember& g = args.members[member];
    if (i < g.num_keys) {
      SumKey<kGiven>(g, i, lane);
    } else {
      const uint32_t entry = (i - g.num_keys) * 32 + lane;
      if (entry < g.output.entries) g.weight_grads[entry] = WeightProduct<kGiven>(g, entry);
    }
  }
}

// The products are added in the order of the elements, as on the CPU.
__device__ __forceinline__ void CorrectClipped(const GradientMember& g, uint32_t key) {
  const uint32_t dim = g.output.dim;
  const float max_norm = g.output.max_norm;
  const float* const unclipped = g.output.values != nullptr ? g.output.values : g.output.unclipped;
  const float* const v = unclipped + static_cast<size_t>(key) * dim;
  float* const sums = g.sums + static_cast<size_t>(key) * dim;
  float squares = 0.0f, dot = 0.0f;
  for (uint32_t d = 0; d < dim; ++d) {
    squares += v[d] * v[d];
    dot += v[d] * sums[d];
  }
  const float norm = std::sqrt(squares);
  if (norm < max_norm || norm == 0.0f) return;
  const float scale = max_norm / norm, along = dot / squares;
  for (uint32_t d = 0; d < dim; ++d) sums[d] = (sums[d] - v[d] * along) * scale;
}

__device__ __forceinline__ void CorrectWeights(const GradientMember& g, uint32_t row) {
  const OutputMember& m = g.output;
  const uint32_t begin = m.splits[row], end = m.splits[row + 1];
  const float divisor = m.divisors[row];
  float dot_sum = 0.0f;
  for (uint32_t i = begin; i < end; ++i) dot_sum += m.weights[i] * g.weight_grads[i];
  for (uint32_t i = begin; i < end; ++i) {
    const float slope = m.combiner == PoolCombiner::kMean ? 1.0f : m.weights[i] / divisor;
    g.weight_grads[i] = divisor == 0.0f ? 0.0f : (g.weight_grads[i] - dot_sum / divisor * slope) / divisor;
  }
}

__global__ void __launch_bounds__(kBlock) CorrectionsKernel(GradientArgs args) {
  for (uint32_t item = blockIdx.x * blockDim.x + threadIdx.x; item < args.items; item += gridDim.x * blockDim.x) {
    const uint32_t member = MemberOf(args.ends, args.num_members, item), i = item - BeginOf(args.ends, member);
    const GradientMember& g = args.members[member];
    const bool clips = g.sums != nullptr && g.output.max_norm >= 0;
    const bool divides = g.weight_grads != nullptr && g.output.combiner != PoolCombiner::kSum;
    if (clips && i < g.num_keys) CorrectClipped(g, i);
    if (divides && i < g.output.num_rows) CorrectWeights(g, i);
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status Gradients(Stream stream, const GradientArgs& args) {
  const unsigned grid = Grid(args.items, kBlock / 32);
  if (args.given_values) return MT_LAUNCH(stream, grid, kBlock, GradientsKernel<true>, args);
  return MT_LAUNCH(stream, grid, kBlock, GradientsKernel<false>, args);
}

Status Corrections(Stream stream, const GradientArgs& args) {
  return MT_LAUNCH(stream, Grid(args.items, kBlock), kBlock, CorrectionsKernel, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
