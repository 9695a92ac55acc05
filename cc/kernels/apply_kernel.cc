// The kernels of MultitierApply and MultitierGroupApply: one optimizer step on the rows of a batch of keys.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/kernels/embedding_variable.h"
#include "cc/kernels/group_plan.h"
#include "cc/kernels/intra_op_executor.h"
#include "cc/kernels/status_bridge.h"
#include "cc/optimizer/update_rule.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace multitier {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// What both have: the rule, its slots and hyperparameters.
class ApplyKernelBase : public OpKernel {
 public:
  explicit ApplyKernelBase(OpKernelConstruction* context) : OpKernel(context) {
    std::string rule;
    OP_REQUIRES_OK(context, context->GetAttr("rule", &rule));
    OP_REQUIRES_OK(context, context->GetAttr("slot_names", &slot_names_));
    OP_REQUIRES_OK(context, context->GetAttr("slot_initial_values", &slot_initial_values_));
    const Result<const UpdateRule*> found = FindUpdateRule(rule);
    OP_REQUIRES_OK(context, ToAbsl(found.status()));
    rule_ = *found;
    int num_hyper;
    OP_REQUIRES_OK(context, context->GetAttr("H", &num_hyper));
    OP_REQUIRES_OK(context, CheckCount("hyperparameters", rule_->hyperparameters().size(), num_hyper));
    OP_REQUIRES_OK(context, CheckCount("slot_names", rule_->slots().size(), slot_names_.size()));
    OP_REQUIRES_OK(context, CheckCount("slot_initial_values", rule_->slots().size(), slot_initial_values_.size()));
  }

 protected:
  // Inputs `step`: the global step, and from there the hyperparameters; `grads`: a gradient for each of the keys.
  absl::Status ParseStep(OpKernelContext* context, const EmbeddingTable& table, int grads, int step,
                         ApplyRequest* request) const {
    const Tensor& given = context->input(grads);
    TF_RETURN_IF_ERROR(CheckRank(context, "grads", given, 2));
    TF_RETURN_IF_ERROR(CheckRank(context, "global_step", context->input(step), 0));
    const int64_t n = static_cast<int64_t>(request->keys.size());
    if (given.dim_size(0) != n || given.dim_size(1) != table.dim()) {
      return absl::InvalidArgumentError(absl::StrCat("apply to embedding variable '", table.options().name,
                                                     "': expected grads of shape [", n, ",", table.dim(), "], found ",
                                                     given.shape().DebugString()));
    }
    request->grads = given.flat<float>().data();
    request->rule = rule_;
    request->slot_columns = slot_names_;
    request->global_step = context->input(step).scalar<int64_t>()();
    for (int i = step + 1; i < context->num_inputs(); ++i) {
      TF_RETURN_IF_ERROR(CheckRank(context, rule_->hyperparameters()[i - step - 1], context->input(i), 0));
      request->hyper.push_back(context->input(i).scalar<float>()());
    }
    return ToAbsl(rule_->Validate(request->hyper.data()));
  }

  // Small updates take no threads: a model's many run beside each other, an op each.
  absl::Status Apply(OpKernelContext* context, const ApplyRequest& request, EmbeddingTable* table) const {
    constexpr size_t kWorthThreads = 8192;
    TF_RETURN_IF_ERROR(AddMissingSlots(table));
    IntraOpExecutor executor(context);
    return ToAbsl(table->Apply(request, request.keys.size() < kWorthThreads ? nullptr : &executor));
  }

 private:
  absl::Status CheckCount(const char* what, size_t expected, size_t found) const {
    if (expected == found) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("rule ", rule_->name(), " takes ", expected, " ", what, ", found ", found));
  }

  // The first apply of an optimizer whose slots were not declared widens the rows.
  absl::Status AddMissingSlots(EmbeddingTable* table) const {
    const std::shared_ptr<const RowLayout> layout = table->layout();
    std::vector<ColumnSpec> missing;
    for (size_t i = 0; i < slot_names_.size(); ++i) {
      if (layout->Find(slot_names_[i]) >= 0) continue;
      const int dim = rule_->slots()[i].per_row ? 1 : table->dim();
      missing.push_back(ColumnSpec{slot_names_[i], DType::kFloat32, dim, slot_initial_values_[i]});
    }
    return missing.empty() ? absl::OkStatus() : ToAbsl(table->AddSlots(missing));
  }

  const UpdateRule* rule_ = nullptr;
  std::vector<std::string> slot_names_;
  std::vector<float> slot_initial_values_;
};

class ApplyKernel : public ApplyKernelBase {
 public:
  using ApplyKernelBase::ApplyKernelBase;

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, GetState(context, 0, &state));
    const KeyInput keys(context->input(1));
    ApplyRequest request;
    OP_REQUIRES_OK(context, ParseRequest(context, *state->table, keys, &request));
    OP_REQUIRES_OK(context, Apply(context, request, state->table.get()));
  }

 private:
  // Everything that can be refused without a look at the rows.
  absl::Status ParseRequest(OpKernelContext* context, const EmbeddingTable& table, const KeyInput& keys,
                            ApplyRequest* request) const {
    const Tensor& counts = context->input(3);
    TF_RETURN_IF_ERROR(CheckRank(context, "keys", context->input(1), 1));
    TF_RETURN_IF_ERROR(CheckRank(context, "counts", counts, 1));
    request->keys = keys.keys();
    request->counts = Elements<int64_t>(counts);
    TF_RETURN_IF_ERROR(ParseStep(context, table, 2, 4, request));
    const int64_t n = static_cast<int64_t>(keys.keys().size());
    if (counts.dim_size(0) != n && counts.dim_size(0) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("apply to embedding variable '", table.options().name,
                                                     "': expected counts of shape [", n, "] or [0], found ",
                                                     counts.shape().DebugString()));
    }
    for (size_t i = 0; i < request->counts.size(); ++i) {
      if (request->counts[i] < 0) {
        return absl::InvalidArgumentError(absl::StrCat("apply to embedding variable '", table.options().name,
                                                       "': expected counts >= 0, found counts[", i,
                                                       "] = ", request->counts[i]));
      }
    }
    return absl::OkStatus();
  }
};

class GroupApplyKernel : public ApplyKernelBase {
 public:
  explicit GroupApplyKernel(OpKernelConstruction* context) : ApplyKernelBase(context) {
    OP_REQUIRES_OK(context, context->GetAttr("unit", &unit_));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, GetState(context, 0, &state));
    std::shared_ptr<const KeptPlan> kept;
    OP_REQUIRES_OK(context, GetPlan(context, 1, &kept));
    OP_REQUIRES(context, unit_ < kept->plan.num_units(),
                absl::InvalidArgumentError(
                    absl::StrCat("unit: expected one of ", kept->plan.num_units(), " parts, found ", unit_)));
    ApplyRequest request;
    request.keys = kept->plan.keys(unit_);
    request.counts = kept->plan.counts(unit_);
    request.places = kept->plan.places(unit_);
    request.distinct = true;
    OP_REQUIRES_OK(context, ParseStep(context, *state->table, 2, 3, &request));
    OP_REQUIRES_OK(context, Apply(context, request, state->table.get()));
  }

 private:
  int unit_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("MultitierGroupApply").Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("dtype"),
                        GroupApplyKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierApply").Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("dtype"), ApplyKernel);

}  // namespace
}  // namespace multitier
