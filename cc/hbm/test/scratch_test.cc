// The pool of scratch memory: what it lends again, and what it gives back to the device.

#include "cc/hbm/scratch.h"

#include <thread>

#include "cc/hbm/test/device_caller.h"
#include "cc/hbm/test/hbm_test_util.h"

namespace multitier::hbm::scratch_test {
namespace {

TEST(ScratchPool, TablesOfADeviceShareIt) {
  const auto device = NewEmulatedDevice();
  const auto lent = std::make_shared<std::atomic<int64_t>>(0);
  const auto source = CountingSource(device, lent);
  const auto options = [] { return TieredOptions(4, 8, std::make_shared<MemoryTier>()); };
  const auto first = MakeHbmTable(options(), 64, device, 0, source), second = MakeHbmTable(options(), 64, device, 0, source);
  MT_ASSERT_OK(Train(Sgd({1, 2, 3}, 1.0f, 4), first.get()));
  const int64_t before = *lent;
  MT_ASSERT_OK(Train(Sgd({1, 2, 3}, 1.0f, 4), second.get()));
  EXPECT_EQ(*lent, before);
}

// Looks whether memory is asked for under the lock of the queue: the pool may wait for the device, and other threads for the
// lock.
class LockWatchingDevice : public device::EmulatedDevice {
 public:
  LockWatchingDevice() : EmulatedDevice(Options(), &device::EmulatedKernels()) {}

  Result<void*> Allocate(size_t bytes) override {
    Look();
    return EmulatedDevice::Allocate(bytes);
  }
  Result<void*> AllocatePinned(size_t bytes) override {
    Look();
    return EmulatedDevice::AllocatePinned(bytes);
  }
  void Watch(DeviceQueue* queue) { queue_ = queue; }
  int looks() const { return looks_; }
  int held() const { return held_; }

 private:
  void Look() {
    if (queue_ == nullptr) return;
    ++looks_;
    std::thread([this]() MT_NO_THREAD_SAFETY_ANALYSIS {
      if (queue_->enqueue().try_lock()) return queue_->enqueue().unlock();
      ++held_;
    }).join();
  }

  DeviceQueue* queue_ = nullptr;
  int looks_ = 0, held_ = 0;
};

TEST(ScratchPool, IsNotAskedUnderTheLockOfTheQueue) {
  const auto device = std::make_shared<LockWatchingDevice>();
  DeviceCaller caller(device);
  std::vector<std::unique_ptr<HbmTable>> tables;
  for (int t = 0; t < 2; ++t) tables.push_back(MakeHbmTable(BasicOptions(4), 64, device));
  device->Watch(tables[0]->queue());
  for (const size_t members : {1u, 2u}) {  // each batch larger than those before: the pool has no memory
    const std::vector<int64_t> keys = Range(0, members == 1 ? 300 : 1000);
    std::vector<DeviceMember> group;
    for (size_t t = 0; t < members; ++t) {
      DeviceMember member = caller.Plain(tables[t].get(), keys);
      member.form = EntryForm::kRows;
      member.indices = caller.memory()->Up(keys);
      member.max_norm = 1.0f;
      group.push_back(member);
    }
    const int before = device->looks();
    DevicePlan plan;
    MT_ASSERT_OK(caller.Lookup(group, &plan));
    MT_ASSERT_OK(Train(Sgd(keys, 1.0f, 4), tables[0].get()));
    EXPECT_GT(device->looks() - before, 10);
  }
  EXPECT_EQ(device->held(), 0);
}

TEST(ScratchPool, IsEmptiedWhenTooMuchLiesIdle) {
  const auto device = NewEmulatedDevice();
  const device::Stream stream = *device->NewStream();
  constexpr size_t kMost = 1024;
  {
    const auto pool = std::make_shared<ScratchPool>(DeviceMemory(device), stream, kMost);
    const auto take = [&](size_t bytes) { ASSERT_NE(Scratch(pool, "t").OnDevice<char>(bytes), nullptr); };
    for (const size_t bytes : {size_t{256}, size_t{512}, size_t{1024}}) take(bytes);
    EXPECT_EQ(device->used_bytes(), 1792u);
    take(1024);
    EXPECT_EQ(device->used_bytes(), 1792u);
    const auto take_two = [&](size_t bytes) {
      Scratch scratch(pool, "t");
      (void)scratch.OnDevice<char>(bytes);
      (void)scratch.OnDevice<char>(bytes);
    };
    take_two(256);
    take_two(512);
    EXPECT_EQ(device->used_bytes(), 2560u);  // 2 x 1,024 + 1,024 may lie idle
    take_two(1024);
    take_two(256);
    EXPECT_EQ(device->used_bytes(), 3584u);  // 2 x 2,048 + 1,024
    take(2048);
    EXPECT_EQ(device->used_bytes(), 3584u + 2048u);
    take(256);
    EXPECT_EQ(device->used_bytes(), 256u);
    MT_EXPECT_OK(device->Synchronize(stream));  // before the memory goes: the pool has filled it
  }
  EXPECT_EQ(device->used_bytes(), 0u);
  device->Delete(stream);
}

}  // namespace
}  // namespace multitier::hbm::scratch_test
