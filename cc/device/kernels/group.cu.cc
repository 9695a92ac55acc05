// A group of members, each with a table of its own, in the arrays of one batch.
//
//   dedup, find    as for one table. Keys are numbered in the order of their first occurrence, so those of a member are
//                  neighbours, and its first occurrence has the lowest number.
//   localize       the inverse counts from the member's own first key; where the keys of each member begin, how many there
//                  are, and how many miss; the list of the misses, in batch order
//
// Afterwards a slice of the inverse is what a batch of that member alone would have given. Entries have the numbers and
// positions of the whole batch, so that one sort serves all members.

#include "cc/device/kernels/member_of.h"
#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

// Entry i.
__device__ __forceinline__ void LocalizeEntry(const LocalizeArgs& args, uint32_t i, uint32_t distinct) {
  const DedupArgs& dedup = args.dedup;
  const uint32_t n = dedup.n, member = MemberOf(dedup.ends, dedup.num_tables, i), begin = BeginOf(dedup.ends, member);
  const uint32_t number = dedup.numbers[dedup.set[dedup.places[i]]];
  const uint32_t first = dedup.numbers[begin];
  dedup.inverse[i] = number - first;
  dedup.entries[i] = static_cast<uint64_t>(number) << 32 | i;
  AtomicAdd<kRelaxed>(dedup.counts + number, 1u);
  if (args.missed[number] != 0) AtomicAdd<kRelaxed>(&args.members[member].missed_entries, 1u);
  if (i != begin) return;
  const uint32_t end = dedup.ends[member];
  args.members[member].first = first;
  args.members[member].distinct = (end == n ? distinct : dedup.numbers[end]) - first;
}

// Whether distinct key i misses.
__device__ __forceinline__ bool Misses(const LocalizeArgs& args, uint32_t i) {
  MemberCounts* const member = &args.members[args.dedup.distinct_tables[i]];
  if (args.missed[i] != 0) {
    AtomicAdd<kRelaxed>(&member->misses, 1u);
    return true;
  }
  const auto* header = reinterpret_cast<const DeviceRowHeader*>(args.rows[i]);
  if ((header->flags & kRowProvisional) != 0) AtomicAdd<kRelaxed>(&member->provisional, 1u);
  return false;
}

__global__ void __launch_bounds__(kBlock) LocalizeKernel(LocalizeArgs args) {
  const uint32_t n = args.dedup.n, distinct = *args.dedup.num_distinct;
  const uint32_t tiles = (n + ScanScratch::kTile - 1) / ScanScratch::kTile;
  for (;;) {
    const uint32_t tile = TakeTile(args.scan);
    if (tile >= tiles) return;
    for (uint32_t k = 0; k < kPerThread; ++k) {
      const uint32_t i = tile * ScanScratch::kTile + k * kBlock + threadIdx.x;
      if (i < n) LocalizeEntry(args, i, distinct);
    }
    const uint32_t begin = tile * ScanScratch::kTile + threadIdx.x * kPerThread;
    uint32_t marked = 0;
    for (uint32_t k = 0; k < kPerThread; ++k) {
      if (begin + k < distinct && Misses(args, begin + k)) marked |= 1u << k;
    }
    uint64_t tile_sum, end;
    const uint64_t before = PrefixInBlock(static_cast<uint64_t>(__popc(marked)), &tile_sum);
    uint32_t place = static_cast<uint32_t>(PrefixOfTile(args.scan, tile, tile_sum, &end) + before);
    if (tile == tiles - 1 && threadIdx.x == 0 && args.length != nullptr) *args.length = static_cast<uint32_t>(end);
    for (; marked != 0; marked &= marked - 1, ++place) {
      const uint32_t number = begin + static_cast<uint32_t>(__ffs(static_cast<int>(marked)) - 1);
      args.list[place] = number;
      args.listed_keys[place] = args.dedup.distinct[number];
      args.ranks[number] = place;
    }
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status Localize(Stream stream, const LocalizeArgs& args) {
  return MT_LAUNCH(stream, Grid(args.dedup.n, ScanScratch::kTile), kBlock, LocalizeKernel, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
