#include "cc/policy/replacement.h"

#include "cc/policy/exact_order.h"
#include "cc/policy/probation_clock.h"

namespace multitier {

const char* ReplacementName(Replacement replacement) {
  switch (replacement) {
    case Replacement::kDefault: return "default";
    case Replacement::kLru: return "lru";
    case Replacement::kLfu: return "lfu";
  }
  return "";
}

std::unique_ptr<ReplacementPolicy> ReplacementPolicy::Create(Replacement replacement) {
  switch (replacement) {
    case Replacement::kDefault: return std::make_unique<ProbationClock>();
    case Replacement::kLru: return std::make_unique<ExactLru>();
    case Replacement::kLfu: return std::make_unique<ExactLfu>();
  }
  return nullptr;
}

}  // namespace multitier
