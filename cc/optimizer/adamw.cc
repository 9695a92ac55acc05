// AdamW: Adam with decoupled weight decay, lazy: a row decays when it is touched.
//
//   m, v and alpha as in adam_kernel.h
//   w -= (m / (sqrt(v) + epsilon) + weight_decay * w) * alpha
//
// The decay is scaled by alpha, the learning rate with its bias correction.
//
// Source: DeepRec's AdamWOptimizer on embedding variables, kernel KvResourceSparseApplyAdam with apply_weight_decay. On
// other variables the same class first takes weight_decay * w off the touched rows, not scaled, and then does Adam's
// step.

#include "cc/optimizer/adam_kernel.h"
#include "cc/optimizer/rule_kernel.h"
#include "cc/optimizer/rules.h"

namespace multitier {
namespace {

constexpr HyperSpec kHyper[] = {MT_ADAM_HYPER, {"weight_decay", HyperRange::kFinite}};

class AdamWKernel {
 public:
  static constexpr int kSlots = 2;
  static constexpr int kRowSlots = 0;
  AdamWKernel(const float* hyper, int) : weight_decay_(hyper[6]), scalars_(hyper) {}
  MT_ALWAYS_INLINE void operator()(float& w, float& m, float& v, float g) const {
    scalars_.UpdateFirstMoment(m, g);
    scalars_.UpdateSecondMoment(v, g);
    w -= (m / (std::sqrt(v) + scalars_.epsilon) + weight_decay_ * w) * scalars_.alpha;
  }

 private:
  const float weight_decay_;
  const AdamScalars scalars_;
};

MT_UPDATE_FUNCTIONS(kUpdate, UpdateRows<AdamWKernel>)

}  // namespace

const UpdateRule* AdamWRule() {
  static const KernelRule* const rule = new KernelRule("adamw", SpanOf(kAdamSlots), SpanOf(kHyper), kUpdate);
  return rule;
}

}  // namespace multitier
