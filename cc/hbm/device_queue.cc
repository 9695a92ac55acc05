#include "cc/hbm/device_queue.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "cc/base/thread.h"

namespace multitier::hbm {

namespace {

// The queues of this process.
struct Queues {
  Mutex mutex;
  std::map<device::Device*, std::weak_ptr<DeviceQueue>> of MT_GUARDED_BY(mutex);
};

}  // namespace

Result<std::shared_ptr<DeviceQueue>> DeviceQueue::Of(const std::shared_ptr<device::Device>& device) {
  auto* const queues = OfThisProcess<Queues>();
  MutexLock lock(queues->mutex);
  for (auto at = queues->of.begin(); at != queues->of.end();) at = at->second.expired() ? queues->of.erase(at) : std::next(at);
  if (const auto found = queues->of.find(device.get()); found != queues->of.end()) {
    if (std::shared_ptr<DeviceQueue> queue = found->second.lock()) return queue;
  }
  std::shared_ptr<DeviceQueue> queue(new DeviceQueue(device));
  MT_ASSIGN_OR_RETURN(queue->stream_, device->NewStream());
  {
    MutexLock events(queue->events_mutex_);
    MT_ASSIGN_OR_RETURN(queue->followed_, device->NewEvent());
    MT_ASSIGN_OR_RETURN(queue->preceded_, device->NewEvent());
  }
  queues->of[device.get()] = queue;
  return queue;
}

// REQUIRES: the work of the callers' streams that the queue follows is done
DeviceQueue::~DeviceQueue() {
  if (stream_.native == nullptr) return;
  for (int i = 0; i < 3; ++i) {
    if (device_->Synchronize(stream_).ok()) break;
  }
  MutexLock events(events_mutex_);
  for (const device::Event event : {followed_, preceded_}) {
    if (event.native != nullptr) device_->Delete(event);
  }
  MutexLock staged(staged_mutex_);
  for (const Staged& one : staged_) device_->Delete(one.copied);
  device_->Delete(stream_);
}

std::shared_ptr<ScratchPool> DeviceQueue::PoolOf(const std::shared_ptr<const MemorySource>& source) {
  MutexLock lock(pools_mutex_);
  std::weak_ptr<ScratchPool>& shared = pools_[source.get()];
  std::shared_ptr<ScratchPool> pool = shared.lock();
  if (pool == nullptr) shared = pool = std::make_shared<ScratchPool>(MemoryOf(source), stream_);
  return pool;
}

Status DeviceQueue::Follow(device::Stream other) {
  MutexLock events(events_mutex_);
  MT_RETURN_IF_ERROR(device_->Record(other, followed_));
  return device_->Wait(stream_, followed_);
}

Status DeviceQueue::Precede(device::Stream other) {
  {
    MutexLock events(events_mutex_);
    Status status = device_->Record(stream_, preceded_);
    if (status.ok()) status = device_->Wait(other, preceded_);
    if (status.ok()) return status;
  }
  return device_->Synchronize(stream_);
}

Status DeviceQueue::Synchronize() {
  uint64_t last;
  {
    MutexLock lock(settles_mutex_);
    last = last_settle_;
  }
  MT_RETURN_IF_ERROR(device_->Synchronize(stream_));
  RunSettles(last, OkStatus());
  return OkStatus();
}

void DeviceQueue::SettleLater(std::function<void(const Status&)> settle) {
  MutexLock lock(settles_mutex_);
  settles_.emplace(++last_settle_, std::move(settle));
}

void DeviceQueue::Settle() {
  uint64_t last;
  {
    MutexLock lock(settles_mutex_);
    if (settles_.empty()) return;
    last = last_settle_;
  }
  Status done;
  for (int i = 0; i < 3; ++i) {
    done = Synchronize();
    if (done.ok()) return;
  }
  RunSettles(last, done);
}

void DeviceQueue::RunSettles(uint64_t last, const Status& done) {
  std::vector<std::function<void(const Status&)>> settles;
  {
    MutexLock lock(settles_mutex_);
    while (!settles_.empty() && settles_.begin()->first <= last) {
      settles.push_back(std::move(settles_.begin()->second));
      settles_.erase(settles_.begin());
    }
  }
  for (const auto& settle : settles) settle(done);
}

Result<DeviceQueue::Staged> DeviceQueue::TakeStaged(size_t bytes) {
  constexpr size_t kLeast = 4096;
  {
    MutexLock lock(staged_mutex_);
    for (auto at = staged_.begin(); at != staged_.end(); ++at) {
      if (at->pinned.bytes() < bytes) continue;
      MT_ASSIGN_OR_RETURN(const bool copied, device_->Happened(at->copied));
      if (!copied) continue;
      Staged staged = std::move(*at);
      staged_.erase(at);
      return staged;
    }
  }
  size_t size = kLeast;
  while (size < bytes) size *= 2;
  Staged staged;
  MT_ASSIGN_OR_RETURN(staged.pinned, device::Buffer::Pinned(device_, size));
  MT_ASSIGN_OR_RETURN(staged.copied, device_->NewEvent());
  return staged;
}

Status DeviceQueue::CopyUp(void* to, const Staged& staged, size_t bytes) {
  MT_RETURN_IF_ERROR(device_->Copy(stream_, to, staged.pinned.as<void>(), bytes));
  const Status recorded = device_->Record(stream_, staged.copied);
  // Without the event there is no way to ask whether the copy is done: wait for it.
  return recorded.ok() ? recorded : device_->Synchronize(stream_);
}

void DeviceQueue::GiveBack(Staged staged) {
  MutexLock lock(staged_mutex_);
  staged_.push_back(std::move(staged));
}

Status DeviceQueue::CopyUp(void* to, const void* from, size_t bytes) {
  MT_ASSIGN_OR_RETURN(Staged staged, TakeStaged(bytes));
  std::memcpy(staged.pinned.as<void>(), from, bytes);
  const Status copied = CopyUp(to, staged, bytes);
  GiveBack(std::move(staged));
  return copied;
}

void DeviceQueue::SkipTo(uint64_t operation) {
  MutexLock lock(enqueue_);
  last_operation_ = std::max(last_operation_, operation);
}

}  // namespace multitier::hbm
