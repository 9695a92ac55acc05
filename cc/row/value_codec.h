// Converts the elements of a value column to float32 and back. Only this arithmetic depends on the column's dtype. A CPU and a
// GPU run it from the same source.
//
// Rounding is to nearest, ties to even, or stochastic. NaN stays NaN. A value that is too large for the type becomes infinity.
// Load and store use selects instead of branches, so that loops are vectorized. They do not use F16C instructions, so that they
// are the same on every ISA, and give the same where the thread flushes subnormals.

#ifndef CC_ROW_VALUE_CODEC_H_
#define CC_ROW_VALUE_CODEC_H_

#include <cstdint>

#include "cc/base/float_bits.h"
#include "cc/base/host_device.h"

namespace multitier {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

MT_HOST_DEVICE float LoadValue(float x) { return x; }
MT_HOST_DEVICE float LoadValue(BFloat16 x) { return BitsFloat(static_cast<uint32_t>(x.bits) << 16); }

MT_HOST_DEVICE float LoadValue(Float16 x) {
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fffu);
  // The exponent is too small by 112. Below the normal range the bits count units of 2^-24.
  const uint32_t subnormal = FloatBits(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  uint32_t bits = magnitude < (1u << 10) ? subnormal : normal;
  bits = magnitude >= (31u << 10) ? (magnitude << 13) | 0x7f800000u : bits;
  return BitsFloat(bits | static_cast<uint32_t>(x.bits & 0x8000u) << 16);
}

MT_HOST_DEVICE void StoreValue(float x, float* out) { *out = x; }

MT_HOST_DEVICE void StoreValue(float x, BFloat16* out) {
  const uint32_t bits = FloatBits(x);
  // The selects are in 32 bits: of 16 bits they take twice the vector instructions.
  const bool nan = x != x;
  const uint32_t quiet = nan ? bits | 0x400000u : bits;
  const uint32_t half = nan ? 0u : 0x7fffu + ((bits >> 16) & 1u);
  out->bits = static_cast<uint16_t>((quiet + half) >> 16);
}

MT_HOST_DEVICE void StoreValue(float x, Float16* out) {
  const uint32_t sign = (FloatBits(x) >> 16) & 0x8000u;
  const uint32_t magnitude = FloatBits(x) & 0x7fffffffu;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below the normal range: adding 1/2 leaves units of 2^-24, rounded by the addition, in the low bits.
  const uint32_t subnormal = FloatBits(BitsFloat(magnitude) + 0.5f) - FloatBits(0.5f);
  uint32_t half = magnitude < (113u << 23) ? subnormal : normal;
  half = magnitude >= 0x477ff000u ? 0x7c00u : half;  // 65520 and up round to infinity
  half = magnitude > 0x7f800000u ? 0x7e00u : half;
  out->bits = static_cast<uint16_t>(sign | half);
}

// Stochastic rounding: up or down by `random`, 32 uniform bits, so that the expected result is x. A value of the type stays.

MT_HOST_DEVICE void StoreStochastically(float x, uint32_t random, BFloat16* out) {
  const uint32_t bits = FloatBits(x);
  if ((bits & 0x7fffffffu) >= 0x7f800000u) return StoreValue(x, out);
  out->bits = static_cast<uint16_t>((bits + (random & 0xffffu)) >> 16);
}

MT_HOST_DEVICE void StoreStochastically(float x, uint32_t random, Float16* out) {
  const uint32_t sign = (FloatBits(x) >> 16) & 0x8000u;
  const uint32_t magnitude = FloatBits(x) & 0x7fffffffu;
  if (magnitude >= 0x477fe000u) return StoreValue(x, out);  // 65504, the largest, and above
  uint32_t half = 0;
  if (magnitude >= (113u << 23)) {
    half = (magnitude - (112u << 23) + (random & 0x1fffu)) >> 13;
  } else if (magnitude >= (95u << 23)) {  // units of 2^-24; what is below 2^-32 becomes zero
    const uint32_t shift = 126 - (magnitude >> 23);
    half = (((magnitude & 0x7fffffu) | 0x800000u) + (random & ((1u << shift) - 1))) >> shift;
  }
  out->bits = static_cast<uint16_t>(sign | half);
}

}  // namespace multitier

#endif  // CC_ROW_VALUE_CODEC_H_
