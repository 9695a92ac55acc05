#include "cc/table/api/embedding_table.h"

#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "cc/env/fault_env.h"
#include "cc/table/test/table_test_util.h"

namespace multitier::embedding_table_test {
namespace {

const std::vector<int64_t> kOddKeys{0, -1, -7, INT64_MIN, INT64_MAX};

std::vector<int64_t> VersionOf(EmbeddingTable* table, const std::vector<int64_t>& keys) {
  std::vector<int64_t> out(keys.size());
  MT_EXPECT_OK(table->Version(keys, out.data()));
  return out;
}

TEST(EmbeddingTable, LookupCreatesNoKeyAndReadsTheSameEverywhere) {
  auto a = MakeTable(BasicOptions(5)), b = MakeTable(BasicOptions(5));
  const std::vector<int64_t> keys = Range(-500, 500);
  const std::vector<float> first = LookupAll(a.get(), keys);
  EXPECT_TRUE(SameBits(first, LookupAll(a.get(), keys)));
  EXPECT_TRUE(SameBits(first, LookupAll(b.get(), keys)));
  EXPECT_TRUE(SameBits(LookupAll(b.get(), {3}), std::vector<float>(first.begin() + 503 * 5, first.begin() + 504 * 5)));
  EXPECT_EQ(a->TotalCount(), 0);
}

TEST(EmbeddingTable, TrainingStartsFromTheInitialValue) {
  auto table = MakeTable(BasicOptions(3));
  const std::vector<float> before = LookupAll(table.get(), kOddKeys);
  MT_ASSERT_OK(Sgd(kOddKeys, 0.5f, 3).Run(table.get()));
  const std::vector<float> after = LookupAll(table.get(), kOddKeys);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i], before[i] - 0.5f);
  EXPECT_EQ(table->TotalCount(), static_cast<int64_t>(kOddKeys.size()));
}

TEST(EmbeddingTable, RepeatedKeyIsUpdatedOnceWithTheSumAndCountedEachTime) {
  auto table = MakeTable(BasicOptions(2));
  const float before = LookupAll(table.get(), {1})[0];
  MT_ASSERT_OK(Sgd({1, 1, 1}, 1.0f, 2).Run(table.get()));
  EXPECT_EQ(LookupAll(table.get(), {1})[0], before - 3.0f);
  EXPECT_EQ(FrequencyOf(table.get(), {1, 2}), (std::vector<int64_t>{3, 0}));
}

TEST(EmbeddingTable, RepeatedKeyUnderAdagradSumsGradientsFirst) {
  Training training;
  training.rule = *FindUpdateRule("adagrad");
  training.keys = {4, 4};
  training.grads = {1.0f, 2.0f};
  training.hyper = SomeHyper(*training.rule);
  Training summed = training;
  summed.keys = {4};
  summed.grads = {3.0f};
  auto a = MakeTable(BasicOptions(1)), b = MakeTable(BasicOptions(1));
  MT_ASSERT_OK(training.Run(a.get()));
  MT_ASSERT_OK(summed.Run(b.get()));
  EXPECT_TRUE(SameBits(LookupAll(a.get(), {4}), LookupAll(b.get(), {4})));
}

TEST(EmbeddingTable, CountsStandForOccurrencesAndZeroTrainsWithoutCounting) {
  auto table = MakeTable(BasicOptions(1));
  Training training = Sgd({1, 2, 2}, 1.0f, 1);
  training.counts = {5, 0, 7};
  MT_ASSERT_OK(training.Run(table.get()));
  EXPECT_EQ(FrequencyOf(table.get(), {1, 2}), (std::vector<int64_t>{5, 7}));
  training = Sgd({3}, 1.0f, 1);
  training.counts = {0};
  MT_ASSERT_OK(training.Run(table.get()));
  EXPECT_EQ(FrequencyOf(table.get(), {3}), std::vector<int64_t>{0});
  EXPECT_EQ(table->TotalCount(), 3);
}

TEST(EmbeddingTable, VersionIsTheGlobalStepElseTheTablesOwnCount) {
  auto table = MakeTable(BasicOptions(1));
  MT_ASSERT_OK(Sgd({1}, 1.0f, 1).Run(table.get()));
  MT_ASSERT_OK(Sgd({2}, 1.0f, 1).Run(table.get()));
  Training training = Sgd({3}, 1.0f, 1);
  training.step = 700;
  MT_ASSERT_OK(training.Run(table.get()));
  EXPECT_EQ(VersionOf(table.get(), {1, 2, 3, 4}), (std::vector<int64_t>{1, 2, 700, -1}));
}

TEST(EmbeddingTable, RemoveForgetsRowFrequencyAndVersion) {
  auto table = MakeTable(BasicOptions(2));
  const std::vector<float> before = LookupAll(table.get(), kOddKeys);
  MT_ASSERT_OK(Sgd(kOddKeys, 1.0f, 2).Run(table.get()));
  int64_t removed = 0;
  MT_ASSERT_OK(table->Remove(std::vector<int64_t>{-7, 0, 0, 99}, &removed));
  EXPECT_EQ(removed, 2);
  EXPECT_EQ(table->TotalCount(), 3);
  EXPECT_EQ(FrequencyOf(table.get(), kOddKeys), (std::vector<int64_t>{0, 1, 0, 1, 1}));
  EXPECT_EQ(VersionOf(table.get(), {0}), std::vector<int64_t>{-1});
  EXPECT_EQ(LookupAll(table.get(), {0})[0], before[0]);
}

TEST(EmbeddingTable, ExpireBySteps) {
  TableOptions options = BasicOptions(1);
  options.expiry.steps_to_live = 10;
  auto table = MakeTable(options);
  for (const int64_t step : {1, 5, 20}) {
    Training training = Sgd({step}, 1.0f, 1);
    training.step = step;
    MT_ASSERT_OK(training.Run(table.get()));
  }
  int64_t expired = 0;
  MT_ASSERT_OK(table->Expire(15, &expired));
  EXPECT_EQ(expired, 1);
  EXPECT_EQ(VersionOf(table.get(), {1, 5, 20}), (std::vector<int64_t>{-1, 5, 20}));
}

TEST(EmbeddingTable, ExpireByWeight) {
  TableOptions options = BasicOptions(2);
  options.initializer.kind = InitializerKind::kConstant;
  options.initializer.a = 1.0f;
  options.expiry.l2_weight_threshold = 0.5f;
  auto table = MakeTable(options);
  MT_ASSERT_OK(Sgd({1}, 0.9f, 2).Run(table.get()));   // 0.5 * 2 * 0.01
  MT_ASSERT_OK(Sgd({2}, -0.5f, 2).Run(table.get()));  // 0.5 * 2 * 2.25
  int64_t expired = 0;
  MT_ASSERT_OK(table->Expire(0, &expired));
  EXPECT_EQ(expired, 1);
  EXPECT_EQ(FrequencyOf(table.get(), {1, 2}), (std::vector<int64_t>{0, 1}));
}

TEST(EmbeddingTable, CounterFilterAdmitsInTheApplyThatReachesTheThreshold) {
  TableOptions options = BasicOptions(1);
  options.filter.kind = AdmissionKind::kCounter;
  options.filter.filter_freq = 3;
  options.default_value_no_permission.a = -9.0f;
  auto table = MakeTable(options);
  auto unfiltered = MakeTable(BasicOptions(1));
  const float initial = LookupAll(unfiltered.get(), {1})[0];
  MT_ASSERT_OK(Sgd({1, 1}, 1.0f, 1).Run(table.get()));
  EXPECT_EQ(LookupAll(table.get(), {1})[0], -9.0f);
  EXPECT_EQ(FrequencyOf(table.get(), {1}), std::vector<int64_t>{2});
  EXPECT_EQ(table->TotalCount(), 0);
  EXPECT_EQ(table->Stats().counted_keys, 1);
  MT_ASSERT_OK(Sgd({1}, 1.0f, 1).Run(table.get()));
  EXPECT_EQ(LookupAll(table.get(), {1})[0], initial - 1.0f);
  EXPECT_EQ(FrequencyOf(table.get(), {1}), std::vector<int64_t>{3});
  EXPECT_EQ(table->Stats().counted_keys, 0);
}

TEST(EmbeddingTable, BloomFilterAdmitsAtTheThresholdAndGoesOnFromItsCount) {
  TableOptions options = BasicOptions(1);
  options.filter.kind = AdmissionKind::kBloom;
  options.filter.filter_freq = 3;
  options.filter.max_element_size = 1000;
  options.default_value_no_permission.a = -9.0f;
  auto table = MakeTable(options);
  for (int i = 0; i < 2; ++i) MT_ASSERT_OK(Sgd({8}, 1.0f, 1).Run(table.get()));
  EXPECT_EQ(LookupAll(table.get(), {8})[0], -9.0f);
  MT_ASSERT_OK(Sgd({8}, 1.0f, 1).Run(table.get()));
  EXPECT_NE(LookupAll(table.get(), {8})[0], -9.0f);
  EXPECT_EQ(FrequencyOf(table.get(), {8}), std::vector<int64_t>{3});
}

TEST(EmbeddingTable, RemoveForgetsWhatABloomFilterCounted) {
  TableOptions options = BasicOptions(1);
  options.filter.kind = AdmissionKind::kBloom;
  options.filter.filter_freq = 3;
  options.filter.max_element_size = 1000;
  auto table = MakeTable(options);
  for (int i = 0; i < 5; ++i) MT_ASSERT_OK(Sgd({1}, 1.0f, 1).Run(table.get()));
  MT_ASSERT_OK(table->Remove(std::vector<int64_t>{1}, nullptr));
  MT_ASSERT_OK(Sgd({1}, 1.0f, 1).Run(table.get()));
  EXPECT_EQ(table->TotalCount(), 0);
}

TEST(EmbeddingTable, BloomCountersOfAnotherGeometryAreNotTakenOver) {
  auto make = [](int bits, int64_t keys) {
    TableOptions options = BasicOptions(1);
    options.filter.kind = AdmissionKind::kBloom;
    options.filter.filter_freq = 3;
    options.filter.counter_bits = bits;
    options.filter.max_element_size = keys;
    return MakeTable(options);
  };
  auto table = make(16, 1000), same = make(16, 1000), other = make(32, 500);  // of the same number of bytes
  for (int i = 0; i < 2; ++i) MT_ASSERT_OK(Sgd(Range(0, 300), 1.0f, 1).Run(table.get()));
  const auto rows = table->Export(true);
  ASSERT_TRUE(rows.ok());
  MT_ASSERT_OK(same->Import(*rows));
  MT_ASSERT_OK(other->Import(*rows));
  MT_ASSERT_OK(Sgd(Range(0, 300), 1.0f, 1).Run(same.get()));
  MT_ASSERT_OK(Sgd(Range(0, 300), 1.0f, 1).Run(other.get()));
  EXPECT_EQ(same->TotalCount(), 300);
  EXPECT_EQ(other->TotalCount(), 0);
}

TEST(EmbeddingTable, NewestStepIsTheLargestVersionAppliedOrImported) {
  auto a = MakeTable(BasicOptions(1)), b = MakeTable(BasicOptions(1));
  EXPECT_EQ(a->NewestStep(), -1);
  for (const int64_t step : {5, 900, 7}) {
    Training training = Sgd({step}, 1.0f, 1);
    training.step = step;
    MT_ASSERT_OK(training.Run(a.get()));
  }
  EXPECT_EQ(a->NewestStep(), 900);
  MT_ASSERT_OK(b->Import(*a->Export(true)));
  EXPECT_EQ(b->NewestStep(), 900);
}

TEST(EmbeddingTable, ConcurrentRemovesOfTheSameKeysBelowLeaveNothingInDram) {
  auto table = MakeTable(TieredOptions(4, 8, std::make_shared<MemoryTier>()));
  const std::vector<int64_t> keys = Range(0, 64);
  for (int round = 0; round < 100; ++round) {
    MT_ASSERT_OK(Sgd(keys, 1.0f, 4).Run(table.get()));
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) threads.emplace_back([&] { MT_EXPECT_OK(table->Remove(keys, nullptr)); });
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(table->TotalCount(), 0);
  }
  MT_ASSERT_OK(Sgd({1000}, 1.0f, 4).Run(table.get()));
  EXPECT_EQ(TierOf(table.get(), {1000}), std::vector<int32_t>{0});
  EXPECT_LE(table->Stats().tiers[0].resident_bytes, 16 * 1024);
}

TEST(EmbeddingTable, AddSlotsWidensRowsAndKeepsValues) {
  auto table = MakeTable(BasicOptions(3));
  const std::vector<int64_t> keys = Range(0, 3000);
  MT_ASSERT_OK(Sgd(keys, 1.0f, 3).Run(table.get()));
  const std::vector<float> before = LookupAll(table.get(), keys);
  ColumnSpec slot;
  slot.name = "s";
  slot.dim = 2;
  slot.initial_value = 0.5f;
  MT_ASSERT_OK(table->AddSlots(std::vector<ColumnSpec>{slot}));
  EXPECT_TRUE(SameBits(before, LookupAll(table.get(), keys)));
  const auto rows = table->Export(true);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->row_elements(), 5);
  EXPECT_EQ(rows->data[3], 0.5f);
  slot.dim = 3;
  EXPECT_EQ(table->AddSlots(std::vector<ColumnSpec>{slot}).code(), StatusCode::kAlreadyExists);
}

// A column comes twice here, in place of another.
TEST(EmbeddingTable, AnImportFillsTheColumnsThatItDoesNotBring) {
  auto table = MakeTable(BasicOptions(2));
  const ColumnSpec a{"a", DType::kFloat32, 1, 0.5f}, b{"b", DType::kFloat32, 1, 0.25f};
  Rows rows;
  rows.columns = {{"value", DType::kFloat32, 2, 0.0f}, a, b};
  rows.keys = Range(0, 100);
  rows.frequencies.assign(100, 1);
  rows.versions.assign(100, 1);
  rows.data.assign(400, 7.0f);
  MT_ASSERT_OK(table->Import(rows));
  MT_ASSERT_OK(table->Remove(rows.keys, nullptr));  // new rows get their memory
  rows.columns[2] = a;
  MT_ASSERT_OK(table->Import(rows));
  const Rows found = *table->Export(true);
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(found.data[i * 4 + 3], 0.25f);
}

TEST(EmbeddingTable, ExportThenImportGivesTheSameTable) {
  TableOptions options = BasicOptions(4);
  options.filter.kind = AdmissionKind::kCounter;
  options.filter.filter_freq = 2;
  auto a = MakeTable(options), b = MakeTable(options);
  for (int i = 0; i < 5; ++i) {
    Training training = Sgd(Range(i * 10, i * 10 + 25), 0.1f, 4);
    training.rule = *FindUpdateRule("adagrad");
    training.hyper = SomeHyper(*training.rule);
    MT_ASSERT_OK(training.Run(a.get()));
  }
  const auto rows = a->Export(true);
  ASSERT_TRUE(rows.ok());
  EXPECT_GT(rows->counted_keys.size(), 0u);
  MT_ASSERT_OK(b->Import(*rows));
  ExpectSameTables(a.get(), b.get());
}

TEST(EmbeddingTable, ShardsDoubleTheirIndexesOneAfterTheOther) {
  auto table = MakeTable(BasicOptions(1));
  constexpr int64_t kStep = 16 * 1024, kRows = 800 * 1024;
  int64_t before = 0;
  for (int64_t first = 0; first < kRows; first += kStep) {
    MT_ASSERT_OK(Sgd(Range(first, first + kStep), 1.0f, 1).Run(table.get()));
    const int64_t bytes = table->Stats().index_bytes;
    if (first > kRows / 2) {
      EXPECT_LE(bytes - before, before * 4 / 10) << "at " << first << " rows";
    }
    before = bytes;
  }
}

TEST(EmbeddingTable, BoundedDramAloneRefusesWhatDoesNotFitAndChangesNothing) {
  TableOptions options = BasicOptions(3);
  options.dram_budget_bytes = 128;  // 8 rows of 16 bytes
  auto table = MakeTable(options);
  MT_ASSERT_OK(Sgd(Range(0, 6), 1.0f, 3).Run(table.get()));
  const Status full = Sgd(Range(4, 12), 1.0f, 3).Run(table.get());
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted) << full.ToString();
  EXPECT_EQ(table->TotalCount(), 6);
  EXPECT_EQ(FrequencyOf(table.get(), {4, 8}), (std::vector<int64_t>{1, 0}));
  MT_ASSERT_OK(Sgd(Range(4, 8), 1.0f, 3).Run(table.get()));
  EXPECT_EQ(table->TotalCount(), 8);
}

struct TrainedRows {
  int64_t before, batch;
};
class FailingAllocation : public ::testing::TestWithParam<TrainedRows> {};

TEST_P(FailingAllocation, LeavesTheTableAsItWas) {
  for (int n = 1;; ++n) {
    FaultEnv env(Env::Posix());
    TableOptions options = BasicOptions(16);
    options.env = &env;
    options.num_shards = 2;
    auto table = MakeTable(options);
    MT_ASSERT_OK(Sgd(Range(0, GetParam().before), 1.0f, 16).Run(table.get()));
    const auto before = table->Export(true);
    env.FailNth(FaultKind::kAny, n, ResourceExhaustedError("injected"));
    const Status status = Sgd(Range(0, GetParam().batch), 1.0f, 16).Run(table.get());
    const bool fired = env.Disarm();
    if (!fired) {
      MT_EXPECT_OK(status);
      EXPECT_GT(n, 3);
      break;
    }
    if (status.ok()) continue;  // a hint (huge pages, a reservation) that has another way
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(status.message().rfind("table '", 0), 0u) << status.message();
    const auto after = table->Export(true);
    ASSERT_TRUE(before.ok() && after.ok());
    ExpectSameRows(*before, *after);
    MT_ASSERT_OK(Sgd(Range(0, GetParam().batch), 1.0f, 16).Run(table.get()));
    EXPECT_EQ(table->TotalCount(), GetParam().batch);
  }
}

// A small batch holds the locks of all shards.
INSTANTIATE_TEST_SUITE_P(Batches, FailingAllocation, ::testing::Values(TrainedRows{100, 60000}, TrainedRows{0, 500}));

TEST(EmbeddingTable, FailedAddSlotsWidensNoShard) {
  ColumnSpec slot;
  slot.name = "s";
  slot.dim = 4;
  for (int n = 1;; ++n) {
    FaultEnv env(Env::Posix());
    TableOptions options = BasicOptions(4);
    options.env = &env;
    options.num_shards = 4;
    auto table = MakeTable(options);
    MT_ASSERT_OK(Sgd(Range(0, 1000), 1.0f, 4).Run(table.get()));
    const auto before = table->Export(true);
    env.FailNth(FaultKind::kAny, n, ResourceExhaustedError("injected"));
    const Status status = table->AddSlots(std::vector<ColumnSpec>{slot});
    if (!env.Disarm()) {
      EXPECT_GT(n, 4);
      MT_EXPECT_OK(status);
      break;
    }
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << n;
    const auto after = table->Export(true);
    ASSERT_TRUE(before.ok() && after.ok());
    EXPECT_EQ(after->row_elements(), 4);
    ExpectSameRows(*before, *after);
    MT_ASSERT_OK(table->AddSlots(std::vector<ColumnSpec>{slot}));
    MT_ASSERT_OK(Sgd(Range(0, 2000), 1.0f, 4).Run(table.get()));
  }
}

TEST(EmbeddingTable, BadAppliesAreRefusedBeforeAnythingChanges) {
  auto table = MakeTable(BasicOptions(2));
  Training training = Sgd({1}, 1.0f, 2);
  training.counts = {1, 2};
  EXPECT_EQ(training.Run(table.get()).code(), StatusCode::kInvalidArgument);
  training.counts = {-1};
  EXPECT_EQ(training.Run(table.get()).code(), StatusCode::kInvalidArgument);
  training.counts = {};
  training.hyper = {};
  EXPECT_EQ(training.Run(table.get()).code(), StatusCode::kInvalidArgument);
  training = Sgd({1}, 1.0f, 2);
  training.rule = *FindUpdateRule("adagrad");
  ApplyRequest request;
  request.keys = training.keys;
  request.grads = training.grads.data();
  request.rule = training.rule;
  request.hyper = {0.1f};
  request.slot_columns = {"missing"};
  EXPECT_NE(table->Apply(request).message().find("'missing'"), std::string::npos);
  EXPECT_EQ(table->TotalCount(), 0);
}

TEST(EmbeddingTable, BadOptionsAreRefusedNamingExpectedAndFound) {
  TableOptions options = BasicOptions(0);
  EXPECT_EQ(EmbeddingTable::Create(options).status().code(), StatusCode::kInvalidArgument);
  options = BasicOptions(16);
  options.dram_budget_bytes = 8;
  EXPECT_NE(EmbeddingTable::Create(options).status().message().find("64 bytes"), std::string::npos);
  options = BasicOptions(4);
  options.num_shards = 3;
  EXPECT_EQ(EmbeddingTable::Create(options).status().code(), StatusCode::kInvalidArgument);
  options = BasicOptions(4);
  options.lower_tiers.push_back(LowerTierOptions{std::make_shared<MemoryTier>(), 0});
  EXPECT_EQ(EmbeddingTable::Create(options).status().code(), StatusCode::kInvalidArgument);
}

TEST(EmbeddingTable, ASlotThatIsNotFloat32IsRefused) {
  TableOptions options = BasicOptions(2);
  options.slots.push_back({"momentum", DType::kBFloat16, 2, 0.0f});
  const std::string expected = "expected slot 'momentum' of dtype float32, found bfloat16";
  const auto table = EmbeddingTable::Create(options);
  EXPECT_EQ(table.status().code(), StatusCode::kUnimplemented);
  EXPECT_NE(table.status().message().find(expected), std::string::npos) << table.status().message();
  auto other = MakeTable(BasicOptions(2));
  const Status added = other->AddSlots(options.slots);
  EXPECT_EQ(added.code(), StatusCode::kUnimplemented);
  EXPECT_NE(added.message().find(expected), std::string::npos) << added.message();
  EXPECT_EQ(other->layout()->columns().size(), 1u);
}

TEST(EmbeddingTable, ForkedChildIsRefused) {
  auto table = MakeTable(BasicOptions(2));
  const pid_t child = fork();
  if (child == 0) {
    float out[2];
    const std::vector<int64_t> keys{1};
    _exit(table->Lookup(keys, out).code() == StatusCode::kFailedPrecondition ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace multitier::embedding_table_test
