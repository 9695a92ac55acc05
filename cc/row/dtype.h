// DType: the type of the elements of a column. For CPU and GPU.

#ifndef CC_ROW_DTYPE_H_
#define CC_ROW_DTYPE_H_

#include <cstdint>

namespace multitier {

enum class DType : uint8_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

}  // namespace multitier

#endif  // CC_ROW_DTYPE_H_
