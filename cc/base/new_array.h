// NewArray: an array whose want of memory is an answer.

#ifndef CC_BASE_NEW_ARRAY_H_
#define CC_BASE_NEW_ARRAY_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <type_traits>

namespace multitier {

struct FreeArray {
  void operator()(void* array) const { std::free(array); }
};

template <typename T>
using ArrayPtr = std::unique_ptr<T[], FreeArray>;

// n elements with undefined values; null where there is no memory. n may be 0.
template <typename T>
ArrayPtr<T> NewArray(size_t n) {
  static_assert(std::is_trivial_v<T> && alignof(T) <= alignof(std::max_align_t), "malloc makes it");
  if (n > PTRDIFF_MAX / sizeof(T)) return nullptr;
  return ArrayPtr<T>(static_cast<T*>(std::malloc(n == 0 ? 1 : n * sizeof(T))));
}

}  // namespace multitier

#endif  // CC_BASE_NEW_ARRAY_H_
