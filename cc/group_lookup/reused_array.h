// An array that keeps its memory between uses. So steady traffic neither allocates memory nor causes page faults.

#ifndef CC_GROUP_LOOKUP_REUSED_ARRAY_H_
#define CC_GROUP_LOOKUP_REUSED_ARRAY_H_

#include <cstddef>

#include "cc/base/new_array.h"

namespace multitier {

template <typename T>
class ReusedArray {
 public:
  // Makes room for n elements, with undefined values. False if there is no memory; then the array is empty.
  bool Reset(size_t n) {
    if (data_ != nullptr && n <= capacity_) return true;
    data_.reset();
    capacity_ = 0;
    const size_t room = n + n / 8;  // the next batch may be a little larger
    data_ = NewArray<T>(room);
    if (data_ != nullptr) capacity_ = room;
    return data_ != nullptr;
  }
  void Free() {
    data_.reset();
    capacity_ = 0;
  }
  T* get() const { return data_.get(); }
  size_t capacity() const { return capacity_; }

 private:
  ArrayPtr<T> data_;
  size_t capacity_ = 0;
};

}  // namespace multitier

#endif  // CC_GROUP_LOOKUP_REUSED_ARRAY_H_
