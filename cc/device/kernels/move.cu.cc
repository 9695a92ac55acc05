// A table moves to other memory: for more rows, or for wider ones.
//
//   move index   one warp fills a bucket of the other table. A bucket is a range of hashes, so its keys come from few buckets
//                of the old table, next to one another; they keep their order.
//   move rows    rows keep their numbers; the new ones are free, below those that were free before. Of a table with fewer rows
//                the last ones stay, since the last ones are used first
//
// So no thread waits for another, and the result is a function of the table. The old table stays as it is.

#include "cc/device/kernels/row_lanes.h"
#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

// The least hash of the bucket: see PlaceOf.
__device__ __forceinline__ uint64_t FirstHash(uint32_t bucket, uint32_t buckets) {
  return ((static_cast<uint64_t>(bucket) << 32) + buckets - 1) / buckets;
}

__device__ __forceinline__ void LeaveOut(const MoveArgs& args, uint32_t row) {
  const Table& from = *args.from;
  const auto* header = reinterpret_cast<const DeviceRowHeader*>(from.rows + static_cast<size_t>(row) * from.row_stride);
  AtomicAdd<kRelaxed>(args.left_out, 1u);
  if (args.left_provisional != nullptr && (header->flags & kRowProvisional) != 0) {
    AtomicAdd<kRelaxed>(args.left_provisional, 1u);
  }
}

__global__ void __launch_bounds__(kBlock) MoveIndexKernel(MoveArgs args) {
  const Table &from = *args.from, &to = *args.to;
  const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32,
                 lane = threadIdx.x % 32;
  for (uint32_t bucket = warp; bucket < to.buckets; bucket += warps) {
    const uint64_t first = FirstHash(bucket, to.buckets) * from.buckets >> 32,
                   last = (FirstHash(bucket + 1, to.buckets) - 1) * from.buckets >> 32;
    uint32_t filled = 0;
    for (uint64_t s = first * kBucketSlots + lane; s < (last + 1) * kBucketSlots; s += 32) {
      const uint8_t digest = from.digests[s];
      const bool belongs = digest != 0 && PlaceOf(from.slots[s].key, to.buckets).bucket == bucket;
      const bool has_row = belongs && from.slots[s].row >= args.first_row;
      const unsigned with = __ballot_sync(kAllLanes, has_row);
      const uint32_t place = filled + static_cast<uint32_t>(__popc(with & ((1u << lane) - 1)));
      filled += static_cast<uint32_t>(__popc(with));
      if (!belongs) continue;
      if (!has_row || place >= kBucketSlots) {
        LeaveOut(args, from.slots[s].row);
        continue;
      }
      const size_t at = static_cast<size_t>(bucket) * kBucketSlots + place;
      Slot slot = from.slots[s];
      slot.row -= args.first_row;
      to.digests[at] = digest;
      to.slots[at] = slot;
      to.last_used[at] = from.last_used[s];
      if (to.ranks != nullptr) to.ranks[at] = from.ranks[s];
      to.slot_of_row[slot.row] = static_cast<uint32_t>(at);
    }
  }
}

__device__ __forceinline__ void MoveFreeRows(const Table& from, const Table& to) {
  const uint32_t added = to.capacity - from.capacity, num_free = added + *from.num_free;
  const uint32_t first = blockIdx.x * blockDim.x + threadIdx.x;
  for (uint32_t i = first; i < num_free; i += gridDim.x * blockDim.x) {
    to.free_rows[i] = i < added ? from.capacity + i : from.free_rows[i - added];
  }
  if (first == 0) *to.num_free = num_free;
}

__global__ void __launch_bounds__(kBlock, 4) MoveRowsKernel(MoveArgs args) {
  const Table &from = *args.from, &to = *args.to;
  if (args.free_marks == nullptr) MoveFreeRows(from, to);
  const uint32_t n = args.from_capacity - args.first_row, parts = from.row_stride / static_cast<uint32_t>(sizeof(Four)),
                 wider = to.row_stride / static_cast<uint32_t>(sizeof(Four)) - parts;
  const Lanes mine = LanesFor(parts + wider);
  const uint32_t tile = mine.groups * kInFlight, step = WarpsOfGrid() * tile;
  for (uint32_t i = WarpOfGrid() * tile + mine.group; i < n; i += step) {
    RowCopies<Four> rows;
    MT_UNROLL for (uint32_t k = 0; k < kInFlight; ++k) {
      const uint32_t row = i + k * mine.groups;
      const bool used = row < n && to.slot_of_row[row] != kNone;
      if (args.free_marks != nullptr && row < n && mine.lane == 0) args.free_marks[row] = used ? 0 : 1;
      rows.parts[k] = used ? parts : 0;
      rows.from[k] = reinterpret_cast<const Four*>(from.rows + static_cast<size_t>(row + args.first_row) * from.row_stride);
      rows.to[k] = reinterpret_cast<Four*>(to.rows + static_cast<size_t>(row) * to.row_stride);
    }
    CopyRows(rows, mine);
    MT_UNROLL for (uint32_t k = 0; k < kInFlight; ++k) {
      rows.from[k] = reinterpret_cast<const Four*>(args.new_row) + parts;
      rows.to[k] += parts;
      if (rows.parts[k] != 0) rows.parts[k] = wider;
    }
    CopyRows(rows, mine);
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status MoveIndex(Stream stream, const MoveArgs& args) {
  return MT_LAUNCH(stream, Grid(args.to_buckets, kBlock / 32), kBlock, MoveIndexKernel, args);
}

Status MoveRows(Stream stream, const MoveArgs& args) {
  return MT_LAUNCH(stream, Grid(args.from_capacity, kBlock / 32 * kInFlight), kBlock, MoveRowsKernel, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
