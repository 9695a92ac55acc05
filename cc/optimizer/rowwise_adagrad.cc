// Rowwise Adagrad: one accumulator a row, so a row costs one float more than its value.
//
//   accumulator += sum(g * g) / dim                                               the sum in 16 lanes: update_rule.h
//   w -= (learning_rate / (sqrt(accumulator) + epsilon)) * g
//
// Source: FBGEMM's EXACT_ROWWISE_ADAGRAD, without weight decay.

#include "cc/optimizer/rule_kernel.h"
#include "cc/optimizer/rules.h"

namespace multitier {
namespace {

constexpr SlotSpec kSlotSpecs[] = {{"accumulator", true, 0.0f}};
constexpr HyperSpec kHyper[] = {{"learning_rate", HyperRange::kFinite}, {"epsilon", HyperRange::kPositive}};

class RowwiseAdagradKernel {
 public:
  static constexpr int kSlots = 0;
  static constexpr int kRowSlots = 1;
  RowwiseAdagradKernel(const float* hyper, int dim) : learning_rate_(hyper[0]), epsilon_(hyper[1]), dim_(dim) {}

  MT_ALWAYS_INLINE void BeginRow(float* accumulator, const float* grad) {
    *accumulator += SumOfSquares(grad, dim_) / static_cast<float>(dim_);
    step_ = learning_rate_ / (std::sqrt(*accumulator) + epsilon_);
  }

  MT_ALWAYS_INLINE void operator()(float& w, float g) const { w -= step_ * g; }

 private:
  const float learning_rate_;
  const float epsilon_;
  const int dim_;
  float step_ = 0;  // of the row
};

MT_UPDATE_FUNCTIONS(kUpdate, UpdateRows<RowwiseAdagradKernel>)

}  // namespace

const UpdateRule* RowwiseAdagradRule() {
  static const KernelRule* const rule = new KernelRule("rowwise_adagrad", SpanOf(kSlotSpecs), SpanOf(kHyper), kUpdate);
  return rule;
}

}  // namespace multitier
