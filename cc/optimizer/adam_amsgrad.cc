// Adam with amsgrad, lazy: rows that a batch does not touch keep their value and moments.
//
//   m, v and alpha as in adam_kernel.h
//   v_max = max(v_max, v)
//   w -= (alpha * m) / (sqrt(v_max) + epsilon)
//
// Source: Keras' Adam with amsgrad. It takes the largest of v before the correction of v's bias, which is in alpha.

#include "cc/optimizer/adam_hyper.h"
#include "cc/optimizer/adam_kernel.h"
#include "cc/optimizer/rule_kernel.h"
#include "cc/optimizer/rules.h"

namespace multitier {
namespace {

constexpr SlotSpec kSlotSpecs[] = {kAdamSlots[0], kAdamSlots[1], {"v_max", false, 0.0f}};
constexpr HyperSpec kHyper[] = {MT_ADAM_HYPER};

class AmsgradKernel {
 public:
  static constexpr int kSlots = 3;
  static constexpr int kRowSlots = 0;
  AmsgradKernel(const float* hyper, int) : scalars_(hyper) {}

  MT_ALWAYS_INLINE void operator()(float& w, float& m, float& v, float& v_max, float g) const {
    scalars_.UpdateFirstMoment(m, g);
    scalars_.UpdateSecondMoment(v, g);
    v_max = v_max > v ? v_max : v;
    w -= (scalars_.alpha * m) / (std::sqrt(v_max) + scalars_.epsilon);
  }

 private:
  const AdamScalars scalars_;
};

MT_UPDATE_FUNCTIONS(kUpdate, UpdateRows<AmsgradKernel>)

}  // namespace

const UpdateRule* AdamAmsgradRule() {
  static const KernelRule* const rule = new KernelRule("adam_amsgrad", SpanOf(kSlotSpecs), SpanOf(kHyper), kUpdate);
  return rule;
}

}  // namespace multitier
