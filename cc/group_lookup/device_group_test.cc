// Members of every form, over tables in HBM with device memory, against the grouped lookup of the CPU, bit for bit: values,
// distinct keys, counts, sums of gradients, gradients of weights, and the tables after an update.

#include <atomic>
#include <thread>

#include "cc/group_lookup/group_lookup.h"
#include "cc/hbm/hbm_above.h"
#include "cc/hbm/test/device_caller.h"
#include "cc/table/snapshot/snapshot_together.h"

namespace multitier::device_group_test {
namespace {

using hbm::DeviceMember;
using hbm::EntryForm;

// A member on both sides.
struct Both {
  std::unique_ptr<EmbeddingTable> plain;
  std::unique_ptr<hbm::HbmTable> table;
  std::vector<int64_t> keys, indices;
  std::vector<float> weights, out, grad;
  std::vector<GroupUnit> units;
  GroupMember cpu;
  DeviceMember on_device;
};

class DeviceGroup : public testing::TestWithParam<int> {
 protected:
  DeviceGroup() : random_(static_cast<uint64_t>(GetParam())), device_(hbm::NewEmulatedDevice(random_())), caller_(device_) {}

  float Some() { return static_cast<float>(static_cast<int>(random_() % 2001) - 1000) / 300.0f; }

  void MakeEntries(Both* m) {
    const GroupForm form = m->cpu.form;
    const bool ragged = form == GroupForm::kRagged || form == GroupForm::kRaggedSequence;
    if (ragged) m->indices.push_back(0);
    for (int64_t row = 0; row < m->cpu.batch; ++row) {
      const auto n = static_cast<int64_t>(form == GroupForm::kDense ? 1 : random_() % 4);
      for (int64_t i = 0; i < n; ++i) {
        m->keys.push_back(static_cast<int64_t>(random_() % 20) - 5);
        if (!ragged && form != GroupForm::kDense) m->indices.insert(m->indices.end(), {row, i});
      }
      if (ragged) m->indices.push_back(static_cast<int64_t>(m->keys.size()));
    }
  }

  std::unique_ptr<Both> MakeMember(int number, GroupForm form, int hbm_rows = 0) {
    auto m = std::make_unique<Both>();
    const int dim = std::vector<int>{1, 4, 9}[random_() % 3];
    TableOptions options = BasicOptions(dim);
    options.initializer.seed = random_();
    const uint64_t random = random_(), values = !one_kind_ ? random : GetParam() % 2 == 0 ? 0 : 1 + random % 4;
    m->plain = MakeTable(hbm::WithValues(options, values));
    TableOptions tiered = TieredOptions(dim, 6, std::make_shared<MemoryTier>());
    tiered.initializer = options.initializer;
    const int some_rows = random_() % 2 == 0 ? 6 : 200;
    m->table = hbm::MakeHbmTable(hbm::WithValues(tiered, values), hbm_rows != 0 ? hbm_rows : some_rows, device_);
    const bool sequence = form == GroupForm::kSequence || form == GroupForm::kRaggedSequence;
    GroupMember& cpu = m->cpu;
    cpu.name = "member " + std::to_string(number);
    cpu.form = form;
    cpu.dim = dim;
    cpu.batch = static_cast<int64_t>(random_() % 6);
    cpu.steps = sequence ? 3 : 1;
    cpu.combiner = sequence ? Combiner::kSum : static_cast<Combiner>(random_() % 3);
    cpu.max_norm = random_() % 2 == 0 ? -1.0f : 0.5f;
    MakeEntries(m.get());
    if (form != GroupForm::kDense && random_() % 2 == 0) {
      for (size_t i = 0; i < m->keys.size(); ++i) m->weights.push_back(i % 5 == 0 ? 0.0f : Some());
    }
    cpu.keys = m->keys;
    cpu.indices = m->indices;
    cpu.weights = m->weights;
    cpu.stride = dim + static_cast<int64_t>(random_() % 3);
    m->units = {GroupUnit{m->plain.get(), nullptr, 0}};
    cpu.units = m->units;
    m->out.assign(static_cast<size_t>(cpu.batch * cpu.steps * cpu.stride), 0.0f);
    m->grad.resize(m->out.size());
    for (float& g : m->grad) g = Some();
    cpu.out = m->out.data();
    Describe(m.get());
    return m;
  }

  void Describe(Both* m) {
    DeviceMember& d = m->on_device;
    const GroupMember& cpu = m->cpu;
    d.table = m->table.get();
    d.name = cpu.name;
    d.keys = caller_.Keys(m->keys, random_() % 2 == 0);
    const bool ragged = cpu.form == GroupForm::kRagged || cpu.form == GroupForm::kRaggedSequence;
    const bool sequence = cpu.form == GroupForm::kSequence || cpu.form == GroupForm::kRaggedSequence;
    d.form = cpu.form == GroupForm::kDense ? EntryForm::kDense : ragged ? EntryForm::kRagged : EntryForm::kSparse;
    if (cpu.form != GroupForm::kDense) d.indices = caller_.memory()->Up(m->indices);
    if (!m->weights.empty()) d.weights = caller_.memory()->Up(m->weights);
    d.batch = cpu.batch;
    d.steps = sequence ? cpu.steps : 0;
    d.combiner = static_cast<device::PoolCombiner>(cpu.combiner);
    d.max_norm = cpu.max_norm;
    d.out = caller_.memory()->Filled<float>(m->out.size(), 0);
    d.stride = cpu.stride;
  }

  std::vector<std::unique_ptr<Both>> MakeGroup() {
    std::vector<std::unique_ptr<Both>> group;
    for (const GroupForm form : {GroupForm::kDense, GroupForm::kSparse, GroupForm::kSequence, GroupForm::kRagged,
                                 GroupForm::kRaggedSequence, GroupForm::kSparse}) {
      group.push_back(MakeMember(static_cast<int>(group.size()), form));
    }
    return group;
  }

  // One training step on both sides.
  void Step(const std::vector<std::unique_ptr<Both>>& group) {
    std::vector<GroupMember> cpu;
    std::vector<DeviceMember> members;
    for (const auto& m : group) {
      cpu.push_back(m->cpu);
      members.push_back(m->on_device);
    }
    GroupPlan plan;
    hbm::DevicePlan device_plan;
    MT_ASSERT_OK(LookupGroup(cpu, &plan));
    MT_ASSERT_OK(caller_.Lookup(members, &device_plan));
    for (const auto& m : group) {
      EXPECT_TRUE(SameBits(m->out, caller_.memory()->Down(m->on_device.out, m->out.size()))) << m->cpu.name;
    }
    CompareGradients(group, plan, device_plan);
    Update(group, plan, device_plan);
  }

  void CompareGradients(const std::vector<std::unique_ptr<Both>>& group, const GroupPlan& plan,
                        const hbm::DevicePlan& device_plan) {
    std::vector<const float*> grads;
    std::vector<int64_t> strides;
    std::vector<std::vector<float>> sums, of_weights;
    std::vector<float*> sums_to, weights_to;
    std::vector<hbm::DeviceGradient> gradients;
    for (size_t i = 0; i < group.size(); ++i) {
      const Both& m = *group[i];
      const auto u = static_cast<int>(i);
      grads.push_back(m.grad.data());
      strides.push_back(m.cpu.stride);
      sums.emplace_back(plan.keys(u).size() * static_cast<size_t>(m.cpu.dim));
      of_weights.emplace_back(m.weights.size());
      gradients.push_back({u, caller_.memory()->Up(m.grad), m.cpu.stride, caller_.memory()->Filled<float>(sums[i].size(), 0),
                           caller_.memory()->Filled<int64_t>(plan.keys(u).size(), 0),
                           caller_.memory()->Filled<int64_t>(plan.keys(u).size(), 0),
                           m.weights.empty() ? nullptr : caller_.memory()->Filled<float>(m.weights.size(), 0)});
    }
    for (size_t i = 0; i < group.size(); ++i) {
      sums_to.push_back(sums[i].data());
      weights_to.push_back(of_weights[i].empty() ? nullptr : of_weights[i].data());
    }
    GroupGradients of_cpu;
    of_cpu.grads = Span<const float* const>(grads.data(), grads.size());
    of_cpu.sums = Span<float* const>(sums_to.data(), sums_to.size());
    of_cpu.weights_gradients = Span<float* const>(weights_to.data(), weights_to.size());
    of_cpu.strides = strides;
    GradientOfGroup(plan, of_cpu);
    MT_ASSERT_OK(GradientOnDevice(device_plan, gradients, caller_.stream()));
    for (size_t i = 0; i < group.size(); ++i) {
      const auto u = static_cast<int>(i);
      const size_t n = plan.keys(u).size();
      ASSERT_EQ(device_plan.distinct(u), static_cast<int64_t>(n));
      EXPECT_EQ(caller_.memory()->Down(gradients[i].keys, n), std::vector<int64_t>(plan.keys(u).begin(), plan.keys(u).end()));
      EXPECT_EQ(caller_.memory()->Down(gradients[i].counts, n),
                std::vector<int64_t>(plan.counts(u).begin(), plan.counts(u).end()));
      EXPECT_TRUE(SameBits(sums[i], caller_.memory()->Down(gradients[i].sums, sums[i].size()))) << group[i]->cpu.name;
      if (gradients[i].weight_grads == nullptr) continue;
      EXPECT_TRUE(SameBits(of_weights[i], caller_.memory()->Down(gradients[i].weight_grads, of_weights[i].size())))
          << group[i]->cpu.name;
    }
  }

  void Update(const std::vector<std::unique_ptr<Both>>& group, const GroupPlan& plan, const hbm::DevicePlan& device_plan) {
    std::vector<const float*> grads;
    std::vector<int64_t> strides;
    std::vector<UnitUpdate> of_cpu;
    std::vector<hbm::DeviceUpdate> updates;
    for (size_t i = 0; i < group.size(); ++i) {
      const Both& m = *group[i];
      const auto u = static_cast<int>(i);
      const Training like = Sgd({}, 0.0f, m.cpu.dim);
      grads.push_back(m.grad.data());
      strides.push_back(m.cpu.stride);
      of_cpu.push_back(UnitUpdate{u, m.plain.get(), hbm::RequestOf(like)});
      updates.push_back({u, nullptr, caller_.memory()->Up(m.grad), m.cpu.stride, hbm::RequestOf(like)});
    }
    GroupGradients gradients;
    gradients.grads = Span<const float* const>(grads.data(), grads.size());
    gradients.strides = strides;
    MT_ASSERT_OK(UpdateGroup(plan, gradients, &of_cpu));
    MT_ASSERT_OK(caller_.Update(device_plan, updates));
  }

  std::mt19937_64 random_;
  std::shared_ptr<device::EmulatedDevice> device_;
  hbm::DeviceCaller caller_;
  bool one_kind_ = false;  // all values have 32 bits, or all 16
};

TEST_P(DeviceGroup, ValuesGradientsAndUpdatesAreThoseOfTheCpu) {
  const auto group = MakeGroup();
  for (int step = 0; step < 3; ++step) Step(group);  // in the second, large tables miss nothing
  for (const auto& m : group) hbm::ExpectSameTables(m->plain.get(), m->table.get());
}

// Rows that are all in HBM: the group needs one wait, however many members it has.
TEST_P(DeviceGroup, MembersWhoseKeysAreInHbmAreLookedUpTogether) {
  std::vector<DeviceMember> members;
  std::vector<std::unique_ptr<hbm::HbmTable>> tables;
  std::vector<std::unique_ptr<EmbeddingTable>> plain;
  for (int t = 0; t < 8; ++t) {
    const Training training = Sgd(Range(t, t + 6), 0.5f, t + 1);
    tables.push_back(hbm::MakeHbmTable(TieredOptions(t + 1, 6, std::make_shared<MemoryTier>()), 64, device_));
    plain.push_back(MakeTable(BasicOptions(t + 1)));
    MT_ASSERT_OK(training.Run(plain.back().get()));
    MT_ASSERT_OK(hbm::Train(training, tables.back().get()));
    members.push_back(caller_.Plain(tables.back().get(), {t, t + 5, t, t + 1}, t % 2 == 0));
  }
  members.push_back(caller_.Plain(tables[0].get(), {3, 3}));  // a second time
  const int64_t before = device_->synchronizations();
  hbm::DevicePlan plan;
  MT_ASSERT_OK(caller_.Lookup(members, &plan));
  EXPECT_EQ(device_->synchronizations() - before, 2);  // of the group, and of the member that is there again
  for (int t = 0; t < 8; ++t) {
    const auto at = static_cast<size_t>(t);
    EXPECT_EQ(plan.distinct(t), 3);
    EXPECT_TRUE(SameBits(caller_.Values(members[at]), LookupAll(plain[at].get(), {t, t + 5, t, t + 1}))) << t;
    const TableStats stats = tables[at]->Stats();
    EXPECT_EQ(stats.lookups, t == 0 ? 6 : 4);
    EXPECT_EQ(stats.tiers[0].misses, 6);  // of the training
  }
  EXPECT_TRUE(SameBits(caller_.Values(members[8]), LookupAll(plain[0].get(), {3, 3})));
}

// A training step of tables whose rows are all in HBM: lookup, gradients, update. Members are plain or pooled, with and without
// weights and clipping.
TEST_P(DeviceGroup, AStepNeedsTwelveLaunchesHoweverManyTablesItHas) {
  one_kind_ = true;  // two more launches where there are both: values and an update
  std::vector<int64_t> launches;
  for (const int tables : {2, 3, 24}) {
    std::vector<std::unique_ptr<Both>> group;
    for (int t = 0; t < tables; ++t) {
      do {
        if (static_cast<int>(group.size()) > t) group.pop_back();
        group.push_back(MakeMember(t, t % 2 == 0 ? GroupForm::kSparse : GroupForm::kDense, /*hbm_rows=*/200));
      } while (group.back()->keys.empty());
      group.back()->cpu.max_norm = group.back()->on_device.max_norm = t == 0 ? 0.5f : -1.0f;
    }
    Step(group);
    Step(group);  // without new keys: the next one expects none
    MT_ASSERT_OK(device_->Synchronize(caller_.stream()));
    std::vector<DeviceMember> members;
    std::vector<hbm::DeviceGradient> gradients;
    std::vector<hbm::DeviceUpdate> updates;
    const Training sgd = Sgd({}, 0.0f, 1);
    for (size_t t = 0; t < group.size(); ++t) {
      Both& m = *group[t];
      const auto u = static_cast<int>(t);
      const size_t most = m.keys.size();
      float* const sums = caller_.memory()->Filled<float>(most * static_cast<size_t>(m.cpu.dim), 0);
      members.push_back(m.on_device);
      gradients.push_back({u, caller_.memory()->Up(m.grad), m.cpu.stride, sums, caller_.memory()->Filled<int64_t>(most, 0),
                           caller_.memory()->Filled<int64_t>(most, 0),
                           m.weights.empty() ? nullptr : caller_.memory()->Filled<float>(m.weights.size(), 0)});
      updates.push_back({u, sums, nullptr, 0, hbm::RequestOf(sgd)});
      (void)m.table->TotalCount();  // waits for the update before
    }
    hbm::DevicePlan plan;
    const int64_t before = device_->launches();
    const int64_t waits = device_->synchronizations();
    MT_ASSERT_OK(caller_.Lookup(members, &plan));
    MT_ASSERT_OK(GradientOnDevice(plan, gradients, caller_.stream()));
    bool at_once = false;
    MT_ASSERT_OK(caller_.Update(plan, updates, &at_once));
    EXPECT_TRUE(at_once);
    for (const auto& m : group) (void)m->table->TotalCount();
    launches.push_back(device_->launches() - before);
    EXPECT_EQ(device_->synchronizations() - waits, 1);     // of the lookup
    MT_ASSERT_OK(device_->Synchronize(caller_.stream()));  // before the last table of the device ends
  }
  EXPECT_EQ(launches, std::vector<int64_t>(3, 12));
}

// Two tables that always get the same updates: a snapshot of both has as many of them in one as in the other.
TEST(DeviceUpdate, OfSeveralTablesIsOneMomentOfTheirSnapshot) {
  const auto device = hbm::NewEmulatedDevice(2);
  std::vector<std::unique_ptr<EmbeddingTable>> tables;
  for (int t = 0; t < 2; ++t) {
    TableOptions options = TieredOptions(2, 8, std::make_shared<MemoryTier>());
    options.initializer.kind = InitializerKind::kConstant;
    options.initializer.a = 0.0f;
    options.above = hbm::HbmOver(device);
    options.hbm_budget_rows = 16;
    tables.push_back(MakeTable(std::move(options)));
  }
  std::atomic<bool> over{false};
  std::thread trainer([&] {
    hbm::DeviceCaller caller(device);
    const Training training = Sgd({1}, -1.0f, 2);
    do {
      hbm::DevicePlan plan;
      std::vector<DeviceMember> members;
      for (const auto& table : tables) members.push_back(caller.Plain(hbm::HbmTableOf(table.get()), training.keys));
      MT_EXPECT_OK(caller.Lookup(members, &plan));
      MT_EXPECT_OK(caller.Update(plan, {caller.UpdateOf(training, 0), caller.UpdateOf(training, 1)}));
    } while (!over);
  });
  for (int i = 0; i < (hbm::kSanitized ? 3 : 30); ++i) {
    std::vector<float> values(2, 0.0f);
    std::vector<TableInGroup> group(2);
    for (size_t t = 0; t < 2; ++t) {
      group[t].table = tables[t].get();
      group[t].visit = [&values, t](Rows* rows) {
        if (!rows->keys.empty()) values[t] = rows->data[0];
        return OkStatus();
      };
      group[t].finish = [] { return OkStatus(); };
    }
    MT_EXPECT_OK(SnapshotTogether(group));
    EXPECT_EQ(values[0], values[1]);
  }
  over = true;
  trainer.join();
  EXPECT_GT(LookupAll(tables[0].get(), {1})[0], 0.0f);
}

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceGroup, testing::Range(0, hbm::kSanitized ? 2 : 10));

}  // namespace
}  // namespace multitier::device_group_test
