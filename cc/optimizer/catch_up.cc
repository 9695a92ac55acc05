#include "cc/optimizer/catch_up.h"

#include <array>
#include <cmath>
#include <iterator>

namespace multitier {
namespace {

constexpr double kSmallest = 1e-6;   // a factor that ends the sum over steps
constexpr double kMostError = 1e-6;  // of the terms that are left out
constexpr int kTerms[] = {4, 6, CatchUp::kMostTerms};
constexpr size_t kAdamHyper = 6;     // hyperparameters of Adam
constexpr size_t kMostSteps = 4096;  // K

// A step of the sum: beta1^k, and the series of 1 / (1 - u * (1 - s^2)).
struct Step {
  double factor = 1, s = 1;
  void Next(double beta1, double root_of_q) {
    factor *= beta1;
    s *= root_of_q;
  }
  double ratio() const { return (1 - s) / (1 + s); }
};

// The sum over steps: how many it has, and how many terms are within kMostError of it. No terms: none of kTerms is.
struct Sum {
  size_t steps = 0;
  int terms = 0;
};

Sum SumOf(double beta1, double beta2) {
  const double q = std::sqrt(beta2), root_of_q = std::sqrt(q);
  if (beta1 == 0) return {0, kTerms[0]};
  if (beta1 >= q) return {};
  Sum found;
  double whole = 0, rest[std::size(kTerms)] = {};
  Step step;
  for (double left = 1; left >= kSmallest; left *= beta1 / q) {
    if (++found.steps > kMostSteps) return {};
    step.Next(beta1, root_of_q);
    whole += step.factor;
    for (size_t i = 0; i < std::size(kTerms); ++i) {
      rest[i] += step.factor * 2 / step.s * std::pow(step.ratio(), kTerms[i]) / (1 - step.ratio());
    }
  }
  for (size_t i = 0; i < std::size(kTerms); ++i) {
    if (rest[i] <= kMostError * whole) return {found.steps, kTerms[i]};
  }
  return {};
}

// A polynomial of t.
using Polynomial = std::array<double, CatchUp::kMostTerms>;

std::array<Polynomial, CatchUp::kMostTerms> ChebyshevPolynomials() {
  std::array<Polynomial, CatchUp::kMostTerms> found = {};
  found[0][0] = found[1][1] = 1;
  for (size_t j = 2; j < found.size(); ++j) {
    for (size_t i = 0; i <= j; ++i) found[j][i] = (i > 0 ? 2 * found[j - 1][i - 1] : 0) - found[j - 2][i];
  }
  return found;
}

// The series of a step in powers of t, times its factor.
Polynomial SeriesOf(const Step& step, size_t terms) {
  static const auto polynomials = ChebyshevPolynomials();
  Polynomial found = {};
  double coefficient = step.factor / step.s;
  for (size_t j = 0; j < terms; ++j) {
    for (size_t i = 0; i <= j; ++i) found[i] += coefficient * polynomials[j][i];
    coefficient *= j == 0 ? 2 * step.ratio() : step.ratio();
  }
  return found;
}

}  // namespace

Status CatchUp::Check(float beta1, float beta2) {
  const Sum sum = SumOf(beta1, beta2);
  if (sum.terms > 0) return OkStatus();
  return InvalidArgumentError("catch_up: expected a beta_2 nearer to 1, found beta_1 ", beta1, " and beta_2 ", beta2,
                              ": take 0.9 and 0.95, or 0.99 and 0.999, or a beta_2 nearer to 1, or no catch_up");
}

CatchUp::CatchUp(Span<const float> hyper, int64_t step)
    : rates_(hyper.subspan(kAdamHyper, hyper.size() - kAdamHyper)), step_(step) {
  const float beta1 = hyper[1], beta2 = hyper[2];
  const Sum sum = SumOf(beta1, beta2);
  if (!rates_.empty()) last_rate_ = rates_[rates_.size() - 1];
  terms_ = sum.terms;
  const auto terms = static_cast<size_t>(terms_);
  steps_ = sum.steps;
  stride_ = (steps_ + kLanes - 1) / kLanes * kLanes;
  factors_.resize(stride_ * terms);
  sums_.resize((steps_ + 1) * terms);
  const double root_of_q = std::sqrt(std::sqrt(static_cast<double>(beta2)));
  Polynomial sums = {};
  Step now;
  for (size_t k = 0; k < steps_; ++k) {
    now.Next(beta1, root_of_q);
    const Polynomial series = SeriesOf(now, terms);
    for (size_t j = 0; j < terms; ++j) {
      factors_[j * stride_ + k] = static_cast<float>(series[j]);
      sums_[(k + 1) * terms + j] = static_cast<float>(sums[j] += series[j]);
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
