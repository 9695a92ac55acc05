// Tables whose values have 16 bits: values are stored rounded, updates compute in float32, slots are float32.

#include <cmath>

#include "cc/row/value_column.h"
#include "cc/table/test/table_test_util.h"

namespace multitier::value_types_test {
namespace {

constexpr DType kHalves[] = {DType::kBFloat16, DType::kFloat16};

TableOptions HalfOptions(int dim, DType dtype) {
  TableOptions options = BasicOptions(dim);
  options.value_dtype = dtype;
  return options;
}

std::vector<float> Rounded(DType dtype, std::vector<float> values) {
  RoundValues(dtype, values.data(), values.size());
  return values;
}

TEST(ValueTypes, KeysWithoutARowReadTheirInitialValueRounded) {
  const std::vector<int64_t> keys = Range(-20, 20);
  const std::vector<float> exact = LookupAll(MakeTable(BasicOptions(17)).get(), keys);
  for (const DType dtype : kHalves) {
    auto table = MakeTable(HalfOptions(17, dtype));
    const std::vector<float> read = LookupAll(table.get(), keys);
    EXPECT_TRUE(SameBits(read, Rounded(dtype, exact)));
    EXPECT_FALSE(SameBits(read, exact));
    MT_ASSERT_OK(Sgd(keys, 0.0f, 17).Run(table.get()));  // rows now, of the same values
    EXPECT_EQ(table->TotalCount(), 40);
    EXPECT_TRUE(SameBits(LookupAll(table.get(), keys), read));
  }
}

TEST(ValueTypes, ARowTakesHalfTheBytes) {
  for (const DType dtype : kHalves) EXPECT_EQ(MakeTable(HalfOptions(64, dtype))->Stats().row_bytes, 128);
  EXPECT_EQ(MakeTable(BasicOptions(64))->Stats().row_bytes, 256);
}

// A table of float32 whose values are rounded after every update is the model.
TEST(ValueTypes, EveryRuleTrainsLikeFloat32WithRoundedValues) {
  std::mt19937 random(5);
  for (const UpdateRule* rule : AllUpdateRules()) {
    for (const DType dtype : kHalves) {
      for (const int dim : {1, 5, 16, 67}) {
        SCOPED_TRACE(StrCat(rule->name(), " ", DTypeName(dtype), " ", dim));
        TableOptions tiered = TieredOptions(dim, 12, std::make_shared<MemoryTier>());
        tiered.value_dtype = dtype;
        auto table = MakeTable(tiered), model = MakeTable(BasicOptions(dim));
        for (int step = 1; step <= 6; ++step) {
          Training training;
          training.rule = rule;
          training.step = step;
          training.hyper = SomeHyper(*rule);
          for (int i = 0; i < 12; ++i) training.keys.push_back(static_cast<int64_t>(random() % 30));
          for (size_t i = 0; i < training.keys.size() * static_cast<size_t>(dim); ++i) {
            training.grads.push_back(static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 700.0f);
          }
          std::vector<int64_t> distinct = training.keys;
          std::sort(distinct.begin(), distinct.end());
          distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
          const auto round_rows = [&] {
            const std::vector<float> values = Rounded(dtype, LookupAll(model.get(), distinct));
            UpsertRequest request;
            request.keys = distinct;
            request.columns.push_back({"value", dim, values.data()});
            MT_ASSERT_OK(model->Upsert(request).status());
          };
          MT_ASSERT_OK(model->AddSlots(SlotColumns(*rule, dim)));
          round_rows();  // the initial values of new rows
          MT_ASSERT_OK(training.Run(table.get()));
          MT_ASSERT_OK(training.Run(model.get()));
          round_rows();
        }
        const auto trained = table->Export(true), expected = model->Export(true);
        ASSERT_TRUE(trained.ok() && expected.ok());
        const Rows a = Sorted(*trained), b = Sorted(*expected);
        EXPECT_EQ(a.keys, b.keys);
        EXPECT_TRUE(SameBits(a.data, b.data));
        EXPECT_EQ(a.columns[0].dtype, dtype);
      }
    }
  }
}

TEST(ValueTypes, WritesRoundToTheNearest) {
  const std::vector<int64_t> keys{1, 2};
  const std::vector<float> values{1.001f, 70000.0f, -1e-8f, NAN, 3.14159f, 0.1f};
  for (const DType dtype : kHalves) {
    auto table = MakeTable(HalfOptions(3, dtype));
    UpsertRequest request;
    request.keys = keys;
    request.columns.push_back({"value", 3, values.data()});
    MT_ASSERT_OK(table->Upsert(request).status());
    std::vector<float> peeked(6);
    MT_ASSERT_OK(table->Peek(keys, peeked.data()));
    EXPECT_TRUE(SameBits(peeked, Rounded(dtype, values)));
    Rows rows;
    rows.columns = {{"value", DType::kFloat32, 3, 0.0f}};
    rows.keys = {7};
    rows.frequencies = {1};
    rows.versions = {1};
    rows.data = {1.001f, 2.002f, 3.003f};
    MT_ASSERT_OK(table->Import(rows));
    EXPECT_TRUE(SameBits(LookupAll(table.get(), {7}), Rounded(dtype, rows.data)));
  }
}

TEST(ValueTypes, ExpiryByWeightReadsTheValue) {
  for (const DType dtype : kHalves) {
    TableOptions options = HalfOptions(2, dtype);
    options.expiry.l2_weight_threshold = 1.0f;
    auto table = MakeTable(options);
    const std::vector<int64_t> keys{1, 2};
    const std::vector<float> values{0.5f, 0.5f, 2.0f, 2.0f};
    UpsertRequest request;
    request.keys = keys;
    request.columns.push_back({"value", 2, values.data()});
    MT_ASSERT_OK(table->Upsert(request).status());
    int64_t expired = 0;
    MT_ASSERT_OK(table->Expire(1, &expired));
    EXPECT_EQ(expired, 1);
    EXPECT_EQ(FrequencyOf(table.get(), {1, 2}).size(), 2u);
    EXPECT_EQ(TierOf(table.get(), {1, 2}), (std::vector<int32_t>{-1, 0}));
  }
}

TEST(ValueTypes, StochasticRoundingIsTheSameInTwoRunsAndKeepsSmallUpdates) {
  const std::vector<int64_t> keys = Range(0, 200);
  for (const DType dtype : kHalves) {
    TableOptions options = HalfOptions(16, dtype);
    options.initializer = {};
    options.initializer.a = 1.0f;
    options.stochastic_rounding = true;
    TableOptions over_memory = options;
    over_memory.lower_tiers.push_back(LowerTierOptions{std::make_shared<MemoryTier>(), 0});
    over_memory.dram_budget_rows = 7;
    auto table = MakeTable(options), other = MakeTable(over_memory);
    options.stochastic_rounding = false;
    auto nearest = MakeTable(options);
    constexpr int kSteps = 100;
    const float update = std::ldexp(1.0f, dtype == DType::kBFloat16 ? -12 : -15);  // a sixteenth of a unit
    for (int step = 1; step <= kSteps; ++step) {
      Training training = Sgd(keys, -update, 16);
      training.step = step;
      for (EmbeddingTable* one : {table.get(), other.get(), nearest.get()}) MT_ASSERT_OK(training.Run(one));
    }
    const std::vector<float> values = LookupAll(table.get(), keys);
    EXPECT_TRUE(SameBits(values, LookupAll(other.get(), keys)));
    double sum = 0.0;
    for (const float value : values) sum += static_cast<double>(value) - 1.0;
    EXPECT_NEAR(sum / static_cast<double>(values.size()), kSteps * update, 0.05 * kSteps * update);
    for (const float value : LookupAll(nearest.get(), keys)) ASSERT_EQ(value, 1.0f);
  }
}

TEST(ValueTypes, OptionsThatDoNotFitAreRefused) {
  const auto message = [](const TableOptions& options) {
    const auto table = EmbeddingTable::Create(options);
    EXPECT_EQ(table.status().code(), StatusCode::kInvalidArgument);
    return table.status().message();
  };
  TableOptions options = BasicOptions(2);
  options.stochastic_rounding = true;
  EXPECT_NE(message(options).find("stochastic_rounding: expected values of bfloat16 or float16, found float32"),
            std::string::npos);
  options = HalfOptions(2, DType::kFloat16);
  options.initializer = {};
  options.initializer.a = 70000.0f;
  EXPECT_NE(message(options).find("expected values of at most 65504, the largest of float16, found values up to 70000"),
            std::string::npos)
      << message(options);
  options.initializer.kind = InitializerKind::kDebug;
  EXPECT_NE(message(options).find("found values up to 99999"), std::string::npos);
}

}  // namespace
}  // namespace multitier::value_types_test
