// Bytes are the coefficients of a polynomial over two elements, the first bit that of the highest power, and the checksum is
// its remainder modulo kPolynomial. Folding replaces 16 bytes A, which stand d bits before others, by bytes that are congruent
// to A * x^d and of the others' place: each half of A times a constant, by a multiplication without carries. 64 bytes advance
// at once, in four lanes. The lanes become one, and the last 16 bytes go through the table.

#include "cc/base/crc32.h"

#include "cc/base/multiversion.h"

#if MT_HAS_ISA_VERSIONS
#include <immintrin.h>
#endif

namespace multitier {
namespace {

constexpr uint32_t kPolynomial = 0xedb88320u;  // 0x04c11db7, bit-reflected

constexpr uint32_t TimesX(uint32_t v) { return (v >> 1) ^ ((v & 1) != 0 ? kPolynomial : 0); }

struct Table {
  uint32_t of[256];
};

constexpr Table MakeTable() {
  Table t{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    t.of[byte] = byte;
    for (int bit = 0; bit < 8; ++bit) t.of[byte] = TimesX(t.of[byte]);
  }
  return t;
}

constexpr Table kTable = MakeTable();

uint32_t Advance(uint32_t state, const uint8_t* p, size_t bytes) {
  for (; bytes > 0; --bytes, ++p) state = (state >> 8) ^ kTable.of[(state ^ *p) & 0xff];
  return state;
}

#if MT_HAS_ISA_VERSIONS
constexpr size_t kBlock = sizeof(__m128i), kLanes = 4, kStep = kLanes * kBlock;

// x^power modulo the polynomial, bit-reflected; the product of two reflected polynomials is one bit short, which the shift
// adds.
constexpr int64_t Power(int power) {
  uint32_t v = 0x80000000u;
  for (int i = 0; i < power; ++i) v = TimesX(v);
  return static_cast<int64_t>(v) << 1;
}

#define MT_TARGET_FOLDING __attribute__((target("pclmul,sse4.1")))

// `block`, moved by as many bits as `by` says, plus `next`.
MT_TARGET_FOLDING MT_ALWAYS_INLINE __m128i Fold(__m128i block, __m128i by, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(block, by, 0x00), high = _mm_clmulepi64_si128(block, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

MT_TARGET_FOLDING MT_ALWAYS_INLINE __m128i Load(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

// REQUIRES: bytes >= kStep
MT_TARGET_FOLDING uint32_t AdvanceFolding(uint32_t state, const uint8_t* p, size_t bytes) {
  constexpr int kStepBits = 8 * kStep, kBlockBits = 8 * kBlock;
  const __m128i by_step = _mm_set_epi64x(Power(kStepBits - 32), Power(kStepBits + 32));
  const __m128i by_block = _mm_set_epi64x(Power(kBlockBits - 32), Power(kBlockBits + 32));
  __m128i lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = Load(p + i * kBlock);
  lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(static_cast<int>(state)));
  for (p += kStep, bytes -= kStep; bytes >= kStep; p += kStep, bytes -= kStep) {
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = Fold(lanes[i], by_step, Load(p + i * kBlock));
  }
  __m128i one = lanes[0];
  for (size_t i = 1; i < kLanes; ++i) one = Fold(one, by_block, lanes[i]);
  uint8_t last[kBlock];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(last), one);
  return Advance(Advance(0, last, kBlock), p, bytes);
}
#endif

}  // namespace

namespace crc32_internal {

uint32_t ExtendPortable(uint32_t crc, const void* data, size_t bytes) {
  return ~Advance(~crc, static_cast<const uint8_t*>(data), bytes);
}

uint32_t ExtendFolding(uint32_t crc, const void* data, size_t bytes) {
#if MT_HAS_ISA_VERSIONS
  static const bool has_instruction = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  if (has_instruction && bytes >= kStep) return ~AdvanceFolding(~crc, static_cast<const uint8_t*>(data), bytes);
#endif
  return ExtendPortable(crc, data, bytes);
}

}  // namespace crc32_internal

uint32_t ExtendCrc32(uint32_t crc, const void* data, size_t bytes) { return crc32_internal::ExtendFolding(crc, data, bytes); }

}  // namespace multitier
