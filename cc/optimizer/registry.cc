// The list of all rules, and what UpdateRule does by default.

#include <cmath>

#include "cc/optimizer/decayed_rule.h"
#include "cc/optimizer/ema_rule.h"
#include "cc/optimizer/rules.h"
#include "cc/optimizer/update_rule.h"

namespace multitier {

Status UpdateRule::Validate(const float* hyper) const {
  const Span<const char* const> names = hyperparameters();
  for (size_t i = 0; i < names.size(); ++i) {
    if (std::isfinite(hyper[i])) continue;
    return InvalidArgumentError("optimizer ", name(), ": ", names[i], ": expected a finite number, found ", hyper[i]);
  }
  return OkStatus();
}

std::vector<const UpdateRule*> AllUpdateRules() {
  return {AdadeltaRule(),    AdagradRule(),   AdagradDecayRule(), AdagradDecayV2Rule(), AdagradEpsilonRule(),  AdamRule(),
          AdamAmsgradRule(), AdamAsyncRule(), AdamaxRule(),       AdamWRule(),          CenteredRmsPropRule(), FtrlRule(),
          LionRule(),        MomentumRule(),  NadamRule(),        RmsPropRule(),        RowwiseAdagradRule(),  SgdRule()};
}

// Also finds "<rule>+weight_decay" (decayed_rule.h), and either with "+ema" (ema_rule.h).
Result<const UpdateRule*> FindUpdateRule(const std::string& name) {
  static const auto* const composed = [] {
    auto* const made = new std::vector<const UpdateRule*>;
    for (const UpdateRule* rule : AllUpdateRules()) {
      const auto* const decayed = new DecayedRule(rule);
      made->push_back(decayed);
      made->push_back(new EmaRule(rule));
      made->push_back(new EmaRule(decayed));
    }
    return made;
  }();
  for (const UpdateRule* rule : *composed) {
    if (name == rule->name()) return rule;
  }
  std::string names;
  for (const UpdateRule* rule : AllUpdateRules()) {
    if (name == rule->name()) return rule;
    names += (names.empty() ? "" : ", ") + std::string(rule->name());
  }
  return InvalidArgumentError("no update rule named '", name, "'; there are ", names, ", each also with ", DecayedRule::kSuffix,
                              ", then with ", EmaRule::kSuffix);
}

}  // namespace multitier
