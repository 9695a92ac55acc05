#include "cc/optimizer/catch_up.h"

#include <cmath>

namespace multitier {
namespace {

constexpr double kSmallest = 1e-6;   // a factor that ends the sum over steps
constexpr double kExact = 1e-7;      // of four terms
constexpr double kMostError = 1e-6;  // of eight
constexpr size_t kAdamHyper = 6;     // hyperparameters of Adam
constexpr size_t kMostSteps = 4096;  // K

// The sum over steps: how many it has, and the part of it that a series of four and of eight terms leaves out, at most (u = 1).
struct Sum {
  size_t steps = 0;
  double rest_of_4 = 0, rest_of_8 = 0;
};

Sum SumOf(double beta1, double beta2) {
  Sum found;
  const double q = std::sqrt(beta2);
  if (beta1 == 0) return found;
  if (beta1 >= q) return {kMostSteps + 1, 1, 1};
  const double ratio = beta1 / q;
  double whole = 0, factor = 1, decay = 1;
  while (factor >= kSmallest && found.steps <= kMostSteps) {
    ++found.steps;
    factor *= ratio;
    decay *= q;
    const double y4 = std::pow(1 - decay, 4);
    whole += factor;
    found.rest_of_4 += factor * y4;
    found.rest_of_8 += factor * y4 * y4;
  }
  found.rest_of_4 /= whole;
  found.rest_of_8 /= whole;
  return found;
}

}  // namespace

Status CatchUp::Check(float beta1, float beta2) {
  const Sum sum = SumOf(beta1, beta2);
  if (sum.steps <= kMostSteps && sum.rest_of_8 <= kMostError) return OkStatus();
  return InvalidArgumentError("catch_up: expected a beta_2 nearer to 1, found beta_1 ", beta1, " and beta_2 ", beta2,
                              ": take 0.9 and 0.99, or 0.99 and 0.999, or a beta_2 nearer to 1, or no catch_up");
}

CatchUp::CatchUp(Span<const float> hyper, int64_t step)
    : rates_(hyper.subspan(kAdamHyper, hyper.size() - kAdamHyper)), step_(step) {
  const float beta1 = hyper[1], beta2 = hyper[2];
  const Sum sum = SumOf(beta1, beta2);
  if (!rates_.empty()) last_rate_ = rates_[rates_.size() - 1];
  if (sum.rest_of_4 > kExact) terms_ = kMostTerms;
  steps_ = sum.steps;
  stride_ = (steps_ + kLanes - 1) / kLanes * kLanes;
  factors_.resize(stride_ * kMostTerms);
  sums_.resize((steps_ + 1) * kMostTerms);
  const double q = std::sqrt(static_cast<double>(beta2));
  double sums[kMostTerms] = {}, power = 1, decay = 1;
  for (size_t k = 0; k < steps_; ++k) {
    power *= beta1;
    decay *= q;
    double factor = power;
    for (size_t j = 0; j < kMostTerms; ++j) {
      factors_[j * stride_ + k] = static_cast<float>(factor);
      sums_[(k + 1) * kMostTerms + j] = static_cast<float>(sums[j] += factor);
      factor *= 1 - decay;
    }
  }
  SetPowers(beta1, &beta1_);
  SetPowers(beta2, &beta2_);
}

void CatchUp::SetPowers(double base, Powers* powers) {
  for (auto& digit : powers->of) {
    double power = 1;
    for (double& each : digit) {
      each = power;
      power *= base;
    }
    base = power;
  }
}

}  // namespace multitier
