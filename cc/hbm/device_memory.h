// DeviceMemory: where the memory of a table in HBM comes from. The device itself, or a MemorySource of the caller, such as
// TensorFlow's allocator, which takes nearly all memory of a GPU when it starts.

#ifndef CC_HBM_DEVICE_MEMORY_H_
#define CC_HBM_DEVICE_MEMORY_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "cc/base/status.h"
#include "cc/device/device.h"

namespace multitier::hbm {

// Of the caller; both functions are called from any thread.
struct MemorySource {
  // Device memory, aligned to 256 bytes. ResourceExhausted if there is none, with what was asked and what is free.
  std::function<Result<void*>(size_t bytes)> allocate;
  // The device is done with the memory.
  std::function<void(void* memory)> free;
  // Earlier users of the memory may still use it in work on this stream; the table's own work waits for that. Null: none do.
  device::Stream stream;
};

class DeviceMemory {
 public:
  DeviceMemory(std::shared_ptr<device::Device> device)  // NOLINT: a conversion
      : device_(std::move(device)) {}
  // follow: called after each allocation; what is enqueued later may use the memory.
  DeviceMemory(std::shared_ptr<device::Device> device, std::shared_ptr<const MemorySource> source,
               std::function<Status(device::Stream)> follow)
      : device_(std::move(device)), source_(std::move(source)), follow_(std::move(follow)) {}

  const std::shared_ptr<device::Device>& device() const { return device_; }

  Result<device::Buffer> OnDevice(size_t bytes) const {
    if (source_ == nullptr || bytes == 0) return device::Buffer::OnDevice(device_, bytes);
    MT_ASSIGN_OR_RETURN(void* const memory, source_->allocate(bytes));
    device::Buffer buffer = device::Buffer::Of(memory, bytes, [source = source_](void* freed) { source->free(freed); });
    if (source_->stream.native != nullptr) MT_RETURN_IF_ERROR(follow_(source_->stream));
    return buffer;
  }
  Result<device::Buffer> Pinned(size_t bytes) const { return device::Buffer::Pinned(device_, bytes); }

 private:
  std::shared_ptr<device::Device> device_;
  std::shared_ptr<const MemorySource> source_;
  std::function<Status(device::Stream)> follow_;
};

}  // namespace multitier::hbm

#endif  // CC_HBM_DEVICE_MEMORY_H_
