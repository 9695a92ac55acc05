// The gradients of members: of the values of their distinct keys, and of weights. The arithmetic of cc/group_lookup/pooling.h,
// bit for bit.
//
//   gradients     a group of lanes sums a piece of a key's entries, as in gradient.cu.cc. The gradients of entries are computed
//                 on the way. Behind the keys and their pieces: the products of weights' gradients, a lane an entry
//   corrections   sums of keys with several pieces; of clipping, a thread a key: the sums of gradients of clipped values become
//                 those of the values. Of weights, a thread a row: what the divisor, which has the weights in it, adds

#include <cmath>

#include "cc/device/kernels/divided.h"
#include "cc/device/kernels/member_of.h"
#include "cc/device/kernels/pieces.h"
#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

__device__ __forceinline__ SortedEntries EntriesOf(const GradientMember& g) {
  return SortedEntries{g.entries, g.first_entry, g.output.entries, g.begins, g.counts};
}

__device__ __forceinline__ bool IsOfFours(const GradientMember& g) {
  const uint32_t dim = g.output.dim;
  return IsOfFours(dim, g.stride, g.grads) && IsOfFours(dim, dim, g.sums) && IsOfFours(dim, dim, g.pieces);
}

// Part p of the gradient of the value of an entry. sorted: its place among the batch's entries. kGiven: see GradientMember.
template <bool kGiven, typename Part>
__device__ __forceinline__ Part EntryGradient(const GradientMember& g, uint32_t sorted, uint32_t p) {
  const OutputMember& m = g.output;
  const uint32_t entry = kGiven ? sorted : static_cast<uint32_t>(g.entries[sorted]) - g.first_entry;
  const size_t row = m.pooled ? static_cast<size_t>(m.entry_rows[entry]) : entry;
  const Part x = Load(reinterpret_cast<const Part*>(g.grads + row * g.stride) + p);
  if (!m.pooled) return x;
  const float factor = m.weights == nullptr ? m.factors[row] : m.divisors[row];
  if (m.weights == nullptr) return EachOf(x, [&](float y) { return y * factor; });
  const float weight = m.weights[entry];
  return EachOf(x, [&](float y) { return Divided(y, factor) * weight; });
}

template <bool kGiven, typename Part>
__device__ __forceinline__ void SumPiece(const GradientMember& g, const EntryRange& piece, float* sum, const Lanes& mine) {
  const uint32_t parts = PartsOf<Part>(g.output.dim);
  for (uint32_t p = mine.lane; p < parts; p += mine.lanes) {
    const auto load = [&](uint32_t entry) { return EntryGradient<kGiven, Part>(g, entry, p); };
    Store(reinterpret_cast<Part*>(sum) + p, SumInOrder<Part>(piece.begin, piece.end, load));
  }
}

// Item i of the keys and their later pieces.
template <bool kGiven>
__device__ __forceinline__ void SumItem(const GradientMember& g, uint32_t i, const Lanes& mine) {
  const bool is_first = i < g.num_keys;
  EntryRange piece{i, i + 1};
  if (!kGiven) piece = is_first ? FirstPiece(EntriesOf(g), i) : LaterPiece(EntriesOf(g), i - g.num_keys);
  if (g.sums != nullptr && piece.begin < piece.end) {
    float* const to = is_first ? g.sums + static_cast<size_t>(i) * g.output.dim
                               : g.pieces + static_cast<size_t>(i - g.num_keys) * g.output.dim;
    if (IsOfFours(g)) {
      SumPiece<kGiven, Four>(g, piece, to, mine);
    } else {
      SumPiece<kGiven, float>(g, piece, to, mine);
    }
  }
  if (mine.lane != 0 || !is_first) return;
  if (g.keys_out != nullptr) g.keys_out[i] = g.keys[i];
  if (g.counts_out != nullptr) g.counts_out[i] = kGiven ? 1 : g.counts[i];
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
__global__ void __launch_bounds__(kBlock, 4) GradientsKernel(GradientArgs args) {
  const bool fours = args.most_dim % 4 == 0;
  const Lanes mine = LanesFor(args.most_dim == 0 ? 32 : fours ? args.most_dim / 4 : args.most_dim);
  const uint32_t step = WarpsOfGrid() * mine.groups;
  for (uint32_t item = WarpOfGrid() * mine.groups + mine.group; item < args.items; item += step) {
    const uint32_t member = MemberOf(args.ends, args.num_members, item), i = item - BeginOf(args.ends, member);
    const GradientMember& g = args.members[member];
    const uint32_t sums = g.num_keys + LaterPieces(g);
    if (i < sums) SumItem<kGiven>(g, i, mine);
    if (i < sums) continue;
    for (uint32_t e = mine.lane; e < 32 && (i - sums) * 32 + e < g.output.entries; e += mine.lanes) {
      const uint32_t entry = (i - sums) * 32 + e;
      g.weight_grads[entry] = WeightProduct<kGiven>(g, entry);
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

// By a warp: the sums of a key with several pieces.
__device__ __forceinline__ void AddPieces(const GradientArgs& args, uint32_t item) {
  const uint32_t member = MemberOf(args.ends, args.num_members, item), key = item - BeginOf(args.ends, member);
  const GradientMember& g = args.members[member];
  const Lanes all = LanesFor(32);
  if (IsOfFours(g)) {
    AddLaterPieces<Four>(EntriesOf(g), key, g.pieces, g.sums, g.output.dim, all);
  } else {
    AddLaterPieces<float>(EntriesOf(g), key, g.pieces, g.sums, g.output.dim, all);
  }
}

__global__ void __launch_bounds__(kBlock, 4) CorrectionsKernel(GradientArgs args) {
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t base = WarpOfGrid() * 32; base < args.items; base += WarpsOfGrid() * 32) {
    const uint32_t item = base + lane;
    const bool is_item = item < args.items;
    const uint32_t member = is_item ? MemberOf(args.ends, args.num_members, item) : 0;
    const uint32_t i = is_item ? item - BeginOf(args.ends, member) : 0;
    const GradientMember& g = args.members[member];
    const bool is_key = is_item && i < g.num_keys;
    const bool has_several = is_key && LaterPieces(g) > 0 && NumLaterPieces(EntriesOf(g), i) > 0;
    for (unsigned left = __ballot_sync(kAllLanes, has_several); left != 0; left &= left - 1) {
      AddPieces(args, base + static_cast<uint32_t>(__ffs(static_cast<int>(left)) - 1));
    }
    __syncwarp();  // a lane reads sums that the warp has written
    const bool clips = g.sums != nullptr && g.output.max_norm >= 0;
    const bool divides = g.weight_grads != nullptr && g.output.combiner != PoolCombiner::kSum;
    if (clips && is_key) CorrectClipped(g, i);
    if (divides && is_item && i < g.output.num_rows) CorrectWeights(g, i);
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
