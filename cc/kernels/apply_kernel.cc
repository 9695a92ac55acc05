// The kernel of MultitierApply: one optimizer step on the rows of a batch of keys.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/kernels/embedding_variable.h"
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

class ApplyKernel : public OpKernel {
 public:
  explicit ApplyKernel(OpKernelConstruction* context) : OpKernel(context) {
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

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, GetState(context, 0, &state));
    const KeyInput keys(context->input(1));
    ApplyRequest request;
    OP_REQUIRES_OK(context, ParseRequest(context, *state->table, keys, &request));
    OP_REQUIRES_OK(context, AddMissingSlots(state->table.get()));
    IntraOpExecutor executor(context);
    OP_REQUIRES_OK(context, ToAbsl(state->table->Apply(request, &executor)));
  }

 private:
  absl::Status CheckCount(const char* what, size_t expected, size_t found) const {
    if (expected == found) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("rule ", rule_->name(), " takes ", expected, " ", what, ", found ", found));
  }

  // Everything that can be refused without a look at the rows.
  absl::Status ParseRequest(OpKernelContext* context, const EmbeddingTable& table, const KeyInput& keys,
                            ApplyRequest* request) const {
    const Tensor& grads = context->input(2);
    const Tensor& counts = context->input(3);
    const Tensor& global_step = context->input(4);
    TF_RETURN_IF_ERROR(CheckRank(context, "keys", context->input(1), 1));
    TF_RETURN_IF_ERROR(CheckRank(context, "grads", grads, 2));
    TF_RETURN_IF_ERROR(CheckRank(context, "counts", counts, 1));
    TF_RETURN_IF_ERROR(CheckRank(context, "global_step", global_step, 0));
    const int64_t n = static_cast<int64_t>(keys.keys().size());
    if (grads.dim_size(0) != n || grads.dim_size(1) != table.dim()) {
      return absl::InvalidArgumentError(absl::StrCat("apply to embedding variable '", table.options().name,
                                                     "': expected grads of shape [", n, ",", table.dim(), "], found ",
                                                     grads.shape().DebugString()));
    }
    if (counts.dim_size(0) != n && counts.dim_size(0) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("apply to embedding variable '", table.options().name,
                                                     "': expected counts of shape [", n, "] or [0], found ",
                                                     counts.shape().DebugString()));
    }
    request->keys = keys.keys();
    request->grads = grads.flat<float>().data();
    request->counts = Elements<int64_t>(counts);
    request->rule = rule_;
    request->slot_columns = slot_names_;
    request->global_step = global_step.scalar<int64_t>()();
    for (int i = 5; i < context->num_inputs(); ++i) {
      TF_RETURN_IF_ERROR(CheckRank(context, rule_->hyperparameters()[i - 5], context->input(i), 0));
      request->hyper.push_back(context->input(i).scalar<float>()());
    }
    for (size_t i = 0; i < request->counts.size(); ++i) {
      if (request->counts[i] < 0) {
        return absl::InvalidArgumentError(absl::StrCat("apply to embedding variable '", table.options().name,
                                                       "': expected counts >= 0, found counts[", i,
                                                       "] = ", request->counts[i]));
      }
    }
    return ToAbsl(rule_->Validate(request->hyper.data()));
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

REGISTER_KERNEL_BUILDER(Name("MultitierApply").Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("dtype"), ApplyKernel);

}  // namespace
}  // namespace multitier
