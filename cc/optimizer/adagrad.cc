// Adagrad: the step of adagrad_step.h and nothing else. Where both the accumulator and the gradient are 0 the value
// becomes NaN, as in TensorFlow; initial accumulators are positive.
//
// Source: TensorFlow's v1 AdagradOptimizer, kernel ResourceSparseApplyAdagrad. It takes 1 / sqrt from an approximate
// instruction where a whole SIMD packet of the row is left (dim >= 8), so values there differ by a few ulp of the
// largest operand; accumulators never do.

#include "cc/optimizer/adagrad_step.h"
#include "cc/optimizer/rule_kernel.h"
#include "cc/optimizer/rules.h"

namespace multitier {
namespace {

constexpr SlotSpec kSlotSpecs[] = {{"accumulator", false, 0.1f}};
constexpr HyperSpec kHyper[] = {{"learning_rate", HyperRange::kFinite}};

struct AdagradKernel {
  static constexpr int kSlots = 1;
  static constexpr int kRowSlots = 0;
  AdagradKernel(const float* hyper, int dim) : learning_rate_(hyper[0]), one_element_(dim == 1) {}
  MT_ALWAYS_INLINE void operator()(float& w, float& accumulator, float g) const {
    AdagradStep(w, accumulator, g, learning_rate_, one_element_);
  }

 private:
  const float learning_rate_;
  const bool one_element_;
};

MT_UPDATE_FUNCTIONS(kUpdate, UpdateRows<AdagradKernel>)

}  // namespace

const UpdateRule* AdagradRule() {
  static const KernelRule* const rule = new KernelRule("adagrad", SpanOf(kSlotSpecs), SpanOf(kHyper), kUpdate);
  return rule;
}

}  // namespace multitier
