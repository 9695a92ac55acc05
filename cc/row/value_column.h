// Reads and writes the elements of a column as float32, whatever its dtype. Reading is exact. Writing rounds to the nearest,
// ties to even. Loops are compiled for each ISA (cc/base/multiversion.h).

#ifndef CC_ROW_VALUE_COLUMN_H_
#define CC_ROW_VALUE_COLUMN_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cc/row/row_layout.h"

namespace multitier {

namespace value_column_internal {
// REQUIRES: dtype has 16 bits
void ReadHalves(DType dtype, const uint8_t* from, size_t n, float* to);
void WriteHalves(DType dtype, const float* from, size_t n, uint8_t* to);
}  // namespace value_column_internal

// n elements from a column to floats, and back. The column is aligned to 2 bytes, and to 4 if it is float32.
inline void ReadColumn(DType dtype, const uint8_t* from, size_t n, float* to) {
  if (dtype != DType::kFloat32) return value_column_internal::ReadHalves(dtype, from, n, to);
  std::memcpy(to, from, n * sizeof(float));
}
inline void WriteColumn(DType dtype, const float* from, size_t n, uint8_t* to) {
  if (dtype != DType::kFloat32) return value_column_internal::WriteHalves(dtype, from, n, to);
  std::memcpy(to, from, n * sizeof(float));
}

// Each value as the dtype would store it.
void RoundValues(DType dtype, float* values, size_t n);

// The largest finite value.
float LargestOf(DType dtype);

}  // namespace multitier

#endif  // CC_ROW_VALUE_COLUMN_H_
