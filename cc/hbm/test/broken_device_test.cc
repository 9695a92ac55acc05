// A device that breaks and stays broken: from one call on, every call fails. Later operations return errors that say so, the
// table ends, and the tables below keep what was handed down.

#include <atomic>
#include <cstdint>
#include <set>
#include <thread>

#include "cc/base/mutex.h"
#include "cc/hbm/test/device_caller.h"
#include "cc/table/test/storage_test_util.h"

namespace multitier::hbm::broken_device_test {
namespace {

// Work that was enqueued before it breaks is still done. Memory and streams can be given back.
class BreakingDevice : public device::EmulatedDevice {
 public:
  BreakingDevice() : EmulatedDevice(Options(), &Kernels()) { current_ = this; }
  ~BreakingDevice() override { current_ = nullptr; }

  // Call number n from now on fails, and all after it.
  void BreakAt(int64_t n) {
    MutexLock lock(mutex_);
    breaks_at_ = calls_ + n;
  }
  void Mend() {
    MutexLock lock(mutex_);
    breaks_at_ = INT64_MAX;
  }
  bool broken() const { return broken_; }
  int64_t calls() const {
    MutexLock lock(mutex_);
    return calls_;
  }

  Result<void*> Allocate(size_t bytes) override {
    MT_RETURN_IF_ERROR(Called("Allocate"));
    return EmulatedDevice::Allocate(bytes);
  }
  Result<void*> AllocatePinned(size_t bytes) override {
    MT_RETURN_IF_ERROR(Called("AllocatePinned"));
    return EmulatedDevice::AllocatePinned(bytes);
  }
  void Free(void* memory) override {
    if (broken_) FinishWork();
    EmulatedDevice::Free(memory);
  }
  void FreePinned(void* memory) override {
    if (broken_) FinishWork();
    EmulatedDevice::FreePinned(memory);
  }
  Result<device::Stream> NewStream() override {
    MT_RETURN_IF_ERROR(Called("NewStream"));
    MT_ASSIGN_OR_RETURN(const device::Stream stream, EmulatedDevice::NewStream());
    MutexLock lock(mutex_);
    streams_.insert(stream.native);
    return stream;
  }
  void Delete(device::Stream stream) override {
    if (broken_) FinishWork();
    {
      MutexLock lock(mutex_);
      streams_.erase(stream.native);
    }
    EmulatedDevice::Delete(stream);
  }
  Status Copy(device::Stream stream, void* to, const void* from, size_t bytes) override {
    MT_RETURN_IF_ERROR(Called("Copy"));
    return EmulatedDevice::Copy(stream, to, from, bytes);
  }
  Status Fill(device::Stream stream, void* memory, int byte, size_t bytes) override {
    MT_RETURN_IF_ERROR(Called("Fill"));
    return EmulatedDevice::Fill(stream, memory, byte, bytes);
  }
  Status SortByUpper(device::Stream stream, const uint64_t* from, uint64_t* to, uint32_t n, int bits, void* scratch) override {
    MT_RETURN_IF_ERROR(Called("SortByUpper"));
    return EmulatedDevice::SortByUpper(stream, from, to, n, bits, scratch);
  }
  Result<device::Event> NewEvent() override {
    MT_RETURN_IF_ERROR(Called("NewEvent"));
    return EmulatedDevice::NewEvent();
  }
  void Delete(device::Event event) override {
    if (broken_) FinishWork();
    EmulatedDevice::Delete(event);
  }
  Status Record(device::Stream stream, device::Event event) override {
    MT_RETURN_IF_ERROR(Called("Record"));
    return EmulatedDevice::Record(stream, event);
  }
  Status Wait(device::Stream stream, device::Event event) override {
    MT_RETURN_IF_ERROR(Called("Wait"));
    return EmulatedDevice::Wait(stream, event);
  }
  Result<bool> Happened(device::Event event) override {
    MT_RETURN_IF_ERROR(Called("Happened"));
    return EmulatedDevice::Happened(event);
  }
  Status Synchronize(device::Stream stream) override {
    MT_RETURN_IF_ERROR(Called("Synchronize"));
    return EmulatedDevice::Synchronize(stream);
  }

 private:
  Status Called(const char* call) {
    MutexLock lock(mutex_);
    broken_ = calls_++ >= breaks_at_;
    return broken_ ? InternalError(call, ": the device is broken") : OkStatus();
  }
  void FinishWork() {
    std::set<void*> streams;
    {
      MutexLock lock(mutex_);
      streams = streams_;
    }
    for (void* const stream : streams) MT_EXPECT_OK(EmulatedDevice::Synchronize(device::Stream{stream}));
  }

  // The emulated kernels, each launch a call of the current device.
  template <auto kKernel, typename... Args>
  static void Put(Status (*device::DeviceKernels::*)(device::Stream, Args...), device::DeviceKernels* kernels) {
    kernels->*kKernel = [](device::Stream stream, Args... args) {
      const Status called = current_.load()->Called("launch");
      return called.ok() ? (device::EmulatedKernels().*kKernel)(stream, args...) : called;
    };
  }
  template <auto... kKernel>
  static device::DeviceKernels Put() {
    static_assert(sizeof...(kKernel) * sizeof(void (*)()) == sizeof(device::DeviceKernels), "a kernel is missing");
    device::DeviceKernels kernels = device::EmulatedKernels();
    (Put<kKernel>(kKernel, &kernels), ...);
    return kernels;
  }
  static const device::DeviceKernels& Kernels() {
    using K = device::DeviceKernels;
    static const K kernels =
        Put<&K::dedup, &K::find, &K::compact, &K::chain, &K::place, &K::reclaim, &K::exchange, &K::bear, &K::gather, &K::stage,
            &K::sum, &K::update, &K::update_members, &K::list_dirty, &K::take_listed, &K::mark, &K::take_out, &K::forget,
            &K::count_forgotten, &K::reset, &K::move_index, &K::move_rows, &K::renumber, &K::pin, &K::sweep_pins, &K::widen,
            &K::pieces, &K::localize, &K::entry_rows, &K::scales, &K::values, &K::begins, &K::gradients, &K::corrections>();
    return kernels;
  }

  static inline std::atomic<BreakingDevice*> current_{nullptr};
  mutable Mutex mutex_;
  int64_t calls_ MT_GUARDED_BY(mutex_) = 0;
  int64_t breaks_at_ MT_GUARDED_BY(mutex_) = INT64_MAX;
  std::set<void*> streams_ MT_GUARDED_BY(mutex_);
  std::atomic<bool> broken_{false};
};

constexpr int kDim = 4;

// Element d of a row is (1 + d) times the updates that it has seen.
Training Counted(const std::vector<int64_t>& keys) {
  Training training = Sgd(keys, 0.0f, kDim);
  for (size_t i = 0; i < training.grads.size(); ++i) training.grads[i] = -static_cast<float>(1 + i % kDim);
  return training;
}

// A table with its files below, and a second one in groups with it.
class Tables {
 public:
  // Rows [0, 24) were updated once and flushed.
  Tables(std::shared_ptr<BreakingDevice> device, StorageDirectory* root) : device_(std::move(device)), caller_(device_) {
    TableOptions options = TieredOptions(kDim, 8, root->Open("ssdhash", "t", false));
    options.keep = true;
    options.expiry.steps_to_live = 1000;
    options.initializer = InitializerSpec();
    table_ = MakeHbmTable(options, 16, device_);
    other_ = MakeHbmTable(TieredOptions(kDim, 8, std::make_shared<MemoryTier>()), 16, device_);
    MT_EXPECT_OK(Train(Counted(Range(0, 24)), table_.get()));
    MT_EXPECT_OK(Train(Sgd(Range(0, 8), 1.0f, kDim), other_.get()));
    MT_EXPECT_OK(table_->Flush());
    for (HbmTable* t : {table_.get(), other_.get()}) {
      members_.push_back(caller_.Plain(t, in_group_.keys));
      updates_.push_back(caller_.UpdateOf(in_group_, static_cast<int>(updates_.size())));
    }
    apply_.table = table_.get();
    apply_.keys = members_[0].keys;
    apply_.grads = updates_[0].grad;
    apply_.request = updates_[0].request;
    gradient_.grad = updates_[0].grad;
    gradient_.sums = caller_.memory()->Filled<float>(in_group_.grads.size(), 0);
  }
  ~Tables() {
    table_ = nullptr;
    other_ = nullptr;
    device_->Mend();  // for the caller's own stream and memory
  }

  void RunEveryOperation() {
    HbmTable* const t = table_.get();
    const std::vector<int64_t> keys = {1, 5, 9, 40};
    std::vector<float> values(keys.size() * kDim);
    std::vector<int64_t> facts(keys.size());
    std::vector<int32_t> tiers(keys.size());
    Run("lookup", [&] { return t->Lookup(keys, values.data()); });
    Run("apply", [&] { return t->Apply(RequestOf(Counted({1, 2, 30}))); });
    Run("prefetch", [&] { return t->Prefetch(keys, 1000000, nullptr); });
    Run("frequency", [&] { return t->Frequency(keys, facts.data()); });
    Run("version", [&] { return t->Version(keys, facts.data()); });
    Run("tier", [&] { return t->LookupTier(keys, tiers.data()); });
    Run("peek", [&] { return t->Peek(keys, values.data()); });
    t->ReleasePrefetched();
    RunGroup();
    Run("scan", [&] {
      uint64_t next = 0;
      return t->Scan(ScanRequest(), &next).status();
    });
    Run("remove", [&] { return t->Remove(std::vector<int64_t>{40, 41}, nullptr); });
    Run("apply to most rows", [&] { return t->Apply(RequestOf(Counted(Range(0, 20)))); });
    Run("export", [&] { return t->Export(true).status(); });
    Run("upsert", [&] {
      const std::vector<int64_t> upserted = {50, 51};
      const std::vector<float> data = {1, 2, 3, 4, 1, 2, 3, 4};
      UpsertRequest request;
      request.keys = upserted;
      request.columns = {{"value", kDim, data.data()}};
      return t->Upsert(request).status();
    });
    Run("import", [&] {
      Rows rows;
      rows.keys = {52};
      rows.frequencies = rows.versions = {1};
      rows.columns = {ColumnSpec{"value", DType::kFloat32, kDim, 0}};
      rows.data = {2, 4, 6, 8};
      return t->Import(rows, nullptr);
    });
    Run("expire", [&] { return t->Expire(1, nullptr); });
    Run("slots", [&] { return t->AddSlots(SlotColumns(**FindUpdateRule("adagrad"), kDim)); });
    Run("flush", [&] { return t->Flush(); });
    Run("drain", [&] { return t->Drain(); });
    Run("clear of the other table", [&] { return other_->Clear(); });
    (void)t->TotalCount();
    const Status sticky = t->Stats().sticky_error;
    EXPECT_TRUE(sticky.ok() || sticky.message().find("table 't': the device failed") == 0) << sticky.ToString();
  }
  int errors() const { return errors_; }

 private:
  void RunGroup() {
    const auto wait = [](const std::function<void(Done)>& call) {
      Awaited awaited;
      call(awaited.done());
      return awaited.Wait();
    };
    const device::Stream stream = caller_.stream();
    DevicePlan plan;
    Run("group lookup", [&] { return wait([&](Done done) { LookupOnDevice(members_, &plan, stream, std::move(done)); }); });
    if (plan.num_members() == 2) {
      Run("gradient", [&] { return GradientOnDevice(plan, std::vector<DeviceGradient>{gradient_}, stream); });
      Run("group update", [&] { return wait([&](Done done) { UpdateOnDevice(plan, updates_, stream, std::move(done)); }); });
    }
    Run("apply on the device",
        [&] { return wait([&](Done done) { ApplyOnDevice(std::vector<DeviceApply>{apply_}, stream, std::move(done)); }); });
  }

  // It works, or its error says that the device is broken. What works on a broken device has asked nothing of it.
  void Run(const char* name, const std::function<Status()>& operation) {
    const bool broken_before = device_->broken();
    const int64_t calls = device_->calls();
    const Status status = operation();
    if (status.ok()) {
      EXPECT_TRUE(!broken_before || device_->calls() == calls) << name << " worked on a broken device";
      return;
    }
    ++errors_;
    EXPECT_TRUE(device_->broken()) << name;
    EXPECT_EQ(status.code(), StatusCode::kInternal) << name << ": " << status.ToString();
    const std::string &text = status.message(), said = ": the device is broken";
    const size_t at = text.find(said);
    EXPECT_TRUE(at != std::string::npos && text.find(said, at + 1) == std::string::npos) << name << ": " << status.ToString();
  }

  const std::shared_ptr<BreakingDevice> device_;
  DeviceCaller caller_;
  const Training in_group_ = Counted({1, 9, 17, 31});
  std::unique_ptr<HbmTable> table_, other_;
  std::vector<DeviceMember> members_;
  std::vector<DeviceUpdate> updates_;
  DeviceApply apply_;
  DeviceGradient gradient_;
  int errors_ = 0;
};

// Rows as the table below kept them: whole, and not older than the flush.
void ExpectKeptRows(StorageDirectory* root) {
  TableOptions options = TieredOptions(kDim, 8, root->Open("ssdhash", "t", true));
  options.adopt = true;
  const auto below = MakeTable(options);
  ASSERT_NE(below, nullptr);
  const auto rows = below->Export(false);
  MT_ASSERT_OK(rows.status());
  std::set<int64_t> found;
  for (size_t r = 0; r < rows->keys.size(); ++r) {
    const float* const row = &rows->data[r * kDim];
    for (int d = 1; d < kDim; ++d) EXPECT_EQ(row[d], row[0] * static_cast<float>(1 + d)) << "key " << rows->keys[r];
    EXPECT_GE(row[0], 1.0f) << "key " << rows->keys[r];
    EXPECT_LE(row[0], 5.0f) << "key " << rows->keys[r];
    found.insert(rows->keys[r]);
  }
  for (const int64_t key : Range(0, 24)) EXPECT_EQ(found.count(key), 1u) << "key " << key << " was flushed";
}

TEST(BrokenDevice, WhicheverCallIsTheLastEveryOperationSaysSoAndTheFilesBelowAreKept) {
  StorageDirectory root("broken_device");
  int tries = 0, errors = 0;
  const int64_t stride = Stride(31, 61);
  for (int64_t n = 0;; n += stride) {
    SCOPED_TRACE(n);
    const auto device = std::make_shared<BreakingDevice>();
    {
      Tables tables(device, &root);
      device->BreakAt(n);
      tables.RunEveryOperation();
      errors += tables.errors();
      if (!device->broken()) break;
    }
    ++tries;
    ExpectKeptRows(&root);
    EXPECT_EQ(device->used_bytes(), 0u);
    if (testing::Test::HasFailure()) FAIL() << "the device broke at call " << n;
  }
  EXPECT_GT(tries * stride, 300);
  EXPECT_GT(errors, 5 * tries);
}

// Tables that grow replace their memory in HBM: a thread may wait at the gate while another one breaks the table.
TEST(BrokenDevice, ThreadsThatLetATableGrowEndWithErrors) {
  for (int64_t n = 0; n < 400; n += kSanitized ? 130 : 20) {
    const auto device = std::make_shared<BreakingDevice>();
    const auto table = GrowingTable(BasicOptions(kDim), device);
    MT_ASSERT_OK(Train(Counted({0}), table.get()));
    device->BreakAt(n);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        Status status;
        for (int64_t keys = 2; status.ok() && keys < 100; keys = 2 * keys + 1) {
          status = t == 3 ? table->Prefetch(Range(0, keys), 1000, nullptr) : table->Apply(RequestOf(Counted(Range(0, keys))));
        }
        EXPECT_TRUE(status.ok() || status.message().find("the device is broken") != std::string::npos) << status.ToString();
      });
    }
    for (std::thread& thread : threads) thread.join();
    (void)table->Stats();
  }
}

}  // namespace
}  // namespace multitier::hbm::broken_device_test
