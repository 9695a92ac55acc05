#include "cc/group_lookup/pooling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/base/executor.h"

namespace multitier::pooling_test {
namespace {

class ThreadExecutor : public Executor {
 public:
  void ParallelFor(int n, const std::function<void(int)>& task) override {
    std::vector<std::thread> threads;
    for (int i = 0; i < n; ++i) threads.emplace_back(task, i);
    for (std::thread& thread : threads) thread.join();
  }
};

// A batch that owns its arrays.
struct OwnedBatch {
  std::vector<int64_t> indices;
  std::vector<float> weights;
  std::vector<float> values;
  std::vector<float> grad;
  int64_t batch = 0;
  int dim = 0;
  Combiner combiner = Combiner::kSum;

  SparseBatch view() const { return SparseBatch{indices, weights, batch, dim, combiner}; }
};

OwnedBatch RandomBatch(int64_t batch, int dim, Combiner combiner, bool weighted, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> real(0.1f, 1.0f);
  OwnedBatch out;
  out.batch = batch;
  out.dim = dim;
  out.combiner = combiner;
  for (int64_t row = 0; row < batch; ++row) {
    for (uint32_t i = random() % 5; i > 0; --i) out.indices.push_back(row);
  }
  for (size_t i = 0; i < out.indices.size() * dim; ++i) out.values.push_back(real(random) - 0.5f);
  for (int64_t i = 0; i < batch * dim; ++i) out.grad.push_back(real(random) - 0.5f);
  if (weighted) {
    for (size_t i = 0; i < out.indices.size(); ++i) out.weights.push_back(real(random));
  }
  return out;
}

// The definition, element by element, in float.
std::vector<float> ReferencePool(const OwnedBatch& b) {
  std::vector<float> out(b.batch * b.dim, 0.0f);
  for (int64_t row = 0; row < b.batch; ++row) {
    float divisor = 0.0f;
    for (size_t i = 0; i < b.indices.size(); ++i) {
      if (b.indices[i] != row) continue;
      const float w = b.weights.empty() ? 1.0f : b.weights[i];
      divisor += b.combiner == Combiner::kSqrtN ? w * w : w;
      for (int d = 0; d < b.dim; ++d) out[row * b.dim + d] += b.values[i * b.dim + d] * w;
    }
    if (b.combiner == Combiner::kSqrtN) divisor = std::sqrt(divisor);
    for (int d = 0; d < b.dim; ++d) {
      float& x = out[row * b.dim + d];
      if (b.combiner != Combiner::kSum) x = divisor == 0.0f ? 0.0f : x / divisor;
    }
  }
  return out;
}

float Loss(const OwnedBatch& b) {
  std::vector<float> out(b.batch * b.dim);
  Pool(b.view(), EntryValues{b.values.data(), nullptr}, out.data());
  double sum = 0.0;
  for (size_t i = 0; i < out.size(); ++i) sum += double{out[i]} * b.grad[i];
  return static_cast<float>(sum);
}

using Case = std::tuple<Combiner, bool>;
class PoolingTest : public testing::TestWithParam<Case> {
 protected:
  Combiner combiner() const { return std::get<0>(GetParam()); }
  bool weighted() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(All, PoolingTest,
                         testing::Combine(testing::Values(Combiner::kSum, Combiner::kMean, Combiner::kSqrtN), testing::Bool()));

TEST_P(PoolingTest, EqualsTheDefinitionBitForBit) {
  for (int dim : {1, 3, 8, 16, 17, 64, 128}) {
    const OwnedBatch b = RandomBatch(50, dim, combiner(), weighted(), 7 + dim);
    std::vector<float> out(b.batch * dim, -1.0f);
    Pool(b.view(), EntryValues{b.values.data(), nullptr}, out.data());
    EXPECT_EQ(out, ReferencePool(b)) << "dim " << dim;
  }
}

TEST_P(PoolingTest, ThreadsDoNotChangeBits) {
  const OwnedBatch b = RandomBatch(20000, 16, combiner(), weighted(), 11);
  std::vector<float> serial(b.batch * b.dim), parallel(serial.size());
  ThreadExecutor executor;
  Pool(b.view(), EntryValues{b.values.data(), nullptr}, serial.data());
  Pool(b.view(), EntryValues{b.values.data(), nullptr}, parallel.data(), &executor);
  EXPECT_EQ(serial, parallel);

  std::vector<float> serial_grad(b.values.size()), parallel_grad(b.values.size());
  PoolGradient(b.view(), b.grad.data(), serial_grad.data());
  PoolGradient(b.view(), b.grad.data(), parallel_grad.data(), &executor);
  EXPECT_EQ(serial_grad, parallel_grad);
}

TEST_P(PoolingTest, PlacesPermuteTheValues) {
  OwnedBatch b = RandomBatch(40, 5, combiner(), weighted(), 13);
  const int32_t n = static_cast<int32_t>(b.indices.size());
  std::vector<int32_t> places(n);
  std::vector<float> moved(b.values.size());
  for (int32_t i = 0; i < n; ++i) {
    places[i] = n - 1 - i;
    std::copy_n(&b.values[i * b.dim], b.dim, &moved[places[i] * b.dim]);
  }
  std::vector<float> out(b.batch * b.dim);
  Pool(b.view(), EntryValues{moved.data(), places.data()}, out.data());
  EXPECT_EQ(out, ReferencePool(b));
}

TEST_P(PoolingTest, GradientsEqualFiniteDifferences) {
  OwnedBatch b = RandomBatch(6, 3, combiner(), weighted(), 17);
  std::vector<float> grad(b.values.size());
  PoolGradient(b.view(), b.grad.data(), grad.data());
  constexpr float kStep = 1e-2f;
  for (size_t i = 0; i < b.values.size(); ++i) {
    const float kept = b.values[i];
    b.values[i] = kept + kStep;
    const float up = Loss(b);
    b.values[i] = kept - kStep;
    const float down = Loss(b);
    b.values[i] = kept;
    EXPECT_NEAR(grad[i], (up - down) / (2 * kStep), 2e-3) << "element " << i;
  }
  if (!weighted()) return;
  std::vector<float> weight_grad(b.weights.size());
  PoolWeightsGradient(b.view(), EntryValues{b.values.data(), nullptr}, b.grad.data(), weight_grad.data());
  for (size_t i = 0; i < b.weights.size(); ++i) {
    const float kept = b.weights[i];
    b.weights[i] = kept + kStep;
    const float up = Loss(b);
    b.weights[i] = kept - kStep;
    const float down = Loss(b);
    b.weights[i] = kept;
    EXPECT_NEAR(weight_grad[i], (up - down) / (2 * kStep), 5e-3) << "weight " << i;
  }
}

TEST_P(PoolingTest, EmptyBatchesAndRowsAreZeros) {
  OwnedBatch b;
  b.batch = 3;
  b.dim = 2;
  b.combiner = combiner();
  std::vector<float> out(6, 5.0f);
  Pool(b.view(), EntryValues{}, out.data());
  EXPECT_EQ(out, std::vector<float>(6, 0.0f));
  b.batch = 0;
  Pool(b.view(), EntryValues{}, nullptr);
  PoolGradient(b.view(), nullptr, nullptr);
}

TEST(PoolingTest, WeightsThatCancelGiveZerosNotNaN) {
  OwnedBatch b;
  b.batch = 1;
  b.dim = 2;
  b.combiner = Combiner::kMean;
  b.indices = {0, 0};
  b.weights = {1.0f, -1.0f};
  b.values = {1.0f, 2.0f, 3.0f, 4.0f};
  b.grad = {1.0f, 1.0f};
  std::vector<float> out(2), grad(4), weight_grad(2);
  Pool(b.view(), EntryValues{b.values.data(), nullptr}, out.data());
  PoolGradient(b.view(), b.grad.data(), grad.data());
  PoolWeightsGradient(b.view(), EntryValues{b.values.data(), nullptr}, b.grad.data(), weight_grad.data());
  EXPECT_EQ(out, std::vector<float>(2, 0.0f));
  EXPECT_EQ(grad, std::vector<float>(4, 0.0f));
  EXPECT_EQ(weight_grad, std::vector<float>(2, 0.0f));
}

TEST(PoolingTest, BadBatchesAreRefusedByName) {
  OwnedBatch b;
  b.batch = 2;
  b.dim = 1;
  b.indices = {0, 2};
  EXPECT_NE(ValidateSparseBatch(b.view()).message().find("[0, 2), found indices[1] = 2"), std::string::npos);
  b.indices = {1, 0};
  EXPECT_NE(ValidateSparseBatch(b.view()).message().find("nondecreasing"), std::string::npos);
  b.indices = {0, -1};
  EXPECT_EQ(ValidateSparseBatch(b.view()).code(), StatusCode::kInvalidArgument);
  b.indices = {0, 1};
  b.weights = {1.0f};
  EXPECT_NE(ValidateSparseBatch(b.view()).message().find("expected 2 weights"), std::string::npos);
  b.weights.clear();
  EXPECT_TRUE(ValidateSparseBatch(b.view()).ok());
}

TEST(PoolingTest, ClipScalesOnlyLongValues) {
  std::vector<float> values = {3.0f, 4.0f, 0.0f, 0.0f, 0.5f, 0.0f};
  ClipByNorm(values.data(), 3, 2, 1.0f);
  EXPECT_FLOAT_EQ(values[0], 0.6f);
  EXPECT_FLOAT_EQ(values[1], 0.8f);
  EXPECT_EQ(values[2], 0.0f);
  EXPECT_EQ(values[4], 0.5f);
  ClipByNorm(values.data(), 3, 2, 0.0f);
  EXPECT_EQ(values, std::vector<float>(6, 0.0f));
}

TEST(PoolingTest, TheGradientOfClippingEqualsFiniteDifferencesWhereverTheValuesAre) {
  constexpr int kDim = 3, kValues = 4;
  constexpr float kStep = 1e-3f, kMaxNorm = 1.5f;
  const std::vector<float> values = {2.0f, -1.0f, 0.5f, 0.1f, 0.2f, 0.3f, 0.0f, 0.0f, 0.0f, -1.0f, 2.0f, 2.0f};
  const std::vector<int32_t> places = {3, 0, 2, 1};
  std::vector<float> given = {1.0f, 2.0f, -1.0f, 0.5f, 0.25f, 1.0f, 1.0f, 1.0f, 1.0f, -2.0f, 0.5f, 1.0f}, grads = given;
  ClipByNormGradient(EntryValues{values.data(), places.data()}, kValues, kDim, kMaxNorm, grads.data());
  for (int entry = 0; entry < kValues; ++entry) {
    const float* const g = &given[entry * kDim];
    for (int d = 0; d < kDim && places[entry] != 2; ++d) {  // not at zero, where a step leaves the norm below
      float loss[2];
      for (int side = 0; side < 2; ++side) {
        std::vector<float> v(&values[places[entry] * kDim], &values[places[entry] * kDim] + kDim);
        v[d] += side == 0 ? kStep : -kStep;
        ClipByNorm(v.data(), 1, kDim, kMaxNorm);
        loss[side] = v[0] * g[0] + v[1] * g[1] + v[2] * g[2];
      }
      EXPECT_NEAR(grads[entry * kDim + d], (loss[0] - loss[1]) / (2 * kStep), 2e-3) << entry << " " << d;
    }
  }
  EXPECT_EQ(grads[2 * kDim], 1.0f);
}

TEST(PoolingTest, CombinersAreKnownByName) {
  EXPECT_EQ(*ParseCombiner("sqrtn"), Combiner::kSqrtN);
  EXPECT_EQ(ParseCombiner("max").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace multitier::pooling_test
