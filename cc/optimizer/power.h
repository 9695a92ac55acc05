// x^p of float32, without library functions, so that it gives the same bits on every machine and in NumPy.
//
// In float64: x = m * 2^e with m in (sqrt(1/2), sqrt(2)],
//
//   log2(x) = e + 2 log2(e) * atanh(z),  z = (m - 1) / (m + 1),  |z| < 0.172        ten terms of atanh's series
//   x^p = 2^k * exp(r ln 2),  k + r = p log2(x),  |r| <= 1/2                        thirteen terms of exp's series
//
// Then the result is rounded to float32. The relative error before the rounding is below 1e-13. So the result is the nearest
// float32, except in one case in a million, where it is the second nearest.

#ifndef CC_OPTIMIZER_POWER_H_
#define CC_OPTIMIZER_POWER_H_

#include <cstdint>
#include <cstring>

#include "cc/base/float_bits.h"
#include "cc/base/host_device.h"

namespace multitier {
namespace power_internal {

MT_HOST_DEVICE uint64_t DoubleBits(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

MT_HOST_DEVICE double BitsDouble(uint64_t bits) {
  double x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// atanh(z) / z, of z^2.
MT_HOST_DEVICE double AtanhSeries(double square) {
  double sum = 1.0 / 19;
  sum = sum * square + 1.0 / 17;
  sum = sum * square + 1.0 / 15;
  sum = sum * square + 1.0 / 13;
  sum = sum * square + 1.0 / 11;
  sum = sum * square + 1.0 / 9;
  sum = sum * square + 1.0 / 7;
  sum = sum * square + 1.0 / 5;
  sum = sum * square + 1.0 / 3;
  return sum * square + 1.0;
}

MT_HOST_DEVICE double ExpSeries(double x) {
  double sum = 1.0 / 479001600;
  sum = sum * x + 1.0 / 39916800;
  sum = sum * x + 1.0 / 3628800;
  sum = sum * x + 1.0 / 362880;
  sum = sum * x + 1.0 / 40320;
  sum = sum * x + 1.0 / 5040;
  sum = sum * x + 1.0 / 720;
  sum = sum * x + 1.0 / 120;
  sum = sum * x + 1.0 / 24;
  sum = sum * x + 1.0 / 6;
  sum = sum * x + 1.0 / 2;
  sum = sum * x + 1.0;
  return sum * x + 1.0;
}

}  // namespace power_internal

// x^p. If p is 0: 1. Otherwise, if x is negative or NaN: NaN. REQUIRES: p >= 0.
MT_HOST_DEVICE float Power(float x, float p) {
  using power_internal::BitsDouble;
  using power_internal::DoubleBits;
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2 = 0.6931471805599453;
  constexpr double kSqrt2 = 1.4142135623730951;
  constexpr double kRoundMagic = 6755399441055744.0;    // 1.5 * 2^52: adding leaves the nearest integer in the low bits
  constexpr double kIntegerMagic = 4503599627370496.0;  // 2^52: its low bits are an integer

  const uint64_t bits = DoubleBits(static_cast<double>(x));  // normal even where x is subnormal
  double mantissa = BitsDouble((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  double exponent = (BitsDouble((bits >> 52) | 0x4330000000000000u) - kIntegerMagic) - 1023.0;
  const bool high = mantissa > kSqrt2;
  mantissa = high ? mantissa * 0.5 : mantissa;
  exponent = high ? exponent + 1.0 : exponent;
  const double z = (mantissa - 1.0) / (mantissa + 1.0);
  const double log2 = exponent + (z * power_internal::AtanhSeries(z * z)) * (2.0 * kLog2E);

  double y = log2 * static_cast<double>(p);
  y = y > 256.0 ? 256.0 : y;  // both ends are beyond float32
  y = y < -256.0 ? -256.0 : y;
  const double shifted = y + kRoundMagic;
  const double fraction = (y - (shifted - kRoundMagic)) * kLn2;
  const double scale = BitsDouble((DoubleBits(shifted) + 1023) << 52);
  float result = static_cast<float>(power_internal::ExpSeries(fraction) * scale);

  result = x > 0 ? result : (x == 0 ? 0.0f : BitsFloat(0x7fc00000u));
  result = x == BitsFloat(0x7f800000u) ? x : result;
  return p == 0 ? 1.0f : result;
}

}  // namespace multitier

#endif  // CC_OPTIMIZER_POWER_H_
