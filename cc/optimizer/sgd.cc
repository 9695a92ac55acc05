// SGD: w -= g * learning_rate
//
// Source: TensorFlow's v1 GradientDescentOptimizer, which scatter-adds -(g * learning_rate).

#include "cc/optimizer/rule_kernel.h"
#include "cc/optimizer/rules.h"

namespace multitier {
namespace {

constexpr HyperSpec kHyper[] = {{"learning_rate", HyperRange::kFinite}};

struct SgdKernel {
  static constexpr int kSlots = 0;
  static constexpr int kRowSlots = 0;
  SgdKernel(const float* hyper, int) : learning_rate_(hyper[0]) {}
  MT_ALWAYS_INLINE void operator()(float& w, float g) const { w -= g * learning_rate_; }

 private:
  const float learning_rate_;
};

MT_UPDATE_FUNCTIONS(kUpdate, UpdateRows<SgdKernel>)

}  // namespace

const UpdateRule* SgdRule() {
  static const KernelRule* const rule = new KernelRule("sgd", {}, SpanOf(kHyper), kUpdate);
  return rule;
}

}  // namespace multitier
