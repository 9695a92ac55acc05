// Prefetches of cache lines. All prefetches of the engine go through these functions.
//
// GCC takes a function that only prefetches for a function without effect, and removes its calls (GCC 12, from -O2 on). Here an
// empty volatile statement stands next to each prefetch, so the calls stay. tests/house/test_layers.py fails where another file
// prefetches by itself.
//
// A prefetch of an address that is not mapped does nothing. Thread-safe.

#ifndef CC_BASE_PREFETCH_H_
#define CC_BASE_PREFETCH_H_

#include <cstddef>
#include <cstdint>

#include "cc/base/multiversion.h"

namespace multitier {

// Where a line goes.
enum class PrefetchTo : int {
  kFirstLevel = 3,
  kSecondLevel = 2,  // the second-level cache, not the first: a processor fetches more such lines at a time
  kNonTemporal = 0   // used once: as little as possible is evicted for it
};

constexpr size_t kPrefetchLineBytes = 64;

// The line that holds the address.
template <PrefetchTo kTo = PrefetchTo::kFirstLevel>
MT_ALWAYS_INLINE void PrefetchLine(const void* address) {
  __builtin_prefetch(address, 0, static_cast<int>(kTo));
  asm volatile("");
}

// All lines that hold one of the bytes. They need not begin at a line.
template <PrefetchTo kTo = PrefetchTo::kFirstLevel>
MT_ALWAYS_INLINE void PrefetchBytes(const void* address, size_t bytes) {
  const char* const begin = static_cast<const char*>(address);
  const char* line = begin - reinterpret_cast<uintptr_t>(begin) % kPrefetchLineBytes;
  for (const char* const end = begin + bytes; line < end; line += kPrefetchLineBytes) PrefetchLine<kTo>(line);
}

}  // namespace multitier

#endif  // CC_BASE_PREFETCH_H_
