// Rows for keys that have none.
//
//   chain     the misses of each bucket become a list: one exchange with the bucket's head each
//   place     one warp owns a bucket. It takes its misses in batch order, at most 128 of them:
//               a free row and an empty slot, if there are both
//               else the slot and the row of a victim: of the rows last used before the floor, one of the lowest rank; of those
//               the least recently used one
//               else no place
//   reclaim   returns free rows that were offered and not used, lists dirty victims, and clears the heads
//
// The i-th miss of a table is offered the i-th free row. So there is no lock, no spinning and no reader of half-written slots,
// and the result is a function of table and batch.

#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

__device__ __forceinline__ uint32_t OfferedRow(const Table& table, uint32_t rank, uint32_t num_free) {
  return rank < num_free ? table.free_rows[num_free - 1 - rank] : kNone;
}

__global__ void __launch_bounds__(kBlock) ChainKernel(InsertArgs args) {
  const uint32_t n = *args.num_missed;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const uint32_t position = args.missed[i], t = args.key_tables[position];
    if (i == 0 || args.key_tables[args.missed[i - 1]] != t) args.begins[t] = i;
    if (i == n - 1 || args.key_tables[args.missed[i + 1]] != t) args.ends[t] = i + 1;
    const Table& table = args.tables[t];
    const Place place = PlaceOf(args.keys[position], table.buckets);
    args.next[i] = AtomicExchange<kRelaxed>(table.heads + place.bucket, i);
    args.victims[i] = Victim{0, kNone, 0};
    args.consumed[i] = 0;
    args.rows[position] = StagedRow(args, i, position);  // used if the table has no place
  }
}

constexpr int kPerLane = kBucketSlots / 32;

__device__ __forceinline__ uint32_t WarpMin(uint32_t value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, value, lanes);
    value = other < value ? other : value;
  }
  return value;
}

__device__ __forceinline__ uint32_t WarpMax(uint32_t value) { return ~WarpMin(~value); }

// The 128 lowest numbers of a chain, four for each lane, unordered; kNone if there are fewer. A bucket cannot take more.
struct Lowest {
  uint32_t number[kPerLane];

  __device__ __forceinline__ uint32_t Min() const {
    uint32_t least = number[0];
    MT_UNROLL for (int k = 1; k < kPerLane; ++k) least = number[k] < least ? number[k] : least;
    return WarpMin(least);
  }
  __device__ __forceinline__ uint32_t Max() const {
    uint32_t most = number[0];
    MT_UNROLL for (int k = 1; k < kPerLane; ++k) most = number[k] > most ? number[k] : most;
    return WarpMax(most);
  }
  // Puts `by` in the one place that holds `old`; of several that hold kNone, in one.
  __device__ __forceinline__ void Replace(uint32_t old, uint32_t by) {
    int at = -1;
    MT_UNROLL for (int k = 0; k < kPerLane; ++k) {
      if (number[k] == old && at < 0) at = k;
    }
    const unsigned with = __ballot_sync(kAllLanes, at >= 0);
    if (static_cast<int>(threadIdx.x % 32) != __ffs(static_cast<int>(with)) - 1) return;
    MT_UNROLL for (int k = 0; k < kPerLane; ++k) {
      if (k == at) number[k] = by;
    }
  }
};

__device__ __forceinline__ Lowest ReadChain(const InsertArgs& args, uint32_t head) {
  Lowest lowest;
  MT_UNROLL for (int k = 0; k < kPerLane; ++k) lowest.number[k] = kNone;
  uint32_t most = kNone;
  for (uint32_t i = head; i != kNone; i = args.next[i]) {
    if (i > most) continue;
    lowest.Replace(most, i);
    most = lowest.Max();
  }
  return lowest;
}

// The four slots of a lane in the bucket that its warp owns. Pointers to them would cost registers: they are computed.
struct LaneSlots {
  uint32_t digests;  // four bytes
  uint32_t first;    // of the table's slots
};

__device__ __forceinline__ uint32_t EmptyBytes(uint32_t digests) { return __vcmpeq4(digests, 0) & 0x01010101u; }

// Two slots' ranks, of one load.
__device__ __forceinline__ uint64_t RankAt(const FourWords& two, int k) {
  return static_cast<uint64_t>(two.word[2 * k + 1]) << 32 | two.word[2 * k];
}

// The slot of the bucket to evict: of the lowest rank, of those the least recently used, of those the first one. -1: none. All
// loads come first, and read empty slots, too.
template <bool kRanked>
__device__ __forceinline__ int ChooseVictim(const Table& table, const LaneSlots& mine, const InsertArgs& args) {
  const FourWords used = LoadOwnFourWords(table.last_used + mine.first);
  FourWords ranks[2];
  if constexpr (kRanked) {
    MT_UNROLL for (int half = 0; half < 2; ++half) ranks[half] = LoadOwnFourWords(table.ranks + mine.first + 2 * half);
  }
  uint64_t lowest = ~uint64_t{0};
  uint32_t oldest = 0;  // operations since its last use. 0: no slot of the lane may be evicted
  int at = 0;
  MT_UNROLL for (int k = 0; k < kPerLane; ++k) {
    const bool may_leave = (mine.digests >> 8 * k & 0xff) != 0 && static_cast<int32_t>(used.word[k] - args.floor) < 0;
    const uint32_t age = may_leave ? args.operation - used.word[k] : 0;
    const uint64_t rank = kRanked && may_leave ? RankAt(ranks[k / 2], k % 2) : ~uint64_t{0};
    if (rank > lowest || (rank == lowest && age <= oldest)) continue;
    lowest = rank;
    oldest = age;
    at = k;
  }
  if constexpr (kRanked) {
    uint64_t of_warp = lowest;
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      const uint64_t other = __shfl_xor_sync(kAllLanes, of_warp, lanes);
      of_warp = other < of_warp ? other : of_warp;
    }
    if (lowest != of_warp) oldest = 0;
  }
  const uint32_t of_warp = WarpMax(oldest);
  if (of_warp == 0) return -1;
  const int lane = __ffs(static_cast<int>(__ballot_sync(kAllLanes, oldest == of_warp))) - 1;
  return lane * kPerLane + __shfl_sync(kAllLanes, at, lane);
}

// Places one miss of the bucket that this warp owns. *full: no slot of the bucket may be evicted.
__device__ __forceinline__ void PlaceOne(const InsertArgs& args, const Table& table, uint32_t i, uint32_t num_free,
                                         LaneSlots* mine, bool* full) {
  const uint32_t lane = threadIdx.x % 32, position = args.missed[i];
  const unsigned with_room = __ballot_sync(kAllLanes, EmptyBytes(mine->digests) != 0);
  uint32_t row = OfferedRow(table, i - args.begins[args.key_tables[position]], num_free);
  const bool fresh = row != kNone && with_room != 0;
  int slot;  // of the bucket
  if (fresh) {
    const int owner = __ffs(static_cast<int>(with_room)) - 1;
    const int byte = (__ffs(static_cast<int>(EmptyBytes(mine->digests))) - 1) / 8;
    slot = owner * kPerLane + __shfl_sync(kAllLanes, byte, owner);
  } else {
    slot = *full                    ? -1
           : table.ranks != nullptr ? ChooseVictim<true>(table, *mine, args)
                                    : ChooseVictim<false>(table, *mine, args);
    *full = slot < 0;
  }
  if (slot < 0 || lane != static_cast<uint32_t>(slot) / kPerLane) return;
  const int k = slot % kPerLane;
  if (fresh) {
    args.consumed[i] = 1;
  } else {
    row = table.slots[mine->first + k].row;
    const auto* header = reinterpret_cast<const DeviceRowHeader*>(table.rows + static_cast<size_t>(row) * table.row_stride);
    args.victims[i] = Victim{table.slots[mine->first + k].key, row, header->flags};
  }
  const int64_t key = args.keys[position];
  table.slots[mine->first + k] = Slot{key, row, 0};
  table.last_used[mine->first + k] = args.operation;
  if (table.ranks != nullptr) {
    const auto* staged = reinterpret_cast<const DeviceRowHeader*>(args.rows[position]);
    table.ranks[mine->first + k] = RankOf(table.rank_by, *staged);
  }
  mine->digests = (mine->digests & ~(0xffu << 8 * k)) | static_cast<uint32_t>(PlaceOf(key, table.buckets).digest) << 8 * k;
  table.slot_of_row[row] = mine->first + static_cast<uint32_t>(k);
  args.rows[position] = table.rows + static_cast<size_t>(row) * table.row_stride;
}

// Stores the data about free rows that reclaim and exchange need. Called by the first lane of the warp that reaches miss i.
__device__ __forceinline__ void NoteOffer(const InsertArgs& args, const Table& table, uint32_t i, uint32_t t,
                                          uint32_t num_free) {
  const uint32_t rank = i - args.begins[t], misses = args.ends[t] - args.begins[t];
  args.offered[i] = OfferedRow(table, rank, num_free);
  if (rank == 0) args.bases[t] = num_free - (misses < num_free ? misses : num_free);
}

__global__ void __launch_bounds__(kBlock, 8) PlaceKernel(InsertArgs args) {
  const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32;
  const uint32_t lane = threadIdx.x % 32, n = *args.num_missed;
  for (uint32_t head = warp; head < n; head += warps) {
    const uint32_t position = args.missed[head], t = args.key_tables[position];
    const Table& table = args.tables[t];
    const uint32_t num_free = *table.num_free, bucket = PlaceOf(args.keys[position], table.buckets).bucket;
    if (lane == 0) NoteOffer(args, table, head, t, num_free);
    if (table.heads[bucket] != head) continue;  // another warp owns the bucket
    const uint32_t first = bucket * kBucketSlots + lane * kPerLane;
    LaneSlots mine{*reinterpret_cast<const uint32_t*>(table.digests + first), first};
    Lowest lowest = ReadChain(args, head);
    bool full = !args.evicts;
    for (uint32_t i = lowest.Min(); i != kNone; i = lowest.Min()) {
      PlaceOne(args, table, i, num_free, &mine, &full);
      lowest.Replace(i, kNone);
    }
    *reinterpret_cast<uint32_t*>(table.digests + first) = mine.digests;
  }
}

constexpr uint32_t kHalf = 31;  // bits of a number in a prefix sum of two numbers

__global__ void __launch_bounds__(kBlock) ReclaimKernel(InsertArgs args) {
  const uint32_t n = *args.num_missed, tiles = (n + ScanScratch::kTile - 1) / ScanScratch::kTile;
  if (n == 0 && blockIdx.x == 0 && threadIdx.x == 0) *args.num_dirty = 0;
  for (;;) {
    const uint32_t tile = TakeTile(args.scan);
    if (tile >= tiles) return;
    const uint32_t begin = tile * ScanScratch::kTile + threadIdx.x * kPerThread;
    uint32_t returned = 0, dirty = 0;
    for (uint32_t k = 0; k < kPerThread && begin + k < n; ++k) {
      if (args.offered[begin + k] != kNone && args.consumed[begin + k] == 0) returned |= 1u << k;
      if ((args.victims[begin + k].flags & kRowDirty) != 0) dirty |= 1u << k;
    }
    uint64_t tile_sum, end;
    const uint64_t own = static_cast<uint64_t>(__popc(dirty)) << kHalf | static_cast<uint64_t>(__popc(returned));
    const uint64_t in_block = PrefixInBlock(own, &tile_sum);
    const uint64_t before = PrefixOfTile(args.scan, tile, tile_sum, &end) + in_block;
    uint32_t returned_before = static_cast<uint32_t>(before & 0x7fffffffu),
             dirty_before = static_cast<uint32_t>(before >> kHalf);
    MT_NO_UNROLL for (uint32_t k = 0; k < kPerThread && begin + k < n; ++k) {
      const uint32_t i = begin + k, position = args.missed[i];
      args.returned[i] = returned_before;
      args.outbox[i] = (dirty >> k & 1) != 0 ? dirty_before : kNone;
      returned_before += returned >> k & 1;
      dirty_before += dirty >> k & 1;
      const Table& table = args.tables[args.key_tables[position]];
      AtomicStore<kRelaxed>(table.heads + PlaceOf(args.keys[position], table.buckets).bucket, kNone);
    }
    if (tile == tiles - 1 && threadIdx.x == 0) *args.num_dirty = static_cast<uint32_t>(end >> kHalf);
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status ChainMisses(Stream stream, const InsertArgs& args) {
  return MT_LAUNCH(stream, Grid(args.max_missed, kBlock), kBlock, ChainKernel, args);
}

Status PlaceMisses(Stream stream, const InsertArgs& args) {
  return MT_LAUNCH(stream, Grid(args.max_missed, kBlock / 32), kBlock, PlaceKernel, args);
}

Status ReclaimRows(Stream stream, const InsertArgs& args) {
  return MT_LAUNCH(stream, Grid(args.max_missed, ScanScratch::kTile), kBlock, ReclaimKernel, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
