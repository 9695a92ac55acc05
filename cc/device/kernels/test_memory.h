// Device memory of a test of kernels.

#ifndef CC_DEVICE_KERNELS_TEST_MEMORY_H_
#define CC_DEVICE_KERNELS_TEST_MEMORY_H_

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "cc/device/device.h"

namespace multitier::device {

// Device memory of a test: every array is an allocation of its own, so that AddressSanitizer sees its ends.
class TestMemory {
 public:
  TestMemory(std::shared_ptr<Device> device, Stream stream) : device_(std::move(device)), stream_(stream) {}

  // With arbitrary contents.
  template <typename T>
  T* New(size_t n) {
    buffers_.push_back(*Buffer::OnDevice(device_, n * sizeof(T)));
    return buffers_.back().as<T>();
  }
  template <typename T>
  T* Filled(size_t n, int byte) {
    T* memory = New<T>(n);
    MT_CHECK(device_->Fill(stream_, memory, byte, n * sizeof(T)).ok());
    return memory;
  }
  template <typename T>
  T* Up(const std::vector<T>& values) {
    T* memory = New<T>(values.size());
    pinned_.push_back(*Buffer::Pinned(device_, values.size() * sizeof(T)));
    std::copy(values.begin(), values.end(), pinned_.back().as<T>());
    MT_CHECK(device_->Copy(stream_, memory, pinned_.back().as<T>(), values.size() * sizeof(T)).ok());
    return memory;
  }
  template <typename T>
  std::vector<T> Down(const T* memory, size_t n) {
    if (down_.bytes() < n * sizeof(T)) down_ = *Buffer::Pinned(device_, 2 * n * sizeof(T));
    MT_CHECK(device_->Copy(stream_, down_.as<T>(), memory, n * sizeof(T)).ok() && device_->Synchronize(stream_).ok());
    return std::vector<T>(down_.as<T>(), down_.as<T>() + n);
  }

 private:
  std::shared_ptr<Device> device_;
  Stream stream_;
  std::vector<Buffer> buffers_, pinned_;
  Buffer down_;
};

}  // namespace multitier::device

#endif  // CC_DEVICE_KERNELS_TEST_MEMORY_H_
