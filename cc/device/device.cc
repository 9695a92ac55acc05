#include "cc/device/device.h"

namespace multitier::device {

Result<Buffer> Buffer::OnDevice(std::shared_ptr<Device> device, size_t bytes) {
  Buffer buffer;
  MT_ASSIGN_OR_RETURN(buffer.memory_, device->Allocate(bytes));
  buffer.device_ = std::move(device);
  buffer.bytes_ = bytes;
  return buffer;
}

Result<Buffer> Buffer::Pinned(std::shared_ptr<Device> device, size_t bytes) {
  Buffer buffer;
  MT_ASSIGN_OR_RETURN(buffer.memory_, device->AllocatePinned(bytes));
  buffer.device_ = std::move(device);
  buffer.bytes_ = bytes;
  buffer.pinned_ = true;
  return buffer;
}

Buffer Buffer::Of(void* memory, size_t bytes, std::function<void(void*)> free) {
  Buffer buffer;
  buffer.memory_ = memory;
  buffer.bytes_ = bytes;
  buffer.free_ = std::move(free);
  return buffer;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  std::swap(pinned_, other.pinned_);
  std::swap(free_, other.free_);
  return *this;
}

Buffer::~Buffer() {
  if (memory_ == nullptr) return;
  if (free_ != nullptr) {
    free_(memory_);
  } else if (pinned_) {
    device_->FreePinned(memory_);
  } else {
    device_->Free(memory_);
  }
}

}  // namespace multitier::device
