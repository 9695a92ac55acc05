// EngineCaller: a caller of device_operations.h, with a stream and memory of its own. Its calls return once `done` was called.

#ifndef CC_HBM_CHECK_ENGINE_CALLER_H_
#define CC_HBM_CHECK_ENGINE_CALLER_H_

#include <condition_variable>
#include <memory>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/device/kernels/test_memory.h"
#include "cc/hbm/device_operations.h"
#include "cc/hbm/hbm_table.h"

namespace multitier::hbm {

class EngineCaller {
 public:
  static Result<std::unique_ptr<EngineCaller>> Create(std::shared_ptr<device::Device> device) {
    MT_ASSIGN_OR_RETURN(const device::Stream stream, device->NewStream());
    return std::unique_ptr<EngineCaller>(new EngineCaller(std::move(device), stream));
  }
  ~EngineCaller() {
    ForgetMemory();
    device_->Delete(stream_);
  }

  device::TestMemory* memory() { return memory_.get(); }
  device::Stream stream() const { return stream_; }
  // Ends the memory that was taken so far.
  void ForgetMemory() {
    (void)device_->Synchronize(stream_);
    memory_ = std::make_unique<device::TestMemory>(device_, stream_);
  }

  // A plain member.
  DeviceMember Member(EmbeddingTable* table, const std::vector<int64_t>& keys) {
    DeviceMember member;
    member.table = HbmTableOf(table);
    member.name = "member";
    member.keys = DeviceKeys{memory_->Up(keys), static_cast<int64_t>(keys.size()), false};
    member.batch = member.keys.n;
    member.out = memory_->New<float>(keys.size() * static_cast<size_t>(table->dim()));
    return member;
  }
  Status Lookup(const std::vector<DeviceMember>& members, DevicePlan* plan) {
    return Awaited([&](Done done) { LookupOnDevice(members, plan, stream_, std::move(done)); });
  }
  Status Update(const DevicePlan& plan, const std::vector<DeviceUpdate>& updates) {
    return Awaited([&](Done done) { UpdateOnDevice(plan, updates, stream_, std::move(done)); });
  }
  Status Apply(const std::vector<DeviceApply>& applies) {
    return Awaited([&](Done done) { ApplyOnDevice(applies, stream_, std::move(done)); });
  }

 private:
  EngineCaller(std::shared_ptr<device::Device> device, device::Stream stream) : device_(std::move(device)), stream_(stream) {
    memory_ = std::make_unique<device::TestMemory>(device_, stream_);
  }

  struct Answer {
    Mutex mutex;
    std::condition_variable changed;
    bool called MT_GUARDED_BY(mutex) = false;
    Status status MT_GUARDED_BY(mutex);
  };
  template <typename Call>
  Status Awaited(Call call) {
    const auto answer = std::make_shared<Answer>();
    call([answer](Status status) {
      MutexLock lock(answer->mutex);
      answer->called = true;
      answer->status = std::move(status);
      answer->changed.notify_all();
    });
    MutexLock lock(answer->mutex);
    lock.Wait(answer->changed, [&]() MT_REQUIRES(answer->mutex) { return answer->called; });
    return answer->status;
  }

  const std::shared_ptr<device::Device> device_;
  const device::Stream stream_;
  std::unique_ptr<device::TestMemory> memory_;
};

}  // namespace multitier::hbm

#endif  // CC_HBM_CHECK_ENGINE_CALLER_H_
