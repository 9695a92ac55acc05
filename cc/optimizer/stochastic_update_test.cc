#include "cc/optimizer/stochastic_update.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "cc/row/value_column.h"

namespace multitier {
namespace {

constexpr int kDim = 7;

struct Rows {
  Rows(const UpdateRule& rule, DType dtype, size_t n) : layout(*RowLayout::Create(kDim, dtype)) {
    for (const SlotSpec& slot : rule.slots()) {
      layout = *layout.WithColumn({slot.name, DType::kFloat32, slot.per_row ? 1 : kDim, slot.default_initial_value});
      offsets.push_back(layout.columns().back().offset);
    }
    data.resize(n * layout.row_bytes() / sizeof(uint64_t));
    for (size_t i = 0; i < n; ++i) {
      rows.push_back(reinterpret_cast<uint8_t*>(data.data()) + i * layout.row_bytes());
      std::vector<float> values;
      for (int d = 0; d < kDim; ++d) values.push_back(0.125f * static_cast<float>(d) - 0.25f * static_cast<float>(i));
      WriteColumn(dtype, values.data(), values.size(), rows.back());
      layout.FillSlots(rows.back(), 1);
    }
  }
  std::vector<float> Values(size_t i) const {
    std::vector<float> values(kDim);
    ReadColumn(layout.value().dtype, rows[i], kDim, values.data());
    return values;
  }

  RowLayout layout;
  std::vector<uint64_t> data;
  std::vector<uint8_t*> rows;
  std::vector<uint32_t> offsets;
};

TEST(StochasticUpdate, SlotsAreExactAndValuesAreNextToTheExactOnes) {
  const std::vector<int64_t> keys{0, -1, INT64_MAX};
  std::vector<float> grad(kDim, 0.3f);
  const std::vector<const float*> grads(keys.size(), grad.data());
  for (const char* name : {"sgd", "adagrad", "rowwise_adagrad", "adam"}) {
    const UpdateRule* rule = *FindUpdateRule(name);
    std::vector<float> hyper(rule->hyperparameters().size(), 0.1f);
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      Rows rows(*rule, dtype, keys.size()), again(*rule, dtype, keys.size()), exact(*rule, DType::kFloat32, keys.size());
      for (int64_t step = 1; step <= 3; ++step) {
        for (size_t i = 0; i < keys.size(); ++i) {  // the exact rows begin the step with the values of the others
          const std::vector<float> values = rows.Values(i);
          WriteColumn(DType::kFloat32, values.data(), values.size(), exact.rows[i]);
        }
        UpdateBatch batch{exact.rows.data(), grads.data(),         keys.size(), kDim,
                          DType::kFloat32,   exact.offsets.data(), hyper.data()};
        rule->Update(batch);
        for (Rows* some : {&rows, &again}) {
          UpdateBatch half{some->rows.data(), grads.data(), keys.size(), kDim, dtype, some->offsets.data(), hyper.data()};
          UpdateStochastically(*rule, half, keys.data(), step);
        }
        EXPECT_EQ(rows.data, again.data);
        for (size_t i = 0; i < keys.size(); ++i) {
          for (size_t k = 0; k < rows.offsets.size(); ++k) {
            const size_t bytes = sizeof(float) * static_cast<size_t>(rule->slots()[k].per_row ? 1 : kDim);
            EXPECT_EQ(std::memcmp(rows.rows[i] + rows.offsets[k], exact.rows[i] + exact.offsets[k], bytes), 0) << name;
          }
          const std::vector<float> found = rows.Values(i), expected = exact.Values(i);
          for (int d = 0; d < kDim; ++d) EXPECT_NEAR(found[d], expected[d], std::abs(expected[d]) / 128 + 1e-6f) << name;
        }
      }
    }
  }
}

TEST(StochasticUpdate, AnAverageFollowsTheRoundedValues) {
  const UpdateRule* rule = *FindUpdateRule("adam+ema");
  std::vector<float> hyper(rule->hyperparameters().size(), 0.1f), average;
  const float momentum = hyper.back() = 0.75f;
  const std::vector<float> grad(kDim, 0.3f);
  const float* const grads = grad.data();
  const int64_t key = 7;
  Rows rows(*rule, DType::kBFloat16, 1);
  average = rows.Values(0);
  for (int64_t step = 1; step <= 3; ++step) {
    const UpdateBatch batch{rows.rows.data(), &grads, 1, kDim, DType::kBFloat16, rows.offsets.data(), hyper.data()};
    UpdateStochastically(*rule, batch, &key, step);
    const std::vector<float> values = rows.Values(0);
    const auto* const offset = reinterpret_cast<const float*>(rows.rows[0] + rows.offsets[0]);
    for (int d = 0; d < kDim; ++d) {
      average[d] = momentum * average[d] + (1 - momentum) * values[d];
      EXPECT_NEAR(values[d] + offset[d], average[d], 1e-6f) << "step " << step;
    }
  }
}

// 1 + 1/256 is in the middle between 1 and the next bfloat16.
TEST(StochasticUpdate, BitsDependOnKeyStepAndElement) {
  const UpdateRule* rule = *FindUpdateRule("sgd");
  const float hyper = 1.0f;
  const auto pattern = [&](int64_t key, int64_t step) {
    std::vector<uint16_t> row(64, 0x3f80);  // ones
    const std::vector<float> grad(64, -1.0f / 256);
    const float* grads = grad.data();
    auto* data = reinterpret_cast<uint8_t*>(row.data());
    UpdateStochastically(*rule, UpdateBatch{&data, &grads, 1, 64, DType::kBFloat16, nullptr, &hyper}, &key, step);
    return row;
  };
  EXPECT_EQ(pattern(5, 9), pattern(5, 9));
  EXPECT_NE(pattern(5, 9), pattern(5, 10));
  EXPECT_NE(pattern(5, 9), pattern(6, 9));
  EXPECT_NE(pattern(5, 9), pattern(5 + (int64_t{1} << 32), 9));
  EXPECT_NE(pattern(5, 9), pattern(5, 9 + (int64_t{1} << 32)));
  const std::vector<uint16_t> row = pattern(5, 9);
  const int64_t up = std::count(row.begin(), row.end(), 0x3f81);
  EXPECT_GT(up, 16);
  EXPECT_LT(up, 48);
}

}  // namespace
}  // namespace multitier
