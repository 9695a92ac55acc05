// Upload: the small arrays of an operation, which go to the device in one copy.
//
// The memory is taken first, so that arrays can have pointers to one another: `room` bytes, the sum of Room<T>(n) of all. That
// of the host is pinned, and may have to be allocated: so not under the lock of the queue.
// Thread-compatible.

#ifndef CC_HBM_UPLOAD_H_
#define CC_HBM_UPLOAD_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
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

  // Look at status() before use.
  Upload(DeviceQueue* queue, Scratch* scratch, size_t room)
      : queue_(queue), to_(scratch->OnDevice<uint8_t>(room)), room_(room), status_(scratch->status()) {
    if (!status_.ok()) return;
    auto staged = queue->TakeStaged(room);
    status_ = staged.status();
    if (staged.ok()) staged_ = *std::move(staged);
  }
  ~Upload() {
    if (status_.ok()) queue_->GiveBack(std::move(staged_));
  }
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  // Of the scratch memory, too.
  const Status& status() const { return status_; }

  // Where the array will be on the device. REQUIRES: status() is OK
  template <typename T>
  T* Add(const T* from, size_t n) {
    const size_t begin = used_;
    used_ += Room<T>(n);
    if (used_ > room_) return nullptr;  // Send says so
    if (n > 0) std::memcpy(staged_.pinned.as<uint8_t>() + begin, from, n * sizeof(T));
    return reinterpret_cast<T*>(to_ + begin);
  }
  template <typename T>
  T* Add(const std::vector<T>& from) {
    return Add(from.data(), from.size());
  }

  // Enqueues the copy.
  Status Send() const {
    if (used_ <= room_) return queue_->CopyUp(to_, staged_, used_);
    return InternalError("an upload to the device: expected at most ", room_, " bytes, found ", used_);
  }

 private:
  static constexpr size_t kAlignment = 16;

  DeviceQueue* const queue_;
  uint8_t* const to_;
  const size_t room_;
  Status status_;
  DeviceQueue::Staged staged_;
  size_t used_ = 0;
};

}  // namespace multitier::hbm

#endif  // CC_HBM_UPLOAD_H_
