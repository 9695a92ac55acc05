#include "cc/policy/expiry.h"

#include <limits>

#include "gtest/gtest.h"

namespace multitier::expiry_test {
namespace {

TEST(ExpiryTest, NothingExpiresByDefault) {
  const ExpirySpec spec;
  const float zero[2] = {0, 0};
  EXPECT_FALSE(spec.enabled());
  EXPECT_FALSE(Expired(spec, 1000000, -1, zero, 2));
}

TEST(ExpiryTest, RowExpiresOnceMoreStepsPassedThanItLives) {
  ExpirySpec spec;
  spec.steps_to_live = 10;
  EXPECT_TRUE(spec.enabled());
  EXPECT_FALSE(Expired(spec, 15, 5, nullptr, 4));
  EXPECT_TRUE(Expired(spec, 16, 5, nullptr, 4));
  EXPECT_FALSE(Expired(spec, 3, 5, nullptr, 4));  // a step before its last update
  EXPECT_FALSE(Expired(spec, 9, -1, nullptr, 4));
  EXPECT_TRUE(Expired(spec, 10, -1, nullptr, 4));
}

TEST(ExpiryTest, StepsAtTheEndsOfInt64DoNotOverflow) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();
  ExpirySpec spec;
  spec.steps_to_live = 1;
  EXPECT_TRUE(Expired(spec, kMax, kMin, nullptr, 1));
  EXPECT_TRUE(Expired(spec, kMax, -1, nullptr, 1));
  EXPECT_FALSE(Expired(spec, kMin, kMax, nullptr, 1));
  spec.steps_to_live = kMax;
  EXPECT_FALSE(Expired(spec, kMax, 0, nullptr, 1));
}

TEST(ExpiryTest, RowExpiresWhereHalfItsSquaredNormIsBelowTheThreshold) {
  ExpirySpec spec;
  spec.l2_weight_threshold = 1.0f;
  const float at[2] = {1.0f, -1.0f}, below[2] = {1.0f, 0.5f};
  EXPECT_FALSE(Expired(spec, 0, 0, at, 2));
  EXPECT_TRUE(Expired(spec, 0, 0, below, 2));
  EXPECT_TRUE(Expired(spec, 0, 0, at, 1));  // only dim elements count
}

TEST(ExpiryTest, ThresholdOfZeroIsEnabledAndKeepsEvenZeroRows) {
  ExpirySpec spec;
  spec.l2_weight_threshold = 0.0f;
  const float zero[1] = {0.0f};
  EXPECT_TRUE(spec.enabled());
  EXPECT_FALSE(Expired(spec, 0, 0, zero, 1));
}

TEST(ExpiryTest, RowThatHoldsNaNIsKept) {
  ExpirySpec spec;
  spec.l2_weight_threshold = 1.0f;
  const float nan[2] = {std::numeric_limits<float>::quiet_NaN(), 0.0f};
  EXPECT_FALSE(Expired(spec, 0, 0, nan, 2));
}

TEST(ExpiryTest, EitherReasonIsEnough) {
  ExpirySpec spec;
  spec.steps_to_live = 10;
  spec.l2_weight_threshold = 1.0f;
  const float large[1] = {9.0f}, small[1] = {0.1f};
  EXPECT_TRUE(Expired(spec, 20, 0, large, 1));
  EXPECT_TRUE(Expired(spec, 0, 0, small, 1));
  EXPECT_FALSE(Expired(spec, 0, 0, large, 1));
}

}  // namespace
}  // namespace multitier::expiry_test
