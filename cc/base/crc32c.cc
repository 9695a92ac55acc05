// The portable way is "slicing by 8": table k holds the remainder of each byte followed by k zero bytes, so eight
// look-ups advance the checksum by eight bytes at once. The tables (8 KiB) are computed at compile time.

#include "cc/base/crc32c.h"

#include "cc/base/coding.h"
#include "cc/base/multiversion.h"

#if MT_HAS_ISA_VERSIONS
#include <nmmintrin.h>
#endif

namespace multitier {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;  // 0x1edc6f41, bit-reflected

struct Tables {
  uint32_t of[8][256];
};

constexpr Tables MakeTables() {
  Tables t{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    t.of[0][byte] = crc;
  }
  for (int k = 1; k < 8; ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t shorter = t.of[k - 1][byte];
      t.of[k][byte] = (shorter >> 8) ^ t.of[0][shorter & 0xff];
    }
  }
  return t;
}

constexpr Tables kTables = MakeTables();

#if MT_HAS_ISA_VERSIONS
__attribute__((target("sse4.2"))) uint32_t ExtendSse42(uint32_t crc, const uint8_t* p, size_t bytes) {
  uint64_t state = ~crc;
  for (; bytes >= 8; bytes -= 8, p += 8) state = _mm_crc32_u64(state, DecodeFixed64(p));
  uint32_t low = static_cast<uint32_t>(state);
  for (; bytes > 0; --bytes, ++p) low = _mm_crc32_u8(low, *p);
  return ~low;
}
#endif

}  // namespace

namespace crc32c_internal {

uint32_t ExtendPortable(uint32_t crc, const void* data, size_t bytes) {
  const uint8_t* p = static_cast<const uint8_t*>(data);
  uint32_t state = ~crc;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    const uint32_t low = DecodeFixed32(p) ^ state;
    const uint32_t high = DecodeFixed32(p + 4);
    state = kTables.of[7][low & 0xff] ^ kTables.of[6][(low >> 8) & 0xff] ^ kTables.of[5][(low >> 16) & 0xff] ^
            kTables.of[4][low >> 24] ^ kTables.of[3][high & 0xff] ^ kTables.of[2][(high >> 8) & 0xff] ^
            kTables.of[1][(high >> 16) & 0xff] ^ kTables.of[0][high >> 24];
  }
  for (; bytes > 0; --bytes, ++p) state = (state >> 8) ^ kTables.of[0][(state ^ *p) & 0xff];
  return ~state;
}

uint32_t ExtendHardware(uint32_t crc, const void* data, size_t bytes) {
#if MT_HAS_ISA_VERSIONS
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ExtendSse42(crc, static_cast<const uint8_t*>(data), bytes);
#endif
  return ExtendPortable(crc, data, bytes);
}

}  // namespace crc32c_internal

uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t bytes) {
  return crc32c_internal::ExtendHardware(crc, data, bytes);
}

}  // namespace multitier
