// An expiry, an import and an upsert change some rows. The others stay in HBM, and so do their pins.

#include "cc/hbm/test/hbm_test_util.h"
#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier::hbm::kept_rows_test {
namespace {

constexpr int kDim = 3;

// Rows [0, 10) were updated at step 1, rows [10, 20) at step 50. All are in HBM, and not below as they are now.
class KeptRows : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    TableOptions options = TieredOptions(kDim, 4, std::make_shared<MemoryTier>());
    options.expiry.steps_to_live = 20;
    table_ = GetParam() ? GrowingTable(options, NewEmulatedDevice()) : MakeHbmTable(options, 64, NewEmulatedDevice());
    options = BasicOptions(kDim);
    options.expiry.steps_to_live = 20;
    plain_ = MakeTable(options);
    for (const int64_t step : {1, 50}) {
      Training training = Sgd(step == 1 ? Range(0, 10) : Range(10, 20), 1.0f, kDim);
      training.step = step;
      MT_ASSERT_OK(Train(training, table_.get()));
      MT_ASSERT_OK(training.Run(plain_.get()));
    }
  }
  // keys: those that changed, and are in HBM no longer.
  void ExpectAllButTheseInHbm(const std::vector<int64_t>& keys) {
    for (const int64_t key : Range(0, 20)) {
      const bool changed = std::find(keys.begin(), keys.end(), key) != keys.end();
      EXPECT_EQ(TierOf(table_.get(), {key})[0] == 0, !changed) << key;
    }
    EXPECT_EQ(table_->Stats().tiers[0].rows, 20 - static_cast<int64_t>(keys.size()));
    ExpectSameTables(plain_.get(), table_.get());
    const Training training = Sgd(Range(-5, 25), 0.5f, kDim);  // the places of those that left are good for new rows
    MT_ASSERT_OK(Train(training, table_.get()));
    MT_ASSERT_OK(training.Run(plain_.get()));
    ExpectSameTables(plain_.get(), table_.get());
  }
  std::unique_ptr<HbmTable> table_;
  std::unique_ptr<EmbeddingTable> plain_;
};
INSTANTIATE_TEST_SUITE_P(OverTiersAndAlone, KeptRows, testing::Bool());

TEST_P(KeptRows, AnExpiryTakesExpiredRowsAlone) {
  int64_t expired = 0, expected = 0;
  MT_ASSERT_OK(table_->Expire(60, &expired));
  MT_ASSERT_OK(plain_->Expire(60, &expected));
  EXPECT_EQ(expired, expected);
  EXPECT_EQ(expired, 10);
  ExpectAllButTheseInHbm(Range(0, 10));
}

TEST_P(KeptRows, AnImportReplacesItsRowsAlone) {
  Rows rows;
  rows.keys = {4, 15};
  rows.frequencies = {3, 4};
  rows.versions = {1, 2};
  rows.columns = {ColumnSpec{"value", DType::kFloat32, kDim, 0}};
  rows.data = {1, 2, 3, 4, 5, 6};
  MT_ASSERT_OK(table_->Import(rows, nullptr));
  MT_ASSERT_OK(plain_->Import(rows, nullptr));
  ExpectAllButTheseInHbm({4, 15});
}

TEST_P(KeptRows, AnUpsertReplacesItsRowsAlone) {
  const std::vector<int64_t> keys = {3, 17};
  const std::vector<float> data = {1, 2, 3, 4, 5, 6};
  UpsertRequest request;
  request.keys = keys;
  request.columns = {{"value", kDim, data.data()}};
  MT_ASSERT_OK(table_->Upsert(request).status());
  MT_ASSERT_OK(plain_->Upsert(request).status());
  ExpectAllButTheseInHbm(keys);
}

TEST_P(KeptRows, APinThatAnExpiryTakesIsCountedNoMore) {
  if (GetParam()) GTEST_SKIP() << "a table that keeps every row in HBM pins none";
  int64_t pinned = 0;
  MT_ASSERT_OK(table_->Prefetch(std::vector<int64_t>{1, 2, 11}, 3600ull * 1000000, &pinned));
  EXPECT_EQ(pinned, 3);
  MT_ASSERT_OK(table_->Expire(60, nullptr));
  MT_ASSERT_OK(plain_->Expire(60, nullptr));
  EXPECT_EQ(table_->Stats().prefetched, 1);
  ExpectAllButTheseInHbm(Range(0, 10));
}

}  // namespace
}  // namespace multitier::hbm::kept_rows_test
