#include "cc/optimizer/power.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "cc/row/value_codec.h"

namespace multitier {
namespace {

// The double power rounded once is the nearest float32, except for a tie that double cannot resolve.
TEST(PowerTest, IsTheNearestFloatOfThePower) {
  std::mt19937 random(7);
  for (float p : {0.1f, 0.25f, 0.5f, 0.7f, 1.0f, 2.5f}) {
    for (int i = 0; i < 20000; ++i) {
      const float x = BitsFloat(random() & 0x7fffffffu);
      if (std::isnan(x)) continue;
      const double exact = std::pow(static_cast<double>(x), static_cast<double>(p));
      ASSERT_EQ(Power(x, p), static_cast<float>(exact)) << x << " ^ " << p;
    }
  }
}

TEST(PowerTest, EdgesOfTheRange) {
  EXPECT_EQ(Power(0.0f, 0.3f), 0.0f);
  EXPECT_EQ(Power(0.0f, 0.0f), 1.0f);
  EXPECT_EQ(Power(1.0f, 12.5f), 1.0f);
  EXPECT_EQ(Power(INFINITY, 0.3f), INFINITY);
  EXPECT_EQ(Power(2.0f, 1000.0f), INFINITY);
  EXPECT_EQ(Power(0.5f, 1000.0f), 0.0f);
  EXPECT_TRUE(std::isnan(Power(-1.0f, 0.3f)));
  EXPECT_TRUE(std::isnan(Power(NAN, 0.3f)));
}

}  // namespace
}  // namespace multitier
