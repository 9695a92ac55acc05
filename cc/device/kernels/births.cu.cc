// New rows whose values are functions of their keys. A warp makes a row, 16 bytes a lane: the header, the blocks of the value,
// and the slots as every new row has them.

#include "cc/device/kernels/offers.h"
#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

struct alignas(16) Chunk {
  uint64_t half[2];
};

// Elements [4 block, 4 block + 4) of the value of a key; 0 behind the last column.
__device__ __forceinline__ Chunk ValueChunk(const Birth& birth, int64_t key, uint32_t block) {
  const ComputedColumns* columns = birth.columns;
  PhiloxBlock bits{};
  bool drawn = false;
  Chunk chunk{};
  MT_NO_UNROLL for (uint32_t word = 0; word < 4; ++word) {
    const uint32_t column = block * 4 + word;
    if (column >= birth.dim) break;
    for (; column >= columns->end; drawn = false) ++columns;
    if (!drawn && columns->distribution != Distribution::kConstant) bits = RandomBlock(columns->parameters, key, block);
    drawn = true;
    const uint32_t random = word == 0 ? bits.v[0] : word == 1 ? bits.v[1] : word == 2 ? bits.v[2] : bits.v[3];
    const uint64_t value = distributions_internal::FloatToBits(ComputedValue(*columns, random));
    if (word < 2) {
      chunk.half[0] |= value << 32 * word;
    } else {
      chunk.half[1] |= value << 32 * (word - 2);
    }
  }
  return chunk;
}

__device__ __forceinline__ void MakeRow(uint8_t* row, const Birth& birth, int64_t key, uint32_t bytes, uint32_t lane) {
  const uint32_t value_end = 1 + (birth.dim + 3) / 4;
  for (uint32_t c = lane; c < bytes / sizeof(Chunk); c += 32) {
    const bool is_value = c > 0 && c < value_end;
    reinterpret_cast<Chunk*>(row)[c] = is_value ? ValueChunk(birth, key, c - 1) : reinterpret_cast<const Chunk*>(birth.row)[c];
  }
}

__global__ void __launch_bounds__(kBlock) BearKernel(BearArgs args) {
  const InsertArgs& insert = args.insert;
  const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32;
  const uint32_t lane = threadIdx.x % 32, n = *insert.num_missed;
  for (uint32_t i = warp; i < n; i += warps) {
    const uint32_t position = insert.missed[i], t = insert.key_tables[position];
    const Table& table = insert.tables[t];
    if (lane == 0) ReturnOffer(insert, table, i, t);
    uint8_t* const row = insert.rows[position];
    if (row == args.births[t].row) continue;  // there was no place
    MakeRow(row, args.births[t], insert.keys[position], table.row_stride, lane);
    if (lane != 0) continue;
    args.missed[position] = 0;
    AtomicAdd<kRelaxed>(args.born + t * args.table_stride, 1u);
    AtomicAdd<kRelaxed>(args.born_entries + t * args.table_stride, args.counts[position]);
    if (args.misses != nullptr) AtomicAdd<kRelaxed>(args.misses + t * args.table_stride, ~0u);
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status Bear(Stream stream, const BearArgs& args) {
  return MT_LAUNCH(stream, Grid(args.insert.max_missed, kBlock / 32), kBlock, BearKernel, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
