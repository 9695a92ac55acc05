// adam_catch_up against a loop over every missed step.

#include "cc/optimizer/catch_up.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace multitier {
namespace {

constexpr int kDim = 16;
constexpr int64_t kSteps = 10200;

float Alpha(float rate, const std::vector<float>& betas, int64_t step) {
  const double t = static_cast<double>(step) + 1;
  return static_cast<float>(rate * std::sqrt(1 - std::pow(betas[1], t)) / (1 - std::pow(betas[0], t)));
}

// alpha of each step: of a rate that stays, or of one that falls.
std::vector<float> Rates(const std::vector<float>& betas, bool falls) {
  std::vector<float> rates;
  for (int64_t step = 0; step < kSteps; ++step) {
    const float rate = falls ? 0.05f / (1.0f + 0.01f * static_cast<float>(step)) : 0.01f;
    if (!falls && step > 6000) break;  // the last is that of the rest
    rates.push_back(Alpha(rate, betas, step));
  }
  return rates;
}

// A row in memory: value, m and v.
struct Row {
  alignas(64) float data[3 * kDim];
};

// Moments of gradients from 1e-12 to 1, with values of about 1.
Row FirstRow() {
  Row row;
  for (int d = 0; d < kDim; ++d) {
    const float size = std::pow(10.0f, -0.8f * static_cast<float>(d));
    row.data[d] = 1.0f;
    row.data[kDim + d] = d == 3 ? 0.0f : (d % 2 == 0 ? 0.1f : -0.07f) * size;
    row.data[2 * kDim + d] = d == 3 ? 0.0f : 0.001f * size * size;
  }
  return row;
}

const UpdateRule& Rule() { return *AdamCatchUpRule(); }

// The row with the moves that it missed before `step`.
Row After(Isa isa, const std::vector<float>& betas, float epsilon, const std::vector<float>& rates, int64_t version,
          int64_t step) {
  Row row = FirstRow();
  auto* data = reinterpret_cast<uint8_t*>(row.data);
  const std::vector<float> zeros(kDim, 0.0f);
  std::vector<float> hyper = {0.0f, betas[0], betas[1], epsilon, 0.5f, 0.5f};
  hyper.insert(hyper.end(), rates.begin(), rates.end());
  const float* const grad = zeros.data();
  const uint32_t offsets[] = {kDim * sizeof(float), 2 * kDim * sizeof(float)};
  const UpdateBatch batch{&data, &grad, 1, kDim, DType::kFloat32, offsets, hyper.data()};
  CatchUp(hyper, step).MoveRowsOn(isa, batch, &version);
  return row;
}

TEST(CatchUp, GapsOfOneToTenThousandSteps_EqualALoopOverTheSteps) {
  for (const std::vector<float>& betas :
       std::vector<std::vector<float>>{{0.9f, 0.999f}, {0.9f, 0.98f}, {0.9f, 0.95f}, {0.99f, 0.999f}, {0, 0.999f}}) {
    for (const float epsilon : {1e-7f, 1e-3f, 0.0f}) {
      for (const bool falls : {false, true}) {
        const std::vector<float> rates = Rates(betas, falls);
        for (const int64_t gap : {0, 1, 2, 9, 100, 1000, 10000}) {
          for (const int64_t version : {0, 40, 150}) {
            const Row found = After(Isa::kBaseline, betas, epsilon, rates, version, version + 1 + gap), first = FirstRow();
            for (int d = 0; d < kDim; ++d) {
              double w = first.data[d], m = first.data[kDim + d], v = first.data[2 * kDim + d];
              for (int64_t k = 1; k <= gap; ++k) {
                m *= betas[0];
                v *= betas[1];
                const auto at = static_cast<size_t>(version + k);
                const double alpha = at < rates.size() ? rates[at] : rates.back();
                if (m != 0) w -= alpha * m / (std::sqrt(v) + epsilon);
              }
              const std::string what = "beta1 " + std::to_string(betas[0]) + " beta2 " + std::to_string(betas[1]) +
                                       " epsilon " + std::to_string(epsilon) + " gap " + std::to_string(gap) + " version " +
                                       std::to_string(version) + " element " + std::to_string(d) + (falls ? " falls" : "");
              ASSERT_NEAR(found.data[d], w, 1e-6 + 3e-6 * std::fabs(w - first.data[d])) << what;
              ASSERT_NEAR(found.data[kDim + d], m, 1e-6 * std::fabs(m) + 1e-30) << what;
              ASSERT_NEAR(found.data[2 * kDim + d], v, 2e-6 * v + 1e-30) << what;
            }
          }
        }
      }
    }
  }
}

TEST(CatchUp, OnEachIsa_TheSameBits) {
  const std::vector<float> betas = {0.9f, 0.99f}, rates = Rates(betas, true);
  for (const int64_t step : {7, 90, 5000}) {
    const Row expected = After(Isa::kBaseline, betas, 1e-7f, rates, 3, step);
    for (int isa = 1; isa <= static_cast<int>(BestIsa()); ++isa) {
      const Row found = After(static_cast<Isa>(isa), betas, 1e-7f, rates, 3, step);
      EXPECT_EQ(std::memcmp(&found, &expected, sizeof(Row)), 0) << "isa " << isa << " step " << step;
    }
  }
}

TEST(CatchUp, ARowWithoutAVersionOrOfALaterOne_MissedNothing) {
  const std::vector<float> betas = {0.9f, 0.999f}, rates = Rates(betas, false);
  for (const int64_t version : {-1, 49, 50, 900}) {
    EXPECT_EQ(After(Isa::kBaseline, betas, 1e-7f, rates, version, 50).data[0], 1.0f) << version;
  }
  EXPECT_LT(After(Isa::kBaseline, betas, 1e-7f, rates, 48, 50).data[0], 1.0f);
}

TEST(CatchUp, BetasOfAnotherSeries_AreRefused) {
  for (const std::vector<float>& betas : std::vector<std::vector<float>>{{0.9f, 0.9f}, {0.9f, 0.8f}, {0.9999f, 0.99999f}}) {
    const std::vector<float> hyper = {0.01f, betas[0], betas[1], 1e-7f, 0.5f, 0.5f};
    const Status found = Rule().Validate(hyper.data());
    EXPECT_NE(found.message().find("expected a beta_2 nearer to 1"), std::string::npos) << betas[0] << " " << found.ToString();
  }
  EXPECT_FALSE(Rule().Validate(std::vector<float>{0.01f, 0.9f, 0.999f, -1, 0.5f, 0.5f}.data()).ok());
}

}  // namespace
}  // namespace multitier
