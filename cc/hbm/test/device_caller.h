// DeviceCaller: a caller of device_operations.h in tests. It has a stream and device memory of its own, waits for `done`, and
// then reads what was written through its own stream, as a framework does.

#ifndef CC_HBM_TEST_DEVICE_CALLER_H_
#define CC_HBM_TEST_DEVICE_CALLER_H_

#include <condition_variable>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/device/kernels/test_memory.h"
#include "cc/hbm/device_operations.h"
#include "cc/hbm/test/hbm_test_util.h"

namespace multitier::hbm {

// A Done that a test waits for.
class Awaited {
 public:
  Done done() {
    return [this](Status status) {
      MutexLock lock(mutex_);
      EXPECT_FALSE(called_) << "done was called twice";
      called_ = true;
      status_ = std::move(status);
      changed_.notify_all();
    };
  }
  bool called() const {
    MutexLock lock(mutex_);
    return called_;
  }
  Status Wait() {
    MutexLock lock(mutex_);
    lock.Wait(changed_, [this]() MT_REQUIRES(mutex_) { return called_; });
    return status_;
  }

 private:
  mutable Mutex mutex_;
  std::condition_variable changed_;
  bool called_ MT_GUARDED_BY(mutex_) = false;
  Status status_ MT_GUARDED_BY(mutex_);
};

class DeviceCaller {
 public:
  explicit DeviceCaller(std::shared_ptr<device::Device> device)
      : device_(std::move(device)), stream_(*device_->NewStream()), memory_(device_, stream_) {}
  ~DeviceCaller() {
    EXPECT_TRUE(device_->Synchronize(stream_).ok());
    device_->Delete(stream_);
  }

  device::Stream stream() const { return device_->Wrap(stream_.native); }
  device::TestMemory* memory() { return &memory_; }

  DeviceKeys Keys(const std::vector<int64_t>& keys, bool is_int32 = false) {
    const auto n = static_cast<int64_t>(keys.size());
    if (!is_int32) return DeviceKeys{memory_.Up(keys), n, false};
    return DeviceKeys{memory_.Up(std::vector<int32_t>(keys.begin(), keys.end())), n, true};
  }

  // A plain lookup.
  DeviceMember Plain(HbmTable* table, const std::vector<int64_t>& keys, bool is_int32 = false) {
    DeviceMember member;
    member.table = table;
    member.name = "member";
    member.keys = Keys(keys, is_int32);
    member.batch = member.keys.n;
    member.out = memory_.Filled<float>(keys.size() * static_cast<size_t>(table->dim()), 0x7f);
    return member;
  }
  Status Lookup(const std::vector<DeviceMember>& members, DevicePlan* plan = nullptr) {
    Awaited awaited;
    LookupOnDevice(members, plan, stream(), awaited.done());
    return awaited.Wait();
  }
  std::vector<float> Values(const DeviceMember& member) {
    const int64_t rows = member.batch * std::max<int64_t>(member.steps, 1);
    const int64_t stride = member.stride != 0 ? member.stride : member.table->dim();
    return memory_.Down(member.out, static_cast<size_t>(rows * stride));
  }
  std::vector<float> LookupAll(HbmTable* table, const std::vector<int64_t>& keys, DevicePlan* plan = nullptr) {
    const DeviceMember member = Plain(table, keys);
    MT_EXPECT_OK(Lookup({member}, plan));
    return Values(member);
  }

  // The training without a plan.
  Status Apply(const Training& training, HbmTable* table, bool is_int32 = false, std::vector<uint16_t> tables = {}) {
    MT_RETURN_IF_ERROR(table->AddSlots(SlotColumns(*training.rule, table->dim())));
    DeviceApply apply;
    apply.table = table;
    apply.keys = Keys(training.keys, is_int32);
    apply.tables = std::move(tables);
    apply.grads = memory_.Up(training.grads);
    if (!training.counts.empty()) apply.counts = memory_.Up(training.counts);
    apply.request = RequestOf(training);
    Awaited awaited;
    ApplyOnDevice(std::vector<DeviceApply>{apply}, stream(), awaited.done());
    return awaited.Wait();
  }
  // The update of member `member` of a plan, whose keys are those of the training. *waited: `done` had not been called when the
  // call returned.
  DeviceUpdate UpdateOf(const Training& training, int member) {
    DeviceUpdate update;
    update.member = member;
    update.grad = memory_.Up(training.grads);
    update.request = RequestOf(training);
    return update;
  }
  Status Update(const DevicePlan& plan, const std::vector<DeviceUpdate>& updates, bool* at_once = nullptr) {
    Awaited awaited;
    UpdateOnDevice(plan, updates, stream(), awaited.done());
    if (at_once != nullptr) *at_once = awaited.called();
    return awaited.Wait();
  }

 private:
  const std::shared_ptr<device::Device> device_;
  const device::Stream stream_;
  device::TestMemory memory_;
};

}  // namespace multitier::hbm

#endif  // CC_HBM_TEST_DEVICE_CALLER_H_
