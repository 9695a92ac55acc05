// Scratch: device memory and pinned host memory of one operation, lent by a pool that keeps it for the next one. The tables of
// a device share one pool (DeviceQueue::PoolOf).
//
// Sizes are rounded up to powers of two, so that steady traffic allocates nothing: an allocation on a GPU may stop all its
// work. All borrowers use device memory on one stream, so it may be given back before the device is done with it: the next
// borrower's work comes later on the stream. Where more lies idle than twice what was ever lent at the same time, and 256
// MiB, the pool is emptied. Owns the pooled memory. The pool is thread-safe; a Scratch is one operation's.

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
  static constexpr size_t kIdle = size_t{256} << 20;

  ScratchPool(DeviceMemory memory, device::Stream stream, size_t idle = kIdle)
      : memory_(std::move(memory)), stream_(stream), may_lie_idle_(idle) {}

  Result<device::Buffer> Take(bool pinned, size_t bytes);
  void GiveBack(bool pinned, device::Buffer buffer);
  // A borrower has ended, which had taken so much.
  void NoteEnd(size_t taken);
  // Keeps memory that the device may still use, until the pool ends.
  void Bury(device::Buffer buffer);
  // Waits for the stream and gives back to the device what is not lent.
  void Empty();

 private:
  static constexpr int kSizes = 48;
  const DeviceMemory memory_;
  const device::Stream stream_;
  const size_t may_lie_idle_;
  Mutex mutex_;
  size_t idle_ MT_GUARDED_BY(mutex_) = 0, lent_ MT_GUARDED_BY(mutex_) = 0;  // bytes
  size_t most_lent_ MT_GUARDED_BY(mutex_) = 0;                              // since the pool was emptied
  std::vector<device::Buffer> free_[2][kSizes] MT_GUARDED_BY(mutex_);       // by kind and log2 of bytes
  std::vector<device::Buffer> buried_ MT_GUARDED_BY(mutex_);
};

class Scratch {
 public:
  // The pool lives as long: a group's scratch may outlive the table whose pool lends it.
  // table: whom errors name.
  Scratch(std::shared_ptr<ScratchPool> pool, std::string table) : pool_(std::move(pool)), table_(std::move(table)) {}
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
  // Whether status() is OK. If memory is missing, which the caller can do without, later calls may succeed again.
  bool GotAll();
  // Pinned memory that stays when the operation ends: the buffer that begins at `memory`.
  device::Buffer Keep(const void* memory);
  void Bury();
  // Never gives the memory back: in a forked child, to which it does not belong.
  void Abandon();

 private:
  void* Take(bool pinned, size_t bytes);

  const std::shared_ptr<ScratchPool> pool_;
  const std::string table_;
  size_t taken_ = 0;  // bytes
  Status status_;
  std::vector<device::Buffer> lent_[2];  // by kind: on the device, pinned
};

}  // namespace multitier::hbm

#endif  // CC_HBM_SCRATCH_H_
