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

#include "cc/optimizer/adam_hyper.h"
#include "cc/optimizer/adam_kernel.h"
#include "cc/optimizer/rule_kernel.h"
#include "cc/optimizer/rules.h"

namespace multitier {
namespace {

constexpr HyperSpec kHyper[] = {MT_ADAM_HYPER, {"weight_decay", HyperRange::kNonNegative}};

MT_UPDATE_FUNCTIONS(kUpdate, UpdateRows<AdamWKernel>)

}  // namespace

const UpdateRule* AdamWRule() {
  static const KernelRule* const rule = new KernelRule("adamw", SpanOf(kAdamSlots), SpanOf(kHyper), kUpdate);
  return rule;
}

}  // namespace multitier
