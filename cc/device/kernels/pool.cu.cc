// Values of a sparse batch combined to one vector a row, and the gradients of that: the arithmetic of cc/lookup/pooling.h, bit
// for bit.
//
//   splits      where the entries of each row begin
//   norms       of max_norm: what each distinct value is divided by
//   scales      what the sum of each row is divided by, and, for the gradient without weights, multiplied by
//   pool        a warp combines a row, a lane an element
//   pooled sum  as the sum of gradients (gradient.cu.cc), of the gradients of entries, which are computed on the way

#include <cmath>

#include "cc/device/kernels/begins.h"
#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

__global__ void __launch_bounds__(kBlock) SplitsKernel(PoolArgs args) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i <= args.entries; i += gridDim.x * blockDim.x) {
    const int64_t before = i == 0 ? -1 : args.indices[i - 1];
    const int64_t row = i == args.entries ? static_cast<int64_t>(args.batch) : args.indices[i];
    for (int64_t r = before + 1; r <= row; ++r) args.splits[r] = i;
  }
}

// One thread a value: its squares are added in the order of its elements.
__global__ void __launch_bounds__(kBlock) NormsKernel(PoolArgs args) {
  const uint32_t n = *args.num_keys;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const auto* value = reinterpret_cast<const float*>(args.rows[i] + sizeof(DeviceRowHeader));
    float squares = 0.0f;
    for (uint32_t d = 0; d < args.dim; ++d) squares += value[d] * value[d];
    const float norm = std::sqrt(squares);
    args.norms[i] = norm < args.max_norm ? args.max_norm : norm;
  }
}

__global__ void __launch_bounds__(kBlock) ScalesKernel(PoolArgs args) {
  for (uint32_t row = blockIdx.x * blockDim.x + threadIdx.x; row < args.batch; row += gridDim.x * blockDim.x) {
    const uint32_t begin = args.splits[row], end = args.splits[row + 1];
    const auto n = static_cast<float>(end - begin);
    float divisor = 1.0f, factor = 1.0f;
    if (args.combiner != PoolCombiner::kSum && args.weights == nullptr) {
      const auto count = static_cast<double>(end - begin);
      divisor = args.combiner == PoolCombiner::kMean ? n : std::sqrt(n);
      factor = static_cast<float>(args.combiner == PoolCombiner::kMean ? 1.0 / count : 1.0 / std::sqrt(count));
    } else if (args.combiner != PoolCombiner::kSum) {
      float sum = 0.0f;
      for (uint32_t i = begin; i < end; ++i) {
        const float w = args.weights[i];
        sum += args.combiner == PoolCombiner::kMean ? w : w * w;
      }
      divisor = args.combiner == PoolCombiner::kMean ? sum : std::sqrt(sum);
    }
    args.divisors[row] = divisor;
    args.factors[row] = factor;
  }
}

__device__ __forceinline__ float Divided(float x, float divisor) {
  if (divisor == 1.0f) return x;
  return divisor == 0.0f ? 0.0f : x / divisor;
}

__device__ __forceinline__ float EntryValue(const PoolArgs& args, uint32_t entry, uint32_t d) {
  const uint32_t key = args.inverse[entry];
  float x = reinterpret_cast<const float*>(args.rows[key] + sizeof(DeviceRowHeader))[d];
  if (args.norms != nullptr && args.norms[key] != 0.0f) x = x * args.max_norm / args.norms[key];
  return args.weights != nullptr ? x * args.weights[entry] : x;
}

__global__ void __launch_bounds__(kBlock) PoolKernel(PoolArgs args) {
  const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32;
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t row = warp; row < args.batch; row += warps) {
    const uint32_t begin = args.splits[row], end = args.splits[row + 1];
    float* const out = args.out + static_cast<size_t>(row) * args.stride;
    for (uint32_t d = lane; d < args.dim; d += 32) {
      float sum = begin < end ? EntryValue(args, begin, d) : 0.0f;
      for (uint32_t i = begin + 1; i < end; ++i) sum += EntryValue(args, i, d);
      out[d] = begin < end ? Divided(sum, args.divisors[row]) : 0.0f;
    }
  }
}

// The gradient of element d of the value of an entry.
__device__ __forceinline__ float EntryGradient(const PooledSumArgs& args, uint32_t entry, uint32_t d) {
  const PoolArgs& pool = args.pool;
  const auto row = static_cast<size_t>(pool.indices[entry]);
  const float g = args.sum.grads[row * pool.stride + d];
  if (pool.weights == nullptr) return g * pool.factors[row];
  return Divided(g, pool.divisors[row]) * pool.weights[entry];
}

__global__ void __launch_bounds__(kBlock) PooledSumKernel(PooledSumArgs args) {
  const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32;
  const uint32_t lane = threadIdx.x % 32, n = *args.sum.num_keys;
  for (uint32_t key = warp; key < n; key += warps) {
    const uint32_t begin = args.sum.begins[key], end = begin + args.sum.counts[key];
    for (uint32_t d = lane; d < args.sum.dim; d += 32) {
      float sum = EntryGradient(args, static_cast<uint32_t>(args.sum.entries[begin]), d);
      for (uint32_t i = begin + 1; i < end; ++i) sum += EntryGradient(args, static_cast<uint32_t>(args.sum.entries[i]), d);
      args.sum.sums[static_cast<size_t>(key) * args.sum.dim + d] = sum;
    }
    if (lane == 0) args.sum.occurrences[key] = end - begin;
  }
}

// One thread an entry: the product of its row's gradient and its value, in the order of the elements.
__global__ void __launch_bounds__(kBlock) WeightProductsKernel(WeightsGradientArgs args) {
  const PoolArgs& pool = args.pool;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < pool.entries; i += gridDim.x * blockDim.x) {
    const uint32_t key = pool.inverse[i];
    const float* const value = args.values + static_cast<size_t>(key) * pool.dim;
    const float* const grad = args.grads + static_cast<size_t>(pool.indices[i]) * pool.stride;
    const bool clips = pool.norms != nullptr && pool.norms[key] != 0.0f;
    float sum = 0.0f;
    for (uint32_t d = 0; d < pool.dim; ++d) {
      const float x = clips ? value[d] * pool.max_norm / pool.norms[key] : value[d];
      sum += grad[d] * x;
    }
    args.out[i] = sum;
  }
}

// One thread a row: what the divisor, which has the weights in it, adds.
__global__ void __launch_bounds__(kBlock) WeightSlopesKernel(WeightsGradientArgs args) {
  const PoolArgs& pool = args.pool;
  for (uint32_t row = blockIdx.x * blockDim.x + threadIdx.x; row < pool.batch; row += gridDim.x * blockDim.x) {
    const uint32_t begin = pool.splits[row], end = pool.splits[row + 1];
    const float divisor = pool.divisors[row];
    float dot_sum = 0.0f;
    for (uint32_t i = begin; i < end; ++i) dot_sum += pool.weights[i] * args.out[i];
    for (uint32_t i = begin; i < end; ++i) {
      const float slope = pool.combiner == PoolCombiner::kMean ? 1.0f : pool.weights[i] / divisor;
      args.out[i] = divisor == 0.0f ? 0.0f : (args.out[i] - dot_sum / divisor * slope) / divisor;
    }
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status Pool(Stream stream, const PoolArgs& args) {
  MT_RETURN_IF_ERROR(MT_LAUNCH(stream, Grid(uint64_t{args.entries} + 1, kBlock), kBlock, SplitsKernel, args));
  if (args.norms != nullptr) MT_RETURN_IF_ERROR(MT_LAUNCH(stream, Grid(args.max_keys, kBlock), kBlock, NormsKernel, args));
  MT_RETURN_IF_ERROR(MT_LAUNCH(stream, Grid(args.batch, kBlock), kBlock, ScalesKernel, args));
  return MT_LAUNCH(stream, Grid(args.batch, kBlock / 32), kBlock, PoolKernel, args);
}

Status WeightsGradient(Stream stream, const WeightsGradientArgs& args) {
  MT_RETURN_IF_ERROR(MT_LAUNCH(stream, Grid(args.pool.entries, kBlock), kBlock, WeightProductsKernel, args));
  if (args.pool.combiner == PoolCombiner::kSum) return OkStatus();
  return MT_LAUNCH(stream, Grid(args.pool.batch, kBlock), kBlock, WeightSlopesKernel, args);
}

Status PooledSum(Stream stream, const PooledSumArgs& args) {
  MT_RETURN_IF_ERROR(MT_LAUNCH(stream, Grid(args.sum.n, kBlock), kBlock, BeginsKernel, args.sum));
  return MT_LAUNCH(stream, Grid(args.sum.max_keys, kBlock / 32), kBlock, PooledSumKernel, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
