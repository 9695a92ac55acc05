#include "cc/options/names.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <numeric>

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

// How many characters one must insert, delete or change to make one name of the other, whatever their case.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const bool same = std::tolower(static_cast<unsigned char>(a[i])) == std::tolower(static_cast<unsigned char>(b[j]));
      const size_t changed = diagonal + (same ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string DidYouMean(const std::vector<std::string>& names, std::string_view found) {
  const std::string* nearest = nullptr;
  size_t least = std::max<size_t>(1, found.size() / 3) + 1;
  for (const std::string& name : names) {
    const size_t distance = Distance(name, found);
    if (distance >= least || distance >= name.size()) continue;
    least = distance;
    nearest = &name;
  }
  return nearest == nullptr ? "" : StrCat(": did you mean '", *nearest, "'?");
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
    if (text != unit.name) continue;
    if (number > std::numeric_limits<uint64_t>::max() / unit.bytes) return std::nullopt;
    return number * unit.bytes;
  }
  return std::nullopt;
}

}  // namespace multitier
