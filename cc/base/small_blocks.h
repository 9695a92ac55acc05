// KeepSmallBlocks: small memory for libraries that call malloc and use the result unchecked.

#ifndef CC_BASE_SMALL_BLOCKS_H_
#define CC_BASE_SMALL_BLOCKS_H_

namespace multitier {

constexpr int kMostSmallBlocks = 7;  // of a size: as many as the C library keeps

// Puts `each` free blocks of every size from 64 to 128 bytes into this thread's cache of the C library. The next calls of
// malloc on this thread take them from there. The blocks come from operator new, which takes from the reserve of
// memory_reserve.h where there is no memory. 1 <= each <= kMostSmallBlocks.
void KeepSmallBlocks(int each);

}  // namespace multitier

#endif  // CC_BASE_SMALL_BLOCKS_H_
