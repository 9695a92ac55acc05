// Pins of prefetched rows: see kPinAhead.

#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

// The place of an operation in an ascending list; kNone if it is not there.
__device__ __forceinline__ uint32_t PlaceIn(const uint32_t* operations, uint32_t n, uint32_t operation) {
  uint32_t low = 0, high = n;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (operations[middle] < operation) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < n && operations[low] == operation ? low : kNone;
}

__global__ void __launch_bounds__(kBlock) PinKernel(PinArgs args) {
  const Table& table = *args.table;
  const uint32_t n = *args.num_keys;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const uint8_t* const row = args.rows[i];
    if (row < table.rows || row >= table.rows + static_cast<size_t>(table.capacity) * table.row_stride) continue;
    if ((reinterpret_cast<const DeviceRowHeader*>(row)->flags & kRowProvisional) != 0) continue;
    uint32_t* const used = table.last_used + table.slot_of_row[static_cast<size_t>(row - table.rows) / table.row_stride];
    const uint32_t last = *used;
    const bool is_pinned = IsPinned(last, args.operation);
    // Never lowered: a later operation that has used the row, or has pinned it, may count on that stamp (the floor).
    if (static_cast<int32_t>((is_pinned ? last - kPinAhead : last) - args.operation) > 0) continue;
    if (!is_pinned && args.renews) continue;
    if (!is_pinned) AtomicAdd<kRelaxed>(args.pinned, 1u);
    if (is_pinned && PlaceIn(args.later, args.num_later, last - kPinAhead) != kNone) continue;
    *used = args.operation + kPinAhead;
  }
}

__global__ void __launch_bounds__(kBlock) SweepPinsKernel(SweepPinsArgs args) {
  const uint64_t slots = static_cast<uint64_t>(args.buckets) * kBucketSlots,
                 step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t s = blockIdx.x * blockDim.x + threadIdx.x; s < slots; s += step) {
    uint32_t* const used = args.table->last_used + s;
    if (args.table->digests[s] == 0 || !IsPinned(*used, args.operation)) continue;
    const uint32_t prefetch = *used - kPinAhead, place = PlaceIn(args.kept, args.num_kept, prefetch);
    if (place != kNone) {
      AtomicAdd<kRelaxed>(args.pinned + place, 1u);
    } else {
      *used = prefetch;
    }
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status Pin(Stream stream, const PinArgs& args) {
  return MT_LAUNCH(stream, Grid(args.max_keys, kBlock), kBlock, PinKernel, args);
}

Status SweepPins(Stream stream, const SweepPinsArgs& args) {
  return MT_LAUNCH(stream, Grid(static_cast<uint64_t>(args.buckets) * kBucketSlots, kBlock), kBlock, SweepPinsKernel, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
