// What the tests of tables in HBM share: devices, tables in HBM with a plain table to compare with, and training.

#ifndef CC_HBM_TEST_HBM_TEST_UTIL_H_
#define CC_HBM_TEST_HBM_TEST_UTIL_H_

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/device/emulated_device.h"
#include "cc/hbm/device_rule.h"
#include "cc/hbm/hbm_table.h"
#include "cc/hbm/operation.h"
#include "cc/table/test/table_test_util.h"

namespace multitier::hbm {

// Under a sanitizer a device is ten times as slow, and tests do less.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// The step of a sweep over all calls that fail: 1 with TF_MULTITIER_STRESS.
inline int64_t Stride(int64_t usual, int64_t sanitized) {
  return std::getenv("TF_MULTITIER_STRESS") != nullptr ? 1 : kSanitized ? sanitized : usual;
}

inline std::shared_ptr<device::EmulatedDevice> NewEmulatedDevice(uint64_t seed = 1, int late_copies = 0) {
  device::EmulatedDevice::Options options;
  options.simt.seed = seed;
  options.late_copies = late_copies;
  return std::make_shared<device::EmulatedDevice>(options, &device::EmulatedKernels());
}

// An emulated device on which other threads than the one that calls Hold() wait in vain for a stream, until Let().
class HeldDevice : public device::EmulatedDevice {
 public:
  HeldDevice() : EmulatedDevice(Options(), &device::EmulatedKernels()) {}

  void Hold(device::Stream stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    held_ = stream.native;
    holder_ = std::this_thread::get_id();
  }
  void Let() {
    const std::lock_guard<std::mutex> lock(mutex_);
    held_ = nullptr;
    changed_.notify_all();
  }
  Status Synchronize(device::Stream stream) override {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      ++waiting_;
      changed_.wait(lock, [&] { return held_ != stream.native || holder_ == std::this_thread::get_id(); });
      --waiting_;
    }
    return EmulatedDevice::Synchronize(stream);
  }
  // Threads that wait in vain.
  int waiting() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return waiting_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  void* held_ = nullptr;
  int waiting_ = 0;
  std::thread::id holder_;
};

// An emulated device that counts the bytes that it copies up from the host and down to it.
class CopyCountingDevice : public device::EmulatedDevice {
 public:
  CopyCountingDevice() : EmulatedDevice(Options(), &device::EmulatedKernels()) {}

  Result<void*> AllocatePinned(size_t bytes) override {
    auto memory = EmulatedDevice::AllocatePinned(bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (memory.ok()) pinned_[*memory] = bytes;
    return memory;
  }
  void FreePinned(void* memory) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      pinned_.erase(memory);
    }
    EmulatedDevice::FreePinned(memory);
  }
  Status Copy(device::Stream stream, void* to, const void* from, size_t bytes) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (IsPinned(from)) up_ += bytes;
      if (IsPinned(to)) down_ += bytes;
    }
    return EmulatedDevice::Copy(stream, to, from, bytes);
  }
  size_t up() const { return up_; }
  size_t down() const { return down_; }

 private:
  bool IsPinned(const void* memory) const {
    const auto after = pinned_.upper_bound(const_cast<void*>(memory));
    if (after == pinned_.begin()) return false;
    const auto at = std::prev(after);
    return static_cast<const uint8_t*>(memory) < static_cast<const uint8_t*>(at->first) + at->second;
  }
  std::mutex mutex_;
  std::map<void*, size_t> pinned_;
  std::atomic<size_t> up_{0}, down_{0};
};

// The memory of the device. *lent: the allocations that are not freed.
inline std::shared_ptr<MemorySource> CountingSource(const std::shared_ptr<device::Device>& device,
                                                    const std::shared_ptr<std::atomic<int64_t>>& lent) {
  auto source = std::make_shared<MemorySource>();
  source->allocate = [device, lent](size_t bytes) {
    ++*lent;
    return device->Allocate(bytes);
  };
  source->free = [device, lent](void* memory) {
    --*lent;
    device->Free(memory);
  };
  return source;
}

// A table with room for `rows` rows of `options` in HBM. memory: null: the device
inline std::unique_ptr<HbmTable> MakeHbmTable(TableOptions options, int rows, std::shared_ptr<device::Device> device,
                                              uint64_t first_operation = 0,
                                              std::shared_ptr<const MemorySource> memory = nullptr) {
  auto below = MakeTableBelow(std::move(options));
  if (below == nullptr) return nullptr;
  const Budget budget = Budget::Bytes(static_cast<uint64_t>(rows) * below->layout()->row_bytes());
  const HbmOptions hbm{std::move(device), budget, first_operation, 0, std::move(memory)};
  auto table = HbmTable::Create(hbm, std::move(below));
  EXPECT_TRUE(table.ok()) << table.status().ToString();
  return table.ok() ? *std::move(table) : nullptr;
}

// HBM alone.
inline std::unique_ptr<HbmTable> GrowingTable(TableOptions options, std::shared_ptr<device::Device> device,
                                              uint64_t bytes = kUnboundedBytes) {
  HbmOptions hbm;
  hbm.device = std::move(device);
  hbm.budget = Budget::Bytes(bytes);
  hbm.grows_from_rows = 2;
  auto table = HbmTable::Create(hbm, MakeTableBelow(std::move(options)));
  EXPECT_TRUE(table.ok()) << table.status().ToString();
  return table.ok() ? *std::move(table) : nullptr;
}

// 0: float32. 1, 2: bfloat16 and float16. 3, 4: the same, rounded stochastically. And so on.
inline TableOptions WithValues(TableOptions options, uint64_t number) {
  constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kBFloat16, DType::kFloat16};
  options.value_dtype = kTypes[number % 5];
  options.stochastic_rounding = number % 5 > 2;
  return options;
}

// Few rows of HBM over few rows of DRAM over a memory tier, and a plain table of the same values. values: see WithValues
struct Pair {
  Pair(int dim, int hbm_rows, uint64_t seed, int dram_rows = 8, uint64_t values = 0) : device(NewEmulatedDevice(seed)) {
    const TableOptions tiered = TieredOptions(dim, dram_rows, std::make_shared<MemoryTier>());
    plain = MakeTable(WithValues(BasicOptions(dim), values));
    table = MakeHbmTable(WithValues(tiered, values), hbm_rows, device);
  }
  std::shared_ptr<device::EmulatedDevice> device;
  std::unique_ptr<EmbeddingTable> plain;
  std::unique_ptr<HbmTable> table;
};

// The rules that have a kernel.
inline std::vector<const UpdateRule*> RulesWithKernels() {
  std::vector<const UpdateRule*> rules;
  for (const UpdateRule* rule : AllUpdateRules()) {
    if (DeviceRuleOf(*rule, SomeHyper(*rule).data()).ok()) rules.push_back(rule);
  }
  return rules;
}

inline Training SomeTraining(const UpdateRule* rule, std::vector<int64_t> keys, int dim, std::mt19937_64* random) {
  Training training;
  training.rule = rule;
  training.keys = std::move(keys);
  for (size_t i = 0; i < training.keys.size() * static_cast<size_t>(dim); ++i) {
    training.grads.push_back(static_cast<float>(static_cast<int>((*random)() % 2001) - 1000) / 700.0f);
  }
  training.hyper = SomeHyper(*rule);
  return training;
}

// Fewer than `most` of 40 keys.
inline std::vector<int64_t> SomeKeys(size_t most, std::mt19937_64* random) {
  std::vector<int64_t> keys((*random)() % most);
  for (int64_t& key : keys) key = static_cast<int64_t>((*random)() % 40) - 10;
  return keys;
}

// The training as a request. Its arrays are the training's.
inline ApplyRequest RequestOf(const Training& training) {
  ApplyRequest request;
  request.keys = training.keys;
  request.grads = training.grads.data();
  request.counts = training.counts;
  request.rule = training.rule;
  for (const ColumnSpec& column : SlotColumns(*training.rule, 1)) request.slot_columns.push_back(column.name);
  request.hyper = training.hyper;
  request.global_step = training.step;
  return request;
}

inline Status Train(const Training& training, HbmTable* table) {
  MT_RETURN_IF_ERROR(table->AddSlots(SlotColumns(*training.rule, table->dim())));
  return table->Apply(RequestOf(training));
}

// Every value, slot, frequency and version equal, bit for bit.
inline void ExpectSameTables(EmbeddingTable* plain, HbmTable* table) {
  const auto x = plain->Export(true), y = table->Export(true);
  ASSERT_TRUE(x.ok() && y.ok()) << x.status().ToString() << " " << y.status().ToString();
  EXPECT_EQ(table->TotalCount(), static_cast<int64_t>(x->keys.size()));
  ExpectSameRows(*x, *y);
}

}  // namespace multitier::hbm

#endif  // CC_HBM_TEST_HBM_TEST_UTIL_H_
