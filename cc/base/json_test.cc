#include "cc/base/json.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

namespace multitier::json_test {
namespace {

TEST(JsonTest, ValuesSurviveTheRoundTripExactly) {
  Json object = Json::Object();
  object.Set("min", Json::Int(std::numeric_limits<int64_t>::min()));
  object.Set("seed", Json::Uint(std::numeric_limits<uint64_t>::max()));
  object.Set("float", Json::Float(0.1f));
  object.Set("tiny", Json::Float(std::numeric_limits<float>::denorm_min()));
  object.Set("text", Json::String("a \"quoted\" \\ line\nand \xc3\xa9"));
  Json array = Json::Array();
  array.Append(Json::Bool(true));
  array.Append(Json());
  object.Set("array", array);

  const Result<Json> parsed = Json::Parse(object.ToString());
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->ToString(), object.ToString());
  EXPECT_EQ(*parsed->GetInt("min"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(*parsed->GetUint("seed"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(*parsed->GetFloat("float"), 0.1f);
  EXPECT_EQ(*parsed->GetFloat("tiny"), std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(*parsed->GetString("text"), "a \"quoted\" \\ line\nand \xc3\xa9");
  EXPECT_EQ((*parsed->GetArray("array"))->items().size(), 2u);
}

TEST(JsonTest, MembersOfAnotherTypeAreNamed) {
  const Json object = *Json::Parse(R"({"a": "x", "b": 1.5, "c": -1, "d": 99999999999999999999})");
  EXPECT_EQ(object.GetInt("a").status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(object.GetInt("a").status().message().find("'a'"), std::string::npos);
  EXPECT_FALSE(object.GetInt("b").ok());
  EXPECT_FALSE(object.GetUint("c").ok());
  EXPECT_FALSE(object.GetInt("d").ok());
  EXPECT_FALSE(object.GetString("b").ok());
  EXPECT_FALSE(object.GetArray("none").ok());
}

TEST(JsonTest, WhatIsNotJsonIsRefused) {
  for (const char* text :
       {"", "{", "[1, 2", "{\"a\"}", "{\"a\": }", "tru", "1 2", "\"open", "[1,]", "{1: 2}", "-", "\"\\u00e9\""}) {
    EXPECT_EQ(Json::Parse(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
  EXPECT_FALSE(Json::Parse(std::string(1000, '[')).ok());
}

TEST(JsonTest, EmptyContainersAndSpaceAreRead) {
  const Result<Json> parsed = Json::Parse(" { \"a\" : [ ] , \"b\" : { } }\n");
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE((*parsed->GetArray("a"))->items().empty());
  EXPECT_TRUE((*parsed->GetObject("b"))->is_object());
}

}  // namespace
}  // namespace multitier::json_test
