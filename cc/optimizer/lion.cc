// Lion, lazy: rows that a batch does not touch keep their value and momentum.
//
//   w -= learning_rate * sign(m * beta1 + g * (1 - beta1))                        sign(0) is 0
//   m = m * beta2 + g * (1 - beta2)
//
// Source: Keras' Lion, which moves every row in each step.

#include "cc/optimizer/rule_kernel.h"
#include "cc/optimizer/rules.h"

namespace multitier {
namespace {

constexpr SlotSpec kSlotSpecs[] = {{"m", false, 0.0f}};
constexpr HyperSpec kHyper[] = {
    {"learning_rate", HyperRange::kFinite}, {"beta1", HyperRange::kZeroToOne}, {"beta2", HyperRange::kZeroToOne}};

class LionKernel {
 public:
  static constexpr int kSlots = 1;
  static constexpr int kRowSlots = 0;
  LionKernel(const float* hyper, int)
      : learning_rate_(hyper[0]), beta1_(hyper[1]), rest1_(1.0f - hyper[1]), beta2_(hyper[2]), rest2_(1.0f - hyper[2]) {}

  MT_ALWAYS_INLINE void operator()(float& w, float& m, float g) const {
    const float mean = m * beta1_ + g * rest1_;
    const float below = mean < 0 ? -1.0f : mean;  // 0 and NaN stay
    w -= learning_rate_ * (mean > 0 ? 1.0f : below);
    m = m * beta2_ + g * rest2_;
  }

 private:
  const float learning_rate_;
  const float beta1_;
  const float rest1_;  // 1 - beta1
  const float beta2_;
  const float rest2_;  // 1 - beta2
};

MT_UPDATE_FUNCTIONS(kUpdate, UpdateRows<LionKernel>)

}  // namespace

const UpdateRule* LionRule() {
  static const KernelRule* const rule = new KernelRule("lion", SpanOf(kSlotSpecs), SpanOf(kHyper), kUpdate);
  return rule;
}

}  // namespace multitier
