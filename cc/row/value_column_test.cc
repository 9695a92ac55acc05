#include "cc/row/value_column.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace multitier::value_column_test {
namespace {

// Numbers of every dtype, more than a vector of them, and not a multiple of one.
TEST(ValueColumnTest, WhatWasReadIsWhatWasWritten) {
  std::vector<float> values;
  for (int i = -40; i < 37; ++i) values.push_back(static_cast<float>(i) * 0.25f);
  values.push_back(INFINITY);
  values.push_back(-0.0f);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    std::vector<uint16_t> column(2 * values.size() + 1, 0xabcd);
    auto* const bytes = reinterpret_cast<uint8_t*>(column.data());
    WriteColumn(dtype, values.data(), values.size(), bytes);
    std::vector<float> read(values.size());
    ReadColumn(dtype, bytes, values.size(), read.data());
    EXPECT_EQ(read, values) << DTypeName(dtype);
    EXPECT_EQ(column[values.size() * DTypeSize(dtype) / 2], 0xabcd) << "nothing is written behind the column";
  }
}

TEST(ValueColumnTest, RoundsAsAColumnDoes) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    std::vector<float> values;
    for (int i = 0; i < 100; ++i)
      values.push_back(std::sin(static_cast<float>(i)) * std::pow(10.0f, static_cast<float>(i % 13) - 8));
    std::vector<uint16_t> column(2 * values.size());
    auto* const bytes = reinterpret_cast<uint8_t*>(column.data());
    WriteColumn(dtype, values.data(), values.size(), bytes);
    std::vector<float> read(values.size());
    ReadColumn(dtype, bytes, values.size(), read.data());
    RoundValues(dtype, values.data(), values.size());
    EXPECT_EQ(read, values) << DTypeName(dtype);
    float largest = LargestOf(dtype);
    RoundValues(dtype, &largest, 1);
    EXPECT_EQ(largest, LargestOf(dtype));
    EXPECT_TRUE(std::isfinite(largest));
  }
}

TEST(ValueColumnTest, DTypesHaveNames) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    EXPECT_EQ(*ParseDType(DTypeName(dtype)), dtype);
  EXPECT_EQ(ParseDType("int8").status().message(), "dtype: expected float32, bfloat16 or float16, found 'int8'");
}

}  // namespace
}  // namespace multitier::value_column_test
