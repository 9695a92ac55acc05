// Device: an accelerator whose memory (HBM) holds tables. Two implementations: CUDA, and an emulator that runs the same kernels
// on a CPU.
//
//   host       Copy, Fill, kernels().xxx        only enqueue: they return before the work is done
//   stream     runs the enqueued work in order
//   event      Record(stream, e): happens when the work before it is done;  Wait(stream, e): the stream continues after it
//   host       after Happened(e) or Synchronize(stream), the host may read the memory that the work wrote
//
// Only Synchronize blocks. The default stream is not used.
// The caller frees memory only after the work that uses it is done. The device does not track allocations: Buffer owns memory.
// Errors: ResourceExhausted if memory runs out (with the sizes requested and free), Internal for a failed launch or copy.
// Thread-safe. If two threads enqueue work on one stream, they must order it themselves.

#ifndef CC_DEVICE_DEVICE_H_
#define CC_DEVICE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "cc/base/status.h"
#include "cc/device/stream.h"

namespace multitier::device {

struct DeviceKernels;  // kernels/kernels.h: one launch function for each kernel

class Device {
 public:
  virtual ~Device() = default;

  virtual const char* name() const = 0;  // "NVIDIA H100 80GB HBM3", "emulated"
  virtual const DeviceKernels& kernels() const = 0;

  // Device memory, aligned to 256 bytes, with arbitrary contents. bytes = 0 gives null.
  virtual Result<void*> Allocate(size_t bytes) = 0;
  virtual void Free(void* memory) = 0;
  // Host memory that copies read and write in place.
  virtual Result<void*> AllocatePinned(size_t bytes) = 0;
  virtual void FreePinned(void* memory) = 0;

  virtual Result<Stream> NewStream() = 0;
  // REQUIRES: the stream's work is done.
  virtual void Delete(Stream stream) = 0;
  // A stream that another owner created and deletes, such as TensorFlow.
  virtual Stream Wrap(void* native) = 0;

  // Host to device, device to host, or device to device. Host memory is pinned.
  virtual Status Copy(Stream stream, void* to, const void* from, size_t bytes) = 0;
  virtual Status Fill(Stream stream, void* memory, int byte, size_t bytes) = 0;

  // Sorts numbers by bits [32, 32 + bits); equal ones stay in order. from, to: [n]. scratch: SortScratchBytes(n) of device
  // memory.
  virtual size_t SortScratchBytes(uint32_t n) = 0;
  virtual Status SortByUpper(Stream stream, const uint64_t* from, uint64_t* to, uint32_t n, int bits, void* scratch) = 0;

  virtual Result<Event> NewEvent() = 0;
  // An event that Seconds can be asked of.
  virtual Result<Event> NewTimedEvent() = 0;
  // Between two timed events that have happened.
  virtual Result<double> Seconds(Event from, Event to) = 0;
  // REQUIRES: it has happened, or was never recorded.
  virtual void Delete(Event event) = 0;
  virtual Status Record(Stream stream, Event event) = 0;
  virtual Status Wait(Stream stream, Event event) = 0;
  // Whether the last Record is done; true for an event that was never recorded.
  virtual Result<bool> Happened(Event event) = 0;
  // Waits for the work that the stream has by now. The thread sleeps.
  virtual Status Synchronize(Stream stream) = 0;
};

// Owns device memory or pinned host memory.
class Buffer {
 public:
  static Result<Buffer> OnDevice(std::shared_ptr<Device> device, size_t bytes);
  static Result<Buffer> Pinned(std::shared_ptr<Device> device, size_t bytes);
  // Memory of another owner. free: gives it back.
  static Buffer Of(void* memory, size_t bytes, std::function<void(void*)> free);
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Device> device_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
  bool pinned_ = false;
  std::function<void(void*)> free_;  // of another owner's memory
};

}  // namespace multitier::device

#endif  // CC_DEVICE_DEVICE_H_
