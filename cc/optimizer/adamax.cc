// Adamax, lazy: rows that a batch does not touch keep their value and moments.
//
//   m = m * beta1 + g * (1 - beta1)
//   u = max(u * beta2, |g|)
//   w -= (learning_rate / (1 - beta1_power)) * m / (u + epsilon)
//
// beta1_power is beta1^t in the t-th step, counted from 1.
//
// Source: Keras' Adamax, which decays m and u of every row and moves every row in each step.

#include "cc/optimizer/rule_kernel.h"
#include "cc/optimizer/rules.h"

namespace multitier {
namespace {

constexpr SlotSpec kSlotSpecs[] = {{"m", false, 0.0f}, {"u", false, 0.0f}};
constexpr HyperSpec kHyper[] = {{"learning_rate", HyperRange::kFinite},
                                {"beta1", HyperRange::kBelowOne},
                                {"beta2", HyperRange::kBelowOne},
                                {"epsilon", HyperRange::kNonNegative},
                                {"beta1_power", HyperRange::kBelowOne}};

class AdamaxKernel {
 public:
  static constexpr int kSlots = 2;
  static constexpr int kRowSlots = 0;
  AdamaxKernel(const float* hyper, int)
      : beta1_(hyper[1]), rest_(1.0f - hyper[1]), beta2_(hyper[2]), epsilon_(hyper[3]), rate_(hyper[0] / (1.0f - hyper[4])) {}

  MT_ALWAYS_INLINE void operator()(float& w, float& m, float& u, float g) const {
    m = m * beta1_ + g * rest_;
    const float decayed = u * beta2_, size = std::fabs(g);
    u = decayed > size ? decayed : size;
    w -= (rate_ * m) / (u + epsilon_);
  }

 private:
  const float beta1_;
  const float rest_;  // 1 - beta1
  const float beta2_;
  const float epsilon_;
  const float rate_;
};

MT_UPDATE_FUNCTIONS(kUpdate, UpdateRows<AdamaxKernel>)

}  // namespace

const UpdateRule* AdamaxRule() {
  static const KernelRule* const rule = new KernelRule("adamax", SpanOf(kSlotSpecs), SpanOf(kHyper), kUpdate);
  return rule;
}

}  // namespace multitier
