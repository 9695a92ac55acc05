// A prefix sum in one launch, for files of kernels.
//
// A block takes tiles of 2048 elements in the order of a ticket counter, so that a tile waits only for tiles that run or are
// done. Each tile publishes the sum of its own elements, looks back, a warp at 32 tiles at a time, until it meets a tile whose
// prefix is known, and publishes its own prefix (decoupled look-back). The word of a tile holds both a state and a value of 62
// bits, so that no other memory needs ordering.

#ifndef CC_DEVICE_KERNELS_SCAN_H_
#define CC_DEVICE_KERNELS_SCAN_H_

#include "cc/device/device_code.h"
#include "cc/device/kernels/kernels.h"

namespace multitier::device {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr unsigned kBlock = 256;
constexpr uint32_t kPerThread = ScanScratch::kTile / kBlock;

constexpr uint64_t kStateBits = 3;
constexpr uint64_t kTileSum = 1;     // the word holds the tile's own sum
constexpr uint64_t kTilePrefix = 2;  // the word holds the sum of this tile and all before it

// The staged row of this rank, of one of several tables.
__device__ __forceinline__ uint8_t* StagedRow(uint8_t* staged_rows, const StagedMember& member, uint32_t rank) {
  return staged_rows + (member.offset + static_cast<int64_t>(rank) * member.stride);
}

// The staged row of the i-th of the misses to place.
__device__ __forceinline__ uint8_t* StagedRow(const InsertArgs& args, uint32_t i, uint32_t position) {
  const uint32_t staged = args.staged_ranks != nullptr ? args.staged_ranks[position] : i;
  if (args.staged_members == nullptr) return args.staged_rows + static_cast<size_t>(staged) * args.staged_stride;
  return StagedRow(args.staged_rows, args.staged_members[args.key_tables[position]], staged);
}

// Blocks for n elements of work, `per_block` each.
inline unsigned Grid(uint64_t n, uint32_t per_block) {
  const uint64_t blocks = (n + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < 1056 ? blocks : 1056);
}

// The number of the block's next tile. Called by all threads of the block.
__device__ inline uint32_t TakeTile(const ScanScratch& scratch) {
  MT_SHARED(uint32_t, tile);
  __syncthreads();  // of the tile before
  if (threadIdx.x == 0) tile = static_cast<uint32_t>(AtomicAdd<kRelaxed>(scratch.words, uint64_t{1}));
  __syncthreads();
  return tile;
}

// Sum of `value` over the threads of the block before this one; *total: over all of them.
__device__ inline uint64_t PrefixInBlock(uint64_t value, uint64_t* total) {
  using Sums = uint64_t[kBlock / 32];
  MT_SHARED(Sums, sums);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint64_t inclusive = value;
  for (unsigned step = 1; step < 32; step *= 2) {
    const uint64_t before = __shfl_up_sync(kAllLanes, inclusive, step);
    if (lane >= step) inclusive += before;
  }
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  uint64_t before = 0;
  *total = 0;
  for (unsigned w = 0; w < kBlock / 32; ++w) {
    if (w < warp) before += sums[w];
    *total += sums[w];
  }
  __syncthreads();
  return before + inclusive - value;
}

// By a warp: the sum of all tiles before this one. Each lane looks at one of 32 tiles, the first at the nearest.
__device__ inline uint64_t SumOfTilesBefore(uint64_t* words, uint32_t tile) {
  const uint32_t lane = threadIdx.x % 32;
  uint64_t sum = 0;
  for (uint32_t end = tile;; end -= 32) {
    uint64_t word = kTilePrefix;  // of no tile: 0
    while (lane < end) {
      word = AtomicLoad<kRelaxed>(words + (end - 1 - lane));
      if ((word & kStateBits) != 0) break;
    }
    const unsigned known = __ballot_sync(kAllLanes, (word & kStateBits) == kTilePrefix);
    const bool counts = known == 0 || static_cast<int>(lane) < __ffs(static_cast<int>(known));
    uint64_t part = counts ? word >> 2 : 0;
    for (int lanes = 16; lanes > 0; lanes /= 2) part += __shfl_xor_sync(kAllLanes, part, lanes);
    sum += part;
    if (known != 0) return sum;
  }
}

// The sum of all tiles before this one, and the sum with it in *end. Called by all threads of the block.
__device__ inline uint64_t PrefixOfTile(const ScanScratch& scratch, uint32_t tile, uint64_t tile_sum, uint64_t* end) {
  MT_SHARED(uint64_t, shared_prefix);
  if (threadIdx.x < 32) {
    uint64_t* const words = scratch.words + 1;
    if (tile > 0 && threadIdx.x == 0) AtomicStore<kRelaxed>(words + tile, tile_sum << 2 | kTileSum);
    const uint64_t prefix = tile > 0 ? SumOfTilesBefore(words, tile) : 0;
    if (threadIdx.x == 0) {
      AtomicStore<kRelaxed>(words + tile, (prefix + tile_sum) << 2 | kTilePrefix);
      shared_prefix = prefix;
    }
  }
  __syncthreads();
  *end = shared_prefix + tile_sum;
  return shared_prefix;
}

}  // namespace
}  // namespace multitier::device

#endif  // CC_DEVICE_KERNELS_SCAN_H_
