// The kernels of MultitierApply and MultitierGroupApply: one optimizer step on the rows of a batch of keys, of one variable or
// of many.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/kernels/embedding_variable.h"
#include "cc/kernels/group_plan.h"
#include "cc/kernels/host_kernel.h"
#include "cc/kernels/intra_op_executor.h"
#include "cc/kernels/op_kernel.h"
#include "cc/kernels/status_bridge.h"
#include "cc/optimizer/update_rule.h"
#include "tensorflow/core/platform/logging.h"

namespace multitier {
namespace {

// The common part of both kernels: the rule, its slots and hyperparameters.
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
    num_hyper_ = static_cast<size_t>(num_hyper);
    OP_REQUIRES_OK(context, CheckCount("slot_initial_values", rule_->slots().size(), slot_initial_values_.size()));
  }

 protected:
  // Input `step`: the global step. The inputs after it: the hyperparameters, of all tables or of each.
  absl::Status ParseStep(OpKernelContext* context, int step, const EmbeddingTable& table, size_t which,
                         ApplyRequest* request) const {
    TF_RETURN_IF_ERROR(CheckRank(context, "global_step", context->input(step), 0));
    request->rule = rule_;
    request->global_step = context->input(step).scalar<int64_t>()();
    const auto& names = rule_->hyperparameters();
    const size_t first = static_cast<size_t>(step) + 1 + (num_hyper_ == names.size() ? 0 : which * names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      const Tensor& value = context->input(static_cast<int>(first + i));
      TF_RETURN_IF_ERROR(CheckRank(context, names[i], value, 0));
      request->hyper.push_back(value.scalar<float>()());
    }
    const Status valid = rule_->Validate(request->hyper.data());
    if (valid.ok()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("apply to embedding variable '", table.options().name, "': ", valid.message()));
  }

  // A gradient for each of n keys.
  static absl::Status ParseGradients(OpKernelContext* context, int input, const EmbeddingTable& table, size_t n,
                                     const float** grads) {
    const Tensor& given = context->input(input);
    TF_RETURN_IF_ERROR(CheckRank(context, "grads", given, 2));
    if (given.dim_size(0) != static_cast<int64_t>(n) || given.dim_size(1) != table.dim()) {
      return absl::InvalidArgumentError(absl::StrCat("apply to embedding variable '", table.options().name,
                                                     "': expected grads of shape [", n, ",", table.dim(), "], found ",
                                                     given.shape().DebugString()));
    }
    *grads = given.flat<float>().data();
    return absl::OkStatus();
  }

  // The slots of the table that is number `which` of the op. The first apply of an optimizer whose slots were not declared
  // widens the rows.
  absl::Status FindSlots(EmbeddingTable* table, size_t which, ApplyRequest* request) const {
    const auto first = slot_names_.begin() + static_cast<int64_t>(which * rule_->slots().size());
    request->slot_columns.assign(first, first + static_cast<int64_t>(rule_->slots().size()));
    const std::shared_ptr<const RowLayout> layout = table->layout();
    std::vector<ColumnSpec> missing;
    for (size_t i = 0; i < request->slot_columns.size(); ++i) {
      if (layout->Find(request->slot_columns[i]) >= 0) continue;
      const int dim = rule_->slots()[i].per_row ? 1 : table->dim();
      missing.push_back(ColumnSpec{request->slot_columns[i], DType::kFloat32, dim, slot_initial_values_[i]});
    }
    if (missing.empty()) return absl::OkStatus();
    TF_RETURN_IF_ERROR(ToAbsl(table->AddSlots(missing)));
    LogFreshSlots(*table, missing);
    return absl::OkStatus();
  }

  absl::Status CheckCounts(size_t tables) const {
    const size_t hyper = rule_->hyperparameters().size();
    if (num_hyper_ != tables * hyper) TF_RETURN_IF_ERROR(CheckCount("hyperparameters", hyper, num_hyper_));
    return CheckCount("slot_names", tables * rule_->slots().size(), slot_names_.size());
  }

 private:
  absl::Status CheckCount(const char* what, size_t expected, size_t found) const {
    if (expected == found) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("rule ", rule_->name(), ": expected ", expected, " ", what, ", found ", found));
  }

  const UpdateRule* rule_ = nullptr;
  std::vector<std::string> slot_names_;
  std::vector<float> slot_initial_values_;
  size_t num_hyper_ = 0;
};

// Logs once that new keys of a variable with on_full='warn' got no row.
void WarnOfRefused(VariableState* state, int64_t refused) {
  const TableOptions& options = state->table->options();
  if (refused == 0 || options.on_full != OnFull::kRefuse || state->warned_full.exchange(true)) return;
  LOG(WARNING) << "embedding variable '" << options.name << "' is full with " << state->table->TotalCount()
               << " rows: " << refused << " new keys of an update got no row; `refused` in the statistics counts them";
}

class ApplyKernel : public ApplyKernelBase {
 public:
  explicit ApplyKernel(OpKernelConstruction* context) : ApplyKernelBase(context) {
    if (!context->status().ok()) return;  // there may be no rule
    OP_REQUIRES_OK(context, CheckCounts(1));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, GetStateToChange(context, 0, &state));
    const KeyInput keys(context->input(1));
    ApplyRequest request;
    OP_REQUIRES_OK(context, ParseRequest(context, *state->table, keys, &request));
    OP_REQUIRES_OK(context, FindSlots(state->table.get(), 0, &request));
    // Small updates use no extra threads: a model runs many of them in parallel, each in its own op.
    constexpr size_t kWorthThreads = 8192;
    IntraOpExecutor executor(context);
    int64_t refused = 0;
    request.refused = &refused;
    OP_REQUIRES_OK(context, ToAbsl(state->table->Apply(request, request.keys.size() < kWorthThreads ? nullptr : &executor)));
    WarnOfRefused(state.get(), refused);
  }

 private:
  // Checks the inputs; reads no rows.
  absl::Status ParseRequest(OpKernelContext* context, const EmbeddingTable& table, const KeyInput& keys,
                            ApplyRequest* request) const {
    const Tensor& counts = context->input(3);
    TF_RETURN_IF_ERROR(CheckRank(context, "keys", context->input(1), 1));
    TF_RETURN_IF_ERROR(CheckRank(context, "counts", counts, 1));
    request->keys = keys.keys();
    request->counts = Elements<int64_t>(counts);
    TF_RETURN_IF_ERROR(ParseGradients(context, 2, table, keys.keys().size(), &request->grads));
    TF_RETURN_IF_ERROR(ParseStep(context, 4, table, 0, request));
    const int64_t n = static_cast<int64_t>(keys.keys().size());
    if (counts.dim_size(0) != n && counts.dim_size(0) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("apply to embedding variable '", table.options().name,
                                                     "': expected counts of shape [", n, "] or [0], found ",
                                                     counts.shape().DebugString()));
    }
    for (size_t i = 0; i < request->counts.size(); ++i) {
      if (request->counts[i] < 0) {
        return absl::InvalidArgumentError(absl::StrCat("apply to embedding variable '", table.options().name,
                                                       "': counts: expected at least 0, found counts[", i,
                                                       "] = ", request->counts[i]));
      }
    }
    return absl::OkStatus();
  }
};

class GroupApplyKernel : public ApplyKernelBase {
 public:
  explicit GroupApplyKernel(OpKernelConstruction* context) : ApplyKernelBase(context) {
    if (!context->status().ok()) return;  // there may be no rule
    int num_sums, num_grads;
    OP_REQUIRES_OK(context, context->GetAttr("units", &units_));
    OP_REQUIRES_OK(context, context->GetAttr("summed", &summed_));
    OP_REQUIRES_OK(context, context->GetAttr("S", &num_sums));
    OP_REQUIRES_OK(context, context->GetAttr("G", &num_grads));
    OP_REQUIRES_OK(context, inputs_.Init(context, num_grads));
    OP_REQUIRES_OK(context, CheckCounts(units_.size()));
    plan_input_ = static_cast<int>(units_.size());
    grads_input_ = plan_input_ + 1 + num_sums;
    step_input_ = grads_input_ + num_grads;
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<const KeptPlan> kept;
    OP_REQUIRES_OK(context, GetPlan(context, plan_input_, &kept));
    std::vector<const float*> grads;
    std::vector<int64_t> strides;
    OP_REQUIRES_OK(context, inputs_.Point(context, grads_input_, kept->plan, &grads, &strides));
    std::vector<std::shared_ptr<VariableState>> states(units_.size());
    std::vector<UnitUpdate> updates(units_.size());
    int sums = plan_input_ + 1;
    for (size_t i = 0; i < units_.size(); ++i) {
      OP_REQUIRES_OK(context, GetStateToChange(context, static_cast<int>(i), &states[i]));
      updates[i].table = states[i]->table.get();
      OP_REQUIRES_OK(context, ParseStep(context, step_input_, *updates[i].table, i, &updates[i].request));
      OP_REQUIRES_OK(context, Parse(context, kept->plan, strides, i, *updates[i].table, &sums, &updates[i]));
    }
    std::vector<int64_t> refused(units_.size(), 0);
    for (size_t i = 0; i < units_.size(); ++i) {
      updates[i].request.refused = &refused[i];
      OP_REQUIRES_OK(context, FindSlots(updates[i].table, i, &updates[i].request));
    }
    GroupGradients gradients;
    gradients.grads = Span<const float* const>(grads.data(), grads.size());
    gradients.strides = strides;
    IntraOpExecutor executor(context);
    OP_REQUIRES_OK(context, ToAbsl(UpdateGroup(kept->plan, gradients, &updates, &executor)));
    for (size_t i = 0; i < units_.size(); ++i) WarnOfRefused(states[i].get(), refused[i]);
  }

 private:
  // The update of variable number `which`. sums: the next input that is a sum
  absl::Status Parse(OpKernelContext* context, const GroupPlan& plan, const std::vector<int64_t>& strides, size_t which,
                     const EmbeddingTable& table, int* sums, UnitUpdate* update) const {
    const int unit = update->unit = units_[which];
    if (unit < 0 || unit >= plan.num_units()) {
      return absl::InvalidArgumentError(absl::StrCat("apply to embedding variable '", table.options().name,
                                                     "': expected a part below ", plan.num_units(), ", found ", unit));
    }
    if (summed_[which]) return ParseGradients(context, (*sums)++, table, plan.keys(unit).size(), &update->request.grads);
    if (strides[static_cast<size_t>(plan.member_of_unit(unit))] != 0 && plan.dim_of_unit(unit) == table.dim()) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat("apply to embedding variable '", table.options().name,
                                                   "': expected a gradient of dim ", table.dim(), " of part ", unit));
  }

  GradientInputs inputs_;
  std::vector<int> units_;
  std::vector<bool> summed_;
  int plan_input_ = 0, grads_input_ = 0, step_input_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("MultitierGroupApply").Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("dtype"),
                        GroupApplyKernel);
MULTITIER_HOST_KERNEL("MultitierHbmGroupApply", GroupApplyKernel, "handles", "plan", "sums", "grads", "global_step", "hyper");
MULTITIER_HOST_KERNEL("MultitierApply", ApplyKernel, "handle", "keys", "grads", "counts", "global_step", "hyper");

}  // namespace
}  // namespace multitier
