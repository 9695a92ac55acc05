// NormalBetween: normal numbers between two cut-offs, anywhere in the distribution. Converts 32 random bits to one number by
// the inverse of the distribution. Nothing is rejected, so the far tail costs what the middle costs.
//
//   density                 nearest = the point of [lower, upper] that is closest to the mean
//     |    ..                    c = |nearest - mean| in deviations, >= 0
//     |  .    .             A number is nearest +- d deviations. Q is the upper tail of the distribution, and
//     | .     |#.           q = Q(c + d) / Q(c) is uniform between its values at the two cut-offs.
//     |.      |##|..
//     +-------+--+---       With the Mills ratio m(z) = Q(z) / density(z), d solves
//           lower upper       (c + d / 2) d + ln(q m(c) / m(c + d)) = 0
//
// Both terms are of the size of d, so that nothing cancels, however far the tail or narrow the interval. Two steps of Halley's
// method reach single precision from everywhere; three are done. All in doubles, with +, -, x, /, square roots, comparisons and
// bit operations alone (see distributions.h), so every instruction set and a GPU give the same bits.
//
// m(z) (z + 1) is a polynomial of degree 19 in (z - 5) / (z + 5), from the Chebyshev series of a 40-digit reference. Its
// relative error is below 2e-14 for all z >= 0.

#ifndef CC_ROW_NORMAL_BETWEEN_H_
#define CC_ROW_NORMAL_BETWEEN_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cc/base/philox.h"  // MT_HOST_DEVICE

namespace multitier {
namespace normal_between_internal {

MT_HOST_DEVICE double BitsToDouble(uint64_t bits) {
  double d;
  memcpy(&d, &bits, sizeof(d));
  return d;
}
MT_HOST_DEVICE uint64_t DoubleToBits(double d) {
  uint64_t bits;
  memcpy(&bits, &d, sizeof(bits));
  return bits;
}
// condition ? a : b, without a branch, as in distributions.h.
MT_HOST_DEVICE double Select(bool condition, double a, double b) {
  const uint64_t mask = uint64_t{0} - static_cast<uint64_t>(condition);
  return BitsToDouble((DoubleToBits(a) & mask) | (DoubleToBits(b) & ~mask));
}

// REQUIRES: z >= 0
MT_HOST_DEVICE double Mills(double z) {
  constexpr double kTerms[] = {
      1.1568486282918844,      -0.2294875382522292,    0.07778159887080366,     0.025072179310225408,
      -0.06617760084784473,    0.061505045652684914,   -0.038026591296719106,   0.016348233163331963,
      -0.004201296184886841,   1.9520214270818966e-05, 0.00045706616518347004,  -0.00013433939528530688,
      -2.4857597678903852e-05, 2.263585163937937e-05,  -1.0097496998887954e-07, -3.1774642411607574e-06,
      2.528722739625989e-07,   4.0705306890390485e-07, -3.064030530946085e-08,  -3.479122090011238e-08};
  const double t = (z - 5.0) / (z + 5.0);
  double p = kTerms[19];
  for (int i = 18; i >= 0; --i) p = p * t + kTerms[i];
  return p / (z + 1.0);
}

// The exponent, and 2 atanh(f / (2 + f)) of the mantissa 1 + f in [sqrt(1/2), sqrt(2)), to 1e-15. REQUIRES: x positive, finite
// and normal
MT_HOST_DEVICE double Ln(double x) {
  const uint64_t bits = DoubleToBits(x);
  const uint64_t above = bits - 0x3fe6a09e667f3bcdull + (uint64_t{1} << 62);  // of sqrt(1/2); the bias keeps it positive
  const uint64_t exponent = above >> 52;
  const double f = BitsToDouble(bits - (exponent << 52) + (uint64_t{1} << 62)) - 1.0;
  const double s = f / (2.0 + f);
  const double w = s * s;
  double p = 1.0 / 21;
  for (int i = 19; i >= 1; i -= 2) p = p * w + 1.0 / i;
  const double power = static_cast<double>(static_cast<int32_t>(static_cast<uint32_t>(exponent)) - 1024);
  return power * 0.693147180559945309 + 2.0 * s * p;
}

// e^x for x <= 0; 0 below -700.
inline double Exp(double x) {
  if (!(x > -700.0)) return 0.0;
  const int power = static_cast<int>(x * 1.4426950408889634 - 0.5);
  const double r = x - power * 0.693147180559945309;
  double sum = 1.0;
  for (int i = 18; i >= 1; --i) sum = 1.0 + sum * r / i;
  return sum * BitsToDouble(static_cast<uint64_t>(power + 1023) << 52);
}

}  // namespace normal_between_internal

struct NormalBetween {
  float lower, upper;
  double nearest;
  double deviation;        // negative where nearest is the upper cut-off
  double c;                // 0 if the mean is inside
  double mills;            // m(c)
  double total, left;      // probability of all, and of the numbers left of nearest, over Q(c)
  double q_left, q_right;  // q at the cut-off to the left, which only the mean has, and to the right
  bool narrow;             // the density changes by less than 1e-7: the numbers are uniform

  // REQUIRES: lower < upper, deviation > 0, both finite as doubles from the mean, in deviations, unless they are infinite
  static NormalBetween Of(double mean, double deviation, float lower, float upper) {
    using namespace normal_between_internal;  // NOLINT
    const double a = (lower - mean) / deviation, b = (upper - mean) / deviation;
    NormalBetween p{};
    p.lower = lower;
    p.upper = upper;
    p.deviation = b < 0 ? -deviation : deviation;
    p.c = a > 0 ? a : b < 0 ? -b : 0.0;
    p.nearest = a > 0 ? double{lower} : b < 0 ? double{upper} : mean;
    p.mills = Mills(p.c);
    p.narrow = (b - a) * (p.c + (b - a)) < 1e-7 && (b - a) < 1e-7;
    const auto q_at = [&](double d) { return std::isfinite(d) ? Exp(-(p.c + d / 2) * d) * Mills(p.c + d) / p.mills : 0.0; };
    const bool inside = a <= 0 && b >= 0;
    p.q_left = inside ? q_at(-a) : 1.0;
    p.q_right = q_at(inside ? b : b - a);
    p.left = 1.0 - p.q_left;
    p.total = p.left + (1.0 - p.q_right);
    return p;
  }
};

// REQUIRES: !p.narrow
MT_HOST_DEVICE float NumberBetween(const NormalBetween& p, uint32_t bits) {
  using namespace normal_between_internal;  // NOLINT
  // u in (0, 1) and 1 - u, both exact.
  const double u = (static_cast<double>(static_cast<int32_t>(bits ^ 0x80000000u)) + 2147483648.5) * 0x1p-32;
  const double rest = (static_cast<double>(static_cast<int32_t>(~bits ^ 0x80000000u)) + 2147483648.5) * 0x1p-32;
  const bool left = u * p.total < p.left;
  const double q = Select(left, p.q_left + u * p.total, p.q_right + rest * p.total);
  const double hazard = 1.0 / p.mills, e = -Ln(q);
  double d = 2.0 * e / (hazard + sqrt(hazard * hazard + 1.6 * e));
  for (int i = 0; i < 3; ++i) {
    const double z = p.c + d, m = Mills(z);
    const double step = ((p.c + 0.5 * d) * d + Ln(q * p.mills / m)) * m;
    d = d - step / (1.0 - 0.5 * step * (1.0 / m - z));
  }
  const float value = static_cast<float>(p.nearest + Select(left, -p.deviation, p.deviation) * d);
  const float below = value < p.upper ? value : p.upper;
  return below > p.lower ? below : p.lower;
}

}  // namespace multitier

#endif  // CC_ROW_NORMAL_BETWEEN_H_
