// The pieces in which gradients are summed, for files of kernels.
//
// The entries of a key are neighbours, in batch order. A key has a piece for each 256 of them (kPieceEntries). The sum of its
// first piece goes to the key's place among the sums, those of its later pieces to scratch; then they are added in order.
//
//   positions     0         256        512        768        1024
//   entries       | a | b ....|..........|..... | c ....|......|
//   later pieces        1 of b: at p + 256, 2 of b: at p + 512   1 of c
//
// At most one later piece begins in [256 w, 256 (w + 1)), as the one before it has 256 entries, and it belongs to the key of
// position 256 w. So it has number w - 1, and the later pieces of a key have successive numbers.

#ifndef CC_DEVICE_KERNELS_PIECES_H_
#define CC_DEVICE_KERNELS_PIECES_H_

#include "cc/device/kernels/kernels.h"
#include "cc/device/kernels/row_lanes.h"

namespace multitier::device {
namespace {

// Sorted entries of keys that are numbered from 0.
struct SortedEntries {
  const uint64_t* entries;  // of the batch
  uint32_t first, n;        // of them: [first, first + n)
  const uint32_t* begins;   // [keys] positions in the batch
  const uint32_t* counts;   // [keys]
};

struct EntryRange {
  uint32_t begin, end;  // positions in the batch
};

__device__ __forceinline__ EntryRange FirstPiece(const SortedEntries& e, uint32_t key) {
  const uint32_t begin = e.begins[key], count = e.counts[key];
  return EntryRange{begin, begin + (count < kPieceEntries ? count : kPieceEntries)};
}

// Later piece `number`; an empty one if there is none.
__device__ __forceinline__ EntryRange LaterPiece(const SortedEntries& e, uint32_t number) {
  const uint32_t window = e.first + (number + 1) * kPieceEntries;
  const auto key = static_cast<uint32_t>(e.entries[window] >> 32) - static_cast<uint32_t>(e.entries[e.first] >> 32);
  const uint32_t key_begin = e.begins[key], key_end = key_begin + e.counts[key];
  const uint32_t begin = key_begin + (window - key_begin + kPieceEntries - 1) / kPieceEntries * kPieceEntries;
  if (begin == key_begin || begin >= key_end) return EntryRange{window, window};
  return EntryRange{begin, key_end - begin < kPieceEntries ? key_end : begin + kPieceEntries};
}

// The later pieces of a key.
__device__ __forceinline__ uint32_t NumLaterPieces(const SortedEntries& e, uint32_t key) {
  return (e.counts[key] - 1) / kPieceEntries;
}
__device__ __forceinline__ uint32_t FirstLaterPiece(const SortedEntries& e, uint32_t key) {
  return (e.begins[key] - e.first) / kPieceEntries;
}

// By a group of lanes: to the sum of a key's first piece, adds those of its later ones.
template <typename Part>
__device__ __forceinline__ void AddLaterPieces(const SortedEntries& e, uint32_t key, const float* pieces, float* sums,
                                               uint32_t dim, const Lanes& mine) {
  const uint32_t first = FirstLaterPiece(e, key), n = NumLaterPieces(e, key), parts = PartsOf<Part>(dim);
  Part* const sum = reinterpret_cast<Part*>(sums + static_cast<size_t>(key) * dim);
  const Part* const later = reinterpret_cast<const Part*>(pieces + static_cast<size_t>(first) * dim);
  for (uint32_t p = mine.lane; p < parts; p += mine.lanes) {
    const auto load = [&](uint32_t i) {  // 0: of the first piece
      return Load((i == 0 ? sum : later + static_cast<size_t>(i - 1) * parts) + p);
    };
    Store(sum + p, SumInOrder<Part>(0, n + 1, load));
  }
}

}  // namespace
}  // namespace multitier::device

#endif  // CC_DEVICE_KERNELS_PIECES_H_
