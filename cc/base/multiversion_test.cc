#include "cc/base/multiversion.h"

#include <gtest/gtest.h>

namespace multitier::multiversion_test {

// Clones must have a name the linker sees; hence no anonymous namespace.
MT_MULTIVERSION void MultiversionTestAxpy(float a, const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] += a * x[i] / (x[i] + 3.0f);
}

namespace {

TEST(MultiversionTest, ClonedFunctionGivesTheBitsOfPlainCode) {
  float x[37], y[37], expected[37];
  for (int i = 0; i < 37; ++i) {
    x[i] = 0.1f * static_cast<float>(i);
    y[i] = 1.0f / static_cast<float>(i + 1);
    volatile float product = 0.7f * x[i];  // volatile: rounded here, not fused
    volatile float quotient = product / (x[i] + 3.0f);
    expected[i] = y[i] + quotient;
  }
  MultiversionTestAxpy(0.7f, x, y, 37);
  for (int i = 0; i < 37; ++i) EXPECT_EQ(y[i], expected[i]) << i;
}

TEST(MultiversionTest, BestIsaIsBaselineWhereThereAreNoVersions) {
  if (!MT_HAS_ISA_VERSIONS) {
    EXPECT_EQ(BestIsa(), Isa::kBaseline);
  }
  EXPECT_LE(BestIsa(), Isa::kAvx512);
}

}  // namespace
}  // namespace multitier::multiversion_test
