// One function per rule, which returns the only instance of the rule. For the registry (update_rule.h, which has the
// interface). The arithmetic of a rule is in its own file, such as adagrad.cc. Recipe for a new one: CONTRIBUTING.md, "An
// optimizer".

#ifndef CC_OPTIMIZER_RULES_H_
#define CC_OPTIMIZER_RULES_H_

#include "cc/optimizer/update_rule.h"

namespace multitier {

const UpdateRule* AdadeltaRule();
const UpdateRule* AdagradRule();
const UpdateRule* AdagradDecayRule();
const UpdateRule* AdagradDecayV2Rule();
const UpdateRule* AdagradEpsilonRule();
const UpdateRule* AdamRule();
const UpdateRule* AdamAmsgradRule();
const UpdateRule* AdamAsyncRule();
const UpdateRule* AdamaxRule();
const UpdateRule* AdamWRule();
const UpdateRule* CenteredRmsPropRule();
const UpdateRule* FtrlRule();
const UpdateRule* LionRule();
const UpdateRule* MomentumRule();
const UpdateRule* NadamRule();
const UpdateRule* RmsPropRule();
const UpdateRule* RowwiseAdagradRule();
const UpdateRule* SgdRule();

}  // namespace multitier

#endif  // CC_OPTIMIZER_RULES_H_
