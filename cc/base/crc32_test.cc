#include "cc/base/crc32.h"

#include <gtest/gtest.h>

#include <string>

namespace multitier::crc32_test {
namespace {

using crc32_internal::ExtendFolding;
using crc32_internal::ExtendPortable;

TEST(Crc32Test, TheCheckValueOfThePolynomialIsReproduced) {
  const std::string digits = "123456789";
  EXPECT_EQ(ExtendCrc32(0, digits.data(), digits.size()), 0xcbf43926u);
  EXPECT_EQ(ExtendPortable(0, digits.data(), digits.size()), 0xcbf43926u);
}

TEST(Crc32Test, BothWaysAgreeAtEveryLengthAndInParts) {
  std::string bytes;
  for (int i = 0; i < 400; ++i) bytes.push_back(static_cast<char>(i * 131 + i / 7));
  for (size_t offset = 0; offset < 16; ++offset) {
    for (size_t length = 0; length + offset <= bytes.size(); ++length) {
      const char* const data = bytes.data() + offset;
      const uint32_t whole = ExtendPortable(7, data, length);
      ASSERT_EQ(ExtendFolding(7, data, length), whole) << offset << " " << length;
      const size_t half = length / 2;
      ASSERT_EQ(ExtendCrc32(ExtendCrc32(7, data, half), data + half, length - half), whole) << offset << " " << length;
    }
  }
}

}  // namespace
}  // namespace multitier::crc32_test
