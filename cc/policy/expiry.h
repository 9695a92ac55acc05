// Expiry: which rows EmbeddingTable::Expire (cc/table/host/expiration.cc) removes. Expiry runs only in that call.

#ifndef CC_POLICY_EXPIRY_H_
#define CC_POLICY_EXPIRY_H_

#include <cstdint>

namespace multitier {

struct ExpirySpec {
  int64_t steps_to_live = 0;          // > 0: rows with step - version > steps_to_live expire
  float l2_weight_threshold = -1.0f;  // >= 0: rows with 0.5 * ||value||^2 < threshold expire

  bool enabled() const { return steps_to_live > 0 || l2_weight_threshold >= 0.0f; }
};

// Whether a row with this version and value [dim] has expired at `step`. The value is read only if a weight threshold is set.
inline bool Expired(const ExpirySpec& spec, int64_t step, int64_t version, const float* value, int dim) {
  // Unsigned, so that the difference of any two steps fits.
  if (spec.steps_to_live > 0 && step > version &&
      static_cast<uint64_t>(step) - static_cast<uint64_t>(version) > static_cast<uint64_t>(spec.steps_to_live)) {
    return true;
  }
  if (spec.l2_weight_threshold < 0.0f) return false;
  float sum = 0.0f;
  for (int i = 0; i < dim; ++i) sum += value[i] * value[i];
  return 0.5f * sum < spec.l2_weight_threshold;
}

}  // namespace multitier

#endif  // CC_POLICY_EXPIRY_H_
