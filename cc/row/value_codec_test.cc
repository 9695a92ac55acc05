#include "cc/row/value_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>

namespace multitier::value_codec_test {
namespace {

template <typename T>
T Stored(float x) {
  T out;
  StoreValue(x, &out);
  return out;
}

template <typename T>
void ExpectEveryNumberSurvives() {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const T x{static_cast<uint16_t>(bits)};
    const float loaded = LoadValue(x);
    if (std::isnan(loaded)) {
      EXPECT_TRUE(std::isnan(LoadValue(Stored<T>(loaded)))) << bits;
    } else {
      ASSERT_EQ(Stored<T>(loaded).bits, bits);
    }
  }
}

TEST(ValueCodecTest, EveryBFloat16SurvivesLoadAndStore) { ExpectEveryNumberSurvives<BFloat16>(); }
TEST(ValueCodecTest, EveryFloat16SurvivesLoadAndStore) { ExpectEveryNumberSurvives<Float16>(); }

// Between two neighbours of the narrow type: below the middle goes down, above goes up, the middle to the even one.
template <typename T>
void ExpectRoundsToNearestEven(uint32_t largest_finite) {
  for (uint32_t bits = 0; bits < largest_finite; ++bits) {
    const float low = LoadValue(T{static_cast<uint16_t>(bits)});
    const float high = LoadValue(T{static_cast<uint16_t>(bits + 1)});
    const float middle = static_cast<float>((static_cast<double>(low) + high) / 2);  // exact
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(Stored<T>(middle).bits, even);
    ASSERT_EQ(Stored<T>(-middle).bits, even | 0x8000u);
    ASSERT_EQ(Stored<T>(std::nextafter(middle, 0.0f)).bits, bits);
    ASSERT_EQ(Stored<T>(std::nextafter(middle, INFINITY)).bits, bits + 1);
  }
}

TEST(ValueCodecTest, BFloat16RoundsToNearestEven) { ExpectRoundsToNearestEven<BFloat16>(0x7f7f); }
TEST(ValueCodecTest, Float16RoundsToNearestEven) { ExpectRoundsToNearestEven<Float16>(0x7bff); }

TEST(ValueCodecTest, TooLargeBecomesInfinity) {
  EXPECT_EQ(Stored<Float16>(65519.0f).bits, 0x7bff);
  EXPECT_EQ(Stored<Float16>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Stored<Float16>(-INFINITY).bits, 0xfc00);
  EXPECT_EQ(Stored<BFloat16>(3.4e38f).bits, 0x7f80);
  EXPECT_EQ(LoadValue(Float16{0x7c00}), INFINITY);
}

TEST(ValueCodecTest, NanStaysNanWhateverItsPayload) {
  for (uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u}) {
    EXPECT_TRUE(std::isnan(LoadValue(Stored<BFloat16>(BitsFloat(bits)))));
    EXPECT_TRUE(std::isnan(LoadValue(Stored<Float16>(BitsFloat(bits)))));
  }
}

// The mean of many stochastic roundings is the number; numbers of the type stay.
template <typename T>
void ExpectStochasticRoundingIsFair(float x) {
  T low, high;
  StoreStochastically(x, 0, &low);
  StoreStochastically(x, 0xffffffffu, &high);
  ASSERT_LE(LoadValue(low), x);
  ASSERT_GE(LoadValue(high), x);
  if (LoadValue(Stored<T>(x)) == x) {
    ASSERT_EQ(low.bits, high.bits);
    return;
  }
  ASSERT_EQ(high.bits - low.bits, 1);
  const double share = (static_cast<double>(x) - LoadValue(low)) / (static_cast<double>(LoadValue(high)) - LoadValue(low));
  std::mt19937 random(3);
  int up = 0;
  constexpr int kTimes = 4096;
  for (int i = 0; i < kTimes; ++i) {
    T rounded;
    StoreStochastically(x, static_cast<uint32_t>(random()), &rounded);
    ASSERT_TRUE(rounded.bits == low.bits || rounded.bits == high.bits);
    up += rounded.bits == high.bits;
  }
  EXPECT_NEAR(static_cast<double>(up) / kTimes, share, 0.04) << x;
}

TEST(ValueCodecTest, StochasticRoundingIsFair) {
  for (const float x : {1.0f, 1.0009765f, 0.3f, 3.14159f, 65503.9f, 6.1e-5f, 5.9e-8f, 2.5e-7f, 1.0f / 3.0f, 100.7f}) {
    ExpectStochasticRoundingIsFair<BFloat16>(x);
    ExpectStochasticRoundingIsFair<Float16>(x);
  }
  Float16 half;
  StoreStochastically(-1e9f, 0, &half);
  EXPECT_EQ(half.bits, 0xfc00);
  StoreStochastically(1e-30f, 0xffffffffu, &half);
  EXPECT_EQ(half.bits, 0);
  BFloat16 brain;
  StoreStochastically(NAN, 7, &brain);
  EXPECT_TRUE(std::isnan(LoadValue(brain)));
  StoreStochastically(-INFINITY, 0xffffffffu, &brain);
  EXPECT_EQ(LoadValue(brain), -INFINITY);
}

}  // namespace
}  // namespace multitier::value_codec_test
