// Pins of prefetched rows: see kPinAhead.

#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

__global__ void __launch_bounds__(kBlock) PinKernel(PinArgs args) {
  const Table& table = *args.table;
  const uint32_t n = *args.num_keys;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const uint8_t* const row = args.rows[i];
    if (row < table.rows || row >= table.rows + static_cast<size_t>(table.capacity) * table.row_stride) continue;
    if ((reinterpret_cast<const DeviceRowHeader*>(row)->flags & kRowUnborn) != 0) continue;
    Slot* const slot = table.slots + table.slot_of_row[static_cast<size_t>(row - table.rows) / table.row_stride];
    const bool is_pinned = IsPinned(slot->last_operation, args.operation);
    if (!is_pinned) AtomicAdd<kRelaxed>(args.pinned, 1u);
    bool keeps = false;
    for (uint32_t k = 0; k < args.num_later; ++k) keeps |= args.later[k] + kPinAhead == slot->last_operation;
    if (!keeps) slot->last_operation = args.operation + kPinAhead;
  }
}

__global__ void __launch_bounds__(kBlock) SweepPinsKernel(SweepPinsArgs args) {
  const uint64_t slots = static_cast<uint64_t>(args.buckets) * kBucketSlots,
                 step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t s = blockIdx.x * blockDim.x + threadIdx.x; s < slots; s += step) {
    Slot* const slot = args.table->slots + s;
    if (args.table->digests[s] == 0 || !IsPinned(slot->last_operation, args.operation)) continue;
    bool stays = false;
    for (uint32_t k = 0; k < args.num_kept; ++k) stays |= args.kept[k] + kPinAhead == slot->last_operation;
    if (stays) {
      AtomicAdd<kRelaxed>(args.pinned, 1u);
    } else {
      slot->last_operation = args.operation;
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
