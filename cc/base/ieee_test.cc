#include "cc/base/ieee.h"

#include <gtest/gtest.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace multitier::ieee_test {
namespace {

// Half of the smallest normal number: 0 where subnormals are flushed.
float HalfOfSmallestNormal() {
  volatile float x = 1.17549435e-38f;
  return x * 0.5f;
}

TEST(ScopedIeeeArithmetic, KeepsSubnormalsOnAThreadThatFlushesThemAndRestoresItsMode) {
#if defined(__SSE__)
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // flush to zero, subnormals are zero
  EXPECT_EQ(HalfOfSmallestNormal(), 0.0f);
  {
    const ScopedIeeeArithmetic ieee;
    EXPECT_GT(HalfOfSmallestNormal(), 0.0f);
  }
  EXPECT_EQ(HalfOfSmallestNormal(), 0.0f);
  _mm_setcsr(before);
#else
  GTEST_SKIP() << "sets the mode by x86's control register";
#endif
}

TEST(ScopedIeeeArithmetic, LeavesAnIeeeThreadAsItIs) {
  {
    const ScopedIeeeArithmetic ieee;
  }
  EXPECT_GT(HalfOfSmallestNormal(), 0.0f);
}

}  // namespace
}  // namespace multitier::ieee_test
