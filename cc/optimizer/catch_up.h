// CatchUp: what rows of Adam missed since their last update. Before the update by adam_catch_up, a table calls MoveRows.
//
// A dense Adam moves a row in the k-th step without a gradient for it by
//
//   alpha(k) * m * beta1^k / (sqrt(v) * q^k + epsilon),   q = sqrt(beta2)
//
// With u = sqrt(v) / (sqrt(v) + epsilon) and s = q^(k/2) the denominator is (sqrt(v) + epsilon) * (1 - u * (1 - s^2)). Its
// inverse is a Chebyshev series in t = 2u - 1, whose coefficients are of the row's version, not of its elements:
//
//   1 / (1 - u * (1 - s^2)) = 1/s + sum over j of 2/s * r^j * T_j(t),   r = (1 - s) / (1 + s)
//
// Summed over k with alpha(k) * beta1^k and written in powers of t it is what moves a row: m / (sqrt(v) + epsilon) * (C(0) +
// C(1) t + C(2) t^2 + ...). Both sums are bounded. (beta1 / q)^k ends that over k: it is below 1e-6 after 133 steps for betas
// of 0.9 and 0.999. There r is so small on average that four terms are exact to 1e-9; 0.9 and 0.98 need six, 0.9 and 0.95
// sixteen; betas that need more to be within 1e-6 are refused.
//
// alpha of each step is given as `rates`. Cost of a row: one square root, one division and a polynomial for each element, and
// C. Where the rate of all missed steps is the last of `rates`, C is read from sums that are made once an update (a few
// microseconds). Otherwise it is a dot product of at most K rates for each term.
//
// Immutable. Thread-safe.

#ifndef CC_OPTIMIZER_CATCH_UP_H_
#define CC_OPTIMIZER_CATCH_UP_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cc/base/multiversion.h"
#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/optimizer/update_rule.h"

namespace multitier {

// The rule adam_catch_up: adam_catch_up.cc. An apply passes its hyperparameters, and then the rates of all steps before.
const UpdateRule* AdamCatchUpRule();
// Whether the rule is that, and so a table first calls MoveRows.
bool CatchesUp(const UpdateRule& rule);

class CatchUp {
 public:
  static constexpr int kMostTerms = 16;

  // InvalidArgument if the betas need more terms than that.
  static Status Check(float beta1, float beta2);

  // hyper: of the rule, and then the rates: alpha of the steps 0, 1, ...; the last is that of later steps, too. Must outlive
  // this. step: of the update. REQUIRES: Check of the betas is OK
  CatchUp(Span<const float> hyper, int64_t step);

  struct Missed {
    float terms[kMostTerms];   // C
    float m_factor, v_factor;  // beta1^n, beta2^n
  };
  // What a row of this version missed. False, and nothing is written, if it missed no step.
  MT_ALWAYS_INLINE bool Since(int64_t version, Missed* missed) const;

  // Moves the rows of a batch of the rule to where dense ones were before this step. versions: [batch.n]. Values of 16 bits are
  // rounded to the nearest. REQUIRES: those of UpdateRule::Update
  void MoveRows(const UpdateBatch& batch, const int64_t* versions) const;
  // MoveRows compiled for that ISA. REQUIRES: isa <= BestIsa(). For tests.
  void MoveRowsOn(Isa isa, const UpdateBatch& batch, const int64_t* versions) const;

  int terms() const { return terms_; }  // 4, 6 or 16

 private:
  static constexpr int kDigits = 4, kBits = 6;  // of a number of steps below 2^24; the moments of more are 0
  static constexpr size_t kLanes = 8;
  using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));
  struct Powers {
    double of[kDigits][1 << kBits];  // base^(i * 64^digit)
  };

  static void SetPowers(double base, Powers* powers);
  MT_ALWAYS_INLINE static float Power(const Powers& powers, int64_t n);
  // sums[j] += the products of n rates and factors of term j, from the k-th step. REQUIRES: n <= kLanes
  MT_ALWAYS_INLINE void Add(const float* rates, size_t k, size_t n, Lanes* sums) const;
  // The sum of the lanes, added pairwise.
  MT_ALWAYS_INLINE static float Total(const Lanes& lanes) {
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
  }

  const Span<const float> rates_;
  const int64_t step_;
  float last_rate_ = 0.0f;
  int terms_ = 4;
  size_t steps_ = 0;            // K: after these nothing moves
  size_t stride_ = 0;           // K, rounded up to lanes
  std::vector<float> factors_;  // [terms][stride] what a step adds to C, for a rate of 1; then zeros
  std::vector<float> sums_;     // [K + 1][terms] of the first k factors
  Powers beta1_, beta2_;
};

MT_ALWAYS_INLINE float CatchUp::Power(const Powers& powers, int64_t n) {
  constexpr int64_t kMask = (1 << kBits) - 1;
  n = std::min<int64_t>(n, (int64_t{1} << (kDigits * kBits)) - 1);
  double product = powers.of[0][n & kMask];
  for (int digit = 1; digit < kDigits; ++digit) product *= powers.of[digit][(n >> (digit * kBits)) & kMask];
  return static_cast<float>(product);
}

MT_ALWAYS_INLINE void CatchUp::Add(const float* rates, size_t k, size_t n, Lanes* sums) const {
  Lanes its = {};
  std::memcpy(&its, rates, n * sizeof(float));
  for (int j = 0; j < terms_; ++j) {
    Lanes factors;
    std::memcpy(&factors, &factors_[static_cast<size_t>(j) * stride_ + k], sizeof(factors));
    sums[j] += its * factors;
  }
}

MT_ALWAYS_INLINE bool CatchUp::Since(int64_t version, Missed* missed) const {
  const int64_t n = step_ - version - 1;
  if (version < 0 || n <= 0) return false;
  const auto last = static_cast<size_t>(std::min<int64_t>(n, static_cast<int64_t>(steps_)));
  const auto first = static_cast<size_t>(version) + 1;
  const size_t given = first + 1 < rates_.size() ? std::min(last, rates_.size() - first) : 0;
  Lanes sums[kMostTerms] = {};
  size_t k = 0;
  for (; k + kLanes <= given; k += kLanes) Add(&rates_[first + k], k, kLanes, sums);
  if (k < given) Add(&rates_[first + k], k, given - k, sums);
  const float* const all = &sums_[last * static_cast<size_t>(terms_)];
  const float* const of_given = &sums_[given * static_cast<size_t>(terms_)];
  for (int j = 0; j < terms_; ++j) missed->terms[j] = Total(sums[j]) + last_rate_ * (all[j] - of_given[j]);
  missed->m_factor = Power(beta1_, n);
  missed->v_factor = Power(beta2_, n);
  return true;
}

}  // namespace multitier

#endif  // CC_OPTIMIZER_CATCH_UP_H_
