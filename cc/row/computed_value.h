// The elements of initial values that are computed from the key alone: what a CPU and a GPU compute from the same source.
//
// Element c of key k: word c mod 4 of the Philox block with the counter (k, c / 4), as a number of the distribution.

#ifndef CC_ROW_COMPUTED_VALUE_H_
#define CC_ROW_COMPUTED_VALUE_H_

#include <cstdint>

#include "cc/base/host_device.h"
#include "cc/base/philox.h"
#include "cc/row/distributions.h"

namespace multitier {

enum class Distribution : uint32_t { kConstant, kUniform, kNormal, kTruncatedNormal };

struct RandomParameters {
  uint32_t seed_low;
  uint32_t seed_high;
  float offset;  // the constant, minimum or mean
  float scale;   // maximum - minimum or standard deviation
  float last;    // uniform: the largest value allowed
};

// Columns of a value up to `end`, which have one distribution.
struct ComputedColumns {
  Distribution distribution;
  uint32_t end;
  RandomParameters parameters;
};

MT_HOST_DEVICE float UniformValue(const RandomParameters& p, uint32_t bits) {
  // The product may round up to maximum - minimum, and the sum up to the maximum.
  const float v = p.offset + UnitUniform(bits) * p.scale;
  return v < p.last ? v : p.last;
}
MT_HOST_DEVICE float NormalValue(const RandomParameters& p, uint32_t bits) { return p.offset + UnitNormal(bits) * p.scale; }
MT_HOST_DEVICE float TruncatedNormalValue(const RandomParameters& p, uint32_t bits) {
  return p.offset + UnitTruncatedNormal(bits) * p.scale;
}

// The four words of block c / 4 of a key.
MT_HOST_DEVICE PhiloxBlock RandomBlock(const RandomParameters& p, int64_t key, uint32_t block) {
  const auto k = static_cast<uint64_t>(key);
  return Philox4x32(static_cast<uint32_t>(k), static_cast<uint32_t>(k >> 32), block, 0, p.seed_low, p.seed_high);
}

// bits: not read for a constant.
MT_HOST_DEVICE float ComputedValue(const ComputedColumns& columns, uint32_t bits) {
  switch (columns.distribution) {
    case Distribution::kUniform:
      return UniformValue(columns.parameters, bits);
    case Distribution::kNormal:
      return NormalValue(columns.parameters, bits);
    case Distribution::kTruncatedNormal:
      return TruncatedNormalValue(columns.parameters, bits);
    case Distribution::kConstant:
      break;
  }
  return columns.parameters.offset;
}

}  // namespace multitier

#endif  // CC_ROW_COMPUTED_VALUE_H_
