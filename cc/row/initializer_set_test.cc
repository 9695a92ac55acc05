#include "cc/row/initializer_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace multitier::initializer_set_test {
namespace {

using ::testing::HasSubstr;

InitializerSpec Spec(InitializerKind kind, float a, float b, uint64_t seed) {
  InitializerSpec spec;
  spec.kind = kind;
  spec.a = a;
  spec.b = b;
  spec.seed = seed;
  return spec;
}

InitializerSpec ListOf(std::vector<TableInitializer> tables) {
  InitializerSpec spec;
  spec.tables = std::make_shared<const std::vector<TableInitializer>>(std::move(tables));
  return spec;
}

// Every column of every key of every table against the initializer of that column alone.
TEST(InitializerSetTest, EachColumnIsThatOfItsInitializerAlone) {
  const InitializerSpec uniform = Spec(InitializerKind::kUniform, -1, 1, 7);
  const InitializerSpec normal = Spec(InitializerKind::kNormal, 0, 2, 8);
  const InitializerSpec debug = Spec(InitializerKind::kDebug, 0, 0, 0);
  const std::vector<TableInitializer> tables = {
      {{{0, uniform}}}, {{{0, normal}, {3, uniform}, {9, debug}}}, {{{0, debug}, {1, normal}}}};
  for (const int dim : {10, 17}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const Result<InitializerSet> set = InitializerSet::Create(ListOf(tables), dim, dtype);
      ASSERT_TRUE(set.ok()) << set.status().ToString();
      EXPECT_EQ(set->tables(), 3u);
      std::vector<int64_t> keys;
      std::vector<uint16_t> numbers;
      for (int64_t i = 0; i < 200; ++i) {
        keys.push_back(i * 7919 - 300000);
        numbers.push_back(static_cast<uint16_t>(i / 5 * 2 % 3));
      }
      std::vector<float> values(keys.size() * static_cast<size_t>(dim));
      std::vector<float*> out;
      for (size_t i = 0; i < keys.size(); ++i) out.push_back(values.data() + i * static_cast<size_t>(dim));
      set->FillBatch(keys.data(), numbers.data(), keys.size(), out.data());
      std::vector<float> alone(static_cast<size_t>(dim));
      for (size_t i = 0; i < keys.size(); ++i) {
        const std::vector<ColumnInitializer>& columns = tables[numbers[i]].columns;
        for (size_t s = 0; s < columns.size(); ++s) {
          Initializer::Create(columns[s].initializer, dim, dtype)->Fill(keys[i], alone.data());
          const int end = s + 1 < columns.size() ? columns[s + 1].first_column : dim;
          for (int c = columns[s].first_column; c < end; ++c) {
            ASSERT_EQ(out[i][c], alone[static_cast<size_t>(c)]) << "table " << numbers[i] << " column " << c;
          }
        }
      }
    }
  }
}

TEST(InitializerSetTest, TablesDifferByAnyNumberOfAnySegment) {
  const InitializerSpec normal = Spec(InitializerKind::kNormal, 0, 2, 8);
  const TableInitializer table = {{{0, normal}, {3, Spec(InitializerKind::kUniform, -1, 1, 7)}}};
  const auto differ = [](const std::vector<TableInitializer>& tables) {
    return InitializerSet::Create(ListOf(tables), 9)->differ_by_table();
  };
  EXPECT_FALSE(differ({table}));
  EXPECT_FALSE(differ({table, table, table}));
  for (const InitializerSpec& other : {Spec(InitializerKind::kNormal, 0, 2, 8), Spec(InitializerKind::kUniform, -2, 1, 7),
                                       Spec(InitializerKind::kUniform, -1, 2, 7), Spec(InitializerKind::kUniform, -1, 1, 6)}) {
    EXPECT_TRUE(differ({table, table, {{{0, normal}, {3, other}}}}));
  }
  EXPECT_TRUE(differ({table, {{{0, normal}, {4, table.columns[1].initializer}}}}));
  EXPECT_TRUE(differ({table, {{{0, normal}}}}));
}

TEST(InitializerSetTest, WrongListsAreRefused) {
  const InitializerSpec one = Spec(InitializerKind::kConstant, 1, 0, 0);
  const auto expect = [&](std::vector<TableInitializer> tables, const char* message) {
    EXPECT_THAT(InitializerSet::Create(ListOf(std::move(tables)), 4).status().message(), HasSubstr(message));
  };
  expect({}, "initializers: expected 1 to 65535 tables, found 0");
  expect(std::vector<TableInitializer>(65536, {{{0, one}}}), "initializers: expected 1 to 65535 tables, found 65536");
  expect({{{{0, one}}}, {}}, "initializers[1]: expected at least one segment of columns, found none");
  expect({{{{1, one}}}}, "initializers[0].columns[0].first_column: expected 0, found 1");
  expect({{{{0, one}, {2, one}, {2, one}}}}, "initializers[0].columns[2].first_column: expected more than 2, found 2");
  expect({{{{0, one}, {4, one}}}}, "initializers[0].columns[1].first_column: expected less than dim (4), found 4");
  expect({{{{0, Spec(InitializerKind::kMatrix, 0, 0, 0)}}}}, "found matrix");
  expect({{{{0, Spec(InitializerKind::kUniform, 1, 1, 0)}}}}, "initializers[0].columns[0]: initializer: uniform: expected");
}

}  // namespace
}  // namespace multitier::initializer_set_test
