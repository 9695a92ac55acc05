// Row data: victims out, staged rows in, values of a batch. A warp copies a row, 16 bytes a lane.

#include "cc/device/kernels/copy_row.h"
#include "cc/device/kernels/offers.h"
#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

__global__ void __launch_bounds__(kBlock) ExchangeKernel(ExchangeArgs args) {
  const InsertArgs& insert = args.insert;
  const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32;
  const uint32_t lane = threadIdx.x % 32, n = *insert.num_missed;
  for (uint32_t i = warp; i < n; i += warps) {
    const uint32_t position = insert.missed[i], t = insert.key_tables[position];
    const Table& table = insert.tables[t];
    if (lane == 0) ReturnOffer(insert, table, i, t);
    uint8_t* const row = insert.rows[position];
    const uint8_t* const staged = StagedRow(insert, i, position);
    const uint32_t out = insert.outbox[i];
    if (out != kNone) {  // this miss gets the victim's row
      CopyRow(args.outbox_rows + static_cast<size_t>(out) * args.outbox_stride, row, table.row_stride, lane);
      if (lane == 0) args.outbox_keys[out] = insert.victims[i].key;
      if (lane == 0) args.outbox_tables[out] = t;
    }
    if (row == staged && lane == 0 && insert.placed != nullptr) AtomicAdd<kRelaxed>(&insert.placed[t].unplaced, 1u);
    if (row != staged) CopyRow(row, staged, table.row_stride, lane);  // the lane that read a chunk of the victim overwrites it
  }
}

__global__ void __launch_bounds__(kBlock) GatherKernel(GatherArgs args) {
  const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32,
                 lane = threadIdx.x % 32;
  for (uint32_t i = warp; i < args.n; i += warps) {
    const auto* value = reinterpret_cast<const float*>(args.rows[args.inverse[i]] + sizeof(DeviceRowHeader));
    float* const out = args.out + static_cast<size_t>(i) * args.dim;
    for (uint32_t d = lane; d < args.dim; d += 32) out[d] = value[d];
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status Exchange(Stream stream, const ExchangeArgs& args) {
  return MT_LAUNCH(stream, Grid(args.insert.max_missed, kBlock / 32), kBlock, ExchangeKernel, args);
}

Status Gather(Stream stream, const GatherArgs& args) {
  return MT_LAUNCH(stream, Grid(args.n, kBlock / 32), kBlock, GatherKernel, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
