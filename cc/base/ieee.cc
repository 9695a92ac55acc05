#include "cc/base/ieee.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace multitier {

#if defined(__SSE__)

constexpr unsigned kFlushOrRound = 0x8000 | 0x6000 | 0x0040;  // flush to zero, rounding mode, subnormals are zero

ScopedIeeeArithmetic::ScopedIeeeArithmetic() : saved_(_mm_getcsr()) {
  if (saved_ & kFlushOrRound) _mm_setcsr(static_cast<unsigned>(saved_) & ~kFlushOrRound);
}

ScopedIeeeArithmetic::~ScopedIeeeArithmetic() {
  if (saved_ & kFlushOrRound) _mm_setcsr(static_cast<unsigned>(saved_));
}

#elif defined(__aarch64__)

constexpr uint64_t kFlushOrRound = (uint64_t{1} << 24) | (uint64_t{3} << 22) | (uint64_t{1} << 19);

ScopedIeeeArithmetic::ScopedIeeeArithmetic() {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  if (saved_ & kFlushOrRound) asm volatile("msr fpcr, %0" : : "r"(saved_ & ~kFlushOrRound));
}

ScopedIeeeArithmetic::~ScopedIeeeArithmetic() {
  if (saved_ & kFlushOrRound) asm volatile("msr fpcr, %0" : : "r"(saved_));
}

#else

ScopedIeeeArithmetic::ScopedIeeeArithmetic() : saved_(0) {}
ScopedIeeeArithmetic::~ScopedIeeeArithmetic() = default;

#endif

}  // namespace multitier
