#include "cc/table/option_names.h"

namespace multitier {
namespace {

constexpr const char* kInitializerNames[] = {"constant", "uniform",        "normal", "truncated_normal",
                                             "matrix",   "normal_between", "debug"};
constexpr const char* kAdmissionNames[] = {"none", "counter", "bloom", "probabilistic"};
constexpr const char* kScoreNames[] = {"step", "time", "custom", "frequency"};

// Index of `name` in `names`.
template <size_t n>
Result<int> Parse(const char* option, const char* const (&names)[n], const std::string& name) {
  std::string expected;
  for (size_t i = 0; i < n; ++i) {
    if (name == names[i]) return static_cast<int>(i);
    expected += StrCat(i == 0 ? "" : ", ", names[i]);
  }
  return InvalidArgumentError(option, ": expected one of ", expected, "; found '", name, "'");
}

}  // namespace

const char* InitializerKindName(InitializerKind kind) { return kInitializerNames[static_cast<int>(kind)]; }

Result<InitializerKind> ParseInitializerKind(const std::string& name, const char* option) {
  MT_ASSIGN_OR_RETURN(const int kind, Parse(option, kInitializerNames, name));
  return static_cast<InitializerKind>(kind);
}

Result<AdmissionKind> ParseAdmissionKind(const std::string& name) {
  MT_ASSIGN_OR_RETURN(const int kind, Parse("filter", kAdmissionNames, name));
  return static_cast<AdmissionKind>(kind);
}

const char* ScoreName(Score score) { return kScoreNames[static_cast<int>(score)]; }

Result<Score> ParseScore(const std::string& name) {
  MT_ASSIGN_OR_RETURN(const int score, Parse("score", kScoreNames, name));
  return static_cast<Score>(score);
}

}  // namespace multitier
