// What the kernels of a grouped update on the CPU and on GPUs have in common: the attrs and the places of the inputs.

#ifndef CC_TENSORFLOW_TRAIN_GROUP_APPLY_ATTRS_H_
#define CC_TENSORFLOW_TRAIN_GROUP_APPLY_ATTRS_H_

#include <vector>

#include "absl/status/status.h"
#include "cc/tensorflow/lookup/group_specs.h"
#include "cc/tensorflow/train/apply_rule.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace multitier {

// Inputs: a handle for each update, the plan, sums, gradients, the global step, hyperparameters.
struct GroupApplyAttrs {
  absl::Status Init(tensorflow::OpKernelConstruction* context) {
    int num_sums, num_grads;
    TF_RETURN_IF_ERROR(context->GetAttr("units", &units));
    TF_RETURN_IF_ERROR(context->GetAttr("summed", &summed));
    TF_RETURN_IF_ERROR(context->GetAttr("S", &num_sums));
    TF_RETURN_IF_ERROR(context->GetAttr("G", &num_grads));
    TF_RETURN_IF_ERROR(gradients.Init(context, num_grads));
    TF_RETURN_IF_ERROR(rule.Init(context, units.size()));
    plan_input = static_cast<int>(units.size());
    sums_input = plan_input + 1;
    grads_input = sums_input + num_sums;
    step_input = grads_input + num_grads;
    return absl::OkStatus();
  }

  ApplyRule rule;
  GradientInputs gradients;
  std::vector<int> units;    // the part of the plan of each update
  std::vector<bool> summed;  // whether it has an input of sums
  int plan_input = 0, sums_input = 0, grads_input = 0, step_input = 0;
};

}  // namespace multitier

#endif  // CC_TENSORFLOW_TRAIN_GROUP_APPLY_ATTRS_H_
