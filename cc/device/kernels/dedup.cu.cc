// Distinct keys of a batch over many tables.
//
//   claim    each occurrence walks the set from its hash. An empty place gets its position; a place of the same (table, key)
//            keeps the lowest position. Places are never removed, so a key has one place. A place is read before it is
//            changed: the occurrences of a hot key only read it.
//   number   an occurrence whose place holds its own position is the first of its key. A prefix sum numbers the first ones.
//   count    every occurrence looks up the number of its first one. A group does this later (group.cu.cc).

#include "cc/device/kernels/member_of.h"
#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

__device__ uint64_t HashOf(int64_t key, uint32_t table) {
  uint64_t x = static_cast<uint64_t>(key) + (table + uint64_t{1}) * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
  return x ^ (x >> 32);
}

// Key i, which belongs to the table.
__device__ __forceinline__ int64_t KeyAt(const DedupArgs& args, uint32_t table, uint32_t i) {
  if (args.sources == nullptr) return args.keys[i];
  const KeySource& source = args.sources[table];
  const uint32_t at = i - BeginOf(args.ends, table);
  return source.is_int32 ? static_cast<const int32_t*>(source.data)[at] : static_cast<const int64_t*>(source.data)[at];
}

__global__ void __launch_bounds__(kBlock) ClaimKernel(DedupArgs args) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < args.n; i += gridDim.x * blockDim.x) {
    const uint32_t table = MemberOf(args.ends, args.num_tables, i);
    const int64_t key = KeyAt(args, table, i);
    if (args.copied != nullptr) args.copied[i] = key;
    uint32_t place = static_cast<uint32_t>(HashOf(key, table)) & (args.set_size - 1);
    for (;; place = (place + 1) & (args.set_size - 1)) {
      uint32_t holder = AtomicLoad<kRelaxed>(args.set + place);
      if (holder == kNone && AtomicCas<kRelaxed>(args.set + place, &holder, i)) break;
      if (MemberOf(args.ends, args.num_tables, holder) != table || KeyAt(args, table, holder) != key) continue;
      if (i < holder) AtomicMin<kRelaxed>(args.set + place, i);
      break;
    }
    args.places[i] = place;
  }
}

__global__ void __launch_bounds__(kBlock) NumberKernel(DedupArgs args) {
  const uint32_t tiles = (args.n + ScanScratch::kTile - 1) / ScanScratch::kTile;
  for (;;) {
    const uint32_t tile = TakeTile(args.scan);
    if (tile >= tiles) return;
    const uint32_t begin = tile * ScanScratch::kTile + threadIdx.x * kPerThread;
    uint32_t first = 0;
    for (uint32_t k = 0; k < kPerThread; ++k) {
      if (begin + k < args.n && args.set[args.places[begin + k]] == begin + k) first |= 1u << k;
    }
    uint64_t tile_sum, end;
    const uint64_t before = PrefixInBlock(static_cast<uint64_t>(__popc(first)), &tile_sum);
    uint32_t number = static_cast<uint32_t>(PrefixOfTile(args.scan, tile, tile_sum, &end) + before);
    for (uint32_t k = 0; k < kPerThread; ++k) {
      if ((first >> k & 1) == 0) continue;
      args.numbers[begin + k] = number;
      args.distinct[number] = args.keys[begin + k];
      args.distinct_tables[number] = MemberOf(args.ends, args.num_tables, begin + k);
      ++number;
    }
    if (tile == tiles - 1 && threadIdx.x == 0) *args.num_distinct = static_cast<uint32_t>(end);
  }
}

__global__ void __launch_bounds__(kBlock) CountKernel(DedupArgs args) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < args.n; i += gridDim.x * blockDim.x) {
    const uint32_t number = args.numbers[args.set[args.places[i]]];
    args.inverse[i] = number;
    if (args.entries != nullptr) args.entries[i] = static_cast<uint64_t>(number) << 32 | i;
    AtomicAdd<kRelaxed>(args.counts + number, 1u);
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status Dedup(Stream stream, const DedupArgs& args) {
  MT_RETURN_IF_ERROR(MT_LAUNCH(stream, Grid(args.n, kBlock), kBlock, ClaimKernel, args));
  MT_RETURN_IF_ERROR(MT_LAUNCH(stream, Grid(args.n, ScanScratch::kTile), kBlock, NumberKernel, args));
  return args.inverse == nullptr ? OkStatus() : MT_LAUNCH(stream, Grid(args.n, kBlock), kBlock, CountKernel, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
