// Replacement: by which rule the rows of a fast tier are demoted. victim_order.h carries it out.

#ifndef CC_POLICY_REPLACEMENT_KIND_H_
#define CC_POLICY_REPLACEMENT_KIND_H_

namespace multitier {

enum class Replacement {
  kDefault,  // scan-resistant: probation_clock.h; in small tables, by recency
  kLru,      // least recently used first
  kLfu,      // least frequency first; of equals, the least recently used
  kScore,    // lowest version first; of equals, the least recently used
};

// Whether a row that comes into a tier may be colder than all rows that are there.
inline bool MayComeColdest(Replacement strategy) { return strategy == Replacement::kLfu || strategy == Replacement::kScore; }

}  // namespace multitier

#endif  // CC_POLICY_REPLACEMENT_KIND_H_
