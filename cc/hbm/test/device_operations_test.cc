// Operations with device memory against a plain table on the CPU, bit for bit.

#include "cc/hbm/device_operations.h"

#include <map>
#include <thread>

#include "cc/hbm/test/device_caller.h"

namespace multitier::hbm::device_operations_test {
namespace {

TEST(DeviceOperations, EveryRuleGivesTheBitsOfAPlainTableWithAndWithoutAPlan) {
  uint64_t seed = 1;
  for (const UpdateRule* rule : RulesWithKernels()) {
    std::mt19937_64 random(++seed);
    const int dim = std::vector<int>{1, 3, 8, 17}[seed % 4];
    Pair pair(dim, 16, seed, /*dram_rows=*/8, /*values=*/seed);
    DeviceCaller caller(pair.device);
    for (int step = 0; step < (kSanitized ? 2 : 6); ++step) {
      Training training = SomeTraining(rule, SomeKeys(14, &random), dim, &random);
      const bool planned = step % 2 == 0;
      if (!planned) {
        for (size_t i = 0; i < training.keys.size(); ++i) training.counts.push_back(static_cast<int64_t>(i % 3));
      }
      MT_ASSERT_OK(training.Run(pair.plain.get()));
      MT_ASSERT_OK(pair.table->AddSlots(SlotColumns(*rule, dim)));
      if (planned) {
        DevicePlan plan;
        const std::vector<float> before = caller.LookupAll(pair.table.get(), training.keys, &plan);
        ASSERT_EQ(plan.distinct(0), static_cast<int64_t>(std::set<int64_t>(training.keys.begin(), training.keys.end()).size()));
        MT_ASSERT_OK(caller.Update(plan, {caller.UpdateOf(training, 0)}));
      } else {
        MT_ASSERT_OK(caller.Apply(training, pair.table.get(), /*is_int32=*/step % 4 == 1));
      }
      const std::vector<int64_t> keys = SomeKeys(14, &random);
      ASSERT_TRUE(SameBits(LookupAll(pair.plain.get(), keys), caller.LookupAll(pair.table.get(), keys)))
          << rule->name() << " step " << step;
    }
    ExpectSameTables(pair.plain.get(), pair.table.get());
  }
}

TEST(DeviceOperations, ATrainingLookupMakesTheUpdateWaitForNothing) {
  Pair pair(4, 64, 1);
  DeviceCaller caller(pair.device);
  const Training training = Sgd({5, 6, 5, 7}, 1.0f, 4);
  DevicePlan plan;
  caller.LookupAll(pair.table.get(), training.keys, &plan);
  EXPECT_EQ(pair.table->TotalCount(), 0);  // provisional rows read as absent
  EXPECT_EQ(TierOf(pair.table.get(), {5}), std::vector<int32_t>{-1});
  bool at_once = false;
  MT_ASSERT_OK(caller.Update(plan, {caller.UpdateOf(training, 0)}, &at_once));
  EXPECT_TRUE(at_once);
  EXPECT_EQ(pair.table->TotalCount(), 3);
  MT_ASSERT_OK(training.Run(pair.plain.get()));
  ExpectSameTables(pair.plain.get(), pair.table.get());
}

TEST(DeviceOperations, RowsBeginWithTheValueOfTheirTable) {
  TableOptions options;
  options.dim = 4;
  std::vector<TableInitializer> tables(3);
  for (int t = 0; t < 3; ++t) {
    ColumnInitializer column;
    column.initializer.a = static_cast<float>(t + 1);
    tables[static_cast<size_t>(t)].columns = {column};
  }
  options.initializer.tables = std::make_shared<const std::vector<TableInitializer>>(tables);
  const auto device = NewEmulatedDevice();
  const auto table = MakeHbmTable(options, 2, device);
  DeviceCaller caller(device);
  const auto expect = [&](const std::vector<int64_t>& keys, const std::vector<uint16_t>& numbers, std::vector<float> values) {
    for (const bool training : {false, true}) {
      DevicePlan plan;
      DeviceMember member = caller.Plain(table.get(), keys);
      member.tables = numbers;
      MT_ASSERT_OK(caller.Lookup({member}, training ? &plan : nullptr));
      const std::vector<float> found = caller.Values(member);
      for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(found[i * 4], values[i]) << "key " << keys[i];
    }
  };
  expect({5, 6, 5, 7}, {2, 1, 0, 0}, {3, 2, 3, 1});
  const Training training = Sgd({5, 6, 5, 7}, 1.0f, 4);
  const std::vector<float> hyper = training.hyper;
  EXPECT_EQ(caller.Lookup({caller.Plain(table.get(), {5})}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(caller.Apply(training, table.get()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(table->TotalCount(), 0);
  MT_ASSERT_OK(caller.Apply(training, table.get(), /*is_int32=*/true, {2, 1, 0, 0}));
  const float rate = hyper[0];
  expect({7, 5, 6}, {2, 2, 2}, {1 - rate, 3 - 2 * rate, 2 - rate});
  MT_ASSERT_OK(caller.Apply(training, table.get()));  // every key has a row
}

TEST(DeviceOperations, AnUpdateAfterItsRowsWereForgottenGivesTheSameBits) {
  for (int how = 0; how < 5; ++how) {
    Pair pair(4, 64, 1);
    DeviceCaller caller(pair.device);
    const Training first = Sgd({5, 6, 9}, 0.5f, 4), training = Sgd({5, 6, 5, 7}, 1.0f, 4);
    MT_ASSERT_OK(first.Run(pair.plain.get()));
    MT_ASSERT_OK(caller.Apply(first, pair.table.get()));
    DevicePlan plan;
    caller.LookupAll(pair.table.get(), training.keys, &plan);
    const std::vector<int64_t> removed = {5, 9};
    const auto change = [&](auto* table) -> Status {
      if (how == 0) return table->Remove(removed, nullptr);
      if (how == 1) return table->Clear();
      if (how == 2) return table->AddSlots(SlotColumns(**FindUpdateRule("adagrad"), 4));
      if (how == 3) return table->Expire(1, nullptr);
      Rows rows;
      rows.keys = {5, 40};
      rows.frequencies = {3, 4};
      rows.versions = {1, 2};
      rows.columns = {ColumnSpec{"value", DType::kFloat32, 4, 0}};
      rows.data = {1, 2, 3, 4, 5, 6, 7, 8};
      return table->Import(rows, nullptr);
    };
    MT_ASSERT_OK(change(pair.plain.get()));
    MT_ASSERT_OK(change(pair.table.get()));
    MT_ASSERT_OK(training.Run(pair.plain.get()));
    MT_ASSERT_OK(caller.Update(plan, {caller.UpdateOf(training, 0)}));
    ExpectSameTables(pair.plain.get(), pair.table.get());
  }
}

// In one launch, two warps would read and write a row at the same time.
TEST(DeviceOperations, ATableThatIsInAGroupTwiceGetsBothUpdates) {
  for (const bool has_rows : {false, true}) {
    Pair pair(4, 64, 1);
    DeviceCaller caller(pair.device);
    const auto other = MakeHbmTable(TieredOptions(4, 64, std::make_shared<MemoryTier>()), 64, pair.device);
    const Training first = Sgd(Range(0, 24), 0.5f, 4), second = Sgd({3, 30, 4, 5, 3, 6, 7, 8, 23}, 2.0f, 4);
    if (has_rows) {
      MT_ASSERT_OK(first.Run(pair.plain.get()));
      MT_ASSERT_OK(caller.Apply(first, pair.table.get()));
    }
    DevicePlan plan;
    MT_ASSERT_OK(caller.Lookup({caller.Plain(pair.table.get(), first.keys), caller.Plain(other.get(), first.keys),
                                caller.Plain(pair.table.get(), second.keys)},
                               &plan));
    MT_ASSERT_OK(caller.Update(plan, {caller.UpdateOf(first, 0), caller.UpdateOf(first, 1), caller.UpdateOf(second, 2)}));
    MT_ASSERT_OK(first.Run(pair.plain.get()));
    MT_ASSERT_OK(second.Run(pair.plain.get()));
    ExpectSameTables(pair.plain.get(), pair.table.get());
  }
}

TEST(DeviceOperations, RowsOfAPlanStayUntilItIsDropped) {
  Pair pair(4, 8, 1);
  DeviceCaller caller(pair.device);
  MT_ASSERT_OK(caller.Apply(Sgd(Range(0, 30), 1.0f, 4), pair.table.get()));
  DevicePlan plan;
  caller.LookupAll(pair.table.get(), Range(0, 8), &plan);
  for (int64_t key = 8; key < 30; key += 4) caller.LookupAll(pair.table.get(), Range(key, key + 4));
  EXPECT_EQ(TierOf(pair.table.get(), Range(0, 8)), std::vector<int32_t>(8, 0));
  plan = DevicePlan();
  caller.LookupAll(pair.table.get(), Range(8, 16));
  EXPECT_EQ(TierOf(pair.table.get(), Range(8, 16)), std::vector<int32_t>(8, 0));
}

TEST(DeviceOperations, APlanLargerThanHbmIsUpdatedAllTheSame) {
  Pair pair(3, 4, 3);
  DeviceCaller caller(pair.device);
  std::mt19937_64 random(3);
  for (int step = 0; step < 2; ++step) {
    const Training training = SomeTraining(*FindUpdateRule("sgd"), Range(0, 50), 3, &random);
    DevicePlan plan;
    caller.LookupAll(pair.table.get(), training.keys, &plan);
    MT_ASSERT_OK(caller.Update(plan, {caller.UpdateOf(training, 0)}));
    MT_ASSERT_OK(training.Run(pair.plain.get()));
  }
  ExpectSameTables(pair.plain.get(), pair.table.get());
}

TEST(DeviceOperations, UnderAFilterTheTableBelowCountsAndAdmits) {
  for (const AdmissionKind kind : {AdmissionKind::kCounter, AdmissionKind::kBloom}) {
    TableOptions basic = BasicOptions(4), tiered = TieredOptions(4, 4, std::make_shared<MemoryTier>());
    for (TableOptions* options : {&basic, &tiered}) {
      options->filter.kind = kind;
      options->filter.filter_freq = 3;
      options->filter.max_element_size = 100;
      options->default_value_no_permission.a = 0.25f;
    }
    auto device = NewEmulatedDevice(5);
    auto table = MakeHbmTable(tiered, 6, device);
    auto plain = MakeTable(basic);
    DeviceCaller caller(device);
    std::mt19937_64 random(5);
    for (int step = 0; step < (kSanitized ? 3 : 10); ++step) {
      const Training training = SomeTraining(*FindUpdateRule("sgd"), SomeKeys(12, &random), 4, &random);
      const std::vector<float> expected = LookupAll(plain.get(), training.keys);
      MT_ASSERT_OK(training.Run(plain.get()));
      DevicePlan plan;
      EXPECT_TRUE(SameBits(expected, caller.LookupAll(table.get(), training.keys, &plan)));
      MT_ASSERT_OK(caller.Update(plan, {caller.UpdateOf(training, 0)}));
    }
    ExpectSameTables(plain.get(), table.get());
  }
}

TEST(DeviceOperations, ATableThatGrowsMakesRoomInTheTrainingLookup) {
  auto device = NewEmulatedDevice();
  auto table = GrowingTable(BasicOptions(4), device, 1000 * 16);
  auto plain = MakeTable(BasicOptions(4));
  DeviceCaller caller(device);
  for (int64_t keys = 1; keys < 100; keys = 2 * keys + 1) {
    const Training training = Sgd(Range(keys / 2, keys), 0.25f, 4);
    DevicePlan plan;
    caller.LookupAll(table.get(), training.keys, &plan);
    bool at_once = false;
    MT_ASSERT_OK(caller.Update(plan, {caller.UpdateOf(training, 0)}, &at_once));
    EXPECT_TRUE(at_once);
    MT_ASSERT_OK(training.Run(plain.get()));
    EXPECT_EQ(TierOf(table.get(), training.keys), std::vector<int32_t>(training.keys.size(), 0));
  }
  ExpectSameTables(plain.get(), table.get());
}

TEST(DeviceOperations, AFullTableRefusesRowsThatItsLookupHasMade) {
  auto device = NewEmulatedDevice();
  auto table = GrowingTable(BasicOptions(4), device, 10 * 16);
  DeviceCaller caller(device);
  const Training most = Sgd(Range(0, 8), 1.0f, 4), more = Sgd(Range(6, 12), 1.0f, 4), last = Sgd({8, 9}, 1.0f, 4);
  MT_ASSERT_OK(caller.Apply(most, table.get()));
  DevicePlan first, second, third;
  caller.LookupAll(table.get(), last.keys, &first);
  caller.LookupAll(table.get(), more.keys, &second);
  EXPECT_EQ(table->TotalCount(), 8);
  EXPECT_EQ(caller.Update(second, {caller.UpdateOf(more, 0)}).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(table->TotalCount(), 8);
  MT_ASSERT_OK(caller.Update(first, {caller.UpdateOf(last, 0)}));
  EXPECT_EQ(table->TotalCount(), 10);
  const Training old = Sgd(Range(0, 10), 1.0f, 4);
  caller.LookupAll(table.get(), old.keys, &third);
  MT_ASSERT_OK(caller.Update(third, {caller.UpdateOf(old, 0)}));
  EXPECT_EQ(caller.Apply(Sgd({11}, 1.0f, 4), table.get()).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(table->TotalCount(), 10);
}

// A lookup with its update and an apply; the device fails at one call. What the caller itself does is done before and after.
void RunSequence(HbmTable* table, EmbeddingTable* plain, int64_t fails_at, device::EmulatedDevice* device, bool* failed) {
  DeviceCaller caller(std::shared_ptr<device::Device>(device, [](device::Device*) {}));
  std::mt19937_64 random(4);
  const auto expect = [&](const Status& status) {
    if (!status.ok()) {
      EXPECT_NE(status.message().find("emulated device"), std::string::npos) << status.ToString();
    }
    *failed |= !status.ok();
    return status.ok();
  };
  for (int step = 0; step < 2; ++step) {
    const Training training = SomeTraining(*FindUpdateRule("sgd"), {1, 2, 3, 2, 4 + step, 9 + step}, 3, &random);
    const DeviceMember member = caller.Plain(table, training.keys, /*is_int32=*/true);
    const std::vector<DeviceUpdate> updates = {caller.UpdateOf(training, 0)};
    const std::vector<float> expected = LookupAll(plain, training.keys);
    DeviceApply apply{table, caller.Keys(training.keys), updates[0].grad, nullptr, updates[0].request};
    device->FailCall(fails_at < 0 ? -1 : std::max<int64_t>(0, fails_at));
    const int64_t calls = device->calls();
    DevicePlan plan;
    const bool looked_up = expect(caller.Lookup({member}, &plan));
    Awaited applied;
    ApplyOnDevice(std::vector<DeviceApply>{apply}, caller.stream(), applied.done());
    if (expect(applied.Wait())) MT_ASSERT_OK(training.Run(plain));
    if (looked_up && expect(caller.Update(plan, updates))) MT_ASSERT_OK(training.Run(plain));
    fails_at -= device->calls() - calls;
    device->FailCall(-1);
    if (looked_up) {
      EXPECT_TRUE(SameBits(caller.Values(member), expected));
    }
  }
}

TEST(DeviceOperations, WhicheverDeviceCallFailsNoRowIsLost) {
  int64_t calls = 1;
  int failures = 0;
  const int64_t stride = Stride(4, 13);
  for (int64_t fails_at = -1; fails_at < calls; fails_at += stride) {  // first none
    auto device = NewEmulatedDevice();
    auto table = MakeHbmTable(TieredOptions(3, 2, std::make_shared<MemoryTier>()), 8, device);
    auto plain = MakeTable(BasicOptions(3));
    const int64_t before = device->calls();
    bool failed = false;
    RunSequence(table.get(), plain.get(), fails_at, device.get(), &failed);
    calls = std::max(calls, device->calls() - before);
    failures += failed;
    ExpectSameTables(plain.get(), table.get());
    if (testing::Test::HasFailure()) FAIL() << "call " << fails_at;
  }
  EXPECT_GT(failures * stride, kSanitized ? 65 : 50);
}

// Whole numbers are added, so that the sums do not depend on the order of the threads.
TEST(DeviceOperations, ThreadsWithStreamsOfTheirOwnLoseNoUpdate) {
  auto device = NewEmulatedDevice(3);
  TableOptions options = TieredOptions(4, 6, std::make_shared<MemoryTier>());
  options.initializer.kind = InitializerKind::kConstant;
  options.initializer.a = 0.0f;
  auto table = MakeHbmTable(options, 12, device);
  constexpr int kSteps = kSanitized ? 4 : 25;
  std::vector<std::map<int64_t, int>> updates(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      DeviceCaller caller(device);
      for (int i = 0; i < kSteps; ++i) {
        std::vector<int64_t> keys = SomeKeys(10, &random);
        for (const int64_t key : keys) ++updates[static_cast<size_t>(t)][key];
        const Training training = Sgd(keys, -1.0f, 4);
        if (t == 0) {
          MT_EXPECT_OK(Train(training, table.get()));
        } else if (t == 1) {
          MT_EXPECT_OK(caller.Apply(training, table.get()));
        } else {
          DevicePlan plan;
          caller.LookupAll(table.get(), keys, &plan);
          MT_EXPECT_OK(caller.Update(plan, {caller.UpdateOf(training, 0)}));
        }
      }
    });
  }
  threads.emplace_back([&] {
    for (int i = 0; i < 3; ++i) {
      const auto rows = table->Export(true);
      EXPECT_TRUE(rows.ok());
      for (size_t r = 0; r < rows->keys.size(); ++r) {
        for (size_t d = 1; d < 4; ++d) EXPECT_EQ(rows->data[r * 4 + d], rows->data[r * 4]) << "a torn row";
      }
      MT_EXPECT_OK(table->Remove(std::vector<int64_t>{1000}, nullptr));  // closes the gate
    }
  });
  for (std::thread& thread : threads) thread.join();
  const std::vector<float> values = LookupAll(table.get(), Range(-10, 30));
  for (int64_t key = -10; key < 30; ++key) {
    float sum = 0;
    for (auto& of_thread : updates) sum += static_cast<float>(of_thread[key]);
    EXPECT_EQ(values[static_cast<size_t>(key + 10) * 4], sum) << key;
  }
}

TEST(DeviceOperations, MemoryComesFromTheSourceOfTheCaller) {
  auto device = NewEmulatedDevice();
  auto lent = std::make_shared<std::atomic<int64_t>>(0);
  auto source = CountingSource(device, lent);
  DeviceCaller caller(device);
  source->stream = caller.stream();
  {
    const auto table = MakeHbmTable(TieredOptions(4, 8, std::make_shared<MemoryTier>()), 64, device, 0, source);
    const int64_t of_table = *lent;
    EXPECT_GT(of_table, 5);
    MT_ASSERT_OK(caller.Apply(Sgd({1, 2, 3}, 1.0f, 4), table.get()));
    EXPECT_GT(*lent, of_table);
    source->allocate = [](size_t bytes) -> Result<void*> {
      return ResourceExhaustedError("the framework has no memory for ", bytes, " bytes; 7 of 8 bytes are free");
    };
    const Status refused = caller.Apply(Sgd(Range(0, 5000), 1.0f, 4), table.get());
    EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
    EXPECT_NE(refused.message().find("table 't'"), std::string::npos) << refused.message();
    EXPECT_NE(refused.message().find("the framework has no memory"), std::string::npos) << refused.message();
  }
  EXPECT_EQ(*lent, 0);
}

TEST(DeviceOperations, BadInputIsRefusedWithTheMembersName) {
  Pair pair(4, 16, 1);
  DeviceCaller caller(pair.device);
  const auto refused = [&](DeviceMember member) {
    const Status status = caller.Lookup({member});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
    return status.message();
  };
  DeviceMember member = caller.Plain(pair.table.get(), {1, 2, 3});
  member.name = "member 0 ('user')";
  member.batch = 2;
  EXPECT_EQ(
      refused(member),
      "table 't', member 0 ('user'): expected a row of its own for each of 3 keys, no steps and no weights, found batch 2, "
      "steps 0");
  member.form = EntryForm::kRows;
  for (const std::vector<int64_t>& rows : {std::vector<int64_t>{0, 1, 0}, {0, 1, 2}, {-1, 0, 1}}) {
    member.indices = caller.memory()->Up(rows);
    EXPECT_NE(refused(member).find("member 0 ('user'): expected rows in [0, 2), in row-major order, found indices["),
              std::string::npos);
  }
  member.form = EntryForm::kRagged;
  for (const std::vector<int64_t>& splits : {std::vector<int64_t>{0, 1, 2}, {1, 2, 3}, {0, 4, 3}, {0, -1, 3}}) {
    member.indices = caller.memory()->Up(splits);
    EXPECT_NE(refused(member).find("nondecreasing row splits from 0 to 3"), std::string::npos);
  }
  EXPECT_EQ(pair.table->TotalCount(), 0);
  DevicePlan plan;
  EXPECT_EQ(caller.Update(plan, {DeviceUpdate()}).code(), StatusCode::kInvalidArgument);
  Pair other(4, 16, 1);
  EXPECT_EQ(caller.Lookup({caller.Plain(pair.table.get(), {1}), caller.Plain(other.table.get(), {1})}).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace multitier::hbm::device_operations_test
