// DeviceQueue: the order in which one device works on all tables in its memory.
//
//   caller's stream   ---- inputs ready --.                       .-- outputs ready -->
//                                Follow    \                     /  Precede
//   the queue's stream  -------------------- find, gather, ... ---------------------->
//
// All tables of a device share one queue, so their operations run one after the other on the device. The numbers of operations
// are shared too: a row that was used later has a higher one, whatever its table is.
//
// Owns the stream. Thread-safe. Work of one part of an operation is enqueued while `enqueue()` is held.

#ifndef CC_HBM_DEVICE_QUEUE_H_
#define CC_HBM_DEVICE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/base/status.h"
#include "cc/device/device.h"
#include "cc/hbm/device_memory.h"
#include "cc/hbm/scratch.h"

namespace multitier::hbm {

class DeviceQueue {
 public:
  // The queue of the device: the one that exists, or a new one.
  static Result<std::shared_ptr<DeviceQueue>> Of(const std::shared_ptr<device::Device>& device);
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  device::Stream stream() const { return stream_; }
  Mutex& enqueue() MT_RETURN_CAPABILITY(enqueue_) { return enqueue_; }

  // What is enqueued on the queue from now on runs after what is on the other stream.
  Status Follow(device::Stream other);
  // What is enqueued on the other stream from now on runs after what is on the queue. If the device cannot order them,
  // waits for the queue: an error means that the device has failed.
  Status Precede(device::Stream other);

  // The pool of the tables whose memory comes from this source; null: the device.
  std::shared_ptr<ScratchPool> PoolOf(const std::shared_ptr<const MemorySource>& source);
  DeviceMemory MemoryOf(const std::shared_ptr<const MemorySource>& source) {
    return DeviceMemory(device_, source, [this](device::Stream stream) { return Follow(stream); });
  }

  // Waits for the stream, and settles what was to be settled before.
  Status Synchronize();
  // Calls `settle` once the device has done what is enqueued by now: when a thread has waited for the stream, or with an error
  // when it has tried in vain in Settle. It takes no lock but innermost ones.
  void SettleLater(std::function<void(const Status& done)> settle);
  void Settle();

  // Pinned memory that is given back once copied: the next one gets it when the device has read it.
  struct Staged {
    device::Buffer pinned;
    device::Event copied;  // out of it
  };
  // At least `bytes`. Not under a lock: it may allocate.
  Result<Staged> TakeStaged(size_t bytes);
  Status CopyUp(void* to, const Staged& staged, size_t bytes);
  void GiveBack(Staged staged);
  // Copies host memory, which may be reused at once, to the device. Not under a lock.
  Status CopyUp(void* to, const void* from, size_t bytes);

  uint64_t NextOperation() MT_REQUIRES(enqueue_) { return ++last_operation_; }
  // For tests: operation numbers wrap at 2^32. The next operation gets a number above this one.
  void SkipTo(uint64_t operation);

 private:
  explicit DeviceQueue(std::shared_ptr<device::Device> device) : device_(std::move(device)) {}

  const std::shared_ptr<device::Device> device_;
  device::Stream stream_;
  Mutex enqueue_;
  uint64_t last_operation_ MT_GUARDED_BY(enqueue_) = 0;
  Mutex events_mutex_;  // Record and Wait of one event are a pair
  device::Event followed_ MT_GUARDED_BY(events_mutex_);
  device::Event preceded_ MT_GUARDED_BY(events_mutex_);
  Mutex pools_mutex_;
  std::map<const MemorySource*, std::weak_ptr<ScratchPool>> pools_ MT_GUARDED_BY(pools_mutex_);
  void RunSettles(uint64_t last, const Status& done);

  Mutex settles_mutex_;
  std::map<uint64_t, std::function<void(const Status&)>> settles_ MT_GUARDED_BY(settles_mutex_);  // in their order
  uint64_t last_settle_ MT_GUARDED_BY(settles_mutex_) = 0;
  Mutex staged_mutex_;
  std::vector<Staged> staged_ MT_GUARDED_BY(staged_mutex_);  // as many as copies were under way at the same time
};

}  // namespace multitier::hbm

#endif  // CC_HBM_DEVICE_QUEUE_H_
