// The names of table options as users write them, and as checkpoints keep them.

#ifndef CC_TABLE_OPTION_NAMES_H_
#define CC_TABLE_OPTION_NAMES_H_

#include <string>

#include "cc/base/status.h"
#include "cc/policy/admission.h"
#include "cc/policy/score.h"
#include "cc/row/initializer.h"

namespace multitier {

// "constant", "uniform", "normal", "truncated_normal", "matrix", "normal_between", "debug"
const char* InitializerKindName(InitializerKind kind);
// InvalidArgument listing the names where there is none such.
// option: of which it is the kind, in the error.
Result<InitializerKind> ParseInitializerKind(const std::string& name, const char* option = "initializer");

// "none", "counter", "bloom", "probabilistic"
Result<AdmissionKind> ParseAdmissionKind(const std::string& name);

// "step", "time", "custom", "frequency"
const char* ScoreName(Score score);
Result<Score> ParseScore(const std::string& name);

}  // namespace multitier

#endif  // CC_TABLE_OPTION_NAMES_H_
