// The kernels of MultitierApply and MultitierGroupApply: one optimizer step on the rows of a batch of keys, of one variable or
// of many.

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/base/status.h"
#include "cc/optimizer/update_rule.h"
#include "cc/tensorflow/common/intra_op_executor.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/lookup/group_plan.h"
#include "cc/tensorflow/lookup/lookup_inputs.h"
#include "cc/tensorflow/train/apply_rule.h"
#include "cc/tensorflow/train/group_apply_attrs.h"
#include "cc/tensorflow/variable/embedding_variable.h"
#include "tensorflow/core/platform/logging.h"

namespace multitier {
namespace {

// InvalidArgument if a key is none of the variable's type. Lookups give no such key; a gradient that a program makes may.
absl::Status CheckKeys(const VariableState& state, Span<const int64_t> keys) {
  if (state.table->options().key_dtype != KeyType::kUint32) return absl::OkStatus();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] >= 0 && keys[i] <= int64_t{std::numeric_limits<uint32_t>::max()}) continue;
    return absl::InvalidArgumentError(absl::StrCat("apply to embedding variable '", state.table->options().name,
                                                   "': expected keys of uint32, found keys[", i, "] = ", keys[i]));
  }
  return absl::OkStatus();
}

class ApplyKernel : public OpKernel {
 public:
  explicit ApplyKernel(OpKernelConstruction* context) : OpKernel(context) { OP_REQUIRES_OK(context, rule_.Init(context, 1)); }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, GetStateToChange(context, 0, &state));
    const KeyInput keys(context->input(1));
    ApplyRequest request;
    OP_REQUIRES_OK(context, ParseRequest(context, *state->table, keys, &request));
    OP_REQUIRES_OK(context, CheckKeys(*state, request.keys));
    std::vector<uint16_t> tables;
    OP_REQUIRES_OK(context, TakeTables(context, *state->table, rule_.inputs(), context->input(1).shape(),
                                       /*may_be_unknown=*/true, &tables));
    request.tables = tables;
    OP_REQUIRES_OK(context, rule_.FindSlots(state->table.get(), 0, &request));
    // Small updates use no extra threads: a model runs many of them in parallel, each in its own op.
    constexpr size_t kWorthThreads = 8192;
    IntraOpExecutor executor(context);
    int64_t refused = 0;
    request.refused = &refused;
    OP_REQUIRES_OK(context, ToAbsl(state->table->Apply(request, request.keys.size() < kWorthThreads ? nullptr : &executor)));
    state->WarnOfRefused(refused);
  }

 private:
  // Checks the inputs; reads no rows.
  absl::Status ParseRequest(OpKernelContext* context, const EmbeddingTable& table, const KeyInput& keys,
                            ApplyRequest* request) const {
    const Tensor& counts = context->input(3);
    TF_RETURN_IF_ERROR(ApplyRule::CheckShapes(context, table, &request->grads));
    request->keys = keys.keys();
    request->counts = Elements<int64_t>(counts);
    TF_RETURN_IF_ERROR(rule_.ParseStep(context, 4, table, 0, request));
    for (size_t i = 0; i < request->counts.size(); ++i) {
      if (request->counts[i] < 0) {
        return absl::InvalidArgumentError(absl::StrCat("apply to embedding variable '", table.options().name,
                                                       "': counts: expected at least 0, found counts[", i,
                                                       "] = ", request->counts[i]));
      }
    }
    return absl::OkStatus();
  }

  ApplyRule rule_;
};

class GroupApplyKernel : public OpKernel {
 public:
  explicit GroupApplyKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, attrs_.Init(context));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<const KeptPlan> kept;
    OP_REQUIRES_OK(context, GetPlan(context, attrs_.plan_input, &kept));
    std::vector<const float*> grads;
    std::vector<int64_t> strides;
    OP_REQUIRES_OK(context, attrs_.gradients.Point(context, attrs_.grads_input, ValuesOf(kept->plan), &grads, &strides));
    std::vector<std::shared_ptr<VariableState>> states(attrs_.units.size());
    std::vector<UnitUpdate> updates(attrs_.units.size());
    int sums = attrs_.sums_input;
    for (size_t i = 0; i < attrs_.units.size(); ++i) {
      OP_REQUIRES_OK(context, GetStateToChange(context, static_cast<int>(i), &states[i]));
      updates[i].table = states[i]->table.get();
      OP_REQUIRES_OK(context, attrs_.rule.ParseStep(context, attrs_.step_input, *updates[i].table, i, &updates[i].request));
      OP_REQUIRES_OK(context, Parse(context, kept->plan, strides, i, *updates[i].table, &sums, &updates[i]));
    }
    std::vector<int64_t> refused(attrs_.units.size(), 0);
    for (size_t i = 0; i < attrs_.units.size(); ++i) {
      updates[i].request.refused = &refused[i];
      OP_REQUIRES_OK(context, attrs_.rule.FindSlots(updates[i].table, i, &updates[i].request));
    }
    GroupGradients gradients;
    gradients.grads = Span<const float* const>(grads.data(), grads.size());
    gradients.strides = strides;
    IntraOpExecutor executor(context);
    OP_REQUIRES_OK(context, ToAbsl(UpdateGroup(kept->plan, gradients, &updates, &executor)));
    for (size_t i = 0; i < attrs_.units.size(); ++i) states[i]->WarnOfRefused(refused[i]);
  }

 private:
  // The update of variable number `which`. sums: the next input that is a sum
  absl::Status Parse(OpKernelContext* context, const GroupPlan& plan, const std::vector<int64_t>& strides, size_t which,
                     const EmbeddingTable& table, int* sums, UnitUpdate* update) const {
    const int unit = update->unit = attrs_.units[which];
    if (unit < 0 || unit >= plan.num_units()) {
      return absl::InvalidArgumentError(absl::StrCat("apply to embedding variable '", table.options().name,
                                                     "': expected a part below ", plan.num_units(), ", found ", unit));
    }
    if (attrs_.summed[which]) {
      return ApplyRule::ParseGradients(context, (*sums)++, table, plan.keys(unit).size(), &update->request.grads);
    }
    if (strides[static_cast<size_t>(plan.member_of_unit(unit))] != 0 && plan.dim_of_unit(unit) == table.dim()) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat("apply to embedding variable '", table.options().name,
                                                   "': expected a gradient of dim ", table.dim(), " of part ", unit));
  }

  GroupApplyAttrs attrs_;
};

REGISTER_KERNEL_BUILDER(Name("MultitierGroupApply").Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("dtype"),
                        GroupApplyKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierHbmGroupApply").Device(tensorflow::DEVICE_CPU), GroupApplyKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierApply").Device(tensorflow::DEVICE_CPU), ApplyKernel);

}  // namespace
}  // namespace multitier
