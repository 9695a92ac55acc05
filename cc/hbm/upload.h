// Upload: the small arrays of an operation, which go to the device in one copy.
//
// The memory is taken first, so that arrays can have pointers to one another: `room` bytes, the sum of Room<T>(n) of all.
// Thread-compatible.

#ifndef CC_HBM_UPLOAD_H_
#define CC_HBM_UPLOAD_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cc/base/status.h"
#include "cc/hbm/device_queue.h"
#include "cc/hbm/scratch.h"

namespace multitier::hbm {

class Upload {
 public:
  template <typename T>
  static constexpr size_t Room(size_t n) {
    return (n * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }

  // Look at the scratch's status() before use.
  Upload(Scratch* scratch, size_t room) : to_(scratch->OnDevice<uint8_t>(room)), bytes_(room, 0) {}
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  // Where the array will be on the device.
  template <typename T>
  T* Add(const T* from, size_t n) {
    const size_t begin = used_;
    used_ += Room<T>(n);
    if (used_ > bytes_.size()) return nullptr;  // Send says so
    if (n > 0) std::memcpy(bytes_.data() + begin, from, n * sizeof(T));
    return reinterpret_cast<T*>(to_ + begin);
  }
  template <typename T>
  T* Add(const std::vector<T>& from) {
    return Add(from.data(), from.size());
  }

  // Enqueues the copy.
  Status Send(DeviceQueue* queue) const {
    if (used_ <= bytes_.size()) return queue->CopyUp(to_, bytes_.data(), used_);
    return InternalError("an upload to the device: expected at most ", bytes_.size(), " bytes, found ", used_);
  }

 private:
  static constexpr size_t kAlignment = 16;

  uint8_t* const to_;
  std::vector<uint8_t> bytes_;
  size_t used_ = 0;
};

}  // namespace multitier::hbm

#endif  // CC_HBM_UPLOAD_H_
