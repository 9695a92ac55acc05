#include "cc/row/value_column.h"

#include <limits>

#include "cc/base/multiversion.h"
#include "cc/row/value_codec.h"

namespace multitier {
namespace {

template <typename Half>
MT_ALWAYS_INLINE void Read(const Half* __restrict__ from, size_t n, float* __restrict__ to) {
  for (size_t i = 0; i < n; ++i) to[i] = LoadValue(from[i]);
}

template <typename Half>
MT_ALWAYS_INLINE void Write(const float* __restrict__ from, size_t n, Half* __restrict__ to) {
  for (size_t i = 0; i < n; ++i) StoreValue(from[i], &to[i]);
}

template <typename Half>
MT_ALWAYS_INLINE void Round(float* values, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    Half half;
    StoreValue(values[i], &half);
    values[i] = LoadValue(half);
  }
}

MT_MULTIVERSION void ReadBFloat16(const BFloat16* from, size_t n, float* to) { Read(from, n, to); }
MT_MULTIVERSION void ReadFloat16(const Float16* from, size_t n, float* to) { Read(from, n, to); }
MT_MULTIVERSION void WriteBFloat16(const float* from, size_t n, BFloat16* to) { Write(from, n, to); }
MT_MULTIVERSION void WriteFloat16(const float* from, size_t n, Float16* to) { Write(from, n, to); }

}  // namespace

namespace value_column_internal {

void ReadHalves(DType dtype, const uint8_t* from, size_t n, float* to) {
  if (dtype == DType::kBFloat16) return ReadBFloat16(reinterpret_cast<const BFloat16*>(from), n, to);
  ReadFloat16(reinterpret_cast<const Float16*>(from), n, to);
}

void WriteHalves(DType dtype, const float* from, size_t n, uint8_t* to) {
  if (dtype == DType::kBFloat16) return WriteBFloat16(from, n, reinterpret_cast<BFloat16*>(to));
  WriteFloat16(from, n, reinterpret_cast<Float16*>(to));
}

}  // namespace value_column_internal

void RoundValues(DType dtype, float* values, size_t n) {
  if (dtype == DType::kBFloat16) Round<BFloat16>(values, n);
  if (dtype == DType::kFloat16) Round<Float16>(values, n);
}

float LargestOf(DType dtype) {
  if (dtype == DType::kFloat16) return 65504.0f;
  return dtype == DType::kBFloat16 ? BitsFloat(0x7f7f0000u) : std::numeric_limits<float>::max();
}

}  // namespace multitier
