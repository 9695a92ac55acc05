#include "cc/optimizer/decayed_rule.h"

#include "cc/base/ieee.h"
#include "cc/row/value_codec.h"

namespace multitier {
namespace {

template <typename Value>
void Decay(const UpdateBatch& batch, float rate) {
  for (size_t i = 0; i < batch.n; ++i) {
    Value* const value = reinterpret_cast<Value*>(batch.rows[i]);
    for (int d = 0; d < batch.dim; ++d) {
      const float w = LoadValue(value[d]);
      StoreValue(w - w * rate, &value[d]);
    }
  }
}

}  // namespace

DecayedRule::DecayedRule(const UpdateRule* rule) : rule_(rule), name_(std::string(rule->name()) + kSuffix) {
  for (const char* name : rule->hyperparameters()) hyper_names_.push_back(name);
  hyper_names_.push_back("weight_decay");
}

Status DecayedRule::Validate(const float* hyper) const {
  MT_RETURN_IF_ERROR(UpdateRule::Validate(hyper));
  const float decay = hyper[hyper_names_.size() - 1];
  if (decay >= 0) return rule_->Validate(hyper);
  return InvalidArgumentError("optimizer ", name_, ": weight_decay: expected a finite number, at least 0, found ", decay);
}

void DecayedRule::Update(const UpdateBatch& batch) const {
  {
    const ScopedIeeeArithmetic ieee;
    const float rate = batch.hyper[hyper_names_.size() - 1] * batch.hyper[0];
    if (batch.value_dtype == DType::kFloat32) Decay<float>(batch, rate);
    if (batch.value_dtype == DType::kBFloat16) Decay<BFloat16>(batch, rate);
    if (batch.value_dtype == DType::kFloat16) Decay<Float16>(batch, rate);
  }
  rule_->Update(batch);
}

}  // namespace multitier
