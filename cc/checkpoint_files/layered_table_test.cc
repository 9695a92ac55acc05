// A table with a layer reads as a table to which the same changes were made.

#include "cc/checkpoint_files/layered_table.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "cc/table/test/table_test_util.h"

namespace multitier::layered_table_test {
namespace {

constexpr int kDim = 3;
constexpr int64_t kKeys = 200;

Rows RandomRows(std::mt19937_64* random, size_t n) {
  std::set<int64_t> keys;
  while (keys.size() < n) keys.insert(static_cast<int64_t>((*random)() % kKeys) - kKeys / 2);
  Rows rows;
  rows.columns.push_back(ColumnSpec{"value", DType::kFloat32, kDim, 0.0f});
  for (const int64_t key : keys) {
    rows.keys.push_back(key);
    rows.frequencies.push_back(static_cast<int64_t>((*random)() % 9));
    rows.versions.push_back(static_cast<int64_t>((*random)() % 99));
    for (int i = 0; i < kDim; ++i) rows.data.push_back(static_cast<float>((*random)() % 1000));
  }
  return rows;
}

struct Facts {
  std::vector<float> values, peeked;
  std::vector<int64_t> frequencies, versions;
  bool operator==(const Facts& o) const {
    return values == o.values && peeked == o.peeked && frequencies == o.frequencies && versions == o.versions;
  }
};

Facts Read(EmbeddingTable* table, const std::vector<int64_t>& keys) {
  constexpr int kStride = kDim + 2;
  Facts facts;
  facts.values.resize(keys.size() * kStride, -1.0f);
  facts.peeked.resize(keys.size() * kDim);
  facts.frequencies.resize(keys.size());
  facts.versions.resize(keys.size());
  MT_EXPECT_OK(table->Lookup(keys, facts.values.data(), nullptr, nullptr, kStride));
  MT_EXPECT_OK(table->Peek(keys, facts.peeked.data()));
  MT_EXPECT_OK(table->Frequency(keys, facts.frequencies.data()));
  MT_EXPECT_OK(table->Version(keys, facts.versions.data()));
  return facts;
}

Rows ScanAll(EmbeddingTable* table, int64_t at_once) {
  Rows all;
  ScanRequest request;
  request.max_rows = at_once;
  do {
    uint64_t next = 0;
    Result<Rows> some = table->Scan(request, &next);
    MT_EXPECT_OK(some.status());
    all.columns = some->columns;
    all.keys.insert(all.keys.end(), some->keys.begin(), some->keys.end());
    all.frequencies.insert(all.frequencies.end(), some->frequencies.begin(), some->frequencies.end());
    all.versions.insert(all.versions.end(), some->versions.begin(), some->versions.end());
    all.data.insert(all.data.end(), some->data.begin(), some->data.end());
    request.cursor = next;
  } while (request.cursor != 0);
  return all;
}

Rows SnapshotOf(EmbeddingTable* table, int64_t at_once) {
  Rows all;
  MT_EXPECT_OK(table->TakeSnapshot(true, at_once, [&](Rows* some) {
    all.columns = some->columns;
    all.keys.insert(all.keys.end(), some->keys.begin(), some->keys.end());
    all.frequencies.insert(all.frequencies.end(), some->frequencies.begin(), some->frequencies.end());
    all.versions.insert(all.versions.end(), some->versions.begin(), some->versions.end());
    all.data.insert(all.data.end(), some->data.begin(), some->data.end());
    return OkStatus();
  }));
  return all;
}

// rows: of DRAM above a lower tier; 0: all in DRAM.
TableOptions OptionsOf(int rows) {
  return rows == 0 ? BasicOptions(kDim) : TieredOptions(kDim, rows, std::make_shared<MemoryTier>());
}

class LayeredTableTest : public testing::TestWithParam<int> {};

TEST_P(LayeredTableTest, ReadsAsATableWithTheSameChanges) {
  std::mt19937_64 random(7);
  std::vector<int64_t> all;
  for (int64_t key = -kKeys; key < kKeys; ++key) all.push_back(key);
  for (int round = 0; round < 20; ++round) {
    std::shared_ptr<EmbeddingTable> below = MakeTable(OptionsOf(GetParam()));
    const std::unique_ptr<EmbeddingTable> expected = MakeTable(BasicOptions(kDim));
    const Rows base = RandomRows(&random, random() % 100);
    MT_ASSERT_OK(below->Import(base));
    MT_ASSERT_OK(expected->Import(base));
    const Facts untouched = Read(below.get(), all);
    const std::unique_ptr<EmbeddingTable> layered = *LayerOver(below);
    for (int change = 0; change < 6; ++change) {
      const Rows rows = RandomRows(&random, random() % 30);
      const std::vector<int64_t> removed = RandomRows(&random, random() % 30).keys;
      for (EmbeddingTable* table : {layered.get(), expected.get()}) {
        MT_ASSERT_OK(table->Remove(removed, nullptr));
        MT_ASSERT_OK(table->Import(rows));
      }
      EXPECT_TRUE(Read(layered.get(), all) == Read(expected.get(), all));
      EXPECT_EQ(layered->TotalCount(), expected->TotalCount());
      EXPECT_EQ(layered->Stats().rows, expected->TotalCount());
    }
    const Rows rows = *expected->Export(true);
    ExpectSameRows(*layered->Export(true), rows);
    ExpectSameRows(SnapshotOf(layered.get(), 7), rows);
    ExpectSameRows(ScanAll(layered.get(), 5), rows);
    EXPECT_TRUE(Read(below.get(), all) == untouched);
  }
}

INSTANTIATE_TEST_SUITE_P(RowsOfDram, LayeredTableTest, testing::Values(0, 4));

TEST(LayeredTableTest, AnAbsentKeyAndARemovedOneReadAlike) {
  TableOptions options = BasicOptions(kDim);
  options.filter.kind = AdmissionKind::kCounter;
  options.filter.filter_freq = 3;
  options.default_value_no_permission.a = 0.5f;
  std::shared_ptr<EmbeddingTable> below = MakeTable(std::move(options));
  std::mt19937_64 random(1);
  const Rows rows = RandomRows(&random, 10);
  MT_ASSERT_OK(below->Import(rows));
  const std::unique_ptr<EmbeddingTable> layered = *LayerOver(below);
  int64_t removed = 0;
  MT_ASSERT_OK(layered->Remove({rows.keys}, &removed));
  EXPECT_EQ(removed, 10);
  EXPECT_EQ(Read(layered.get(), rows.keys).peeked, std::vector<float>(10 * kDim, 0.5f));
  std::vector<int32_t> tiers(10);
  MT_ASSERT_OK(layered->LookupTier(rows.keys, tiers.data()));
  EXPECT_EQ(tiers, std::vector<int32_t>(10, -1));
  MT_ASSERT_OK(below->LookupTier(rows.keys, tiers.data()));
  EXPECT_EQ(tiers, std::vector<int32_t>(10, 0));
}

TEST(LayeredTableTest, WhatWouldTrainIsRefused) {
  const std::unique_ptr<EmbeddingTable> layered = *LayerOver(std::shared_ptr<EmbeddingTable>(MakeTable(BasicOptions(kDim))));
  EXPECT_EQ(layered->Apply(ApplyRequest()).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(layered->Expire(1, nullptr).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(layered->Clear().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace multitier::layered_table_test
