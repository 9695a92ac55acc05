#include "cc/base/coding.h"

#include <gtest/gtest.h>

namespace multitier::coding_test {
namespace {

TEST(CodingTest, BytesAreLittleEndian) {
  std::string out;
  PutFixed32(&out, 0x01020304u);
  PutFixed64(&out, 0x05060708090a0b0cull);
  EXPECT_EQ(out, "\x04\x03\x02\x01\x0c\x0b\x0a\x09\x08\x07\x06\x05");
}

TEST(CodingTest, DecodeAtAnyAlignmentInvertsEncode) {
  uint8_t bytes[32];
  for (size_t offset = 0; offset < 8; ++offset) {
    for (int shift = 0; shift < 64; ++shift) {
      const uint64_t value = 0x8123456789abcdefull >> shift;
      EncodeFixed64(bytes + offset, value);
      EXPECT_EQ(DecodeFixed64(bytes + offset), value);
      EncodeFixed32(bytes + offset, static_cast<uint32_t>(value));
      EXPECT_EQ(DecodeFixed32(bytes + offset), static_cast<uint32_t>(value));
    }
  }
}

}  // namespace
}  // namespace multitier::coding_test
