// A table with HBM as its first tier, as its users see it.

#include "cc/hbm/hbm_above.h"

#include "cc/hbm/test/hbm_test_util.h"

namespace multitier::hbm::hbm_above_test {
namespace {

TEST(HbmAbove, ABudgetAndADeviceAreGivenTogether) {
  TableOptions options = TieredOptions(4, 8, std::make_shared<MemoryTier>());
  options.hbm_budget_bytes = 1 << 10;
  EXPECT_EQ(EmbeddingTable::Create(options).status().code(), StatusCode::kInvalidArgument);
  options.hbm_budget_bytes = 0;
  options.above = HbmOver(NewEmulatedDevice());
  EXPECT_EQ(EmbeddingTable::Create(options).status().code(), StatusCode::kInvalidArgument);
}

TEST(HbmAbove, StatisticsBeginWithHbmAndCountBornRows) {
  TableOptions options = TieredOptions(4, 8, std::make_shared<MemoryTier>());
  options.above = HbmOver(NewEmulatedDevice());
  options.hbm_budget_bytes = 4 * 16;
  auto table = MakeTable(options);
  MT_ASSERT_OK(Sgd(Range(0, 3), 1.0f, 4).Run(table.get()));
  LookupAll(table.get(), {0, 1, 1, 9});
  const TableStats stats = table->Stats();
  ASSERT_EQ(stats.tiers.size(), 3u);
  EXPECT_EQ(stats.tiers[0].name, "hbm");
  EXPECT_EQ(stats.tiers[0].rows, 3);
  EXPECT_EQ(stats.tiers[0].row_bytes, 3 * 16);
  EXPECT_EQ(stats.tiers[0].budget_bytes, 4 * 16);
  EXPECT_EQ(stats.tiers[0].hits, 3);
  EXPECT_EQ(stats.tiers[0].misses, 3 + 1);
  EXPECT_GT(stats.tiers[0].resident_bytes, 3 * 16);
  EXPECT_EQ(stats.rows, 3);
  EXPECT_EQ(stats.created, 3);
  EXPECT_EQ(stats.lookups, 4);
  EXPECT_EQ(stats.absent, 1);
  EXPECT_EQ(stats.updates, 3);
  EXPECT_EQ(TierOf(table.get(), {0, 9}), (std::vector<int32_t>{0, -1}));
}

TEST(HbmAbove, RemovedSinceGivesKeysWhoseRowsWereNeverBelow) {
  for (const bool bounded : {false, true}) {
    TableOptions options = TieredOptions(4, 8, std::make_shared<MemoryTier>());
    if (bounded) options.lower_tiers[0].budget_rows = 20;
    options.above = HbmOver(NewEmulatedDevice());
    options.hbm_budget_bytes = 8 * 16;
    auto table = MakeTable(options);
    Training training = Sgd({1, 2, 3}, 1.0f, 4);
    training.step = 5;
    MT_ASSERT_OK(training.Run(table.get()));
    MT_ASSERT_OK(table->Remove(std::vector<int64_t>{2, 9}, nullptr));  // 9 never had a row
    EXPECT_EQ(*table->RemovedSince(5), std::vector<int64_t>{2});
    MT_ASSERT_OK(table->Export(false).status());
    MT_ASSERT_OK(table->Remove(std::vector<int64_t>{3}, nullptr));  // below, too
    training.keys = {2};
    training.grads.resize(4);
    training.step = 6;
    MT_ASSERT_OK(training.Run(table.get()));
    EXPECT_EQ(*table->RemovedSince(5), std::vector<int64_t>{3});
    MT_ASSERT_OK(table->Remove(std::vector<int64_t>{2}, nullptr));
    EXPECT_EQ(*table->RemovedSince(6), (std::vector<int64_t>{2, 3}));  // those of the version before, too
  }
}

}  // namespace
}  // namespace multitier::hbm::hbm_above_test
