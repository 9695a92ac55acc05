// Copies that are late: other streams overtake them, and what an update waits for is there all the same.

#include <algorithm>

#include "cc/hbm/test/device_caller.h"
#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier::hbm::late_copies_test {
namespace {

// A stream with memory for one batch. The host does not wait for the copies of the batch; the update that uses it does.
class Feeder {
 public:
  Feeder(std::shared_ptr<device::Device> device, int64_t n, int dim)
      : device_(std::move(device)), stream_(*device_->NewStream()), n_(n), floats_(static_cast<size_t>(n * dim)) {
    for (size_t bytes : {KeyBytes(), GradBytes()}) {
      pinned_.push_back(*device_->AllocatePinned(bytes));
      memory_.push_back(*device_->Allocate(bytes));
    }
  }
  ~Feeder() {
    EXPECT_TRUE(device_->Synchronize(stream_).ok());
    device_->Delete(stream_);
    for (void* memory : memory_) device_->Free(memory);
    for (void* memory : pinned_) device_->FreePinned(memory);
  }

  // REQUIRES: the update before was awaited.
  void Begin(const Training& training, HbmTable* table, Awaited* awaited) {
    MT_ASSERT_OK(device_->Synchronize(stream_));
    std::copy(training.keys.begin(), training.keys.end(), static_cast<int64_t*>(pinned_[0]));
    std::copy(training.grads.begin(), training.grads.end(), static_cast<float*>(pinned_[1]));
    MT_ASSERT_OK(device_->Copy(stream_, memory_[0], pinned_[0], KeyBytes()));
    MT_ASSERT_OK(device_->Copy(stream_, memory_[1], pinned_[1], GradBytes()));
    DeviceApply apply;
    apply.table = table;
    apply.keys = DeviceKeys{memory_[0], n_, false};
    apply.grads = static_cast<const float*>(memory_[1]);
    apply.request = RequestOf(training);
    ApplyOnDevice(std::vector<DeviceApply>{apply}, stream_, awaited->done());
  }

 private:
  size_t KeyBytes() const { return static_cast<size_t>(n_) * sizeof(int64_t); }
  size_t GradBytes() const { return floats_ * sizeof(float); }

  const std::shared_ptr<device::Device> device_;
  const device::Stream stream_;
  const int64_t n_;
  const size_t floats_;
  std::vector<void*> pinned_, memory_;
};

TEST(LateCopies, UpdatesFromSeveralStreamsWaitForTheirInputs) {
  constexpr int kDim = 3, kFeeders = 3, kKeys = 12;
  int64_t overtaken = 0;
  for (uint64_t seed = 1; seed <= (kSanitized ? 3 : 20); ++seed) {
    auto device = NewEmulatedDevice(seed, /*late_copies=*/2);
    TableOptions tiered = TieredOptions(kDim, 6, std::make_shared<MemoryTier>()), basic = BasicOptions(kDim);
    for (TableOptions* options : {&tiered, &basic}) options->initializer = InitializerSpec();  // sums are exact, in any order
    auto table = MakeHbmTable(tiered, 5, device);
    auto plain = MakeTable(basic);
    std::mt19937_64 random(seed);
    std::vector<std::unique_ptr<Feeder>> feeders;
    for (int i = 0; i < kFeeders; ++i) feeders.push_back(std::make_unique<Feeder>(device, kKeys, kDim));
    for (int step = 0; step < 5; ++step) {
      std::vector<Training> trainings;
      for (int i = 0; i < kFeeders; ++i) {
        std::vector<int64_t> keys(kKeys);
        for (int64_t& key : keys) key = static_cast<int64_t>(random() % 20);
        trainings.push_back(Sgd(keys, 0.5f * static_cast<float>(1 + random() % 4), kDim));
        MT_ASSERT_OK(trainings.back().Run(plain.get()));
      }
      std::vector<Awaited> awaited(kFeeders);
      for (size_t i = 0; i < kFeeders; ++i) feeders[i]->Begin(trainings[i], table.get(), &awaited[i]);
      for (Awaited& one : awaited) MT_EXPECT_OK(one.Wait());
    }
    ASSERT_TRUE(SameBits(LookupAll(table.get(), Range(0, 20)), LookupAll(plain.get(), Range(0, 20)))) << seed;
    overtaken += device->overtaken_copies();
  }
  EXPECT_GT(overtaken, 0);
}

}  // namespace
}  // namespace multitier::hbm::late_copies_test
