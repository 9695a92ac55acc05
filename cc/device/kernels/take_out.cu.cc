// Rows that leave: copies for the table below, and rows that are forgotten. Tables under renumbering, too.

#include "cc/device/kernels/row_lanes.h"
#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

__device__ __forceinline__ DeviceRowHeader* HeaderOf(uint8_t* row) { return reinterpret_cast<DeviceRowHeader*>(row); }

__global__ void __launch_bounds__(kBlock) MarkKernel(MarkArgs args) {
  const uint32_t n = *args.num_keys;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    uint8_t* const row = args.rows[i];
    uint32_t marked = 0;
    if (row != nullptr && row >= args.begin && row < args.end) {
      const uint16_t flags = HeaderOf(row)->flags;
      marked = args.which == Marked::kAll || (flags & kRowProvisional) == 0;
      if (args.which == Marked::kDirty && (flags & kRowDirty) == 0) marked = 0;
      if (args.which == Marked::kProvisional) marked = (flags & kRowProvisional) != 0;
    }
    args.marked[i] = marked;
  }
}

__global__ void __launch_bounds__(kBlock, 4) TakeOutKernel(TakeOutArgs args) {
  const uint32_t n = *args.length, before = args.before != nullptr ? *args.before : 0;
  const uint32_t parts = args.row_bytes / static_cast<uint32_t>(sizeof(Four));
  const Lanes mine = LanesFor(parts);
  const uint32_t tile = mine.groups * kInFlight, step = WarpsOfGrid() * tile;
  for (uint32_t i = WarpOfGrid() * tile + mine.group; i < n; i += step) {
    RowCopies<Four> out;
    MT_UNROLL for (uint32_t k = 0; k < kInFlight; ++k) {
      const uint32_t at = i + k * mine.groups;
      out.parts[k] = at < n ? parts : 0;
      const uint32_t position = args.list[at < n ? at : i];
      out.from[k] = reinterpret_cast<const Four*>(args.rows[position]);
      out.to[k] = reinterpret_cast<Four*>(args.outbox_rows + (static_cast<size_t>(before) + at) * args.row_bytes);
      if (at < n && mine.lane == 0) args.outbox_keys[before + at] = args.keys[position];
    }
    CopyRows(out, mine);
  }
}

__device__ __forceinline__ bool IsProvisional(const uint8_t* row) {
  return (reinterpret_cast<const DeviceRowHeader*>(row)->flags & kRowProvisional) != 0;
}

__global__ void __launch_bounds__(kBlock) ForgetKernel(ForgetArgs args) {
  const Table& table = *args.table;
  const uint32_t n = *args.length, num_free = *table.num_free;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const auto row = static_cast<uint32_t>(static_cast<size_t>(args.rows[args.list[i]] - table.rows) / table.row_stride);
    if (args.provisional != nullptr && IsProvisional(args.rows[args.list[i]])) AtomicAdd<kRelaxed>(args.provisional, 1u);
    table.digests[table.slot_of_row[row]] = 0;
    table.slot_of_row[row] = kNone;
    table.free_rows[num_free + i] = row;
  }
}

__global__ void CountForgottenKernel(ForgetArgs args) { *args.table->num_free += *args.length; }

__global__ void __launch_bounds__(kBlock) ResetKernel(ResetArgs args) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < args.capacity; i += gridDim.x * blockDim.x) {
    args.table->slot_of_row[i] = kNone;
    args.table->free_rows[i] = i;
    if (i == 0) *args.table->num_free = args.capacity;
  }
}

__global__ void __launch_bounds__(kBlock) RenumberKernel(RenumberArgs args) {
  constexpr uint32_t kOldest = 1u << 30;
  const uint64_t slots = static_cast<uint64_t>(args.buckets) * kBucketSlots,
                 step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t s = blockIdx.x * blockDim.x + threadIdx.x; s < slots; s += step) {
    uint32_t* const used = args.table->last_used + s;
    const auto age = static_cast<int32_t>(args.operation - *used);  // of pinned rows below 0
    if (args.table->digests[s] != 0 && age > static_cast<int32_t>(kOldest)) *used = args.operation - kOldest;
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status Mark(Stream stream, const MarkArgs& args) {
  return MT_LAUNCH(stream, Grid(args.max_keys, kBlock), kBlock, MarkKernel, args);
}

Status TakeOut(Stream stream, const TakeOutArgs& args) {
  return MT_LAUNCH(stream, Grid(args.max_length, kBlock / 32 * kInFlight), kBlock, TakeOutKernel, args);
}

Status Forget(Stream stream, const ForgetArgs& args) {
  return MT_LAUNCH(stream, Grid(args.max_length, kBlock), kBlock, ForgetKernel, args);
}

Status CountForgotten(Stream stream, const ForgetArgs& args) { return MT_LAUNCH(stream, 1, 1, CountForgottenKernel, args); }

Status Reset(Stream stream, const ResetArgs& args) {
  return MT_LAUNCH(stream, Grid(args.capacity, kBlock), kBlock, ResetKernel, args);
}

Status Renumber(Stream stream, const RenumberArgs& args) {
  return MT_LAUNCH(stream, Grid(static_cast<uint64_t>(args.buckets) * kBucketSlots, kBlock), kBlock, RenumberKernel, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
