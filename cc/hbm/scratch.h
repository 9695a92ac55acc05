// Scratch: device memory and pinned host memory of one operation, lent by a pool that keeps it for the next one.
//
// Sizes are rounded up to powers of two, so that steady traffic allocates nothing: an allocation on a GPU may stop all its
// work. All borrowers use device memory on one stream, so it may be given back before the device is done with it: the next
// borrower's work comes later on the stream. Owns the pooled memory. The pool is thread-safe; a Scratch is one operation's.

#ifndef CC_HBM_SCRATCH_H_
#define CC_HBM_SCRATCH_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/base/status.h"
#include "cc/device/device.h"
#include "cc/hbm/device_memory.h"

namespace multitier::hbm {

class ScratchPool {
 public:
  ScratchPool(DeviceMemory memory, device::Stream stream, std::string table)
      : memory_(std::move(memory)), stream_(stream), table_(std::move(table)) {}

  // ResourceExhausted names the table.
  Result<device::Buffer> Take(bool pinned, size_t bytes);
  void GiveBack(bool pinned, device::Buffer buffer);
  // Keeps memory that the device may still use, until the pool ends.
  void Bury(device::Buffer buffer);
  // Waits for the stream and gives back to the device what is not lent: buffers of more than `most` bytes.
  void Empty(size_t most = 0);

 private:
  static constexpr int kSizes = 48;
  const DeviceMemory memory_;
  const device::Stream stream_;
  const std::string table_;
  Mutex mutex_;
  std::vector<device::Buffer> free_[2][kSizes] MT_GUARDED_BY(mutex_);  // by kind and log2 of bytes
  std::vector<device::Buffer> buried_ MT_GUARDED_BY(mutex_);
};

class Scratch {
 public:
  // The pool lives as long: a group's scratch may outlive the table whose pool lends it.
  explicit Scratch(std::shared_ptr<ScratchPool> pool) : pool_(std::move(pool)) {}
  // REQUIRES: the device is done with the pinned memory, or Bury() was called
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Arbitrary contents. Null once an allocation failed: look at status() before use.
  template <typename T>
  T* OnDevice(size_t n) {
    return static_cast<T*>(Take(/*pinned=*/false, n * sizeof(T)));
  }
  template <typename T>
  T* Pinned(size_t n) {
    return static_cast<T*>(Take(/*pinned=*/true, n * sizeof(T)));
  }
  const Status& status() const { return status_; }  // the first failure
  // Pinned memory that stays when the operation ends: the buffer that begins at `memory`.
  device::Buffer Keep(const void* memory);
  void Bury();
  // Never gives the memory back: in a forked child, to which it does not belong.
  void Abandon();

 private:
  void* Take(bool pinned, size_t bytes);

  const std::shared_ptr<ScratchPool> pool_;
  Status status_;
  std::vector<device::Buffer> lent_[2];  // by kind: on the device, pinned
};

}  // namespace multitier::hbm

#endif  // CC_HBM_SCRATCH_H_
