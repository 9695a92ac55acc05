// Operations with device memory against a plain table on the CPU, bit for bit.

#include "cc/hbm/device_operations.h"

#include "cc/hbm/device_caller.h"

namespace multitier::hbm {
namespace {

Training SomeTraining(const UpdateRule* rule, std::vector<int64_t> keys, int dim, std::mt19937_64* random) {
  Training training;
  training.rule = rule;
  training.keys = std::move(keys);
  for (size_t i = 0; i < training.keys.size() * static_cast<size_t>(dim); ++i) {
    training.grads.push_back(static_cast<float>(static_cast<int>((*random)() % 2001) - 1000) / 700.0f);
  }
  training.hyper = SomeHyper(*rule);
  return training;
}

std::vector<int64_t> SomeKeys(size_t most, std::mt19937_64* random) {
  std::vector<int64_t> keys((*random)() % most);
  for (int64_t& key : keys) key = static_cast<int64_t>((*random)() % 40) - 10;
  return keys;
}

// Few rows of HBM over few rows of DRAM over a memory tier; or a table that grows; each with a plain table of the same values.
struct Pair {
  Pair(int dim, int hbm_rows, uint64_t seed) : device(NewEmulatedDevice(seed)) {
    plain = MakeTable(BasicOptions(dim));
    table = MakeHbmTable(TieredOptions(dim, 8, std::make_shared<MemoryTier>()), hbm_rows, device);
  }
  std::shared_ptr<device::EmulatedDevice> device;
  std::unique_ptr<EmbeddingTable> plain;
  std::unique_ptr<HbmTable> table;
};

TEST(DeviceOperations, EveryRuleGivesTheBitsOfAPlainTableWithAndWithoutAPlan) {
  uint64_t seed = 1;
  for (const UpdateRule* rule : AllUpdateRules()) {
    const std::string name = rule->name();
    if (name == "adadelta" || name.rfind("adagrad_decay", 0) == 0) continue;  // no kernel
    std::mt19937_64 random(++seed);
    const int dim = std::vector<int>{1, 3, 8, 17}[seed % 4];
    Pair pair(dim, 16, seed);
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
      ASSERT_TRUE(SameBits(multitier::LookupAll(pair.plain.get(), keys), caller.LookupAll(pair.table.get(), keys)))
          << name << " step " << step;
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
  EXPECT_EQ(pair.table->TotalCount(), 0);  // unborn rows read as absent
  EXPECT_EQ(TierOf(pair.table.get(), {5}), std::vector<int32_t>{-1});
  bool at_once = false;
  MT_ASSERT_OK(caller.Update(plan, {caller.UpdateOf(training, 0)}, &at_once));
  EXPECT_TRUE(at_once);
  EXPECT_EQ(pair.table->TotalCount(), 3);
  MT_ASSERT_OK(training.Run(pair.plain.get()));
  ExpectSameTables(pair.plain.get(), pair.table.get());
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
      return table->Import(rows);
    };
    MT_ASSERT_OK(change(pair.plain.get()));
    MT_ASSERT_OK(change(pair.table.get()));
    MT_ASSERT_OK(training.Run(pair.plain.get()));
    MT_ASSERT_OK(caller.Update(plan, {caller.UpdateOf(training, 0)}));
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

}  // namespace
}  // namespace multitier::hbm
