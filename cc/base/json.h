// Json: a JSON value that is parsed from text and written as text. It supports what manifests and statistics need.
//
// Numbers keep their text, so 64-bit integers and float32 values survive a round trip exactly. Strings are bytes; UTF-8 is not
// checked. Objects keep the order of their members. If a name is repeated, look-ups find the first member.
//
// Why not nlohmann-json, which was tried (3.11): without exceptions a parse error has no position, and a string that is not
// UTF-8 ends the process or loses bytes, where a path may have any. A number out of range becomes a float. Floats get another
// text (3.0, 1.6777216e+07), so that files would change. A source that includes it compiles in 4.6 s in place of 1.0.
//
// Thread-safe as values.

#ifndef CC_BASE_JSON_H_
#define CC_BASE_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/base/status.h"

namespace multitier {

class Json {
 public:
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };

  Json() = default;  // null
  static Json Bool(bool value);
  static Json Int(int64_t value);
  static Json Uint(uint64_t value);
  static Json Float(float value);    // null if the value is not finite
  static Json Double(double value);  // null if the value is not finite
  static Json String(std::string value);
  static Json Array();
  static Json Object();

  // InvalidArgument, with the offset, if the text is not exactly one JSON value.
  static Result<Json> Parse(std::string_view text);
  std::string ToString() const;

  // Adds to an array. REQUIRES: made by Array()
  void Append(Json item) { items_.push_back(std::move(item)); }
  // Adds to an object. REQUIRES: made by Object()
  void Set(std::string name, Json value);

  Kind kind() const { return kind_; }
  // Of a string its bytes, of a number or boolean its text; empty for others.
  const std::string& text() const { return text_; }
  // Elements of an array, values of an object; empty for others.
  const std::vector<Json>& items() const { return items_; }
  // Of the values of an object; empty for others.
  const std::vector<std::string>& names() const { return names_; }
  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_object() const { return kind_ == Kind::kObject; }

  // Member `name` of an object; nullptr if it is absent.
  const Json* Find(std::string_view name) const;
  // Member `name` of an object as a value of that type. InvalidArgument, with the member's name, if it is absent, has another
  // type, or is out of range.
  Result<int64_t> GetInt(std::string_view name) const;
  Result<uint64_t> GetUint(std::string_view name) const;
  Result<float> GetFloat(std::string_view name) const;
  Result<std::string> GetString(std::string_view name) const;
  Result<const Json*> GetArray(std::string_view name) const;
  Result<const Json*> GetObject(std::string_view name) const;

 private:
  friend class JsonParser;

  Json(Kind kind, std::string text) : kind_(kind), text_(std::move(text)) {}
  Result<const Json*> Get(std::string_view name, Kind kind, const char* expected) const;
  void Write(std::string* out) const;

  Kind kind_ = Kind::kNull;
  std::string text_;                // the text of a number or boolean; the bytes of a string
  std::vector<std::string> names_;  // the names of an object's items
  std::vector<Json> items_;
};

}  // namespace multitier

#endif  // CC_BASE_JSON_H_
