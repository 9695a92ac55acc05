#include "cc/policy/admission.h"

#include <cmath>

#include "cc/base/hash.h"

namespace multitier {

Status ValidateAdmission(const AdmissionSpec& spec) {
  switch (spec.kind) {
    case AdmissionKind::kNone:
    case AdmissionKind::kCounter:
      if (spec.max_keys >= 0) return OkStatus();
      return InvalidArgumentError("filter.max_keys: expected at least 0, found ", spec.max_keys);
    case AdmissionKind::kBloom:
      if (spec.max_element_size <= 0) {
        return InvalidArgumentError("filter.max_element_size: expected at least 1, found ", spec.max_element_size);
      }
      if (!(spec.false_positive_probability > 0.0 && spec.false_positive_probability < 1.0)) {
        return InvalidArgumentError("filter.false_positive_probability: expected more than 0 and less than 1, found ",
                                    spec.false_positive_probability);
      }
      if (spec.counter_bits != 8 && spec.counter_bits != 16 && spec.counter_bits != 32 && spec.counter_bits != 64) {
        return InvalidArgumentError("filter.counter_bits: expected 8, 16, 32 or 64, found ", spec.counter_bits);
      }
      // A saturated counter would never reach it.
      if (spec.counter_bits < 32 && spec.filter_freq >> spec.counter_bits != 0) {
        return InvalidArgumentError("filter.filter_freq: expected one that fits in counter_bits (", spec.counter_bits,
                                    "), found ", spec.filter_freq);
      }
      return OkStatus();
    case AdmissionKind::kProbabilistic:
      if (!(spec.probability > 0.0 && spec.probability <= 1.0)) {
        return InvalidArgumentError("filter.probability: expected more than 0 and at most 1, found ", spec.probability);
      }
      return OkStatus();
  }
  return InvalidArgumentError("filter.kind: expected 0 (none) to 3 (probabilistic), found ", static_cast<int>(spec.kind));
}

bool AdmitProbabilistic(uint64_t seed, int64_t key, uint64_t nonce, int64_t count, double p) {
  if (count <= 0 || !(p > 0.0)) return false;
  if (p >= 1.0) return true;
  // 53 bits make a double in [0, 1) without rounding.
  const uint64_t hash = Mix64(HashKey(key) ^ Mix64(seed + Mix64(nonce + 0x9e3779b97f4a7c15ULL)));
  const double uniform = static_cast<double>(hash >> 11) * 0x1p-53;
  return uniform < -std::expm1(static_cast<double>(count) * std::log1p(-p));
}

}  // namespace multitier
