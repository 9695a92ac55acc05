// CopyOut and PutBack over every order of tiers, against what Export, Lookup and a plain table say.

#include "cc/table/host/row_batch.h"

#include <map>

#include "cc/table/test/table_test_util.h"

namespace multitier::row_batch_test {
namespace {

// Rows of some keys in memory of their own, further apart than they need to be.
struct OwnedRows {
  explicit OwnedRows(EmbeddingTable* table, std::vector<int64_t> k) : keys(std::move(k)), facts(keys.size()) {
    batch.row_bytes = table->layout()->row_bytes();
    batch.stride = batch.row_bytes + 32;
    data.assign(keys.size() * batch.stride / sizeof(float), -3.0f);
    batch.keys = keys;
    batch.facts = facts.data();
    batch.data = reinterpret_cast<uint8_t*>(data.data());
  }
  float* row(size_t i) { return data.data() + i * batch.stride / sizeof(float); }

  std::vector<int64_t> keys;
  std::vector<RowFacts> facts;
  std::vector<float> data;
  RowBatch batch;
};

TableOptions OptionsWithSlot(int dim) {
  TableOptions options = BasicOptions(dim);
  options.slots = SlotColumns(**FindUpdateRule("adagrad"), dim);
  return options;
}

Training Adagrad(const std::vector<int64_t>& keys, float grad, int dim) {
  Training training = Sgd(keys, grad, dim);
  training.rule = *FindUpdateRule("adagrad");
  training.hyper = {0.5f};
  return training;
}

// The row of the key as Export gives it, or nothing.
void ExpectCopiesAreTheRows(TableBelow* table, OwnedRows* rows) {
  const Rows all = *table->Export(true);
  std::map<int64_t, size_t> places;
  for (size_t i = 0; i < all.keys.size(); ++i) places[all.keys[i]] = i;
  const auto dim = static_cast<size_t>(table->dim()), elements = static_cast<size_t>(all.row_elements());
  const std::vector<float> values = LookupAll(table, rows->keys);
  for (size_t i = 0; i < rows->keys.size(); ++i) {
    SCOPED_TRACE(rows->keys[i]);
    const auto at = places.find(rows->keys[i]);
    ASSERT_EQ(rows->facts[i].has_row, at != places.end());
    EXPECT_EQ(std::memcmp(rows->row(i), values.data() + i * dim, dim * sizeof(float)), 0);
    const float* slot = rows->row(i) + table->layout()->columns()[1].offset / sizeof(float);
    EXPECT_EQ(rows->row(i)[rows->batch.row_bytes / sizeof(float)], -3.0f) << "written beyond the row";
    if (at == places.end()) {
      EXPECT_EQ(slot[0], 0.1f) << "the slot's initial value";
      continue;
    }
    EXPECT_EQ(rows->facts[i].version, all.versions[at->second]);
    EXPECT_EQ(rows->facts[i].frequency, all.frequencies[at->second]);
    EXPECT_EQ(std::memcmp(slot, all.data.data() + at->second * elements + dim, dim * sizeof(float)), 0);
  }
}

class RowBatchTest : public testing::TestWithParam<ChainCase> {
 protected:
  static constexpr int kDim = 5;
  TableOptions Options() const {
    TableOptions options = OptionsWithSlot(kDim);
    options.dram_budget_bytes = 4 * 64;
    PutChain(GetParam(), 64, 7, &options);
    return options;
  }
};

TEST_P(RowBatchTest, CopyOutGivesRowsFactsAndInitialValues) {
  auto table = MakeTableBelow(Options());
  MT_ASSERT_OK(Adagrad({1, 2, 3, 2, INT64_MIN, -1, 0, 9}, 0.25f, kDim).Run(table.get()));
  MT_ASSERT_OK(Adagrad({2, 9}, 0.5f, kDim).Run(table.get()));
  for (const CopyOutAs as : {CopyOutAs::kUse, CopyOutAs::kPeek}) {
    OwnedRows rows(table.get(), {9, 77, 2, INT64_MIN, 0, INT64_MAX, 1, 3, -1});
    MT_ASSERT_OK(table->CopyOut(rows.batch, as));
    ExpectCopiesAreTheRows(table.get(), &rows);
  }
  EXPECT_EQ(table->TotalCount(), 7);
}

TEST_P(RowBatchTest, APeekMovesAndCountsNothing) {
  auto table = MakeTableBelow(Options());
  MT_ASSERT_OK(Adagrad(Range(0, 12), 0.25f, kDim).Run(table.get()));
  MT_ASSERT_OK(table->Drain());
  const std::vector<int32_t> tiers = TierOf(table.get(), Range(0, 12));
  const int64_t lookups = table->Stats().lookups;
  OwnedRows rows(table.get(), Range(0, 12));
  MT_ASSERT_OK(table->CopyOut(rows.batch, CopyOutAs::kPeek));
  EXPECT_EQ(TierOf(table.get(), Range(0, 12)), tiers);
  EXPECT_EQ(table->Stats().lookups, lookups);
  MT_ASSERT_OK(table->CopyOut(rows.batch, CopyOutAs::kUse));
  EXPECT_EQ(table->Stats().lookups, lookups + 12);
}

TEST_P(RowBatchTest, RandomChangesPutBackEqualAPlainTable) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    std::mt19937_64 random(seed);
    auto table = MakeTableBelow(Options());
    auto plain = MakeTableBelow(OptionsWithSlot(kDim));
    for (int step = 1; step <= 12; ++step) {
      std::set<int64_t> distinct;
      for (uint64_t i = random() % 14; i > 0; --i) distinct.insert(static_cast<int64_t>(random() % 30));
      OwnedRows rows(table.get(), std::vector<int64_t>(distinct.begin(), distinct.end()));
      MT_ASSERT_OK(table->CopyOut(rows.batch, CopyOutAs::kUse));
      for (size_t i = 0; i < rows.keys.size(); ++i) {
        rows.row(i)[random() % kDim] += 1.0f;
        rows.facts[i].frequency += 2;
        rows.facts[i].version = step;
      }
      for (auto* t : {table.get(), plain.get()}) MT_ASSERT_OK(t->PutBack(rows.batch));
      const Training training = Adagrad({1, static_cast<int64_t>(random() % 30)}, 0.5f, kDim);
      for (auto* t : {table.get(), plain.get()}) MT_ASSERT_OK(training.Run(t));
    }
    ExpectSameTables(table.get(), plain.get());
    EXPECT_EQ(table->NewestStep(), plain->NewestStep());
    MT_ASSERT_OK(table->Drain());
    ExpectTiersInOrder(table.get());
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST_P(RowBatchTest, PutBackAdmitsWhatAFilterOnlyCounted) {
  for (const AdmissionKind kind : {AdmissionKind::kCounter, AdmissionKind::kBloom}) {
    TableOptions options = Options();
    options.filter.kind = kind;
    options.filter.filter_freq = 5;
    options.filter.max_element_size = 100;
    auto table = MakeTableBelow(options);
    MT_ASSERT_OK(Adagrad({1, 2}, 0.5f, kDim).Run(table.get()));
    OwnedRows rows(table.get(), {2, 3});
    MT_ASSERT_OK(table->CopyOut(rows.batch, CopyOutAs::kUse));
    EXPECT_FALSE(rows.facts[0].has_row);
    EXPECT_FALSE(rows.facts[1].has_row);
    rows.facts[0] = RowFacts{6, 7, true};
    MT_ASSERT_OK(table->PutBack(rows.batch));
    EXPECT_EQ(table->TotalCount(), 2);
    EXPECT_EQ(FrequencyOf(table.get(), {2}), std::vector<int64_t>{7});
  }
}

INSTANTIATE_TEST_SUITE_P(Chains, RowBatchTest, testing::ValuesIn(AllChains()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(RowBatch, AnotherLayoutIsRefusedBeforeAnythingChanges) {
  auto table = MakeTableBelow(OptionsWithSlot(5));
  OwnedRows rows(table.get(), {1});
  rows.batch.row_bytes -= 16;
  for (const Status& status : {table->CopyOut(rows.batch, CopyOutAs::kUse), table->PutBack(rows.batch)}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("expected rows of 64 bytes"), std::string::npos) << status.message();
  }
  EXPECT_EQ(table->TotalCount(), 0);
}

TEST(RowBatch, AFailingTierLosesNothing) {
  auto lower = std::make_shared<MemoryTier>();
  TableOptions options = OptionsWithSlot(4);
  options.lower_tiers.push_back({lower, 0});
  options.dram_budget_bytes = 2 * 32;
  auto table = MakeTableBelow(options);
  MT_ASSERT_OK(Adagrad(Range(0, 9), 0.5f, 4).Run(table.get()));
  const Rows before = *table->Export(true);
  OwnedRows rows(table.get(), Range(0, 12));
  lower->FailRead(1, UnavailableError("cable"), 1);
  EXPECT_EQ(table->CopyOut(rows.batch, CopyOutAs::kUse).code(), StatusCode::kUnavailable);
  MT_ASSERT_OK(table->CopyOut(rows.batch, CopyOutAs::kUse));
  lower->FailRead(1, UnavailableError("cable"), 1);
  EXPECT_EQ(table->PutBack(rows.batch).code(), StatusCode::kUnavailable);
  ExpectSameRows(*table->Export(true), before);
  MT_ASSERT_OK(table->PutBack(rows.batch));
  EXPECT_EQ(table->TotalCount(), 12);
}

}  // namespace
}  // namespace multitier::row_batch_test
