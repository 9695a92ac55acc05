#include "cc/options/names.h"

#include <strings.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <utility>

namespace multitier {

template <>
const std::vector<Named<InitializerKind>>& NamesOf<InitializerKind>() {
  static const auto* const names = new std::vector<Named<InitializerKind>>{
      {"constant", InitializerKind::kConstant},
      {"uniform", InitializerKind::kUniform},
      {"normal", InitializerKind::kNormal},
      {"truncated_normal", InitializerKind::kTruncatedNormal},
      {"normal_between", InitializerKind::kNormalBetween},
      {"debug", InitializerKind::kDebug},
      {"matrix", InitializerKind::kMatrix},
  };
  return *names;
}

template <>
const std::vector<Named<AdmissionKind>>& NamesOf<AdmissionKind>() {
  static const auto* const names = new std::vector<Named<AdmissionKind>>{
      {"none", AdmissionKind::kNone},
      {"counter", AdmissionKind::kCounter},
      {"bloom", AdmissionKind::kBloom},
      {"probabilistic", AdmissionKind::kProbabilistic},
  };
  return *names;
}

template <>
const std::vector<Named<Score>>& NamesOf<Score>() {
  static const auto* const names = new std::vector<Named<Score>>{
      {"step", Score::kStep}, {"time", Score::kTime}, {"custom", Score::kCustom}, {"frequency", Score::kFrequency}};
  return *names;
}

template <>
const std::vector<Named<Replacement>>& NamesOf<Replacement>() {
  static const auto* const names = new std::vector<Named<Replacement>>{{"DEFAULT", Replacement::kDefault},
                                                                       {"LRU", Replacement::kLru},
                                                                       {"LFU", Replacement::kLfu},
                                                                       {"SCORE", Replacement::kScore}};
  return *names;
}

template <>
const std::vector<Named<OnFull>>& NamesOf<OnFull>() {
  static const auto* const names =
      new std::vector<Named<OnFull>>{{"error", OnFull::kError}, {"warn", OnFull::kRefuse}, {"drop", OnFull::kDrop}};
  return *names;
}

template <>
const std::vector<Named<OnCorruption>>& NamesOf<OnCorruption>() {
  static const auto* const names = new std::vector<Named<OnCorruption>>{
      {"error", OnCorruption::kError}, {"reinit", OnCorruption::kReinit}, {"drop", OnCorruption::kDrop}};
  return *names;
}

template <>
const std::vector<Named<KeepDropped>>& NamesOf<KeepDropped>() {
  static const auto* const names = new std::vector<Named<KeepDropped>>{
      {"none", KeepDropped::kNothing}, {"keys", KeepDropped::kKeys}, {"rows", KeepDropped::kRows}};
  return *names;
}

template <>
const std::vector<Named<DType>>& NamesOf<DType>() {
  static const auto* const names =
      new std::vector<Named<DType>>{{"float32", DType::kFloat32}, {"bfloat16", DType::kBFloat16}, {"float16", DType::kFloat16}};
  return *names;
}

template <>
const std::vector<Named<KeyType>>& NamesOf<KeyType>() {
  static const auto* const names =
      new std::vector<Named<KeyType>>{{"int64", KeyType::kInt64}, {"uint64", KeyType::kUint64}, {"uint32", KeyType::kUint32}};
  return *names;
}

namespace {

constexpr double kLeastLikeness = 0.6;

// From 0 to 1: twice the length of the longest common subsequence, whatever the case, divided by both lengths.
double Likeness(std::string_view a, std::string_view b) {
  std::vector<size_t> common(b.size() + 1);
  for (const char of_a : a) {
    size_t diagonal = 0;
    for (size_t j = 0; j < b.size(); ++j) {
      const bool same = std::tolower(static_cast<unsigned char>(of_a)) == std::tolower(static_cast<unsigned char>(b[j]));
      const size_t longer = same ? diagonal + 1 : std::max(common[j], common[j + 1]);
      diagonal = std::exchange(common[j + 1], longer);
    }
  }
  return 2.0 * static_cast<double>(common.back()) / static_cast<double>(a.size() + b.size());
}

}  // namespace

std::string DidYouMean(const std::vector<std::string>& names, std::string_view found) {
  const std::string* like = nullptr;
  double most = 0;
  for (const std::string& name : names) {
    const double likeness = Likeness(name, found);
    if (likeness < kLeastLikeness || likeness <= most) continue;
    most = likeness;
    like = &name;
  }
  return like == nullptr ? "" : StrCat(": did you mean '", *like, "'?");
}

Status WrongName(std::string_view option, const std::vector<std::string>& names, std::string_view found) {
  std::string expected;
  for (const std::string& name : names) expected += (expected.empty() ? "" : ", ") + name;
  return InvalidArgumentError(option, ": expected one of ", expected, "; found '", found, "'", DidYouMean(names, found));
}

std::optional<uint64_t> ParseBytes(std::string_view text) {
  constexpr uint64_t kKilo = 1000, kKibi = 1024;
  struct Unit {
    const char* name;
    uint64_t bytes;
  };
  static constexpr Unit kUnits[] = {{"", 1},
                                    {"B", 1},
                                    {"KB", kKilo},
                                    {"MB", kKilo * kKilo},
                                    {"GB", kKilo * kKilo * kKilo},
                                    {"TB", kKilo * kKilo * kKilo * kKilo},
                                    {"KiB", kKibi},
                                    {"MiB", kKibi * kKibi},
                                    {"GiB", kKibi * kKibi * kKibi},
                                    {"TiB", kKibi * kKibi * kKibi * kKibi}};
  const auto trim = [&text] {
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  };
  trim();
  uint64_t number = 0;
  size_t digits = 0;
  for (; digits < text.size() && text[digits] >= '0' && text[digits] <= '9'; ++digits) {
    const auto digit = static_cast<uint64_t>(text[digits] - '0');
    if (number > (std::numeric_limits<uint64_t>::max() - digit) / 10) return std::nullopt;
    number = number * 10 + digit;
  }
  if (digits == 0) return std::nullopt;
  text.remove_prefix(digits);
  trim();
  for (const Unit& unit : kUnits) {
    if (strcasecmp(std::string(text).c_str(), unit.name) != 0) continue;
    if (number > std::numeric_limits<uint64_t>::max() / unit.bytes) return std::nullopt;
    return number * unit.bytes;
  }
  return std::nullopt;
}

}  // namespace multitier
