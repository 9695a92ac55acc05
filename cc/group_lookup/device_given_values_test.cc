// Clipping, and the gradients of pooled values, of values that are given: the bits of cc/group_lookup/pooling.h.

#include "cc/group_lookup/pooling.h"
#include "cc/hbm/test/device_caller.h"

namespace multitier::device_given_values_test {
namespace {

using hbm::Awaited;
using hbm::ClipOnDevice;
using hbm::DeviceCaller;
using hbm::DeviceValues;
using hbm::EntryGradientsOnDevice;
using hbm::Pair;

Combiner CombinerOf(device::PoolCombiner combiner) { return static_cast<Combiner>(combiner); }

class GivenValues : public testing::Test {
 protected:
  GivenValues() : pair_(3, 8, 1), caller_(pair_.device) {}

  std::vector<float> Some(int64_t n) {
    std::vector<float> numbers(static_cast<size_t>(n));
    for (float& x : numbers) x = static_cast<float>(static_cast<int>(random_() % 2001) - 1000) / 300.0f;
    return numbers;
  }
  // n values, the first of them zeros.
  DeviceValues Values(int64_t n, float max_norm) {
    given_ = Some(n * kDim);
    std::fill_n(given_.begin(), std::min<int64_t>(n, 1) * kDim, 0.0f);
    DeviceValues values;
    values.table = pair_.table.get();
    values.name = "member";
    values.values = caller_.memory()->Up(given_);
    values.entries = values.batch = n;
    values.max_norm = max_norm;
    return values;
  }
  Status Gradients(const DeviceValues& values, const std::vector<float>& grad, std::vector<float>* entries,
                   std::vector<float>* weights) {
    const auto n = static_cast<size_t>(values.entries);
    auto* const entry_grads = caller_.memory()->Filled<float>(n * kDim, 0x7f);
    auto* const weight_grads = weights != nullptr ? caller_.memory()->Filled<float>(n, 0x7f) : nullptr;
    Awaited awaited;
    EntryGradientsOnDevice(values, caller_.memory()->Up(grad), entry_grads, weight_grads, caller_.stream(), awaited.done());
    MT_RETURN_IF_ERROR(awaited.Wait());
    *entries = caller_.memory()->Down(entry_grads, n * kDim);
    if (weights != nullptr) *weights = caller_.memory()->Down(weight_grads, n);
    return OkStatus();
  }

  static constexpr int kDim = 3;
  Pair pair_;
  DeviceCaller caller_;
  std::mt19937_64 random_{4};
  std::vector<float> given_;
};

TEST_F(GivenValues, ClippingAndItsGradientHaveTheBitsOfTheCpu) {
  for (const int64_t n : {0, 1, 70}) {
    for (const float max_norm : {0.0f, 2.5f}) {
      const DeviceValues values = Values(n, max_norm);
      auto* const out = caller_.memory()->Filled<float>(static_cast<size_t>(n) * kDim, 0x7f);
      Awaited awaited;
      ClipOnDevice(values, out, caller_.stream(), awaited.done());
      MT_ASSERT_OK(awaited.Wait());
      std::vector<float> expected = given_, found;
      ClipByNorm(expected.data(), n, kDim, max_norm);
      EXPECT_TRUE(SameBits(expected, caller_.memory()->Down(out, expected.size()))) << n << " " << max_norm;
      expected = Some(n * kDim);
      MT_ASSERT_OK(Gradients(values, expected, &found, nullptr));
      ClipByNormGradient(EntryValues{given_.data(), nullptr}, n, kDim, max_norm, expected.data());
      EXPECT_TRUE(SameBits(expected, found)) << n << " " << max_norm;
    }
  }
}

TEST_F(GivenValues, GradientsOfPooledValuesHaveTheBitsOfTheCpu) {
  const std::vector<int64_t> rows = {0, 0, 0, 2, 4, 4, 5};
  const auto n = static_cast<int64_t>(rows.size()), batch = int64_t{7};
  for (const device::PoolCombiner combiner :
       {device::PoolCombiner::kSum, device::PoolCombiner::kMean, device::PoolCombiner::kSqrtN}) {
    for (const bool weighted : {false, true}) {
      for (const float max_norm : {-1.0f, 2.5f}) {
        DeviceValues values = Values(n, max_norm);
        values.indices = caller_.memory()->Up(rows);
        values.batch = batch;
        values.combiner = combiner;
        SparseBatch sparse;
        std::vector<float> weights = Some(weighted ? n : 0);
        if (weighted) weights[4] = -(weights[5] = 0.5f);  // a divisor of zero
        if (weighted) values.weights = caller_.memory()->Up(weights);
        if (!weighted && max_norm < 0) values.values = nullptr;
        sparse.indices = rows;
        sparse.weights = weights;
        sparse.batch = batch;
        sparse.dim = kDim;
        sparse.combiner = CombinerOf(combiner);
        const std::vector<float> grad = Some(batch * kDim);
        std::vector<float> entries(rows.size() * kDim), of_weights(weights.size()), found, found_of_weights;
        PoolGradient(sparse, grad.data(), entries.data());
        if (max_norm >= 0) {
          ClipByNormGradient(EntryValues{given_.data(), nullptr}, n, kDim, max_norm, entries.data());
          ClipByNorm(given_.data(), n, kDim, max_norm);
        }
        if (weighted) PoolWeightsGradient(sparse, EntryValues{given_.data(), nullptr}, grad.data(), of_weights.data());
        MT_ASSERT_OK(Gradients(values, grad, &found, weighted ? &found_of_weights : nullptr));
        EXPECT_TRUE(SameBits(entries, found)) << static_cast<int>(combiner) << weighted << max_norm;
        EXPECT_TRUE(SameBits(of_weights, found_of_weights)) << static_cast<int>(combiner) << max_norm;
      }
    }
  }
}

TEST_F(GivenValues, RowsOutOfOrderOrRangeAreRefused) {
  for (const std::vector<int64_t>& rows : std::vector<std::vector<int64_t>>{{0, 1, 2}, {1, 0, 1}, {-1, 0, 1}}) {
    DeviceValues values = Values(3, -1.0f);
    values.indices = caller_.memory()->Up(rows);
    values.batch = 2;
    std::vector<float> found;
    const Status status = Gradients(values, Some(2 * kDim), &found, nullptr);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("member: expected rows in [0, 2)"), std::string::npos) << status.ToString();
    const Status no_weights = Gradients(values, Some(2 * kDim), &found, &found);
    EXPECT_NE(no_weights.message().find("expected weights, found none"), std::string::npos) << no_weights.ToString();
  }
}

}  // namespace
}  // namespace multitier::device_given_values_test
