#include "cc/options/binder.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace multitier {
namespace {

bool InBytes(const Range& range) { return std::strcmp(range.unit, " bytes") == 0; }

// "1 to 64 bytes", "at least 0", "an integer"
std::string ExpectedInteger(const Range& range) {
  const std::string text = InBytes(range) ? ", or text such as 4GB or 512 MiB" : "";
  if (range.least == Range().least) return StrCat("an integer", text);
  if (range.most == Range().most) return StrCat("at least ", range.least, range.unit, text);
  return StrCat(range.least, " to ", range.most, range.unit, text);
}

std::string ExpectedReal(const Range& range) {
  if (range.least == Range().least) return "a finite number";
  const std::string least = StrCat(range.above ? "more than " : "at least ", range.least);
  if (range.most == Range().most) return least;
  return StrCat(least, " and ", range.below ? "less than " : "at most ", range.most);
}

// The number of a JSON number, or of text in bytes.
bool IntegerOf(const Json& json, const Range& range, int64_t* out) {
  if (json.kind() == Json::Kind::kString && InBytes(range)) {
    const std::optional<uint64_t> bytes = ParseBytes(json.text());
    if (!bytes.has_value() || *bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
    *out = static_cast<int64_t>(*bytes);
    return true;
  }
  if (json.kind() != Json::Kind::kNumber) return false;
  char* end = nullptr;
  errno = 0;
  *out = std::strtoll(json.text().c_str(), &end, 10);
  return errno == 0 && *end == '\0';
}

}  // namespace

Status WrongValue(const Of& of, const std::string& expected, const Json& found) {
  std::string text = found.kind() == Json::Kind::kString ? StrCat("'", found.text(), "'") : found.ToString();
  for (size_t at = 0; (at = text.find('\0', at)) != std::string::npos;) text.replace(at, 1, "\\0");
  return InvalidArgumentError(of.option, ": expected ", expected, ", found ", text);
}

Status ReadInteger(const Json& json, const Of& of, int64_t* out) {
  if (IntegerOf(json, of.range, out) && *out >= of.range.least && *out <= of.range.most) return OkStatus();
  return WrongValue(of, ExpectedInteger(of.range), json);
}

Status Value<bool>::Read(const Json& json, const Of& of, bool* out) {
  if (json.kind() != Json::Kind::kBool) return WrongValue(of, "true or false", json);
  *out = json.text() == "true";
  return OkStatus();
}

Status Value<uint64_t>::Read(const Json& json, const Of& of, uint64_t* out) {
  if (of.range.least != Range().least) {
    int64_t number = 0;
    MT_RETURN_IF_ERROR(ReadInteger(json, of, &number));
    *out = static_cast<uint64_t>(number);
    return OkStatus();
  }
  char* end = nullptr;
  errno = 0;
  if (json.kind() == Json::Kind::kNumber && json.text()[0] != '-') {
    *out = std::strtoull(json.text().c_str(), &end, 10);
    if (errno == 0 && *end == '\0') return OkStatus();
  }
  return WrongValue(of, "0 to 18446744073709551615", json);
}

Status Value<double>::Read(const Json& json, const Of& of, double* out) {
  const Range& range = of.range;
  if (json.kind() == Json::Kind::kNumber) {
    *out = std::strtod(json.text().c_str(), nullptr);
    const auto least = static_cast<double>(range.least), most = static_cast<double>(range.most);
    const bool in_range = (range.above ? *out > least : *out >= least) && (range.below ? *out < most : *out <= most);
    if (std::isfinite(*out) && (range.least == Range().least || in_range)) return OkStatus();
  }
  return WrongValue(of, ExpectedReal(range), json);
}

Status Value<float>::Read(const Json& json, const Of& of, float* out) {
  if (json.kind() == Json::Kind::kNull && of.range.or_null) return OkStatus();
  double wide = 0;
  MT_RETURN_IF_ERROR(Value<double>::Read(json, of, &wide));
  *out = static_cast<float>(wide);
  return std::isfinite(*out) ? OkStatus() : WrongValue(of, "a number of float32", json);
}

Status Value<std::string>::Read(const Json& json, const Of& of, std::string* out) {
  if (json.kind() != Json::Kind::kString) return WrongValue(of, "text", json);
  if (json.text().find('\0') != std::string::npos) return WrongValue(of, "text without null characters", json);
  *out = json.text();
  return OkStatus();
}

Status Value<std::vector<int64_t>>::Read(const Json& json, const Of& of, std::vector<int64_t>* out) {
  out->clear();
  if (!json.is_array()) return ReadInteger(json, Of{StrCat(of.option, "[0]"), of.range}, &out->emplace_back());
  for (const Json& item : json.items()) {
    const Of element{StrCat(of.option, "[", out->size(), "]"), of.range};
    MT_RETURN_IF_ERROR(ReadInteger(item, element, &out->emplace_back()));
  }
  return OkStatus();
}

Json Value<std::vector<int64_t>>::Write(const std::vector<int64_t>& value) {
  Json out = Json::Array();
  for (const int64_t one : value) out.Append(Json::Int(one));
  return out;
}

}  // namespace multitier
