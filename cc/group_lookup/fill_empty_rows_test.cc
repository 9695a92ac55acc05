#include "cc/group_lookup/fill_empty_rows.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace multitier::fill_empty_rows_test {
namespace {

using Numbers = std::vector<int64_t>;

TEST(FillEmptyRowsTest, EachRowHasItsEntriesOrOneOfItsOwn) {
  const Numbers indices = {0, 0, 2};
  const Result<int64_t> size = FilledSize(indices, 4);
  ASSERT_TRUE(size.ok());
  ASSERT_EQ(*size, 5);
  Numbers rows(5, -1), entries(5, -1);
  FillEmptyRows(indices, 4, rows.data(), entries.data());
  EXPECT_EQ(rows, (Numbers{0, 0, 1, 2, 3}));
  EXPECT_EQ(entries, (Numbers{0, 1, 3, 2, 3}));
}

TEST(FillEmptyRowsTest, ABatchWithoutEntriesHasOneARow) {
  const Result<int64_t> size = FilledSize(Numbers(), 2);
  ASSERT_TRUE(size.ok());
  ASSERT_EQ(*size, 2);
  Numbers rows(2, -1), entries(2, -1);
  FillEmptyRows(Numbers(), 2, rows.data(), entries.data());
  EXPECT_EQ(rows, (Numbers{0, 1}));
  EXPECT_EQ(entries, (Numbers{0, 0}));
  EXPECT_EQ(*FilledSize(Numbers(), 0), 0);
}

TEST(FillEmptyRowsTest, BadRowsAreRefusedAndNamed) {
  const auto refused = [](const Numbers& indices, int64_t batch, const std::string& message) {
    const Result<int64_t> size = FilledSize(indices, batch);
    ASSERT_FALSE(size.ok());
    EXPECT_NE(size.status().message().find(message), std::string::npos) << size.status().message();
  };
  refused({1, 0}, 2, "expected rows in nondecreasing order, found indices[1] = 0 after 1");
  refused({2}, 2, "expected rows in [0, 2), found indices[0] = 2");
  refused({-1}, 2, "expected rows in [0, 2), found indices[0] = -1");
  refused({}, -1, "batch: expected at least 0, found -1");
  const int64_t most = std::numeric_limits<int64_t>::max();
  refused({0, 0}, most, "expected at most 9223372036854775806 rows, found 9223372036854775807");
  EXPECT_EQ(*FilledSize(Numbers(), most), most);
}

}  // namespace
}  // namespace multitier::fill_empty_rows_test
