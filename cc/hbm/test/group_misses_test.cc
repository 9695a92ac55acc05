// Groups of tables whose keys miss: what a step costs the device, however many tables there are, and what the tables below see.

#include <map>
#include <thread>

#include "cc/hbm/test/device_caller.h"

namespace multitier::hbm::group_misses_test {
namespace {

constexpr int kTables = 26, kDim = 4;

struct Cost {
  int64_t launches = 0, calls = 0, waits = 0;
};

Cost Least(const Cost& a, const Cost& b) {
  return {std::min(a.launches, b.launches), std::min(a.calls, b.calls), std::min(a.waits, b.waits)};
}

// Tables of one device, each with a plain one to compare with.
TableOptions Filtering(TableOptions options, const AdmissionSpec& filter) {
  options.filter = filter;
  return options;
}

AdmissionSpec AdmitsAfter(int64_t occurrences, AdmissionKind kind = AdmissionKind::kCounter) {
  AdmissionSpec filter;
  filter.kind = kind;
  filter.filter_freq = occurrences;
  filter.max_element_size = 1000;
  return filter;
}

class ManyTables {
 public:
  using Make = std::function<std::unique_ptr<HbmTable>(std::shared_ptr<device::Device>)>;
  ManyTables(const Make& make, const TableOptions& plain) : device_(NewEmulatedDevice()), caller_(device_) {
    for (int t = 0; t < kTables; ++t) {
      tables_.push_back(make(device_));
      plain_.push_back(MakeTable(plain));
    }
  }

  // A lookup with a plan and its update: seven keys that every step has, and `fresh` that none had.
  Cost Step(int fresh) {
    std::vector<Training> trainings;
    std::vector<DeviceMember> members;
    std::vector<DeviceUpdate> updates;
    for (int t = 0; t < kTables; ++t) {
      std::vector<int64_t> keys = Range(t, t + 7);
      for (int i = 0; i < fresh; ++i) keys.push_back(1000 + next_++);
      keys.push_back(t);
      trainings.push_back(Sgd(keys, 0.5f, kDim));
      members.push_back(caller_.Plain(tables_[static_cast<size_t>(t)].get(), keys));
      updates.push_back(caller_.UpdateOf(trainings.back(), t));
    }
    EXPECT_TRUE(device_->Synchronize(caller_.stream()).ok());
    const Cost before = Now();
    {
      DevicePlan plan;
      MT_EXPECT_OK(caller_.Lookup(members, &plan));
      MT_EXPECT_OK(caller_.Update(plan, updates));
    }
    const Cost after = Now();
    for (size_t t = 0; t < tables_.size(); ++t) {
      EXPECT_TRUE(SameBits(caller_.Values(members[t]), LookupAll(plain_[t].get(), trainings[t].keys))) << t;
      MT_EXPECT_OK(trainings[t].Run(plain_[t].get()));
    }
    return {after.launches - before.launches, after.calls - before.calls, after.waits - before.waits};
  }
  // Of steps after those in which memory is taken, and tables grow.
  Cost SteadyStep(int fresh) {
    for (int i = 0; i < 4; ++i) (void)Step(fresh);
    Cost least = Step(fresh);
    for (int i = 0; i < 2; ++i) least = Least(least, Step(fresh));
    return least;
  }
  int64_t HandedDown() const {
    int64_t rows = 0;
    for (const auto& table : tables_) rows += table->Stats().tiers[1].demotions;
    return rows;
  }
  void Compare() {
    for (size_t t = 0; t < tables_.size(); ++t) ExpectSameTables(plain_[t].get(), tables_[t].get());
  }

 private:
  Cost Now() const { return {device_->launches(), device_->calls(), device_->synchronizations()}; }

  std::shared_ptr<device::EmulatedDevice> device_;
  DeviceCaller caller_;
  std::vector<std::unique_ptr<HbmTable>> tables_;
  std::vector<std::unique_ptr<EmbeddingTable>> plain_;
  int64_t next_ = 0;
};

std::unique_ptr<HbmTable> OverTiers(std::shared_ptr<device::Device> device) {
  return MakeHbmTable(TieredOptions(kDim, 8, std::make_shared<MemoryTier>()), 64, std::move(device));
}

void ExpectAtMost(const Cost& cost, const Cost& most) {
  testing::Test::RecordProperty("launches", static_cast<int>(cost.launches));
  testing::Test::RecordProperty("calls", static_cast<int>(cost.calls));
  testing::Test::RecordProperty("waits", static_cast<int>(cost.waits));
  EXPECT_LE(cost.launches, most.launches);
  EXPECT_LE(cost.calls, most.calls);
  EXPECT_LE(cost.waits, most.waits);
}

TEST(GroupMisses, AStepWithoutNewKeysWaitsOnce) {
  ManyTables tables(OverTiers, BasicOptions(kDim));
  ExpectAtMost(tables.SteadyStep(0), {12, 45, 1});
  tables.Compare();
}

TEST(GroupMisses, AStepWithANewKeyInEachTableTakesFewCalls) {
  ManyTables tables(OverTiers, BasicOptions(kDim));
  ExpectAtMost(tables.SteadyStep(1), {40, 120, 3});
  tables.Compare();
}

TEST(GroupMisses, AStepThatEvictsTakesFewCalls) {
  ManyTables tables(
      [](std::shared_ptr<device::Device> device) {
        return MakeHbmTable(TieredOptions(kDim, 8, std::make_shared<MemoryTier>()), 12, std::move(device));
      },
      BasicOptions(kDim));
  ExpectAtMost(tables.SteadyStep(3), {40, 120, 2});
  EXPECT_GT(tables.HandedDown(), 3 * kTables);
  tables.Compare();
}

// New keys are born on the device: no row comes up, which would take four launches and a wait more.
TEST(GroupMisses, AStepOfTablesThatGrowWaitsOnce) {
  ManyTables tables([](std::shared_ptr<device::Device> device) { return GrowingTable(BasicOptions(kDim), std::move(device)); },
                    BasicOptions(kDim));
  (void)tables.Step(20);  // makes room
  ExpectAtMost(tables.SteadyStep(1), {13, 120, 1});
  tables.Compare();
}

TEST(GroupMisses, AStepUnderAFilterTakesFewCalls) {
  const AdmissionSpec filter = AdmitsAfter(3);
  ManyTables tables(
      [&](std::shared_ptr<device::Device> device) {
        return MakeHbmTable(Filtering(TieredOptions(kDim, 8, std::make_shared<MemoryTier>()), filter), 64, std::move(device));
      },
      Filtering(BasicOptions(kDim), filter));
  ExpectAtMost(tables.SteadyStep(1), {50, 150, 4});
  tables.Compare();
}

// Two tables and their plain ones.
struct Two {
  explicit Two(int dram_rows, int hbm_rows, const AdmissionSpec& filter = AdmissionSpec())
      : device(NewEmulatedDevice()), caller(device) {
    for (int t = 0; t < 2; ++t) {
      lower.push_back(std::make_shared<MemoryTier>());
      tables.push_back(MakeHbmTable(Filtering(TieredOptions(kDim, dram_rows, lower.back()), filter), hbm_rows, device));
      plain.push_back(MakeTable(Filtering(BasicOptions(kDim), filter)));
    }
  }
  // A lookup with a plan; its update's status. The plain tables have only been read.
  Status Step(const Training& training) {
    std::vector<DeviceMember> members;
    for (const auto& table : tables) members.push_back(caller.Plain(table.get(), training.keys));
    DevicePlan plan;
    MT_EXPECT_OK(caller.Lookup(members, &plan));
    for (size_t t = 0; t < 2; ++t) {
      EXPECT_TRUE(SameBits(caller.Values(members[t]), LookupAll(plain[t].get(), training.keys))) << t;
    }
    return caller.Update(plan, {caller.UpdateOf(training, 0), caller.UpdateOf(training, 1)});
  }
  void Compare() {
    for (size_t t = 0; t < 2; ++t) ExpectSameTables(plain[t].get(), tables[t].get());
  }
  std::shared_ptr<device::EmulatedDevice> device;
  DeviceCaller caller;
  std::vector<std::shared_ptr<MemoryTier>> lower;
  std::vector<std::unique_ptr<HbmTable>> tables;
  std::vector<std::unique_ptr<EmbeddingTable>> plain;
};

TEST(GroupMisses, RowsThatATableBelowRefusesStayThere) {
  Two two(6, 4);
  two.lower[0]->FailWrite(1, ResourceExhaustedError("disk full"), 1000);
  int refused = 0;
  for (int64_t first = 0; first < 24; first += 4) {
    const Training training = Sgd(Range(first, first + 4), 1.0f, kDim);
    const Status updated = two.Step(training);
    refused += !updated.ok();
    if (!updated.ok()) {
      EXPECT_EQ(updated.code(), StatusCode::kResourceExhausted) << updated.ToString();
    }
    for (size_t t = updated.ok() ? 0 : 1; t < 2; ++t) MT_ASSERT_OK(training.Run(two.plain[t].get()));
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 5);
  EXPECT_FALSE(two.tables[0]->Stats().sticky_error.ok());
  EXPECT_TRUE(SameBits(LookupAll(two.tables[0].get(), Range(0, 24)), LookupAll(two.plain[0].get(), Range(0, 24))));
  two.lower[0]->FailWrite(1, OkStatus(), 0);
  MT_ASSERT_OK(two.tables[0]->Drain());
  two.Compare();
}

TEST(GroupMisses, UnderAFilterTheTablesBelowCountAndAdmit) {
  for (const AdmissionKind kind : {AdmissionKind::kCounter, AdmissionKind::kBloom}) {
    Two two(4, 6, AdmitsAfter(3, kind));
    std::mt19937_64 random(5);
    for (int step = 0; step < (kSanitized ? 4 : 12); ++step) {
      Training training = SomeTraining(*FindUpdateRule("sgd"), SomeKeys(12, &random), kDim, &random);
      training.keys.push_back(100 + step);
      training.grads.resize(training.keys.size() * kDim, 0.5f);
      MT_ASSERT_OK(two.Step(training));
      for (const auto& plain : two.plain) MT_ASSERT_OK(training.Run(plain.get()));
    }
    two.Compare();
  }
}

// Between a lookup and its update, other updates let the filter admit a key, and another lookup brings its row into HBM.
TEST(GroupMisses, AKeyThatWasAbsentIsUpdatedWhereItIsNow) {
  for (const bool comes_up : {false, true}) {
    Two two(8, 16, AdmitsAfter(3));
    const Training training = Sgd({1, 2, 3}, 1.0f, kDim), other = Sgd({2}, 0.5f, kDim);
    std::vector<DeviceMember> members;
    for (const auto& table : two.tables) members.push_back(two.caller.Plain(table.get(), training.keys));
    DevicePlan plan;
    MT_ASSERT_OK(two.caller.Lookup(members, &plan));
    for (int i = 0; i < 3; ++i) {  // the third one admits it
      for (size_t t = 0; t < 2; ++t) {
        MT_ASSERT_OK(Train(other, two.tables[t].get()));
        MT_ASSERT_OK(other.Run(two.plain[t].get()));
        if (!comes_up) continue;
        EXPECT_TRUE(SameBits(LookupAll(two.tables[t].get(), {2}), LookupAll(two.plain[t].get(), {2})));
      }
    }
    EXPECT_EQ(TierOf(two.tables[0].get(), {2}), std::vector<int32_t>{comes_up ? 0 : 1});
    MT_ASSERT_OK(two.caller.Update(plan, {two.caller.UpdateOf(training, 0), two.caller.UpdateOf(training, 1)}));
    for (size_t t = 0; t < 2; ++t) {
      MT_ASSERT_OK(training.Run(two.plain[t].get()));
      EXPECT_TRUE(SameBits(LookupAll(two.tables[t].get(), {1, 2, 3}), LookupAll(two.plain[t].get(), {1, 2, 3}))) << t;
    }
    two.Compare();
  }
}

// Kernels whose gradients fail for good.
const device::DeviceKernels& WithoutGradients() {
  static const device::DeviceKernels kernels = [] {
    device::DeviceKernels made = device::EmulatedKernels();
    made.gradients = [](device::Stream, const device::GradientArgs&) -> Status { return InternalError("no gradients"); };
    return made;
  }();
  return kernels;
}

TEST(GroupMisses, WithoutSumsNoKeyIsTrained) {
  const auto device = std::make_shared<device::EmulatedDevice>(device::EmulatedDevice::Options(), &WithoutGradients());
  DeviceCaller caller(device);
  std::vector<std::unique_ptr<HbmTable>> tables;
  std::vector<DeviceMember> members;
  std::vector<DeviceUpdate> updates;
  const Training training = Sgd({1, 2, 3}, 1.0f, kDim);
  for (int t = 0; t < 2; ++t) {
    TableOptions options = Filtering(TieredOptions(kDim, 8, std::make_shared<MemoryTier>()), AdmitsAfter(2));
    tables.push_back(MakeHbmTable(std::move(options), 16, device));
    members.push_back(caller.Plain(tables.back().get(), training.keys));
    updates.push_back(caller.UpdateOf(training, t));
  }
  for (int i = 0; i < 3; ++i) {  // the second one would admit the keys
    DevicePlan plan;
    MT_ASSERT_OK(caller.Lookup(members, &plan));
    EXPECT_EQ(caller.Update(plan, updates).message(), "no gradients");
  }
  for (const auto& table : tables) EXPECT_EQ(table->TotalCount(), 0);
}

// More misses than come down with the numbers, and then more victims.
TEST(GroupMisses, ManyMissesAndVictimsComeDownToo) {
  constexpr int64_t kKeys = 4500;  // of each table
  Two two(3 * kKeys, kKeys + 100);
  for (const int64_t first : {int64_t{0}, kKeys}) {
    const Training training = Sgd(Range(first, first + kKeys), 1.0f, kDim);
    MT_ASSERT_OK(two.Step(training));
    for (const auto& plain : two.plain) MT_ASSERT_OK(training.Run(plain.get()));
  }
  for (const auto& table : two.tables) {
    EXPECT_GT(table->Stats().tiers[1].demotions, 4200);
  }
  two.Compare();
}

// Groups that have the same tables in another order.
TEST(GroupMisses, ThreadsWithGroupsOfTheSameTablesLoseNoUpdate) {
  const auto device = NewEmulatedDevice(7);
  std::vector<std::unique_ptr<HbmTable>> tables;
  for (int t = 0; t < 3; ++t) {
    TableOptions options = TieredOptions(kDim, 6, std::make_shared<MemoryTier>());
    options.initializer.kind = InitializerKind::kConstant;
    options.initializer.a = 0.0f;
    tables.push_back(MakeHbmTable(options, 12, device));
  }
  constexpr int kThreads = 3, kSteps = kSanitized ? 4 : 20;
  std::vector<std::map<int64_t, int>> updates(kThreads);
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(thread);
      DeviceCaller caller(device);
      for (int i = 0; i < kSteps; ++i) {
        std::vector<int64_t> keys = SomeKeys(10, &random);
        keys.push_back(static_cast<int64_t>(i));
        for (const int64_t key : keys) ++updates[thread][key];
        const Training training = Sgd(keys, -1.0f, kDim);
        std::vector<DeviceMember> members;
        std::vector<DeviceUpdate> of_members;
        for (size_t t = 0; t < tables.size(); ++t) {
          members.push_back(caller.Plain(tables[(t + thread) % tables.size()].get(), keys));
          of_members.push_back(caller.UpdateOf(training, static_cast<int>(t)));
        }
        DevicePlan plan;
        MT_EXPECT_OK(caller.Lookup(members, &plan));
        MT_EXPECT_OK(caller.Update(plan, of_members));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& table : tables) {
    const std::vector<float> values = LookupAll(table.get(), Range(-10, 30));
    for (int64_t key = -10; key < 30; ++key) {
      float sum = 0;
      for (auto& of_thread : updates) sum += static_cast<float>(of_thread[key]);
      EXPECT_EQ(values[static_cast<size_t>(key + 10) * kDim], sum) << key;
    }
  }
}

}  // namespace
}  // namespace multitier::hbm::group_misses_test
