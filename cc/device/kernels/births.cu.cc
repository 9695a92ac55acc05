// New rows whose values are functions of their keys. A warp makes a row, 16 bytes a lane: the header, the blocks of the value,
// and the slots as every new row has them.

#include "cc/device/kernels/offers.h"
#include "cc/device/kernels/scan.h"
#include "cc/row/value_codec.h"

namespace multitier::device {
namespace {

struct alignas(16) Chunk {
  uint64_t half[2];
};

// The bits of a value as it is stored. Half: BFloat16 or Float16; or float.
template <typename Half>
__device__ __forceinline__ uint64_t StoredBits(float value) {
  Half half;
  StoreValue(value, &half);
  return half.bits;
}
template <>
__device__ __forceinline__ uint64_t StoredBits<float>(float value) {
  return FloatBits(value);
}

template <typename Value>
constexpr uint32_t kChunkElements = sizeof(Chunk) / sizeof(Value);

// Chunk c of the value of a key; 0 behind the last column.
template <typename Value>
__device__ __forceinline__ Chunk ValueChunk(const Birth& birth, int64_t key, uint32_t c) {
  constexpr uint32_t kElements = kChunkElements<Value>, kBits = 8 * sizeof(Value);
  const ComputedColumns* columns = birth.columns;
  PhiloxBlock bits{};
  bool drawn = false;
  Chunk chunk{};
  MT_NO_UNROLL for (uint32_t i = 0; i < kElements; ++i) {
    const uint32_t column = c * kElements + i, word = i % 4;
    if (column >= birth.dim) break;
    for (; column >= columns->end; drawn = false) ++columns;
    if (word == 0) drawn = false;
    if (!drawn && columns->distribution != Distribution::kConstant) bits = RandomBlock(columns->parameters, key, column / 4);
    drawn = true;
    const uint32_t random = word == 0 ? bits.v[0] : word == 1 ? bits.v[1] : word == 2 ? bits.v[2] : bits.v[3];
    const uint64_t value = StoredBits<Value>(ComputedValue(*columns, random));
    if (i < kElements / 2) {
      chunk.half[0] |= value << kBits * i;
    } else {
      chunk.half[1] |= value << kBits * (i - kElements / 2);
    }
  }
  return chunk;
}

template <typename Value>
__device__ __forceinline__ void MakeRow(uint8_t* row, const Birth& birth, int64_t key, uint32_t bytes, uint32_t lane) {
  const uint32_t value_end = 1 + (birth.dim + kChunkElements<Value> - 1) / kChunkElements<Value>;
  for (uint32_t c = lane; c < bytes / sizeof(Chunk); c += 32) {
    const bool is_value = c > 0 && c < value_end;
    reinterpret_cast<Chunk*>(row)[c] =
        is_value ? ValueChunk<Value>(birth, key, c - 1) : reinterpret_cast<const Chunk*>(birth.row)[c];
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
    const auto make = [&](auto value) {
      MakeRow<decltype(value)>(row, args.births[t], insert.keys[position], table.row_stride, lane);
    };
    if (args.births[t].value_dtype == DType::kFloat32) {
      make(float{});
    } else if (args.births[t].value_dtype == DType::kBFloat16) {
      make(BFloat16{});
    } else {
      make(Float16{});
    }
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
