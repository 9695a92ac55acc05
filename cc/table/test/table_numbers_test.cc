// The initial value by table number, in every order of tiers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "cc/table/test/table_test_util.h"

namespace multitier::table_numbers_test {
namespace {

using ::testing::HasSubstr;

constexpr int kDim = 6;
constexpr int kTables = 3;

InitializerSpec Uniform(float most, uint64_t seed) {
  InitializerSpec spec;
  spec.kind = InitializerKind::kUniform;
  spec.a = -most;
  spec.b = most;
  spec.seed = seed;
  return spec;
}

// Table t is uniform in [-(t + 1), t + 1); table 2 has another initializer from column 4 on.
std::vector<TableInitializer> Tables() {
  std::vector<TableInitializer> tables;
  for (int t = 0; t < kTables; ++t) tables.push_back({{{0, Uniform(static_cast<float>(t + 1), 42)}}});
  tables[2].columns.push_back({4, Uniform(100, 7)});
  return tables;
}

TableOptions Options() {
  TableOptions options;
  options.name = "t";
  options.dim = kDim;
  options.initializer.tables = std::make_shared<const std::vector<TableInitializer>>(Tables());
  return options;
}

std::vector<float> Initial(int64_t key, int table) {
  std::vector<float> value(kDim);
  const std::vector<TableInitializer> tables = Tables();
  for (const ColumnInitializer& column : tables[static_cast<size_t>(table)].columns) {
    std::vector<float> alone(kDim);
    Initializer::Create(column.initializer, kDim)->Fill(key, alone.data());
    std::copy(alone.begin() + column.first_column, alone.end(), value.begin() + column.first_column);
  }
  return value;
}

class TableNumbersTest : public ::testing::Test {
 protected:
  // null: DRAM alone. Else two rows of DRAM.
  void Make(const ChainCase* chain, TableOptions options = Options()) {
    if (chain != nullptr) {
      const uint64_t row_bytes = RowLayout::Create(kDim, DType::kFloat32)->row_bytes();
      options.dram_budget_bytes = 2 * row_bytes;
      PutChain(*chain, row_bytes, 1, &options);
    }
    table_ = MakeTable(std::move(options));
    ASSERT_NE(table_, nullptr);
  }

  std::vector<float> Lookup(const std::vector<int64_t>& keys, const std::vector<uint16_t>& tables, bool peek = false) {
    std::vector<float> out(keys.size() * kDim);
    MT_EXPECT_OK(peek ? table_->Peek(keys, out.data(), tables)
                      : table_->Lookup(keys, out.data(), nullptr, nullptr, 0, ReadFor::kTraining, tables));
    return out;
  }

  Status Sgd(const std::vector<int64_t>& keys, const std::vector<uint16_t>& tables, float grad = 1) {
    const std::vector<float> grads(keys.size() * kDim, grad);
    ApplyRequest request;
    request.keys = keys;
    request.tables = tables;
    request.grads = grads.data();
    request.rule = *FindUpdateRule("sgd");
    request.hyper = {0.5f};
    return table_->Apply(request);
  }

  std::unique_ptr<EmbeddingTable> table_;
};

TEST_F(TableNumbersTest, RowsBeginWithTheValueOfTheirTableInEveryTier) {
  std::vector<const ChainCase*> chains = {nullptr};
  for (const ChainCase& chain : AllChains()) chains.push_back(&chain);
  for (const ChainCase* chain : chains) {
    SCOPED_TRACE(chain == nullptr ? "DRAM" : chain->name);
    Make(chain);
    std::vector<int64_t> keys;
    std::vector<uint16_t> numbers;
    std::vector<float> fresh, trained;
    for (int64_t key = -20; key < 20; ++key) {
      const int number = static_cast<int>((key + 20) * 7 % kTables);
      keys.push_back(key);
      numbers.push_back(static_cast<uint16_t>(number));
      for (const float v : Initial(key, number)) {
        fresh.push_back(v);
        trained.push_back(v - 0.5f);
      }
    }
    EXPECT_EQ(Lookup(keys, numbers), fresh);
    EXPECT_EQ(Lookup(keys, numbers, /*peek=*/true), fresh);
    EXPECT_EQ(table_->TotalCount(), 0);
    MT_ASSERT_OK(Sgd(keys, numbers));
    EXPECT_EQ(Lookup(keys, numbers), trained);
    // A row keeps its value, whatever the number.
    const std::vector<uint16_t> zeros(keys.size(), 0);
    EXPECT_EQ(Lookup(keys, zeros), trained);
    EXPECT_EQ(Lookup(keys, zeros, /*peek=*/true), trained);
    MT_ASSERT_OK(Sgd(keys, {}, 0));  // and is trained without
    EXPECT_EQ(Lookup(keys, zeros), trained);
  }
}

TEST_F(TableNumbersTest, ARepeatedKeyHasTheTableOfItsFirstOccurrence) {
  for (const ChainCase* chain : {static_cast<const ChainCase*>(nullptr), &AllChains()[1]}) {
    Make(chain);
    MT_ASSERT_OK(Sgd({100, 101, 102, 103}, {0, 0, 0, 0}));  // some are below
    const std::vector<int64_t> keys = {5, 6, 5, 5, 6};
    const std::vector<uint16_t> numbers = {2, 1, 0, 1, 0};
    const std::vector<float> five = Initial(5, 2), six = Initial(6, 1);
    std::vector<float> expected;
    for (const int64_t key : keys)
      expected.insert(expected.end(), (key == 5 ? five : six).begin(), (key == 5 ? five : six).end());
    EXPECT_EQ(Lookup(keys, numbers), expected);
    EXPECT_EQ(Lookup(keys, numbers, /*peek=*/true), expected);
    MT_ASSERT_OK(Sgd(keys, numbers));
    std::vector<float> after;
    for (const float v : five) after.push_back(v - 1.5f);
    EXPECT_EQ(Lookup({5}, {0}), after);
    // A removed key may be that of another table.
    MT_ASSERT_OK(table_->Remove(std::vector<int64_t>{5}, nullptr));
    EXPECT_EQ(Lookup({5}, {1}), Initial(5, 1));
    MT_ASSERT_OK(Sgd({5}, {1}, 0));
    EXPECT_EQ(Lookup({5}, {0}), Initial(5, 1));
  }
}

TEST_F(TableNumbersTest, WrongNumbersChangeNothing) {
  for (const ChainCase* chain : {static_cast<const ChainCase*>(nullptr), &AllChains()[1]}) {
    Make(chain);
    MT_ASSERT_OK(Sgd({1, 2, 3, 4}, {0, 1, 2, 0}));
    const std::vector<float> before = Lookup({1, 2, 3, 4}, {0, 0, 0, 0});
    std::vector<float> out(3 * kDim);
    const auto expect = [](const Status& status, const char* message) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(status.message(), HasSubstr(message));
    };
    const std::vector<int64_t> two = {1, 9}, three = {1, 9, 9};
    expect(table_->Peek(two, out.data(), std::vector<uint16_t>{0, 3}), "tables: expected 0 to 2, found tables[1] = 3");
    expect(table_->Lookup(two, out.data()), "expected a table number for each of 2 keys");
    expect(table_->Peek(two, out.data(), std::vector<uint16_t>{0}), "found 1");
    expect(Sgd(two, {0, 3}), "tables: expected 0 to 2, found tables[1] = 3");
    expect(Sgd(two, {0}), "expected a table number for each of 2 keys, found 1");
    expect(Sgd(two, {}), "expected the table number of key 9, which has no row");
    expect(Sgd(three, {0, kNoTable, 1}), "expected the table number of key 9, which has no row");
    EXPECT_EQ(table_->TotalCount(), 4);
    EXPECT_EQ(Lookup({1, 2, 3, 4}, {0, 0, 0, 0}), before);
    MT_ASSERT_OK(Sgd({1, 9}, {kNoTable, 2}, 0));
    EXPECT_EQ(Lookup({9}, {0}), Initial(9, 2));
  }
}

TEST_F(TableNumbersTest, AFilterAdmitsAKeyWithItsTable) {
  for (const AdmissionKind kind : {AdmissionKind::kCounter, AdmissionKind::kBloom}) {
    for (const ChainCase* chain : {static_cast<const ChainCase*>(nullptr), &AllChains()[1]}) {
      TableOptions options = Options();
      options.filter.kind = kind;
      options.filter.filter_freq = 2;
      options.filter.max_element_size = 1000;
      Make(chain, options);
      MT_ASSERT_OK(Sgd({1, 2}, {2, 1}));
      EXPECT_EQ(table_->TotalCount(), 0);
      EXPECT_EQ(Sgd({1, 2}, {}).code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(table_->TotalCount(), 0);
      MT_ASSERT_OK(Sgd({2, 1}, {1, 2}, 0));
      EXPECT_EQ(Lookup({1, 2}, {0, 0}), [] {
        std::vector<float> both = Initial(1, 2);
        for (const float v : Initial(2, 1)) both.push_back(v);
        return both;
      }());
    }
  }
}

TEST_F(TableNumbersTest, AnUpsertOfANewRowNeedsItsValue) {
  Make(nullptr);
  MT_ASSERT_OK(table_->AddSlots(std::vector<ColumnSpec>{{"m", DType::kFloat32, 1, 0}}));
  const std::vector<int64_t> keys = {1};
  const std::vector<float> slot = {5};
  UpsertRequest request;
  request.keys = keys;
  request.columns.push_back({"m", 1, slot.data()});
  EXPECT_THAT(table_->Upsert(request).status().message(), HasSubstr("expected the values of key 1, which has no row"));
  EXPECT_EQ(table_->TotalCount(), 0);
}

}  // namespace
}  // namespace multitier::table_numbers_test
