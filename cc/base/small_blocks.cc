#include "cc/base/small_blocks.h"

#include <cstddef>
#include <new>

namespace multitier {

void KeepSmallBlocks(int each) {
  constexpr size_t kStep = 16, kLeast = 64, kMost = 128;
  void* blocks[kMostSmallBlocks * ((kMost - kLeast) / kStep + 1)];
  size_t n = 0;
  for (size_t size = kLeast; size <= kMost; size += kStep) {
    for (int i = 0; i < each; ++i) blocks[n++] = ::operator new(size);
  }
  while (n > 0) ::operator delete(blocks[--n]);
}

}  // namespace multitier
