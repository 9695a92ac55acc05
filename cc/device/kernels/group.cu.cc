// A group of members, each with a table of its own, in the arrays of one batch.
//
//   dedup, find    as for one table. Keys are numbered in the order of their first occurrence, so those of a member are
//                  neighbours, and its first occurrence has the lowest number.
//   localize       the inverse counts from the member's own first key; where the keys of each member begin, how many there
//                  are, and how many miss
//
// Afterwards a slice of the inverse is what a batch of that member alone would have given. Entries have the numbers and
// positions of the whole batch, so that one sort serves all members.

#include "cc/device/kernels/member_of.h"
#include "cc/device/kernels/scan.h"

namespace multitier::device {
namespace {

__global__ void __launch_bounds__(kBlock) LocalizeKernel(LocalizeArgs args) {
  const uint32_t n = args.dedup.n, distinct = *args.dedup.num_distinct;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const uint32_t member = MemberOf(args.dedup.ends, args.dedup.num_tables, i), begin = BeginOf(args.dedup.ends, member);
    const uint32_t number = args.dedup.numbers[args.dedup.set[args.dedup.places[i]]];
    const uint32_t first = args.dedup.numbers[begin];
    args.dedup.inverse[i] = number - first;
    args.dedup.entries[i] = static_cast<uint64_t>(number) << 32 | i;
    AtomicAdd<kRelaxed>(args.dedup.counts + number, 1u);
    if (i == begin) {
      const uint32_t end = args.dedup.ends[member];
      args.members[member].first = first;
      args.members[member].distinct = (end == n ? distinct : args.dedup.numbers[end]) - first;
    }
    if (i < distinct && args.missed[i] != 0) AtomicAdd<kRelaxed>(&args.members[args.dedup.distinct_tables[i]].misses, 1u);
  }
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status Localize(Stream stream, const LocalizeArgs& args) {
  return MT_LAUNCH(stream, Grid(args.dedup.n, kBlock), kBlock, LocalizeKernel, args);
}

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
