// Binder: structs to JSON and back, by an array with one Field for each member.
//
//   const std::vector<Field<Options>> fields = {
//       {"initial_rows", MT_FIELD(Options, initial_rows), kInVariable, Range{0, kMostTierRows}, "rows for which ..."},
//
// What a member may be: the overloads of Value below. A new type is one more.

#ifndef CC_OPTIONS_BINDER_H_
#define CC_OPTIONS_BINDER_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/json.h"
#include "cc/base/status.h"
#include "cc/options/names.h"
#include "cc/options/options.h"

namespace multitier {

// Of a number. The default has no bounds.
struct Range {
  int64_t least = std::numeric_limits<int64_t>::min();
  int64_t most = std::numeric_limits<int64_t>::max();
  const char* unit = "";  // " bytes", " rows"; with bytes, text such as "4GB" is a number
  bool above = false;     // of reals: more than `least`
  bool below = false;     // of reals: less than `most`
  bool or_null = false;   // of float: null is the default
};

// A value on its way: how messages name it, and its range.
struct Of {
  std::string option;
  const Range& range;
};

// "option: expected X, found Y".
Status WrongValue(const Of& of, const std::string& expected, const Json& found);

template <typename T, typename Enable = void>
struct Value;  // Type, Read, Write

template <>
struct Value<bool> {
  static std::string Type() { return "boolean"; }
  static Status Read(const Json& json, const Of& of, bool* out);
  static Json Write(bool value) { return Json::Bool(value); }
};

// An integer that fits in the range, which its text has.
Status ReadInteger(const Json& json, const Of& of, int64_t* out);

template <>
struct Value<int64_t> {
  static std::string Type() { return "integer"; }
  static Status Read(const Json& json, const Of& of, int64_t* out) { return ReadInteger(json, of, out); }
  static Json Write(int64_t value) { return Json::Int(value); }
};

// Of narrower types, and uint64_t with a range of int64_t. REQUIRES: the range fits the type
template <typename T>
struct Value<T, std::enable_if_t<std::is_same_v<T, int> || std::is_same_v<T, uint32_t>>> {
  static std::string Type() { return "integer"; }
  static Status Read(const Json& json, const Of& of, T* out) {
    int64_t wide = 0;
    MT_RETURN_IF_ERROR(ReadInteger(json, of, &wide));
    *out = static_cast<T>(wide);
    return OkStatus();
  }
  static Json Write(T value) { return Json::Int(static_cast<int64_t>(value)); }
};

// With the default range: any of the type, for seeds.
template <>
struct Value<uint64_t> {
  static std::string Type() { return "integer"; }
  static Status Read(const Json& json, const Of& of, uint64_t* out);
  static Json Write(uint64_t value) { return Json::Uint(value); }
};

template <>
struct Value<double> {
  static std::string Type() { return "number"; }
  static Status Read(const Json& json, const Of& of, double* out);
  static Json Write(double value) { return Json::Double(value); }
};

template <>
struct Value<float> {
  static std::string Type() { return "number"; }
  static Status Read(const Json& json, const Of& of, float* out);
  static Json Write(float value) { return Json::Float(value); }
};

template <>
struct Value<std::string> {
  static std::string Type() { return "text"; }
  static Status Read(const Json& json, const Of& of, std::string* out);
  static Json Write(const std::string& value) { return Json::String(value); }
};

// A list, or one number.
template <>
struct Value<std::vector<int64_t>> {
  static std::string Type() { return "integers"; }
  static Status Read(const Json& json, const Of& of, std::vector<int64_t>* out);
  static Json Write(const std::vector<int64_t>& value);
};

template <typename E>
struct Value<E, std::enable_if_t<std::is_enum_v<E>>> {
  static std::string Type() { return "name"; }
  static Status Read(const Json& json, const Of& of, E* out) {
    return FromName(of.option, json.kind() == Json::Kind::kString ? json.text() : json.ToString(), out);
  }
  static Json Write(E value) { return Json::String(NameOf(value)); }
};

// A member of struct S.
template <typename S>
struct Field {
  const char* name;
  std::string (*type)();
  Status (*read)(const Json&, const Of&, S*);
  Json (*write)(const S&);
  Json (*describe)();  // the names of an enum, the fields of a struct; or null
  unsigned places;
  Range range;
  const char* text;
};

// The fields of a struct that is a value itself, and how messages name one of it.
template <typename S>
struct Record;  // Fields(), kWhat

template <typename S>
const Field<S>* FindField(const std::vector<Field<S>>& fields, const std::string& name) {
  for (const Field<S>& field : fields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

// Reads the members of an object into *out. prefix: of the names in messages. what: "an option of ..." in a message.
template <typename S>
Status ReadFields(const std::vector<Field<S>>& fields, const Json& json, unsigned places, const std::string& prefix,
                  const char* what, S* out) {
  std::vector<std::string> known;
  for (const Field<S>& field : fields) {
    if ((field.places & places) != 0) known.emplace_back(field.name);
  }
  for (size_t i = 0; i < json.names().size(); ++i) {
    const std::string& name = json.names()[i];
    const Field<S>* const field = FindField(fields, name);
    if (field == nullptr || (field->places & places) == 0) {
      return InvalidArgumentError(prefix, name, ": expected ", what, ", found none of that name", DidYouMean(known, name));
    }
    if (json.Find(name) != &json.items()[i]) return InvalidArgumentError(prefix, name, ": expected it once, found it twice");
    MT_RETURN_IF_ERROR(field->read(json.items()[i], Of{prefix + name, field->range}, out));
  }
  return OkStatus();
}

// The members that differ from those of S(). all: every one.
template <typename S>
Json WriteFields(const std::vector<Field<S>>& fields, const S& value, unsigned places, bool all) {
  const S defaults;
  Json out = Json::Object();
  for (const Field<S>& field : fields) {
    if ((field.places & places) == 0) continue;
    Json json = field.write(value);
    if (all || json.ToString() != field.write(defaults).ToString()) out.Set(field.name, std::move(json));
  }
  return out;
}

template <typename S>
Json DescribeFields(const std::vector<Field<S>>& fields) {
  const S defaults;
  Json out = Json::Array();
  for (const Field<S>& field : fields) {
    Json json = Json::Object();
    json.Set("name", Json::String(field.name));
    json.Set("type", Json::String(field.type()));
    json.Set("default", field.write(defaults));
    if (field.range.least != Range().least) json.Set("least", Json::Int(field.range.least));
    if (field.range.most != Range().most) json.Set("most", Json::Int(field.range.most));
    json.Set("unit", Json::String(field.range.unit));
    if (field.describe != nullptr) json.Set(field.type() == "name" ? "names" : "fields", field.describe());
    json.Set("in_table", Json::Bool((field.places & kInTable) != 0));
    json.Set("in_variable", Json::Bool((field.places & kInVariable) != 0));
    json.Set("text", Json::String(field.text));
    out.Append(std::move(json));
  }
  return out;
}

inline constexpr unsigned kEverywhere = kInTable | kInVariable;

template <typename S>
struct Value<S, std::void_t<decltype(Record<S>::kWhat)>> {
  static std::string Type() { return "struct"; }
  static Status Read(const Json& json, const Of& of, S* out) {
    *out = S();
    if (json.kind() == Json::Kind::kNumber || json.kind() == Json::Kind::kString) {
      return ReadFields(Record<S>::Fields(), Record<S>::Short(json), kEverywhere, of.option + ".", Record<S>::kWhat, out);
    }
    if (!json.is_object()) return WrongValue(of, Record<S>::kWhole, json);
    return ReadFields(Record<S>::Fields(), json, kEverywhere, of.option + ".", Record<S>::kWhat, out);
  }
  static Json Write(const S& value) { return WriteFields(Record<S>::Fields(), value, kEverywhere, false); }
};

template <typename T>
struct Value<std::optional<T>> {
  static std::string Type() { return Value<T>::Type(); }
  static Status Read(const Json& json, const Of& of, std::optional<T>* out) {
    if (json.kind() == Json::Kind::kNull) {
      out->reset();
      return OkStatus();
    }
    return Value<T>::Read(json, of, &out->emplace());
  }
  static Json Write(const std::optional<T>& value) { return value.has_value() ? Value<T>::Write(*value) : Json(); }
};

template <typename T>
struct Value<std::vector<T>, std::void_t<decltype(Record<T>::kWhat)>> {
  static std::string Type() { return "structs"; }
  static Status Read(const Json& json, const Of& of, std::vector<T>* out) {
    if (!json.is_array()) return WrongValue(of, "a list", json);
    out->clear();
    for (const Json& item : json.items()) {
      const Of element{StrCat(of.option, "[", out->size(), "]"), of.range};
      MT_RETURN_IF_ERROR(Value<T>::Read(item, element, &out->emplace_back()));
    }
    return OkStatus();
  }
  static Json Write(const std::vector<T>& value) {
    Json out = Json::Array();
    for (const T& one : value) out.Append(Value<T>::Write(one));
    return out;
  }
};

// What an option may be besides its range: for descriptions.
template <typename T, typename Enable = void>
struct Details {
  static constexpr Json (*kDescribe)() = nullptr;
};
template <typename E>
struct Details<E, std::enable_if_t<std::is_enum_v<E>>> {
  static Json Describe() {
    Json names = Json::Array();
    for (const Named<E>& one : NamesOf<E>()) names.Append(Json::String(one.name));
    return names;
  }
  static constexpr Json (*kDescribe)() = &Describe;
};
template <typename S>
struct Details<S, std::void_t<decltype(Record<S>::kWhat)>> {
  static Json Describe() { return DescribeFields(Record<S>::Fields()); }
  static constexpr Json (*kDescribe)() = &Describe;
};
template <typename T>
struct Details<std::optional<T>> : Details<T> {};
template <typename T>
struct Details<std::vector<T>, std::void_t<decltype(Record<T>::kWhat)>> : Details<T> {};

// Type, reading, writing and details of a member of S, which may be a member of a member.
#define MT_FIELD(S, member)                                                                          \
  &Value<std::decay_t<decltype(S().member)>>::Type,                                                  \
      [](const Json& json, const Of& of, S* out) {                                                   \
        return Value<std::decay_t<decltype(S().member)>>::Read(json, of, &out->member);              \
      },                                                                                             \
      [](const S& value) { return Value<std::decay_t<decltype(S().member)>>::Write(value.member); }, \
      Details<std::decay_t<decltype(S().member)>>::kDescribe

}  // namespace multitier

#endif  // CC_OPTIONS_BINDER_H_
