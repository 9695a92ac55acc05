#include "cc/base/json.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace multitier {

// Recursive descent over the text; depth is bounded, so hostile text cannot exhaust the stack.
class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : text_(text) {}

  Result<Json> Parse() {
    Json value;
    MT_RETURN_IF_ERROR(ParseValue(0, &value));
    SkipSpace();
    if (at_ != text_.size()) return Error("the end of the text");
    return value;
  }

 private:
  static constexpr int kMaxDepth = 64;

  Status Error(const char* expected) const { return InvalidArgumentError("JSON: expected ", expected, " at offset ", at_); }

  void SkipSpace() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }

  bool Take(char c) {
    SkipSpace();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  bool TakeWord(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Status ParseValue(int depth, Json* out) {
    if (depth > kMaxDepth) return Error("fewer nested values");
    SkipSpace();
    if (at_ >= text_.size()) return Error("a value");
    const char c = text_[at_];
    if (c == '{') return ParseObject(depth, out);
    if (c == '[') return ParseArray(depth, out);
    if (c == '"') {
      *out = Json(Json::Kind::kString, "");
      return ParseString(&out->text_);
    }
    if (TakeWord("null")) {
      *out = Json();
    } else if (TakeWord("true")) {
      *out = Json::Bool(true);
    } else if (TakeWord("false")) {
      *out = Json::Bool(false);
    } else {
      return ParseNumber(out);
    }
    return OkStatus();
  }

  Status ParseObject(int depth, Json* out) {
    *out = Json::Object();
    ++at_;
    if (Take('}')) return OkStatus();
    do {
      SkipSpace();
      std::string name;
      MT_RETURN_IF_ERROR(ParseString(&name));
      if (!Take(':')) return Error("':'");
      Json value;
      MT_RETURN_IF_ERROR(ParseValue(depth + 1, &value));
      out->Set(std::move(name), std::move(value));
    } while (Take(','));
    return Take('}') ? OkStatus() : Error("',' or '}'");
  }

  Status ParseArray(int depth, Json* out) {
    *out = Json::Array();
    ++at_;
    if (Take(']')) return OkStatus();
    do {
      Json value;
      MT_RETURN_IF_ERROR(ParseValue(depth + 1, &value));
      out->Append(std::move(value));
    } while (Take(','));
    return Take(']') ? OkStatus() : Error("',' or ']'");
  }

  Status ParseNumber(Json* out) {
    const size_t begin = at_;
    while (at_ < text_.size() && std::string_view("+-.0123456789eE").find(text_[at_]) != std::string_view::npos) ++at_;
    std::string token(text_.substr(begin, at_ - begin));
    char* end = nullptr;
    std::strtod(token.c_str(), &end);
    if (token.empty() || *end != '\0') {
      at_ = begin;
      return Error("a value");
    }
    *out = Json(Json::Kind::kNumber, std::move(token));
    return OkStatus();
  }

  // \u escapes are accepted only for characters below 0x80; writers use them for control characters.
  Status ParseString(std::string* out) {
    if (at_ >= text_.size() || text_[at_] != '"') return Error("a string");
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] != '\\') {
        out->push_back(text_[at_]);
        continue;
      }
      if (++at_ >= text_.size()) break;
      switch (text_[at_]) {
        case 'n':
          out->push_back('\n');
          break;
        case 't':
          out->push_back('\t');
          break;
        case 'r':
          out->push_back('\r');
          break;
        case 'b':
          out->push_back('\b');
          break;
        case 'f':
          out->push_back('\f');
          break;
        case 'u': {
          const std::string hex(text_.substr(at_ + 1, 4));
          char* end = nullptr;
          const unsigned long code = std::strtoul(hex.c_str(), &end, 16);
          if (hex.size() != 4 || *end != '\0' || code >= 0x80) return Error("an ASCII escape");
          out->push_back(static_cast<char>(code));
          at_ += 4;
          break;
        }
        default:
          out->push_back(text_[at_]);  // quote, backslash, slash
      }
    }
    if (at_ >= text_.size()) return Error("'\"'");
    ++at_;
    return OkStatus();
  }

  std::string_view text_;
  size_t at_ = 0;
};

namespace {

void WriteString(const std::string& text, std::string* out) {
  out->push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", c);
      out->append(escape);
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

}  // namespace

Json Json::Bool(bool value) { return Json(Kind::kBool, value ? "true" : "false"); }
Json Json::Int(int64_t value) { return Json(Kind::kNumber, std::to_string(value)); }
Json Json::Uint(uint64_t value) { return Json(Kind::kNumber, std::to_string(value)); }
Json Json::Float(float value) { return std::isfinite(value) ? Json(Kind::kNumber, StrCat(value)) : Json(); }
Json Json::Double(double value) {
  if (!std::isfinite(value)) return Json();
  char text[32];
  for (int digits = 15; digits <= 17; ++digits) {  // the fewest that give the number again
    std::snprintf(text, sizeof(text), "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  return Json(Kind::kNumber, text);
}
Json Json::String(std::string value) { return Json(Kind::kString, std::move(value)); }
Json Json::Array() { return Json(Kind::kArray, ""); }
Json Json::Object() { return Json(Kind::kObject, ""); }

Result<Json> Json::Parse(std::string_view text) { return JsonParser(text).Parse(); }

void Json::Set(std::string name, Json value) {
  names_.push_back(std::move(name));
  items_.push_back(std::move(value));
}

std::string Json::ToString() const {
  std::string out;
  Write(&out);
  return out;
}

void Json::Write(std::string* out) const {
  switch (kind_) {
    case Kind::kNull:
      out->append("null");
      break;
    case Kind::kBool:
    case Kind::kNumber:
      out->append(text_);
      break;
    case Kind::kString:
      WriteString(text_, out);
      break;
    case Kind::kArray:
    case Kind::kObject:
      out->push_back(is_object() ? '{' : '[');
      for (size_t i = 0; i < items_.size(); ++i) {
        if (i > 0) out->append(", ");
        if (is_object()) {
          WriteString(names_[i], out);
          out->append(": ");
        }
        items_[i].Write(out);
      }
      out->push_back(is_object() ? '}' : ']');
  }
}

const Json* Json::Find(std::string_view name) const {
  for (size_t i = 0; i < names_.size(); ++i) {
    if (names_[i] == name) return &items_[i];
  }
  return nullptr;
}

Result<const Json*> Json::Get(std::string_view name, Kind kind, const char* expected) const {
  const Json* member = Find(name);
  if (member == nullptr) return InvalidArgumentError("JSON: no member '", name, "'");
  if (member->kind_ != kind) {
    return InvalidArgumentError("JSON: member '", name, "': expected ", expected, ", found ", member->ToString());
  }
  return member;
}

Result<int64_t> Json::GetInt(std::string_view name) const {
  MT_ASSIGN_OR_RETURN(const Json* member, Get(name, Kind::kNumber, "an integer"));
  char* end = nullptr;
  errno = 0;
  const int64_t value = std::strtoll(member->text_.c_str(), &end, 10);
  if (errno != 0 || *end != '\0') {
    return InvalidArgumentError("JSON: member '", name, "': expected a 64-bit integer, found ", member->text_);
  }
  return value;
}

Result<uint64_t> Json::GetUint(std::string_view name) const {
  MT_ASSIGN_OR_RETURN(const Json* member, Get(name, Kind::kNumber, "an unsigned integer"));
  char* end = nullptr;
  errno = 0;
  const uint64_t value = std::strtoull(member->text_.c_str(), &end, 10);
  if (errno != 0 || *end != '\0' || member->text_[0] == '-') {
    return InvalidArgumentError("JSON: member '", name, "': expected an unsigned 64-bit integer, found ", member->text_);
  }
  return value;
}

Result<float> Json::GetFloat(std::string_view name) const {
  MT_ASSIGN_OR_RETURN(const Json* member, Get(name, Kind::kNumber, "a number"));
  const float value = std::strtof(member->text_.c_str(), nullptr);
  if (!std::isfinite(value)) {
    return InvalidArgumentError("JSON: member '", name, "': expected a float32, found ", member->text_);
  }
  return value;
}

Result<std::string> Json::GetString(std::string_view name) const {
  MT_ASSIGN_OR_RETURN(const Json* member, Get(name, Kind::kString, "a string"));
  return member->text_;
}

Result<const Json*> Json::GetArray(std::string_view name) const { return Get(name, Kind::kArray, "an array"); }
Result<const Json*> Json::GetObject(std::string_view name) const { return Get(name, Kind::kObject, "an object"); }

}  // namespace multitier
