// CanAllocate: whether there is memory for what an operation is about to put into standard containers.
//
// Rows, index, pages and buffers come from Env or NewArray, and the operation returns ResourceExhausted where there are none.
// Standard containers cannot report that without exceptions, and an operation cannot stop halfway. Hence an operation on many
// keys asks first, and is refused before it changes anything. A small allocation that fails ends the process, as everywhere. So
// does a large one whose memory another thread took after the answer.
//
// Thread-safe.

#ifndef CC_BASE_CAN_ALLOCATE_H_
#define CC_BASE_CAN_ALLOCATE_H_

#include <cstddef>

namespace multitier {

constexpr size_t kLargeBytes = size_t{8} << 20;  // fewer are not worth the two system calls

bool CanMap(size_t bytes);

// Whether `bytes` are few, or can be had now.
inline bool CanAllocate(size_t bytes) { return bytes < kLargeBytes || CanMap(bytes); }

}  // namespace multitier

#endif  // CC_BASE_CAN_ALLOCATE_H_
