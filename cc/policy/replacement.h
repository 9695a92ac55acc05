// Replacement: by which rule the rows of a fast tier are demoted. victim_order.h carries it out.

#ifndef CC_POLICY_REPLACEMENT_H_
#define CC_POLICY_REPLACEMENT_H_

namespace multitier {

enum class Replacement {
  kDefault,  // scan-resistant: probation_clock.h; in small tables, by recency
  kLru,      // least recently used first
  kLfu,      // least frequency first; of equals, the least recently used
};

}  // namespace multitier

#endif  // CC_POLICY_REPLACEMENT_H_
