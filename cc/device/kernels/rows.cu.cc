// Row data: victims out, staged rows in, values of a batch.

#include "cc/device/kernels/offers.h"
#include "cc/device/kernels/row_lanes.h"
#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

__device__ __forceinline__ void CountPlaced(const Victim& victim, bool unplaced, const uint8_t* staged, PlacedCounts* placed) {
  if (unplaced) {
    AtomicAdd<kRelaxed>(&placed->unplaced, 1u);
    return;
  }
  const bool comes = (reinterpret_cast<const DeviceRowHeader*>(staged)->flags & kRowProvisional) == 0;
  const bool leaves = victim.row != kNone && (victim.flags & kRowProvisional) == 0;
  if (comes != leaves) AtomicAdd<kRelaxed>(&placed->rows, comes ? 1 : -1);
}

__global__ void __launch_bounds__(kBlock, 4) ExchangeKernel(ExchangeArgs args) {
  const InsertArgs& insert = args.insert;
  const uint32_t n = *insert.num_missed;
  const Lanes mine = LanesFor(args.outbox_stride / static_cast<uint32_t>(sizeof(Four)));
  const uint32_t tile = mine.groups * kInFlight, step = WarpsOfGrid() * tile;
  for (uint32_t i = WarpOfGrid() * tile + mine.group; i < n; i += step) {
    RowCopies<Four> rows{};
    MT_UNROLL for (uint32_t k = 0; k < kInFlight; ++k) {  // victims: this miss gets their row
      const uint32_t miss = i + k * mine.groups < n ? i + k * mine.groups : i, place = insert.outbox[miss];
      rows.parts[k] = 0;
      if (miss != i + k * mine.groups || place == kNone) continue;
      const uint32_t position = insert.missed[miss], t = insert.key_tables[position];
      rows.to[k] = reinterpret_cast<Four*>(args.outbox_rows + static_cast<size_t>(place) * args.outbox_stride);
      rows.from[k] = reinterpret_cast<const Four*>(insert.rows[position]);
      rows.parts[k] = insert.tables[t].row_stride / static_cast<uint32_t>(sizeof(Four));
      if (mine.lane != 0) continue;
      args.outbox_keys[place] = insert.victims[miss].key;
      args.outbox_tables[place] = t;
    }
    CopyRows(rows, mine);
    MT_UNROLL for (uint32_t k = 0; k < kInFlight; ++k) {
      const uint32_t miss = i + k * mine.groups < n ? i + k * mine.groups : i;
      const uint32_t position = insert.missed[miss], t = insert.key_tables[position];
      uint8_t* const row = insert.rows[position];
      const uint8_t* const staged = StagedRow(insert, miss, position);
      rows.to[k] = reinterpret_cast<Four*>(row);
      rows.from[k] = reinterpret_cast<const Four*>(staged);
      rows.parts[k] = insert.tables[t].row_stride / static_cast<uint32_t>(sizeof(Four));
      if (miss != i + k * mine.groups || row == staged) rows.parts[k] = 0;
      if (miss != i + k * mine.groups || mine.lane != 0) continue;
      ReturnOffer(insert, insert.tables[t], miss, t);
      if (insert.placed != nullptr) CountPlaced(insert.victims[miss], row == staged, staged, &insert.placed[t]);
    }
    CopyRows(rows, mine);  // the lane that read a part of the victim overwrites it
  }
}

template <typename Part, bool kHalves>
__device__ __forceinline__ void GatherRows(const GatherArgs& args) {
  const uint32_t parts = PartsOf<Part>(args.dim);
  const Lanes mine = LanesFor(parts);
  const uint32_t tile = mine.groups * kInFlight, step = WarpsOfGrid() * tile;
  for (uint32_t i = WarpOfGrid() * tile + mine.group; i < args.n; i += step) {
    RowCopies<Part, Stored<Part, kHalves>> values;
    MT_UNROLL for (uint32_t k = 0; k < kInFlight; ++k) {
      const uint32_t at = i + k * mine.groups;
      values.parts[k] = at < args.n ? parts : 0;
      const uint8_t* const row = args.rows[args.inverse[at < args.n ? at : i]];
      values.from[k] = reinterpret_cast<const Stored<Part, kHalves>*>(row + sizeof(DeviceRowHeader));
      values.to[k] = reinterpret_cast<Part*>(args.out + static_cast<size_t>(at) * args.dim);
    }
    CopyRows(values, mine, args.value_dtype);
  }
}

template <bool kHalves>
__global__ void __launch_bounds__(kBlock, 4) GatherKernel(GatherArgs args) {
  if (IsOfFours(args.dim, args.dim, args.out)) {
    GatherRows<Four, kHalves>(args);
  } else {
    GatherRows<float, kHalves>(args);
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status Exchange(Stream stream, const ExchangeArgs& args) {
  return MT_LAUNCH(stream, Grid(args.insert.max_missed, kBlock / 32 * kInFlight), kBlock, ExchangeKernel, args);
}

Status Gather(Stream stream, const GatherArgs& args) {
  const unsigned grid = Grid(args.n, kBlock / 32 * kInFlight);
  if (args.value_dtype != DType::kFloat32) return MT_LAUNCH(stream, grid, kBlock, GatherKernel<true>, args);
  return MT_LAUNCH(stream, grid, kBlock, GatherKernel<false>, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
