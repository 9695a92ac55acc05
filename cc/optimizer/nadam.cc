// Nadam, Adam with Nesterov's momentum, lazy: rows that a batch does not touch keep their value and moments.
//
//   m and v as in adam_kernel.h
//   ahead = (momentum_next / (1 - momentum_product * momentum_next)) * m + ((1 - momentum) / (1 - momentum_product)) * g
//   w -= (learning_rate * ahead) / (sqrt(v / (1 - beta2_power)) + epsilon)
//
// momentum is mu(t) of the t-th step, counted from 1: beta1 * (1 - 0.5 * 0.96^t). momentum_next is mu(t + 1), momentum_product
// mu(1) * ... * mu(t), and beta2_power beta2^t. The caller keeps them.
//
// Source: Keras' Nadam, which decays m and v of every row and moves every row in each step.

#include "cc/optimizer/adam_hyper.h"
#include "cc/optimizer/rule_kernel.h"
#include "cc/optimizer/rules.h"

namespace multitier {
namespace {

constexpr HyperSpec kHyper[] = {{"learning_rate", HyperRange::kFinite},   {"beta1", HyperRange::kBelowOne},
                                {"beta2", HyperRange::kBelowOne},         {"epsilon", HyperRange::kNonNegative},
                                {"beta2_power", HyperRange::kBelowOne},   {"momentum", HyperRange::kBelowOne},
                                {"momentum_next", HyperRange::kBelowOne}, {"momentum_product", HyperRange::kBelowOne}};

class NadamKernel {
 public:
  static constexpr int kSlots = 2;
  static constexpr int kRowSlots = 0;
  NadamKernel(const float* hyper, int)
      : learning_rate_(hyper[0]),
        beta1_(hyper[1]),
        rest1_(1.0f - hyper[1]),
        beta2_(hyper[2]),
        rest2_(1.0f - hyper[2]),
        epsilon_(hyper[3]),
        correction_(1.0f - hyper[4]),
        of_moment_(hyper[6] / (1.0f - hyper[7] * hyper[6])),
        of_gradient_((1.0f - hyper[5]) / (1.0f - hyper[7])) {}

  MT_ALWAYS_INLINE void operator()(float& w, float& m, float& v, float g) const {
    m = m * beta1_ + g * rest1_;
    v = v * beta2_ + g * (g * rest2_);
    w -= (learning_rate_ * (of_moment_ * m + of_gradient_ * g)) / (std::sqrt(v / correction_) + epsilon_);
  }

 private:
  const float learning_rate_;
  const float beta1_;
  const float rest1_;  // 1 - beta1
  const float beta2_;
  const float rest2_;  // 1 - beta2
  const float epsilon_;
  const float correction_;  // of v's bias
  const float of_moment_;   // factors of the step
  const float of_gradient_;
};

MT_UPDATE_FUNCTIONS(kUpdate, UpdateRows<NadamKernel>)

}  // namespace

const UpdateRule* NadamRule() {
  static const KernelRule* const rule = new KernelRule("nadam", SpanOf(kAdamSlots), SpanOf(kHyper), kUpdate);
  return rule;
}

}  // namespace multitier
