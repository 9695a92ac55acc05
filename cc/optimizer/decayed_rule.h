// DecayedRule: any rule after a decoupled weight decay, named "<rule>+weight_decay".
//
//   w -= w * (weight_decay * learning_rate)
//   then the rule's own step
//
// Its slots are the rule's. Its hyperparameters are the rule's, whose first is learning_rate, then weight_decay. As every rule
// it is lazy: a row decays when it is trained. Values of 16 bits are rounded after the decay and after the step; with
// stochastic rounding (stochastic_update.h) once.
//
// Source: Keras' `weight_decay`, which decays all rows of a dense table in each step. adamw has a decay of its own: adamw.cc.
//
// Immutable. Thread-safe.

#ifndef CC_OPTIMIZER_DECAYED_RULE_H_
#define CC_OPTIMIZER_DECAYED_RULE_H_

#include <string>
#include <vector>

#include "cc/optimizer/update_rule.h"

namespace multitier {

class DecayedRule final : public UpdateRule {
 public:
  static constexpr char kSuffix[] = "+weight_decay";

  // REQUIRES: the first hyperparameter of `rule` is learning_rate. Keeps its address.
  explicit DecayedRule(const UpdateRule* rule);

  const char* name() const override { return name_.c_str(); }
  Span<const SlotSpec> slots() const override { return rule_->slots(); }
  Span<const char* const> hyperparameters() const override {
    return Span<const char* const>(hyper_names_.data(), hyper_names_.size());
  }
  Status Validate(const float* hyper) const override;
  void Update(const UpdateBatch& batch) const override;

 private:
  const UpdateRule* const rule_;
  const std::string name_;
  std::vector<const char*> hyper_names_;
};

}  // namespace multitier

#endif  // CC_OPTIMIZER_DECAYED_RULE_H_
