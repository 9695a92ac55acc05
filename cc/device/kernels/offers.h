// Free rows that insertion offered to misses, for files of kernels.

#ifndef CC_DEVICE_KERNELS_OFFERS_H_
#define CC_DEVICE_KERNELS_OFFERS_H_

#include "cc/device/device_code.h"
#include "cc/device/kernels/kernels.h"

namespace multitier::device {
namespace {

// Puts an offered row that the miss did not take back on the stack; the last miss of a table sets the height of the stack.
__device__ __forceinline__ void ReturnOffer(const InsertArgs& args, const Table& table, uint32_t i, uint32_t t) {
  const uint32_t before = args.returned[i] - args.returned[args.begins[t]];
  const bool returns = args.offered[i] != kNone && args.consumed[i] == 0;
  if (returns) table.free_rows[args.bases[t] + before] = args.offered[i];
  if (i != args.ends[t] - 1) return;
  const uint32_t num_free = args.bases[t] + before + (returns ? 1 : 0);
  *table.num_free = num_free;
  if (args.placed == nullptr) return;
  args.placed[t].to_place = args.ends[t] - args.begins[t];
  args.placed[t].free_rows = num_free;
}

}  // namespace
}  // namespace multitier::device

#endif  // CC_DEVICE_KERNELS_OFFERS_H_
