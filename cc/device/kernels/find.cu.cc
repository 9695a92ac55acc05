// Rows of distinct keys. Eight lanes look for one key: one 16-byte load of digests each, then the slots whose digest matches.

#include "cc/device/kernels/probe.h"
#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

__global__ void __launch_bounds__(kBlock) FindKernel(FindArgs args) {
  const uint32_t group = (blockIdx.x * blockDim.x + threadIdx.x) / kProbeLanes, groups = gridDim.x * blockDim.x / kProbeLanes;
  const int lane = static_cast<int>(threadIdx.x % kProbeLanes);
  const unsigned lanes = 0xffu << (threadIdx.x % 32 / kProbeLanes * kProbeLanes);
  const uint32_t n = *args.num_keys;
  for (uint32_t i = group; i < n; i += groups) {
    const int64_t key = args.keys[i];
    const Table& table = args.tables[args.key_tables[i]];
    const Place place = PlaceOf(key, table.buckets);
    const int slot = ProbeLane(table, place, key, lane);
    if (slot >= 0) {
      const size_t at = static_cast<size_t>(place.bucket) * kBucketSlots + static_cast<size_t>(slot);
      args.rows[i] = table.rows + static_cast<size_t>(table.slots[at].row) * table.row_stride;
      args.missed[i] = 0;
      if (args.stamp) {
        // Never lowered, as a later operation may count on its own stamp (the floor). A pin that ends becomes the operation
        // that pinned: it may be later than this one, and so may an operation that used the row before the pin.
        uint32_t last = table.last_used[at];
        const bool ends_pin = !args.keeps_pins && IsPinned(last, args.operation);
        if (ends_pin) last -= kPinAhead;
        const bool older = static_cast<int32_t>(last - args.operation) < 0;
        if (ends_pin || older) table.last_used[at] = older ? args.operation : last;
        if (ends_pin && args.used_pins != nullptr)
          AtomicAdd<kRelaxed>(args.used_pins + args.key_tables[i] * args.used_pins_stride, 1u);
      }
    }
    if (__any_sync(lanes, slot >= 0) == 0 && lane == 0) {
      args.rows[i] = nullptr;
      args.missed[i] = 1;
    }
  }
}

__device__ __forceinline__ void List(const CompactArgs& args, uint32_t position, uint32_t place) {
  args.list[place] = position;
  if (args.listed_keys != nullptr) args.listed_keys[place] = args.keys[position];
  if (args.listed_counts != nullptr) args.listed_counts[place] = args.counts[position];
  if (args.ranks != nullptr) args.ranks[position] = place;
}

__global__ void __launch_bounds__(kBlock) CompactKernel(CompactArgs args) {
  const uint32_t n = *args.num_keys, tiles = (n + ScanScratch::kTile - 1) / ScanScratch::kTile;
  if (n == 0 && blockIdx.x == 0 && threadIdx.x == 0) *args.length = 0;
  for (;;) {
    const uint32_t tile = TakeTile(args.scan);
    if (tile >= tiles) return;
    const uint32_t begin = tile * ScanScratch::kTile + threadIdx.x * kPerThread;
    uint32_t marked = 0;
    for (uint32_t k = 0; k < kPerThread; ++k) {
      if (begin + k < n && args.marked[begin + k] != 0) marked |= 1u << k;
    }
    uint64_t tile_sum, end;
    const uint64_t before = PrefixInBlock(static_cast<uint64_t>(__popc(marked)), &tile_sum);
    uint32_t place = static_cast<uint32_t>(PrefixOfTile(args.scan, tile, tile_sum, &end) + before);
    for (; marked != 0; marked &= marked - 1)
      List(args, begin + static_cast<uint32_t>(__ffs(static_cast<int>(marked)) - 1), place++);
    if (tile == tiles - 1 && threadIdx.x == 0) *args.length = static_cast<uint32_t>(end);
  }
}

__device__ __forceinline__ bool ReadsAsAbsent(const uint8_t* row) {
  return (reinterpret_cast<const DeviceRowHeader*>(row)->flags & kRowProvisional) != 0;
}

// The miss of one of several tables.
__device__ __forceinline__ void StageOfSeveral(const StageArgs& args, uint32_t i) {
  const StagedMember& member = args.members[args.key_tables[i]];
  if (member.stride == 0) {
    args.missed[i] = 0;
    return;
  }
  uint8_t* const row = StagedRow(args.staged_rows, member, args.ranks[i]);
  args.rows[i] = row;
  const bool absent = ReadsAsAbsent(row);
  if (absent) AtomicAdd<kRelaxed>(&args.placed[args.key_tables[i]].absent_entries, args.counts[i]);
  if (!member.insert || (absent && !member.insert_provisional)) args.missed[i] = 0;
}

__global__ void __launch_bounds__(kBlock) StageKernel(StageArgs args) {
  const uint32_t n = *args.num_keys;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    if (args.missed[i] == 0) continue;
    if (args.members != nullptr) {
      StageOfSeveral(args, i);
      continue;
    }
    uint8_t* const row = args.staged_rows + static_cast<size_t>(args.ranks[i]) * args.staged_stride;
    args.rows[i] = row;
    if (!args.insert || (ReadsAsAbsent(row) && !args.insert_provisional)) args.missed[i] = 0;
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status Find(Stream stream, const FindArgs& args) {
  return MT_LAUNCH(stream, Grid(args.max_keys, kBlock / kProbeLanes), kBlock, FindKernel, args);
}

Status Compact(Stream stream, const CompactArgs& args) {
  return MT_LAUNCH(stream, Grid(args.max_keys, ScanScratch::kTile), kBlock, CompactKernel, args);
}

Status Stage(Stream stream, const StageArgs& args) {
  return MT_LAUNCH(stream, Grid(args.max_keys, kBlock), kBlock, StageKernel, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
