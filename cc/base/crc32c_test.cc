#include "cc/base/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace multitier::crc32c_test {
namespace {

using crc32c_internal::ExtendHardware;
using crc32c_internal::ExtendPortable;

// RFC 3720, B.4, and the check value of the polynomial.
TEST(Crc32cTest, PublishedVectorsAreReproducedBothWays) {
  std::string up;
  for (int i = 0; i < 32; ++i) up.push_back(static_cast<char>(i));
  const std::string down(up.rbegin(), up.rend());
  const struct {
    std::string bytes;
    uint32_t crc;
  } vectors[] = {{"", 0},
                 {"123456789", 0xe3069283u},
                 {std::string(32, '\0'), 0x8a9136aau},
                 {std::string(32, '\xff'), 0x62a8ab43u},
                 {up, 0x46dd794eu},
                 {down, 0x113fdb5cu}};
  for (const auto& v : vectors) {
    EXPECT_EQ(Crc32c(v.bytes.data(), v.bytes.size()), v.crc);
    EXPECT_EQ(ExtendPortable(0, v.bytes.data(), v.bytes.size()), v.crc);
    EXPECT_EQ(ExtendHardware(0, v.bytes.data(), v.bytes.size()), v.crc);
  }
}

TEST(Crc32cTest, BothWaysAgreeAtEveryLengthAndAlignment) {
  std::string bytes;
  for (int i = 0; i < 300; ++i) bytes.push_back(static_cast<char>(i * 131 + i / 7));
  for (size_t offset = 0; offset < 16; ++offset) {
    for (size_t length = 0; length + offset <= 100; ++length) {
      const char* data = bytes.data() + offset;
      ASSERT_EQ(ExtendPortable(7, data, length), ExtendHardware(7, data, length)) << offset << " " << length;
    }
  }
}

TEST(Crc32cTest, ExtendingByPartsEqualsTheWhole) {
  const std::string bytes = "a record of a key, its slots and its version";
  const uint32_t whole = Crc32c(bytes.data(), bytes.size());
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const uint32_t first = Crc32c(bytes.data(), cut);
    EXPECT_EQ(ExtendCrc32c(first, bytes.data() + cut, bytes.size() - cut), whole);
  }
}

TEST(Crc32cTest, EverySingleFlippedBitChangesIt) {
  std::string bytes(64, 'x');
  const uint32_t whole = Crc32c(bytes.data(), bytes.size());
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(Crc32c(bytes.data(), bytes.size()), whole) << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  }
}

}  // namespace
}  // namespace multitier::crc32c_test
