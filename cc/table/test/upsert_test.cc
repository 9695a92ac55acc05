// Upsert, held against what a model in memory says.

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>

#include "cc/table/test/table_test_util.h"

namespace multitier::upsert_test {
namespace {

struct Batch {
  std::vector<int64_t> keys;
  std::vector<float> values;
  std::vector<int64_t> frequencies, versions;
  UpsertRequest Request(int dim) const {
    UpsertRequest request;
    request.keys = keys;
    if (!values.empty()) request.columns.push_back({"value", dim, values.data()});
    request.frequencies = frequencies;
    request.versions = versions;
    return request;
  }
};

std::unique_ptr<EmbeddingTable> Tiered() { return MakeTable(TieredOptions(1, 4, std::make_shared<MemoryTier>())); }

std::vector<int64_t> VersionOf(EmbeddingTable* table, const std::vector<int64_t>& keys) {
  std::vector<int64_t> out(keys.size());
  MT_EXPECT_OK(table->Version(keys, out.data()));
  return out;
}

TEST(Upsert, WritesWhatIsGivenAndLeavesTheRest) {
  auto table = Tiered();
  Training training = Sgd(Range(0, 20), 1.0f, 1);
  training.step = 7;
  MT_ASSERT_OK(training.Run(table.get()));
  const std::vector<float> before = LookupAll(table.get(), {3});
  const Batch values{{2, 100}, {5.0f, 6.0f}, {}, {}};
  const auto written = table->Upsert(values.Request(1));
  ASSERT_TRUE(written.ok()) << written.status().ToString();
  EXPECT_EQ(*written, 2);
  EXPECT_EQ(LookupAll(table.get(), {2, 100}), (std::vector<float>{5.0f, 6.0f}));
  EXPECT_EQ(FrequencyOf(table.get(), {2, 100}), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(VersionOf(table.get(), {2, 100}), (std::vector<int64_t>{7, 7}));  // a new row does not expire at once
  const Batch facts{{3}, {}, {9}, {30}};
  MT_ASSERT_OK(table->Upsert(facts.Request(1)).status());
  EXPECT_EQ(LookupAll(table.get(), {3}), before);
  EXPECT_EQ(FrequencyOf(table.get(), {3}), std::vector<int64_t>{9});
  EXPECT_EQ(VersionOf(table.get(), {3}), std::vector<int64_t>{30});
  EXPECT_EQ(table->NewestStep(), 30);
  EXPECT_EQ(table->TotalCount(), 21);
}

TEST(Upsert, KeepsOrRefusesRowsThatExist) {
  auto table = Tiered();
  MT_ASSERT_OK(Sgd(Range(0, 20), 1.0f, 1).Run(table.get()));
  const std::vector<float> before = LookupAll(table.get(), Range(0, 20));
  const Batch batch{{50, 0, 51}, {1.0f, 2.0f, 3.0f}, {}, {}};
  UpsertRequest request = batch.Request(1);
  request.if_exists = IfExists::kError;
  const Status refused = table->Upsert(request).status();
  EXPECT_EQ(refused.code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(refused.message(), "table 't': upsert: expected keys without rows, found a row of key 0");
  EXPECT_EQ(table->TotalCount(), 20);
  request.if_exists = IfExists::kKeep;
  EXPECT_EQ(*table->Upsert(request), 2);
  EXPECT_EQ(LookupAll(table.get(), Range(0, 20)), before);
  EXPECT_EQ(LookupAll(table.get(), {50, 51}), (std::vector<float>{1.0f, 3.0f}));
}

TEST(Upsert, RefusesRepeatsOrTakesTheLast) {
  auto table = Tiered();
  const Batch batch{{5, 6, 5}, {1.0f, 2.0f, 3.0f}, {}, {}};
  UpsertRequest request = batch.Request(1);
  EXPECT_EQ(table->Upsert(request).status().message(), "table 't': upsert: expected distinct keys, found key 5 twice");
  EXPECT_EQ(table->TotalCount(), 0);
  request.last_of_repeats = true;
  EXPECT_EQ(*table->Upsert(request), 2);
  EXPECT_EQ(LookupAll(table.get(), {5, 6}), (std::vector<float>{3.0f, 2.0f}));
}

TEST(Upsert, RefusesWhatTheTableLacksBeforeAnythingChanges) {
  auto table = Tiered();
  const std::vector<int64_t> keys = {1};
  const float value[2] = {1.0f, 2.0f};
  const auto error = [&](const char* column, int dim, std::vector<int64_t> frequencies, std::vector<int64_t> versions) {
    UpsertRequest request;
    request.keys = keys;
    request.columns.push_back({column, dim, value});
    request.frequencies = frequencies;
    request.versions = versions;
    const Status status = table->Upsert(request).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(error("m", 1, {}, {}), "table 't': upsert: expected columns of 'value', found 'm'");
  EXPECT_EQ(error("value", 2, {}, {}), "table 't': upsert: expected rows of 1 elements for column 'value', found 2");
  EXPECT_EQ(error("value", 1, {-1}, {}), "table 't': upsert: expected frequencies in [0, 2^32), found -1");
  EXPECT_EQ(error("value", 1, {}, {1, 2}), "table 't': upsert: expected 1 versions, found 2");
  EXPECT_EQ(table->TotalCount(), 0);
}

TEST(Upsert, PassesByTheFilterAndTakesOverItsCount) {
  TableOptions options = BasicOptions(1);
  options.filter.kind = AdmissionKind::kCounter;
  options.filter.filter_freq = 5;
  auto table = MakeTable(options);
  MT_ASSERT_OK(Sgd({1, 1}, 1.0f, 1).Run(table.get()));
  EXPECT_EQ(table->TotalCount(), 0);
  const Batch batch{{1, 2}, {3.0f, 4.0f}, {}, {}};
  MT_ASSERT_OK(table->Upsert(batch.Request(1)).status());
  EXPECT_EQ(table->TotalCount(), 2);
  EXPECT_EQ(FrequencyOf(table.get(), {1, 2}), (std::vector<int64_t>{2, 0}));
}

TEST(Upsert, ThreadsThatTrainLoseNothing) {
  auto table = Tiered();
  const std::vector<int64_t> trained = Range(0, 16), put = Range(100, 132);
  MT_ASSERT_OK(Sgd(trained, 1.0f, 1).Run(table.get()));
  const std::vector<float> first = LookupAll(table.get(), trained);
  constexpr int kRounds = 200;
  std::thread trainer([&] {
    for (int i = 0; i < kRounds; ++i) MT_EXPECT_OK(Sgd(trained, 1.0f, 1).Run(table.get()));
  });
  const Batch batch{put, std::vector<float>(put.size(), 8.0f), {}, {}};
  for (int i = 0; i < kRounds; ++i) MT_EXPECT_OK(table->Upsert(batch.Request(1)).status());
  trainer.join();
  EXPECT_EQ(LookupAll(table.get(), put), batch.values);
  EXPECT_EQ(FrequencyOf(table.get(), trained), std::vector<int64_t>(trained.size(), kRounds + 1));
  const std::vector<float> last = LookupAll(table.get(), trained);
  for (size_t i = 0; i < trained.size(); ++i) EXPECT_NEAR(last[i], first[i] - kRounds, 1e-2);
}

}  // namespace
}  // namespace multitier::upsert_test
