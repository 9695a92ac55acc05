#include "cc/hbm/device_rule.h"

#include <string>

namespace multitier::hbm {

using device::DeviceRule;

Result<DeviceRule> DeviceRuleOf(const UpdateRule& rule, const float* hyper) {
  const std::string name = rule.name();
  if (name == "sgd") return DeviceRule::kSgd;
  if (name == "momentum") return hyper[2] != 0 ? DeviceRule::kNesterov : DeviceRule::kMomentum;
  if (name == "adagrad") return DeviceRule::kAdagrad;
  if (name == "adagrad_epsilon") return DeviceRule::kAdagradEpsilon;
  if (name == "rowwise_adagrad") return DeviceRule::kRowwiseAdagrad;
  if (name == "adam") return DeviceRule::kAdam;
  if (name == "adam_async") return hyper[6] != 0 ? DeviceRule::kSparseRmsProp : DeviceRule::kAdam;
  if (name == "adamw") return DeviceRule::kAdamW;
  if (name == "rmsprop") return DeviceRule::kRmsProp;
  if (name == "centered_rmsprop") return DeviceRule::kCenteredRmsProp;
  if (name == "ftrl") {
    const bool root = hyper[1] == -0.5f, shrinks = hyper[4] > 0;
    if (root) return shrinks ? DeviceRule::kFtrlShrinkage : DeviceRule::kFtrl;
    return shrinks ? DeviceRule::kFtrlPowerShrinkage : DeviceRule::kFtrlPower;
  }
  return UnimplementedError(
      "rule ", name,
      " does not run on tables in HBM; sgd, momentum, adagrad, adagrad_epsilon, rowwise_adagrad, adam, adam_async, ",
      "adamw, rmsprop, centered_rmsprop and ftrl do");
}

}  // namespace multitier::hbm
