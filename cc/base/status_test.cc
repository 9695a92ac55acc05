#include "cc/base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cc/base/span.h"

namespace multitier::status_test {
namespace {

TEST(StatusTest, DefaultIsOkAndErrorsPrintTheirCodeAndMessage) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status().ToString(), "Ok");
  const Status status = InvalidArgumentError("dim of '", std::string("t"), "' is ", 3, ", expected ", 4u);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.ToString(), "InvalidArgument: dim of 't' is 3, expected 4");
  EXPECT_EQ(status, InvalidArgumentError("dim of 't' is 3, expected 4"));
  EXPECT_FALSE(status == NotFoundError(status.message()));
}

TEST(StatusTest, EveryCodeHasItsOwnName) {
  std::vector<std::string> names;
  for (int code = 0; code <= 15; ++code) {
    const std::string name = StatusCodeName(static_cast<StatusCode>(code));
    for (const std::string& other : names) EXPECT_NE(name, other);
    names.push_back(name);
  }
  EXPECT_EQ(names.front(), "Ok");
  EXPECT_EQ(names.back(), "DataLoss");
  EXPECT_STREQ(StatusCodeName(static_cast<StatusCode>(99)), "Unknown");
}

TEST(StrCatTest, JoinsStringsCharactersAndNumbers) {
  EXPECT_EQ(StrCat("a", 'b', std::string("c"), -1, " ", uint64_t{18446744073709551615u}, " ", 0.5f, true),
            "abc-1 18446744073709551615 0.5true");
  EXPECT_EQ(StrCat(), "");
}

Result<int> Half(int n) {
  if (n % 2 != 0) return InvalidArgumentError("odd: ", n);
  return n / 2;
}

Result<int> Quarter(int n) {
  MT_ASSIGN_OR_RETURN(const int half, Half(n));
  MT_RETURN_IF_ERROR(Half(half).status());
  return half / 2;
}

TEST(ResultTest, HoldsAValueOrTheStatusOfTheCallThatFailed) {
  ASSERT_TRUE(Quarter(8).ok());
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(7).status(), InvalidArgumentError("odd: 7"));
  EXPECT_EQ(Quarter(6).status(), InvalidArgumentError("odd: 3"));
}

TEST(ResultTest, MovesAValueThatCannotBeCopied) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(5);
  const std::unique_ptr<int> value = *std::move(result);
  EXPECT_EQ(*value, 5);
}

TEST(StatusDeathTest, BrokenInvariantNamesTheCondition) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(MT_CHECK(1 + 1 == 3), "broken invariant: 1 \\+ 1 == 3");
}

TEST(SpanTest, ViewsVectorsAndItsOwnParts) {
  std::vector<int> v = {1, 2, 3, 4};
  const Span<int> all(v);
  all[0] = 10;
  EXPECT_EQ(v[0], 10);
  const Span<const int> middle = all.subspan(1, 2);
  EXPECT_EQ(std::vector<int>(middle.begin(), middle.end()), (std::vector<int>{2, 3}));
  EXPECT_TRUE(Span<int>().empty());
}

}  // namespace
}  // namespace multitier::status_test
