#include "cc/base/philox.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace multitier::philox_test {
namespace {

void ExpectBlock(const PhiloxBlock& block, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  EXPECT_EQ(block.v[0], a);
  EXPECT_EQ(block.v[1], b);
  EXPECT_EQ(block.v[2], c);
  EXPECT_EQ(block.v[3], d);
}

// The vectors that the authors of the generator publish for philox4x32 with ten rounds.
TEST(PhiloxTest, PublishedVectorsAreReproduced) {
  ExpectBlock(Philox4x32(0, 0, 0, 0, 0, 0), 0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u);
  const uint32_t ones = 0xffffffffu;
  ExpectBlock(Philox4x32(ones, ones, ones, ones, ones, ones), 0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu);
  ExpectBlock(Philox4x32(0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u, 0xa4093822u, 0x299f31d0u), 0xd16cfe09u,
              0x94fdccebu, 0x5001e420u, 0x24126ea1u);
}

}  // namespace
}  // namespace multitier::philox_test
