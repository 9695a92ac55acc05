// Whether an import sets rows wherever their keys are: in DRAM, below, counted, or nowhere; and what one without room changes.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "cc/env/fault_env.h"
#include "cc/table/test/table_test_util.h"
#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier::import_test {
namespace {

// Rows of one column, "value" of dim 2. Row i has the key keys[i], the value `value`, and the frequency and version that are
// given.
Rows SomeRows(const std::vector<int64_t>& keys, float value, int64_t frequency, int64_t version) {
  Rows rows;
  rows.columns = {{"value", DType::kFloat32, 2, 0.0f}};
  rows.keys = keys;
  rows.frequencies.assign(keys.size(), frequency);
  rows.versions.assign(keys.size(), version);
  rows.data.assign(keys.size() * 2, value);
  return rows;
}

void Append(const Rows& more, Rows* rows) {
  rows->keys.insert(rows->keys.end(), more.keys.begin(), more.keys.end());
  rows->frequencies.insert(rows->frequencies.end(), more.frequencies.begin(), more.frequencies.end());
  rows->versions.insert(rows->versions.end(), more.versions.begin(), more.versions.end());
  rows->data.insert(rows->data.end(), more.data.begin(), more.data.end());
}

void ExpectRows(EmbeddingTable* table, const std::vector<int64_t>& keys, float value, int64_t frequency) {
  for (const float found : LookupAll(table, keys)) ASSERT_EQ(found, value);
  for (const int64_t found : FrequencyOf(table, keys)) ASSERT_EQ(found, frequency);
}

// In 0..99: below, then in DRAM; in 100..149: counted; in 150..299: nowhere.
std::unique_ptr<EmbeddingTable> TableOfAllSorts() {
  TableOptions options = TieredOptions(2, 40, std::make_shared<MemoryTier>());
  options.filter.kind = AdmissionKind::kCounter;
  options.filter.filter_freq = 2;
  auto table = MakeTable(options);
  for (int i = 0; i < 2; ++i) MT_EXPECT_OK(Sgd(Range(0, 100), 1.0f, 2).Run(table.get()));
  MT_EXPECT_OK(Sgd(Range(100, 150), 1.0f, 2).Run(table.get()));
  return table;
}

TEST(Import, TheLastRowOfAKeyWinsWhereverTheKeyIs) {
  auto table = TableOfAllSorts();
  ASSERT_EQ(table->TotalCount(), 100);
  Rows rows = SomeRows(Range(0, 300), 1.0f, 9, 3);
  Append(SomeRows(Range(0, 300), 2.0f, 4, 2), &rows);
  MT_ASSERT_OK(table->Import(rows));
  EXPECT_EQ(table->TotalCount(), 300);
  EXPECT_EQ(table->Stats().counted_keys, 0);
  EXPECT_EQ(table->NewestStep(), 3);
  ExpectRows(table.get(), Range(0, 300), 2.0f, 4);
  EXPECT_LE(table->Stats().tiers[0].rows, 40);
}

TEST(Import, RowsOfAnEmptyTableAreAllThere) {
  for (const int shards : {1, 8}) {
    TableOptions options = BasicOptions(2);
    options.num_shards = shards;
    auto table = MakeTable(options);
    constexpr int64_t kRows = 100000;  // more than one chunk
    Rows rows = SomeRows(Range(0, kRows), 0.0f, 1, 1);
    for (size_t i = 0; i < rows.keys.size(); ++i) rows.data[2 * i] = rows.data[2 * i + 1] = static_cast<float>(i);
    MT_ASSERT_OK(table->Import(rows));
    ASSERT_EQ(table->TotalCount(), kRows);
    const std::vector<float> found = LookupAll(table.get(), rows.keys);
    ASSERT_TRUE(SameBits(found, rows.data));
    MT_ASSERT_OK(Sgd(rows.keys, 1.0f, 2).Run(table.get()));  // no row is held any more
    MT_ASSERT_OK(table->Remove(rows.keys, nullptr));
    EXPECT_EQ(table->TotalCount(), 0);
    EXPECT_EQ(table->Stats().tiers[0].rows, 0);
  }
}

TEST(Import, WithoutRoomNothingChanges) {
  TableOptions options = BasicOptions(2);
  options.dram_budget_bytes = 100 * RowLayout::Create(2, DType::kFloat32)->row_bytes();
  auto table = MakeTable(options);
  MT_ASSERT_OK(table->Import(SomeRows(Range(0, 60), 1.0f, 1, 1)));
  EXPECT_EQ(table->Import(SomeRows(Range(30, 130), 2.0f, 2, 2)).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(table->TotalCount(), 60);
  ExpectRows(table.get(), Range(0, 60), 1.0f, 1);
  // Rows that are there need no room, although twice as many would not fit.
  MT_ASSERT_OK(table->Import(SomeRows(Range(0, 60), 3.0f, 3, 3)));
  ExpectRows(table.get(), Range(0, 60), 3.0f, 3);
  MT_ASSERT_OK(table->Import(SomeRows(Range(60, 100), 3.0f, 3, 3)));
  EXPECT_EQ(table->TotalCount(), 100);
  EXPECT_EQ(table->Import(SomeRows({100}, 1.0f, 1, 1)).code(), StatusCode::kResourceExhausted);
  MT_ASSERT_OK(table->Remove(std::vector<int64_t>{5}, nullptr));  // the count of rows is right
  MT_ASSERT_OK(table->Import(SomeRows({100}, 1.0f, 1, 1)));
}

TEST(Import, ARecordThatCannotBeReadChangesNothing) {
  auto tier = std::make_shared<MemoryTier>();
  auto table = MakeTable(TieredOptions(2, 40, tier));
  MT_ASSERT_OK(table->Import(SomeRows(Range(0, 100), 1.0f, 1, 1)));
  MT_ASSERT_OK(table->Drain());
  Rows rows = SomeRows(Range(0, 100), 2.0f, 2, 2);
  Append(SomeRows(Range(200, 300), 2.0f, 2, 2), &rows);
  tier->FailRead(1, InternalError("disk"), 1000);
  EXPECT_EQ(table->Import(rows).code(), StatusCode::kInternal);
  tier->FailRead(1, InternalError("disk"), 0);
  EXPECT_EQ(table->TotalCount(), 100);
  ExpectRows(table.get(), Range(0, 100), 1.0f, 1);
  MT_ASSERT_OK(table->Import(rows));
  ExpectRows(table.get(), Range(0, 100), 2.0f, 2);
  ExpectRows(table.get(), Range(200, 300), 2.0f, 2);
}

// Fails the n-th allocation, or all from the n-th on, in the middle of an import whose keys all come twice. True if it had that
// many allocations.
bool ImportWithFailedAllocations(uint64_t n, bool for_good) {
  FaultEnv env(Env::Posix());
  TableOptions options = BasicOptions(2);
  options.env = &env;
  options.num_shards = 2;
  auto table = MakeTable(options);
  MT_EXPECT_OK(table->Import(SomeRows(Range(0, 50), 1.0f, 1, 1)));
  const std::vector<int64_t> keys = Range(0, 20000);
  Rows rows = SomeRows(keys, 2.0f, 2, 2);
  Append(SomeRows(keys, 3.0f, 3, 3), &rows);
  const Status none = ResourceExhaustedError("memory");
  for_good ? env.FailFrom(FaultKind::kAllocate, n, none) : env.FailNth(FaultKind::kAllocate, n, none);
  const Status status = table->Import(rows);
  const bool fired = env.Disarm();
  if (!status.ok()) {
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(table->TotalCount(), 50);
    ExpectRows(table.get(), Range(0, 50), 1.0f, 1);
    MT_EXPECT_OK(table->Import(rows));
  }
  EXPECT_EQ(table->TotalCount(), 20000);
  ExpectRows(table.get(), keys, 3.0f, 3);
  return fired;
}

TEST(Import, WithoutMemoryNothingChangesOrTheLastRowOfEachKeyWins) {
  for (const bool for_good : {false, true}) {
    uint64_t n = 1;
    while (n < 200 && ImportWithFailedAllocations(n, for_good)) ++n;
    EXPECT_GT(n, 2u);
    EXPECT_LT(n, 200u);
  }
}

}  // namespace
}  // namespace multitier::import_test
