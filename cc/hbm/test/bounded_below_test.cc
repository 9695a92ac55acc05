// HBM over a last tier that has a size, next to the same tiers without HBM: both refuse the same batches, and hold the same
// rows.

#include <algorithm>
#include <atomic>
#include <thread>

#include "cc/hbm/hbm_above.h"
#include "cc/hbm/test/device_caller.h"
#include "cc/hbm/test/hbm_test_util.h"
#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier::hbm::bounded_below_test {
namespace {

constexpr int kDim = 4;

struct Sizes {
  uint64_t dram;
  std::vector<uint64_t> lower;
  uint64_t all() const {
    uint64_t rows = dram;
    for (const uint64_t one : lower) rows += one;
    return rows;
  }
};

const std::vector<Sizes>& AllSizes() {
  static const std::vector<Sizes> sizes = {{6, {}}, {2, {5}}, {2, {3, 4}}, {10, {1}}};
  return sizes;
}

TableOptions OptionsOf(const Sizes& sizes) {
  TableOptions options = BasicOptions(kDim);
  options.dram_budget_rows = sizes.dram;
  for (const uint64_t rows : sizes.lower) {
    LowerTierOptions lower;
    lower.tier = std::make_shared<MemoryTier>();
    lower.budget_rows = rows;
    options.lower_tiers.push_back(lower);
  }
  return options;
}

std::unique_ptr<EmbeddingTable> WithHbm(TableOptions options, uint64_t rows, uint64_t seed) {
  options.above = HbmOver(NewEmulatedDevice(seed));
  options.hbm_budget_rows = rows;
  return MakeTable(std::move(options));
}

void ExpectSameStatus(const Status& expected, const Status& found) {
  EXPECT_EQ(found.code(), expected.code()) << found.ToString();
  EXPECT_EQ(found.message(), expected.message());
}

std::vector<int64_t> ScannedKeys(EmbeddingTable* table) {
  std::vector<int64_t> keys;
  ScanRequest request;
  request.max_rows = 3;
  do {
    auto rows = table->Scan(request, &request.cursor);
    EXPECT_TRUE(rows.ok()) << rows.status().ToString();
    if (!rows.ok()) break;
    keys.insert(keys.end(), rows->keys.begin(), rows->keys.end());
  } while (request.cursor != 0);
  std::sort(keys.begin(), keys.end());
  return keys;
}

Status UpsertOf(EmbeddingTable* table, const std::vector<int64_t>& keys) {
  const std::vector<float> values(keys.size() * kDim, 0.5f);
  UpsertRequest request;
  request.keys = keys;
  request.columns.push_back({"value", kDim, values.data()});
  return table->Upsert(request).status();
}

TEST(BoundedBelow, RefusesTheBatchesThatTheTiersRefuseWithoutHbmAndHoldsTheSameRows) {
  int refused = 0, accepted = 0;
  uint64_t seed = 0;
  for (const Sizes& sizes : AllSizes()) {
    for (const uint64_t hbm_rows : {1u, 4u, 40u}) {
      if (kSanitized && ++seed % 3 != 0) continue;
      SCOPED_TRACE(StrCat("dram ", sizes.dram, ", ", sizes.lower.size(), " tiers below, hbm ", hbm_rows));
      std::mt19937_64 random(++seed);
      auto plain = MakeTable(OptionsOf(sizes));
      auto table = WithHbm(OptionsOf(sizes), hbm_rows, seed);
      const auto keys_of = [&](size_t most) {
        std::vector<int64_t> keys(1 + random() % most);
        for (int64_t& key : keys) key = static_cast<int64_t>(random() % 20);
        return keys;
      };
      for (int step = 0; step < 16; ++step) {
        const Training training = SomeTraining(*FindUpdateRule("sgd"), keys_of(6), kDim, &random);
        const Status expected = training.Run(plain.get());
        ExpectSameStatus(expected, training.Run(table.get()));
        (expected.ok() ? accepted : refused) += 1;
        switch (random() % 6) {
          case 0: {
            const std::vector<int64_t> keys = keys_of(4);
            int64_t removed[2];
            MT_ASSERT_OK(plain->Remove(keys, &removed[0]));
            MT_ASSERT_OK(table->Remove(keys, &removed[1]));
            EXPECT_EQ(removed[1], removed[0]);
            break;
          }
          case 1: {
            std::vector<int64_t> keys = keys_of(3);
            std::sort(keys.begin(), keys.end());
            keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
            ExpectSameStatus(UpsertOf(plain.get(), keys), UpsertOf(table.get(), keys));
            break;
          }
          case 2:
            EXPECT_EQ(ScannedKeys(table.get()), ScannedKeys(plain.get()));
            break;
          case 3:
            multitier::ExpectSameTables(plain.get(), table.get());
            break;
          case 4:
            MT_ASSERT_OK(table->Prefetch(keys_of(8), 1000000, nullptr));
            break;
          default:
            MT_ASSERT_OK(table->Drain());
        }
        if (HasFailure()) FAIL() << "step " << step;
      }
      EXPECT_EQ(table->TotalCount(), plain->TotalCount());
      EXPECT_EQ(table->NewestStep(), plain->NewestStep());
      MT_ASSERT_OK(table->Drain());
      multitier::ExpectSameTables(plain.get(), table.get());
    }
  }
  EXPECT_GT(refused, kSanitized ? 3 : 30);
  EXPECT_GT(accepted, kSanitized ? 3 : 30);
}

TEST(BoundedBelow, ABatchWithoutRoomChangesNothingAndSaysWhatHelps) {
  for (const Sizes& sizes : AllSizes()) {
    auto table = WithHbm(OptionsOf(sizes), 200, sizes.all());
    const auto rows = static_cast<int64_t>(sizes.all());
    MT_ASSERT_OK(Sgd(Range(0, rows), 1.0f, kDim).Run(table.get()));
    const Rows before = *table->Export(true);
    const int64_t step = table->NewestStep();
    for (const auto& keys : {Range(rows, rows + 1), Range(100, 200), Range(rows - 1, rows + 1)}) {
      const Status status = Sgd(keys, 1.0f, kDim).Run(table.get());
      EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
      EXPECT_NE(status.message().find("table 't'"), std::string::npos) << status.message();
      EXPECT_NE(status.message().find(StrCat(rows, " of ", rows, " rows")), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("use a larger storage_size or storage_rows"), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("on_full='warn'"), std::string::npos) << status.message();
    }
    EXPECT_EQ(table->TotalCount(), rows);
    EXPECT_EQ(table->NewestStep(), step);
    ExpectSameRows(before, *table->Export(true));
    MT_ASSERT_OK(table->Remove(std::vector<int64_t>{0}, nullptr));
    MT_ASSERT_OK(Sgd({77}, 1.0f, kDim).Run(table.get()));
    EXPECT_EQ(Sgd({78}, 1.0f, kDim).Run(table.get()).code(), StatusCode::kResourceExhausted);
  }
}

// Training on the device, from plans and without, bears rows below too.
TEST(BoundedBelow, UpdatesOfDeviceMemoryAreRefusedAsThoseOfTheHost) {
  const Sizes sizes{2, {5}};
  auto table = WithHbm(OptionsOf(sizes), 20, 1);
  auto plain = MakeTable(OptionsOf(sizes));
  HbmTable* const hbm = HbmTableOf(table.get());
  DeviceCaller caller(std::shared_ptr<device::Device>(&DeviceOf(*hbm), [](device::Device*) {}));
  std::mt19937_64 random(3);
  int refused = 0;
  for (int step = 0; step < 12; ++step) {
    std::vector<int64_t> keys(1 + random() % 5);
    for (int64_t& key : keys) key = static_cast<int64_t>(random() % 10);
    const Training training = SomeTraining(*FindUpdateRule("sgd"), keys, kDim, &random);
    Status found;
    if (step % 3 == 0) {
      found = caller.Apply(training, hbm);
    } else {
      DevicePlan plan;
      EXPECT_TRUE(SameBits(caller.LookupAll(hbm, keys, &plan), LookupAll(plain.get(), keys)));
      found = caller.Update(plan, {caller.UpdateOf(training, 0)});
    }
    const Status expected = training.Run(plain.get());
    ExpectSameStatus(expected, found);
    refused += expected.ok() ? 0 : 1;
    if (step % 4 == 3) {
      MT_ASSERT_OK(plain->Remove(keys, nullptr));
      MT_ASSERT_OK(table->Remove(keys, nullptr));
    }
  }
  EXPECT_GT(refused, 2);
  multitier::ExpectSameTables(plain.get(), table.get());
}

TEST(BoundedBelow, AFilterCountsAndRefusesAsWithoutHbm) {
  TableOptions options = OptionsOf({2, {4}});
  options.filter.kind = AdmissionKind::kCounter;
  options.filter.filter_freq = 2;
  auto plain = MakeTable(options);
  options.lower_tiers = OptionsOf({2, {4}}).lower_tiers;
  auto table = WithHbm(options, 20, 1);
  std::mt19937_64 random(5);
  int refused = 0;
  for (int step = 0; step < 20; ++step) {
    std::vector<int64_t> keys(1 + random() % 4);
    for (int64_t& key : keys) key = static_cast<int64_t>(random() % 12);
    const Training training = SomeTraining(*FindUpdateRule("sgd"), keys, kDim, &random);
    const Status expected = training.Run(plain.get());
    ExpectSameStatus(expected, training.Run(table.get()));
    refused += expected.ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 2);
  multitier::ExpectSameTables(plain.get(), table.get());
}

// With OnFull::kRefuse: one update of the host, of device memory, and of a plan after another. A group's plan has the absent
// keys.
TEST(BoundedBelow, NewKeysAreLeftOutThatWouldBeWithoutHbm) {
  int64_t refused = 0;
  for (const Sizes& sizes : AllSizes()) {
    for (const bool filters : {false, true}) {
      if (kSanitized && filters == (sizes.dram == 2)) continue;
      const bool grows = sizes.lower.empty();
      std::unique_ptr<EmbeddingTable> plain[2], tables[2];
      const auto device = NewEmulatedDevice(sizes.all());
      for (int t = 0; t < 2; ++t) {
        TableOptions options[2] = {OptionsOf(sizes), OptionsOf(sizes)};
        for (TableOptions& one : options) {
          one.on_full = OnFull::kRefuse;
          if (filters) one.filter.kind = AdmissionKind::kCounter;
          if (filters) one.filter.filter_freq = 2;
        }
        plain[t] = MakeTable(options[0]);
        options[1].above = HbmOver(device, grows ? 2 : 0);
        options[1].hbm_budget_rows = grows ? sizes.dram : 4;
        tables[t] = MakeTable(options[1]);
      }
      DeviceCaller caller(device);
      std::mt19937_64 random(sizes.all());
      for (int step = 0; step < (kSanitized ? 8 : 24); ++step) {
        std::vector<int64_t> keys(1 + random() % 5);
        for (int64_t& key : keys) key = static_cast<int64_t>(random() % 20);
        const Training training = SomeTraining(*FindUpdateRule("sgd"), keys, kDim, &random);
        if (step % 3 == 0) {
          std::vector<DeviceMember> members;
          for (const auto& table : tables) members.push_back(caller.Plain(HbmTableOf(table.get()), keys));
          DevicePlan plan;
          MT_ASSERT_OK(caller.Lookup(members, &plan));
          MT_ASSERT_OK(caller.Update(plan, {caller.UpdateOf(training, 0), caller.UpdateOf(training, 1)}));
        }
        for (int t = 0; t < 2; ++t) {
          if (step % 3 == 1) MT_ASSERT_OK(caller.Apply(training, HbmTableOf(tables[t].get())));
          if (step % 3 == 2) MT_ASSERT_OK(training.Run(tables[t].get()));
          MT_ASSERT_OK(training.Run(plain[t].get()));
          ASSERT_EQ(tables[t]->LastUpdate().refused, plain[t]->LastUpdate().refused) << "step " << step;
          refused += plain[t]->LastUpdate().refused;
          MT_ASSERT_OK(tables[t]->Drain());
          MT_ASSERT_OK(plain[t]->Drain());
          EXPECT_TRUE(SameBits(LookupAll(plain[t].get(), Range(0, 20)), LookupAll(tables[t].get(), Range(0, 20))));
          multitier::ExpectSameTables(plain[t].get(), tables[t].get());
        }
        if (HasFailure()) FAIL() << "step " << step;
        if (step % 8 != 7) continue;
        for (int t = 0; t < 2; ++t) {
          MT_ASSERT_OK(plain[t]->Remove(keys, nullptr));
          MT_ASSERT_OK(tables[t]->Remove(keys, nullptr));
        }
      }
      EXPECT_EQ(tables[0]->Stats().refused, plain[0]->Stats().refused);
    }
  }
  EXPECT_GT(refused, kSanitized ? 3 : 20);
}

TEST(BoundedBelow, WhicheverDeviceCallFailsAnUpdateIsDoneOrNotDone) {
  int64_t calls = 1;
  int failures = 0;
  const int64_t stride = Stride(4, 9);
  for (int64_t fails_at = -1; fails_at < calls; fails_at += stride) {  // first none
    auto device = NewEmulatedDevice();
    TableOptions options = OptionsOf({2, {5}});
    options.above = HbmOver(device);
    options.hbm_budget_rows = 3;
    auto table = MakeTable(options);
    auto plain = MakeTable(OptionsOf({2, {5}}));
    MT_ASSERT_OK(Sgd({1, 2, 3}, 1.0f, kDim).Run(table.get()));
    MT_ASSERT_OK(Sgd({1, 2, 3}, 1.0f, kDim).Run(plain.get()));
    const int64_t before = device->calls();
    device->FailCall(fails_at);
    for (const auto& keys : {std::vector<int64_t>{2, 4, 5}, std::vector<int64_t>{1, 6, 7, 8}, std::vector<int64_t>{5, 9}}) {
      const Status status = Sgd(keys, 1.0f, kDim).Run(table.get());
      if (status.ok()) {
        MT_ASSERT_OK(Sgd(keys, 1.0f, kDim).Run(plain.get()));
      } else if (status.message().find("emulated device") != std::string::npos) {
        ++failures;
      } else {
        EXPECT_EQ(Sgd(keys, 1.0f, kDim).Run(plain.get()).code(), status.code()) << status.ToString();
      }
    }
    calls = std::max(calls, device->calls() - before);
    device->FailCall(-1);
    multitier::ExpectSameTables(plain.get(), table.get());
    if (HasFailure()) FAIL() << "call " << fails_at;
  }
  EXPECT_GT(failures * stride, kSanitized ? 18 : 20);
}

TEST(BoundedBelow, AScanSeesNoRowBetweenItsBirthBelowAndItsUpdate) {
  TableOptions options = OptionsOf({100, {1000}});
  options.initializer = InitializerSpec();  // 0
  auto table = WithHbm(options, 400, 1);
  std::atomic<bool> done{false};
  std::thread trains([&] {
    for (int64_t key = 0; key < (kSanitized ? 20 : 120); ++key) {
      MT_EXPECT_OK(Sgd(Range(3 * key, 3 * key + 3), -1.0f, kDim).Run(table.get()));
    }
    done = true;
  });
  int64_t seen = 0;
  while (!done) {
    ScanRequest request;
    auto rows = table->Scan(request, &request.cursor);
    ASSERT_TRUE(rows.ok()) << rows.status().ToString();
    seen += static_cast<int64_t>(rows->keys.size());
    for (size_t i = 0; i < rows->keys.size(); ++i) {
      ASSERT_EQ(rows->frequencies[i], 1u) << "key " << rows->keys[i];
      ASSERT_EQ(rows->data[i * kDim], 1.0f) << "key " << rows->keys[i];
    }
  }
  trains.join();
  EXPECT_GT(seen, 0);
}

}  // namespace
}  // namespace multitier::hbm::bounded_below_test
