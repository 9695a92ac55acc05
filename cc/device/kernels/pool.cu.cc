// The values of members: those of their keys, or values of a sparse batch combined to one vector a row, with the arithmetic of
// cc/group_lookup/pooling.h, bit for bit.
//
//   scales   of max_norm: what each distinct value is divided by. What the sum of each row is divided by, and, for the gradient
//            without weights, multiplied by
//   values   a group of lanes combines a row. It also copies values that the gradient of clipping needs

#include <cmath>

#include "cc/device/kernels/divided.h"
#include "cc/device/kernels/member_of.h"
#include "cc/device/kernels/row_lanes.h"
#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

// Whether the member gets no values: keys miss, or rows are out of range.
__device__ __forceinline__ bool IsSkipped(const OutputMember& m) {
  return (m.misses != nullptr && *m.misses != 0) || (m.pooled && *m.first_bad != kNone);
}

// What is read for each entry of a member, in registers. kHalves: its values have 16 bits.
template <bool kHalves>
struct EntryValues {
  const float* values;
  uint8_t* const* rows;  // of its own distinct keys
  const uint32_t* inverse;
  const float* weights;
  const float* norms;
  float max_norm;
  uint32_t dim;
  DType dtype;

  __device__ __forceinline__ uint32_t KeyOf(uint32_t entry) const { return inverse != nullptr ? inverse[entry] : entry; }
  template <typename Part>
  __device__ __forceinline__ const Stored<Part, kHalves>* Of(uint32_t key) const {
    if constexpr (!kHalves) {
      if (values != nullptr) return reinterpret_cast<const Part*>(values + static_cast<size_t>(key) * dim);
    }
    return reinterpret_cast<const Stored<Part, kHalves>*>(rows[key] + sizeof(DeviceRowHeader));
  }
  // Part p of the value of a key.
  template <typename Part>
  __device__ __forceinline__ Part PartOf(uint32_t key, uint32_t p) const {
    return ToFloats(dtype, Load(Of<Part>(key) + p));
  }
};

template <bool kHalves>
__device__ __forceinline__ EntryValues<kHalves> ValuesOf(const OutputMember& m) {
  const uint32_t first = m.first != nullptr ? *m.first : 0;
  return EntryValues<kHalves>{m.values, m.rows + first, m.inverse, m.weights, m.norms, m.max_norm, m.dim, m.value_dtype};
}

// Squares are added in the order of the elements.
template <bool kHalves>
__device__ __forceinline__ float SquaresOf(const OutputMember& m, uint32_t key) {
  const EntryValues<kHalves> values = ValuesOf<kHalves>(m);
  const auto* const value = values.template Of<float>(key);
  float squares = 0.0f;
  for (uint32_t d = 0; d < m.dim; ++d) {
    const float x = ToFloats(values.dtype, value[d]);
    squares += x * x;
  }
  return squares;
}

__device__ __forceinline__ float NormOf(const OutputMember& m, uint32_t key) {
  const float squares = m.value_dtype == DType::kFloat32 ? SquaresOf<false>(m, key) : SquaresOf<true>(m, key);
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

// Part p of the value of an entry, weighted.
template <typename Part, bool kHalves>
__device__ __forceinline__ Part EntryValue(const EntryValues<kHalves>& v, uint32_t entry, uint32_t p) {
  const uint32_t key = v.KeyOf(entry);
  const float norm = v.norms != nullptr ? v.norms[key] : 0.0f, weight = v.weights != nullptr ? v.weights[entry] : 0.0f;
  return EachOf(v.template PartOf<Part>(key, p), [&](float x) {
    if (norm != 0.0f) x = x * v.max_norm / norm;
    return v.weights != nullptr ? x * weight : x;
  });
}

template <typename Part, bool kHalves>
__device__ __forceinline__ void PoolRow(const OutputMember& m, const EntryValues<kHalves>& values, uint32_t row,
                                        const Lanes& mine) {
  const uint32_t begin = m.splits[row], end = m.splits[row + 1], parts = PartsOf<Part>(values.dim);
  for (uint32_t p = mine.lane; p < parts; p += mine.lanes) {
    Part pooled{};
    if (begin < end) {
      if (values.norms == nullptr && values.weights == nullptr) {
        pooled =
            SumInOrder<Part>(begin, end, [&](uint32_t entry) { return values.template PartOf<Part>(values.KeyOf(entry), p); });
      } else {
        pooled = SumInOrder<Part, 2>(begin, end, [&](uint32_t entry) { return EntryValue<Part>(values, entry, p); });
      }
      const float divisor = m.divisors[row];
      pooled = EachOf(pooled, [&](float x) { return Divided(x, divisor); });
    }
    Store(reinterpret_cast<Part*>(m.out + static_cast<size_t>(row) * m.stride) + p, pooled);
  }
}

// Row i of `out` is the value of key i, or of keys[i].
template <typename Part, bool kHalves>
__device__ __forceinline__ void CopyValues(const EntryValues<kHalves>& values, const uint32_t* keys, float* out,
                                           uint32_t stride, uint32_t begin, uint32_t end) {
  const uint32_t parts = PartsOf<Part>(values.dim);
  const Lanes mine = LanesFor(parts);
  for (uint32_t i = begin + mine.group; i < end; i += mine.groups * kInFlight) {
    RowCopies<Part, Stored<Part, kHalves>> rows;
    MT_UNROLL for (uint32_t k = 0; k < kInFlight; ++k) {
      const uint32_t row = i + k * mine.groups, at = row < end ? row : i;
      rows.parts[k] = row < end ? parts : 0;
      rows.from[k] = values.template Of<Part>(keys != nullptr ? keys[at] : at);
      rows.to[k] = reinterpret_cast<Part*>(out + static_cast<size_t>(row) * stride);
    }
    CopyRows(rows, mine, values.dtype);
  }
}

// Rows [begin, end) of the output.
template <typename Part, bool kHalves>
__device__ __forceinline__ void OutputRows(const OutputMember& m, const EntryValues<kHalves>& values, uint32_t begin,
                                           uint32_t end) {
  if (!m.pooled) return CopyValues<Part>(values, m.inverse, m.out, m.stride, begin, end);
  const Lanes mine = LanesFor(PartsOf<Part>(values.dim));
  for (uint32_t row = begin + mine.group; row < end; row += mine.groups) PoolRow<Part>(m, values, row, mine);
}

// The items [begin, end) of a member.
template <bool kHalves>
__device__ __forceinline__ void MemberValues(const OutputMember& m, uint32_t begin, uint32_t end) {
  const EntryValues<kHalves> values = ValuesOf<kHalves>(m);
  const uint32_t rows = end < m.num_rows ? end : m.num_rows;
  const bool of_fours = IsOfFours(m.dim, m.dim, m.values);
  if (begin < rows && of_fours && IsOfFours(m.dim, m.stride, m.out)) {
    OutputRows<Four>(m, values, begin, rows);
  } else if (begin < rows) {
    OutputRows<float>(m, values, begin, rows);
  }
  if (end <= m.num_rows) return;
  const uint32_t first = begin > m.num_rows ? begin - m.num_rows : 0, num_keys = *m.num_keys;
  const uint32_t last = end - m.num_rows < num_keys ? end - m.num_rows : num_keys;
  if (of_fours && IsOfFours(m.dim, m.dim, m.unclipped)) {
    CopyValues<Four>(values, nullptr, m.unclipped, m.dim, first, last);
  } else {
    CopyValues<float>(values, nullptr, m.unclipped, m.dim, first, last);
  }
}

template <bool kHalves>
__global__ void __launch_bounds__(kBlock, 4) ValuesKernel(OutputArgs args) {
  ForItemsOfMembers(args, [](const OutputMember& member, uint32_t begin, uint32_t end) {
    if (!IsSkipped(member)) MemberValues<kHalves>(member, begin, end);
  });
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status Scales(Stream stream, const OutputArgs& args) {
  return MT_LAUNCH(stream, Grid(args.items, kBlock), kBlock, ScalesKernel, args);
}

Status Values(Stream stream, const OutputArgs& args) {
  const unsigned grid = Grid(args.items, kBlock / 32 * kFewestItems);
  if (args.halves) return MT_LAUNCH(stream, grid, kBlock, ValuesKernel<true>, args);
  return MT_LAUNCH(stream, grid, kBlock, ValuesKernel<false>, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
