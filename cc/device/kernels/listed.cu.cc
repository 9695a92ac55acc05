// Rows of a whole table that are to be handed down: their list, and copies of a part of it. The list lies in the table, above
// its free rows, since a row is either free or may be listed.

#include "cc/device/kernels/row_lanes.h"
#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

__device__ __forceinline__ bool IsDirty(const Table& table, uint32_t row) {
  if (table.slot_of_row[row] == kNone) return false;
  const auto* header = reinterpret_cast<const DeviceRowHeader*>(table.rows + static_cast<size_t>(row) * table.row_stride);
  return (header->flags & (kRowDirty | kRowProvisional)) == kRowDirty;
}

__global__ void __launch_bounds__(kBlock) ListDirtyKernel(ListDirtyArgs args) {
  const Table& table = *args.table;
  const uint32_t n = table.capacity, tiles = (n + ScanScratch::kTile - 1) / ScanScratch::kTile;
  uint32_t* const list = table.free_rows + *table.num_free;
  for (;;) {
    const uint32_t tile = TakeTile(args.scan);
    if (tile >= tiles) return;
    const uint32_t begin = tile * ScanScratch::kTile + threadIdx.x * kPerThread;
    uint32_t dirty = 0;
    for (uint32_t k = 0; k < kPerThread; ++k) {
      if (begin + k < n && IsDirty(table, begin + k)) dirty |= 1u << k;
    }
    uint64_t tile_sum, end;
    const uint64_t before = PrefixInBlock(static_cast<uint64_t>(__popc(dirty)), &tile_sum);
    uint32_t place = static_cast<uint32_t>(PrefixOfTile(args.scan, tile, tile_sum, &end) + before);
    for (; dirty != 0; dirty &= dirty - 1) list[place++] = begin + static_cast<uint32_t>(__ffs(static_cast<int>(dirty)) - 1);
    if (tile == tiles - 1 && threadIdx.x == 0) *args.length = static_cast<uint32_t>(end);
  }
}

__global__ void __launch_bounds__(kBlock, 4) TakeListedKernel(TakeListedArgs args) {
  const Table& table = *args.table;
  const uint32_t* const list = table.free_rows + *table.num_free + args.first;
  const uint32_t stride = table.row_stride, parts = stride / static_cast<uint32_t>(sizeof(Four));
  const Lanes mine = LanesFor(parts);
  const uint32_t tile = mine.groups * kInFlight, step = WarpsOfGrid() * tile;
  for (uint32_t i = WarpOfGrid() * tile + mine.group; i < args.n; i += step) {
    RowCopies<Four> out;
    MT_UNROLL for (uint32_t k = 0; k < kInFlight; ++k) {
      const uint32_t at = i + k * mine.groups, row = list[at < args.n ? at : i];
      out.parts[k] = at < args.n ? parts : 0;
      out.from[k] = reinterpret_cast<const Four*>(table.rows + static_cast<size_t>(row) * stride);
      out.to[k] = reinterpret_cast<Four*>(args.outbox_rows + static_cast<size_t>(at) * stride);
    }
    CopyRows(out, mine);
    if (mine.lane != 0) continue;  // the lane that copied the headers
    for (uint32_t at = i; at < args.n && at < i + tile; at += mine.groups) {
      const uint32_t row = list[at];
      args.outbox_keys[at] = table.slots[table.slot_of_row[row]].key;
      auto* const header = reinterpret_cast<DeviceRowHeader*>(table.rows + static_cast<size_t>(row) * stride);
      header->flags &= static_cast<uint16_t>(~(kRowDirty | kRowNew));
    }
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status ListDirty(Stream stream, const ListDirtyArgs& args) {
  return MT_LAUNCH(stream, Grid(args.capacity, ScanScratch::kTile), kBlock, ListDirtyKernel, args);
}

Status TakeListed(Stream stream, const TakeListedArgs& args) {
  return MT_LAUNCH(stream, Grid(args.n, kBlock / 32 * kInFlight), kBlock, TakeListedKernel, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
