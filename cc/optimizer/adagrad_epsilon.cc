// Adagrad with an epsilon, whose accumulator may begin at 0:
//
//   accumulator += g * g
//   w -= (learning_rate * g) / (sqrt(accumulator) + epsilon)
//
// Source: FBGEMM's EXACT_ADAGRAD, without weight decay.

#include "cc/optimizer/adagrad_kernel.h"
#include "cc/optimizer/rule_kernel.h"
#include "cc/optimizer/rules.h"

namespace multitier {
namespace {

constexpr SlotSpec kSlotSpecs[] = {{"accumulator", false, 0.0f}};
constexpr HyperSpec kHyper[] = {{"learning_rate", HyperRange::kFinite}, {"epsilon", HyperRange::kPositive}};

MT_UPDATE_FUNCTIONS(kUpdate, UpdateRows<AdagradEpsilonKernel>)

}  // namespace

const UpdateRule* AdagradEpsilonRule() {
  static const KernelRule* const rule = new KernelRule("adagrad_epsilon", SpanOf(kSlotSpecs), SpanOf(kHyper), kUpdate);
  return rule;
}

}  // namespace multitier
