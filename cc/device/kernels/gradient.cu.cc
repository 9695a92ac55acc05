// The sum of each key's gradients, in batch order. Those of members: member_gradient.cu.cc.
//
//   begins    the entries of a key are neighbours, in batch order, since entries ascend; its first one marks where they begin
//   sum       a group of lanes sums a piece of a key's entries (pieces.h). These are the bits of the CPU's sum of up to
//             kPieceEntries entries
//   add       the pieces of the keys that have several

#include "cc/device/kernels/pieces.h"
#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

__global__ void __launch_bounds__(kBlock) BeginsKernel(BeginsArgs args) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < args.n; i += gridDim.x * blockDim.x) {
    const auto key = static_cast<uint32_t>(args.entries[i] >> 32);
    if (i == 0 || static_cast<uint32_t>(args.entries[i - 1] >> 32) != key) args.begins[key] = i;
  }
}

__device__ __forceinline__ SortedEntries EntriesOf(const SumArgs& args) {
  return SortedEntries{args.entries, 0, args.n, args.begins, args.counts};
}

__device__ __forceinline__ bool IsOfFours(const SumArgs& args) {
  return IsOfFours(args.dim, args.dim, args.grads) && IsOfFours(args.dim, args.dim, args.sums) &&
         IsOfFours(args.dim, args.dim, args.pieces);
}

__device__ __forceinline__ uint64_t OccurrencesIn(const SumArgs& args, const EntryRange& piece) {
  if (args.entry_occurrences == nullptr) return piece.end - piece.begin;
  uint64_t occurrences = 0;
  for (uint32_t i = piece.begin; i < piece.end; ++i)
    occurrences += static_cast<uint64_t>(args.entry_occurrences[static_cast<uint32_t>(args.entries[i])]);
  return occurrences;
}

template <typename Part>
__device__ __forceinline__ void SumPieces(const SumArgs& args) {
  const SortedEntries entries = EntriesOf(args);
  const uint32_t parts = PartsOf<Part>(args.dim), keys = *args.num_keys, items = keys + LaterPieces(args.n);
  const Lanes mine = LanesFor(parts);
  for (uint32_t i = WarpOfGrid() * mine.groups + mine.group; i < items; i += WarpsOfGrid() * mine.groups) {
    const bool is_first = i < keys;
    const EntryRange piece = is_first ? FirstPiece(entries, i) : LaterPiece(entries, i - keys);
    if (piece.begin == piece.end) continue;
    float* const sum =
        is_first ? args.sums + static_cast<size_t>(i) * args.dim : args.pieces + static_cast<size_t>(i - keys) * args.dim;
    for (uint32_t p = mine.lane; p < parts; p += mine.lanes) {
      const auto load = [&](uint32_t entry) {
        const auto position = static_cast<uint32_t>(args.entries[entry]);
        return Load(reinterpret_cast<const Part*>(args.grads + static_cast<size_t>(position) * args.dim) + p);
      };
      Store(reinterpret_cast<Part*>(sum) + p, SumInOrder<Part>(piece.begin, piece.end, load));
    }
    if (mine.lane == 0) (is_first ? args.occurrences + i : args.piece_occurrences + (i - keys))[0] = OccurrencesIn(args, piece);
  }
}

__global__ void __launch_bounds__(kBlock, 4) SumKernel(SumArgs args) {
  if (IsOfFours(args)) {
    SumPieces<Four>(args);
  } else {
    SumPieces<float>(args);
  }
}

// A warp looks at 32 keys, and adds the pieces of each that has several.
__global__ void __launch_bounds__(kBlock, 4) AddPiecesKernel(SumArgs args) {
  const SortedEntries entries = EntriesOf(args);
  const Lanes all = LanesFor(32);
  const uint32_t keys = *args.num_keys;
  const bool of_fours = IsOfFours(args);
  for (uint32_t base = WarpOfGrid() * 32; base < keys; base += WarpsOfGrid() * 32) {
    const bool has_several = base + all.lane < keys && NumLaterPieces(entries, base + all.lane) > 0;
    for (unsigned left = __ballot_sync(kAllLanes, has_several); left != 0; left &= left - 1) {
      const uint32_t key = base + static_cast<uint32_t>(__ffs(static_cast<int>(left)) - 1);
      if (of_fours) {
        AddLaterPieces<Four>(entries, key, args.pieces, args.sums, args.dim, all);
      } else {
        AddLaterPieces<float>(entries, key, args.pieces, args.sums, args.dim, all);
      }
      if (all.lane != 0) continue;
      const uint32_t first = FirstLaterPiece(entries, key), n = NumLaterPieces(entries, key);
      for (uint32_t i = first; i < first + n; ++i) args.occurrences[key] += args.piece_occurrences[i];
    }
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status Begins(Stream stream, const BeginsArgs& args) {
  return MT_LAUNCH(stream, Grid(args.n, kBlock), kBlock, BeginsKernel, args);
}

Status Sum(Stream stream, const SumArgs& args) {
  const BeginsArgs begins{args.entries, args.n, args.begins};
  const uint32_t later = LaterPieces(args.n);
  MT_RETURN_IF_ERROR(Begins(stream, begins));
  MT_RETURN_IF_ERROR(MT_LAUNCH(stream, Grid(uint64_t{args.max_keys} + later, kBlock / 32), kBlock, SumKernel, args));
  return later == 0 ? OkStatus() : MT_LAUNCH(stream, Grid(args.max_keys, kBlock), kBlock, AddPiecesKernel, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
