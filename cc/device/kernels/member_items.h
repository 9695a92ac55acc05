// How many items of work a member has in each step of a group: see OutputArgs.

#ifndef CC_DEVICE_KERNELS_MEMBER_ITEMS_H_
#define CC_DEVICE_KERNELS_MEMBER_ITEMS_H_

#include <algorithm>
#include <cstdint>

#include "cc/device/kernels/kernels.h"

namespace multitier::device {

// Entries and their end; splits to check.
inline uint64_t EntryItems(const OutputMember& m) {
  return m.pooled ? std::max<uint64_t>(uint64_t{m.entries} + 1, m.splits_given ? m.batch : 0) : 0;
}
// Rows of the output, and at the same time distinct keys.
inline uint64_t ScaleItems(const OutputMember& m) {
  return m.pooled ? std::max(m.num_rows, m.norms != nullptr ? m.max_keys : 0) : 0;
}
// Rows of the output, then distinct keys.
inline uint64_t AllValueItems(const OutputMember& m) {
  return uint64_t{m.num_rows} + (m.unclipped != nullptr ? m.max_keys : 0);
}
// Of a launch for values of 32 bits, and of one for values of 16.
inline uint64_t ValueItems(const OutputMember& m) { return m.value_dtype == DType::kFloat32 ? AllValueItems(m) : 0; }
inline uint64_t HalfValueItems(const OutputMember& m) { return m.value_dtype != DType::kFloat32 ? AllValueItems(m) : 0; }
// Distinct keys, then later pieces of them, then entries, 32 at a time.
inline uint64_t GradientItems(const GradientMember& m) {
  const uint64_t weights = m.weight_grads != nullptr ? (uint64_t{m.output.entries} + 31) / 32 : 0;
  return uint64_t{m.num_keys} + LaterPieces(m) + weights;
}
// Distinct keys, and at the same time rows of the output.
inline uint64_t CorrectionItems(const GradientMember& m) {
  const bool clips = m.sums != nullptr && m.output.max_norm >= 0;
  const bool divides = m.weight_grads != nullptr && m.output.combiner != PoolCombiner::kSum;
  return std::max(clips || LaterPieces(m) > 0 ? m.num_keys : 0, divides ? m.output.num_rows : 0);
}

}  // namespace multitier::device

#endif  // CC_DEVICE_KERNELS_MEMBER_ITEMS_H_
