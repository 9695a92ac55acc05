#include "cc/base/hash.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>

namespace multitier::hash_test {
namespace {

// The hash decides which partition of a checkpoint holds a key: these values never change.
TEST(HashTest, ValuesOfFixedKeysAreThoseOfTheFirstRelease) {
  EXPECT_EQ(HashKey(0), 0x9ca066f1a4ab2eeaull);
  EXPECT_EQ(HashKey(1), 0xe5fdc025e13eeed5ull);
  EXPECT_EQ(HashKey(-1), 0x25b775faeca8f520ull);
  EXPECT_EQ(HashKey(std::numeric_limits<int64_t>::min()), 0x11c0b7745eb88d61ull);
  EXPECT_EQ(HashKey(std::numeric_limits<int64_t>::max()), 0xc08bd8386a9ce924ull);
}

TEST(HashTest, ConsecutiveKeysSpreadEvenlyOverBuckets) {
  constexpr int kBuckets = 1024;
  constexpr int kKeys = 1024 * 100;
  for (const int shift : {0, 20, 54}) {
    int counts[kBuckets] = {};
    for (int64_t key = -kKeys / 2; key < kKeys / 2; ++key) ++counts[(HashKey(key) >> shift) % kBuckets];
    double chi_square = 0;
    for (const int count : counts) chi_square += (count - 100.0) * (count - 100.0) / 100.0;
    EXPECT_NEAR(chi_square, kBuckets - 1, 5 * std::sqrt(2.0 * (kBuckets - 1))) << "bits from " << shift;
  }
}

TEST(HashTest, EveryInputBitFlipsHalfOfTheOutputBits) {
  for (int bit = 0; bit < 64; ++bit) {
    int flipped = 0;
    for (uint64_t x = 0; x < 1000; ++x) flipped += __builtin_popcountll(Mix64(x * 7919) ^ Mix64((x * 7919) ^ (1ull << bit)));
    EXPECT_NEAR(flipped / 1000.0, 32, 1.5) << "bit " << bit;
  }
}

TEST(HashTest, KeysDoNotCollide) {
  std::set<uint64_t> seen;
  for (int64_t key = -50000; key < 50000; ++key) EXPECT_TRUE(seen.insert(HashKey(key)).second) << key;
}

}  // namespace
}  // namespace multitier::hash_test
