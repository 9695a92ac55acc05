// Each call of the device fails once, under operations that need the gate closed, under growth, and under groups of tables with
// their gradients. The operation returns an error and changes nothing, or it works.

#include "cc/hbm/test/device_caller.h"

namespace multitier::hbm::each_call_fails_test {
namespace {

constexpr int kDim = 3;
const int64_t kStep = Stride(11, 17);  // between the calls that fail

TableOptions Expiring(TableOptions options) {
  options.expiry.steps_to_live = 20;
  return options;
}

// A table with rows in HBM, most of them changed since they were handed down, and rows below.
struct Filled {
  explicit Filled(bool grows) : device(NewEmulatedDevice()) {
    table = grows ? GrowingTable(Expiring(BasicOptions(kDim)), device)
                  : MakeHbmTable(Expiring(TieredOptions(kDim, 4, std::make_shared<RelocatingTier>(4))), 12, device);
    plain = MakeTable(Expiring(BasicOptions(kDim)));
    std::mt19937_64 random(4);
    for (const int64_t step : {1, 50}) {
      Training training = SomeTraining(*FindUpdateRule("adagrad"), Range(step == 1 ? 0 : 6, step == 1 ? 12 : 9), kDim, &random);
      training.step = step;
      MT_EXPECT_OK(training.Run(plain.get()));
      MT_EXPECT_OK(table->AddSlots(SlotColumns(*training.rule, kDim)));
      MT_EXPECT_OK(table->Apply(RequestOf(training)));
    }
  }
  std::shared_ptr<device::EmulatedDevice> device;
  std::unique_ptr<HbmTable> table;
  std::unique_ptr<EmbeddingTable> plain;
};

Status Upsert(const std::function<Status(const UpsertRequest&)>& to) {
  const std::vector<int64_t> keys = {3, 7, 100};
  const std::vector<float> data = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  UpsertRequest request;
  request.keys = keys;
  request.columns = {{"value", kDim, data.data()}};
  return to(request);
}

Rows Imported() {
  Rows rows;
  rows.keys = {4, 101};
  rows.frequencies = {3, 4};
  rows.versions = {1, 2};
  rows.columns = {ColumnSpec{"value", DType::kFloat32, kDim, 0}};
  rows.data = {1, 2, 3, 4, 5, 6};
  return rows;
}

// What a scan and an export give is what the plain table has.
Status Compared(const Result<Rows>& rows, EmbeddingTable* plain) {
  if (rows.ok()) ExpectSameRows(*plain->Export(true), *rows);
  return rows.status();
}

struct Case {
  const char* name;
  bool grows;
  std::function<Status(const Filled&)> on_device;
  std::function<Status(EmbeddingTable*)> on_plain;  // null: changes nothing
};

Training More() {
  std::mt19937_64 random(5);
  return SomeTraining(*FindUpdateRule("adagrad"), Range(5, 60), kDim, &random);
}

std::vector<Case> Cases() {
  const auto expire = [](auto* table) { return table->Expire(55, nullptr); };
  const auto clear = [](auto* table) { return table->Clear(); };
  const auto import = [](auto* table) { return table->Import(Imported(), nullptr); };
  const auto slots = [](auto* table) { return table->AddSlots(SlotColumns(**FindUpdateRule("adam"), kDim)); };
  const auto upsert = [](auto* table) {
    return Upsert([&](const UpsertRequest& request) { return table->Upsert(request).status(); });
  };
  const auto scan = [](const Filled& filled) {
    uint64_t next = 0;
    return Compared(filled.table->Scan(ScanRequest(), &next), filled.plain.get());
  };
  std::vector<Case> cases;
  for (const bool grows : {false, true}) {
    const auto add = [&](const char* name, const auto& both) {
      cases.push_back({name, grows, [both](const Filled& filled) { return both(filled.table.get()); },
                       [both](EmbeddingTable* plain) { return both(plain); }});
    };
    add("expire", expire);
    add("clear", clear);
    add("import", import);
    add("upsert", upsert);
    add("slots", slots);
    cases.push_back({"scan", grows, scan, nullptr});
    if (!grows) cases.push_back({"flush", grows, [](const Filled& filled) { return filled.table->Flush(); }, nullptr});
    cases.push_back({"export", grows, [](const Filled& f) { return Compared(f.table->Export(true), f.plain.get()); }, nullptr});
  }
  cases.push_back({"growth by an apply", true, [](const Filled& f) { return f.table->Apply(RequestOf(More())); },
                   [](EmbeddingTable* plain) { return More().Run(plain); }});
  cases.push_back({"growth by a lookup for training", true,
                   [](const Filled& f) {
                     const std::vector<int64_t> keys = Range(-40, 12);
                     std::vector<float> out(keys.size() * kDim);
                     const Status status = f.table->Lookup(keys, out.data());
                     if (status.ok()) {
                       EXPECT_TRUE(SameBits(out, LookupAll(f.plain.get(), keys)));
                     }
                     return status;
                   },
                   nullptr});
  return cases;
}

TEST(EachCallFails, AnOperationOfAllRowsWorksOrChangesNothing) {
  for (const Case& one : Cases()) {
    int failures = 0;
    int64_t calls = 1;
    for (int64_t n = 0; n < calls; n += kStep) {
      const Filled filled(one.grows);
      const int64_t before = filled.device->calls();
      filled.device->FailCall(n);
      const Status status = one.on_device(filled);
      filled.device->FailCall(-1);
      calls = std::max(calls, filled.device->calls() - before);
      failures += !status.ok();
      if (!status.ok()) {
        const bool out_of_memory = status.code() == StatusCode::kResourceExhausted;  // a call that allocates
        EXPECT_TRUE(out_of_memory || status.code() == StatusCode::kInternal) << status.ToString();
        EXPECT_NE(status.message().find("emulated device: "), std::string::npos) << status.ToString();
      } else if (one.on_plain) {
        MT_EXPECT_OK(one.on_plain(filled.plain.get()));
      }
      ExpectSameTables(filled.plain.get(), filled.table.get());
      MT_EXPECT_OK(one.on_device(filled));  // it works now
      if (one.on_plain) MT_EXPECT_OK(one.on_plain(filled.plain.get()));
      ExpectSameTables(filled.plain.get(), filled.table.get());
      if (testing::Test::HasFailure()) FAIL() << one.name << (one.grows ? " of HBM alone" : "") << ", call " << n;
    }
    RecordProperty(one.name, static_cast<int>(calls));
    // Most calls are repeated, all of them in a clear. With steps, those that are not may be left out.
    EXPECT_TRUE(kStep > 1 || failures > 0 || std::string(one.name) == "clear") << one.name;
  }
}

// Two tables and an apply to both. Each table is updated as a whole or not at all.
// filters: the last key of each is not admitted.
void FailEachCallOfAGroup(bool filters) {
  const auto made_of = [filters](TableOptions options) {
    options.filter.kind = filters ? AdmissionKind::kCounter : AdmissionKind::kNone;
    options.filter.filter_freq = 2;
    return options;
  };
  int64_t calls = 1;
  int failures = 0;
  for (int64_t n = -1; n < calls; n += kStep) {  // first none
    const auto device = NewEmulatedDevice();
    DeviceCaller caller(device);
    std::unique_ptr<HbmTable> tables[2];
    std::unique_ptr<EmbeddingTable> plains[2];
    const Training trainings[2] = {Sgd({1, 2, 3, 2, 9}, 1.0f, kDim), Sgd({5, 1, 11, 5}, 0.5f, kDim)};
    std::vector<DeviceMember> members;
    std::vector<DeviceUpdate> updates;
    std::vector<DeviceApply> applies;
    std::vector<DeviceGradient> gradients;
    for (const size_t t : {0u, 1u}) {
      tables[t] = MakeHbmTable(made_of(TieredOptions(kDim, 2, std::make_shared<MemoryTier>())), 16, device);
      plains[t] = MakeTable(made_of(BasicOptions(kDim)));
      const Training before = Sgd(Range(0, 8), 0.25f, kDim);
      for (int i = 0; i < (filters ? 2 : 1); ++i) {
        MT_ASSERT_OK(before.Run(plains[t].get()));
        MT_ASSERT_OK(Train(before, tables[t].get()));
      }
      members.push_back(caller.Plain(tables[t].get(), trainings[t].keys));
      updates.push_back(caller.UpdateOf(trainings[t], static_cast<int>(t)));
      applies.push_back({tables[t].get(), members[t].keys, updates[t].grad, nullptr, updates[t].request});
      gradients.emplace_back();
      gradients[t].member = static_cast<int>(t);
      gradients[t].grad = updates[t].grad;
      gradients[t].sums = caller.memory()->Filled<float>(trainings[t].grads.size(), 0);
    }
    int64_t made = 0;
    // Whether it worked. If not, the device failed.
    const auto worked = [&](const std::function<Status()>& call) {
      const int64_t before = device->calls();
      device->FailCall(n < made ? -1 : n - made);
      const Status status = call();
      device->FailCall(-1);
      made += device->calls() - before;
      failures += !status.ok();
      EXPECT_TRUE(status.ok() || status.message().find("emulated device: ") != std::string::npos) << status.ToString();
      return status.ok();
    };
    const auto compare = [&](bool all_updated) {
      for (const size_t t : {0u, 1u}) {
        const std::vector<int64_t> key = {trainings[t].keys[0]};
        const bool updated = !SameBits(LookupAll(tables[t].get(), key), LookupAll(plains[t].get(), key));
        EXPECT_TRUE(updated || !all_updated);
        if (updated) MT_EXPECT_OK(trainings[t].Run(plains[t].get()));
        ExpectSameTables(plains[t].get(), tables[t].get());
      }
    };
    DevicePlan plan;
    if (worked([&] { return caller.Lookup(members, &plan); })) {
      for (const size_t t : {0u, 1u}) {
        EXPECT_TRUE(SameBits(caller.Values(members[t]), LookupAll(plains[t].get(), trainings[t].keys)));
      }
      if (worked([&] { return GradientOnDevice(plan, gradients, caller.stream()); })) {
        EXPECT_EQ(caller.memory()->Down(gradients[0].sums, 4 * kDim)[kDim], 2.0f);  // key 2 is there twice
        EXPECT_EQ(caller.memory()->Down(gradients[1].sums, 3 * kDim)[0], 1.0f);     // key 5, too
      }
      compare(worked([&] { return caller.Update(plan, updates); }));
    }
    compare(worked([&] {
      Awaited awaited;
      ApplyOnDevice(applies, caller.stream(), awaited.done());
      return awaited.Wait();
    }));
    calls = std::max(calls, made);
    if (testing::Test::HasFailure()) FAIL() << "call " << n;
  }
  EXPECT_GT(failures * kStep, 20);
}

TEST(EachCallFails, EachTableOfAGroupIsUpdatedAsAWholeOrNot) { FailEachCallOfAGroup(/*filters=*/false); }

TEST(EachCallFails, EachTableOfAGroupUnderAFilterIsUpdatedAsAWholeOrNot) { FailEachCallOfAGroup(/*filters=*/true); }

}  // namespace
}  // namespace multitier::hbm::each_call_fails_test
