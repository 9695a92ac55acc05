#include "cc/tensorflow/train/apply_rule.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/optimizer/catch_up.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/variable/embedding_variable.h"

namespace multitier {
namespace {

// Hyperparameters, and then the rates of a rule that catches up.
size_t InputsOf(const UpdateRule& rule) { return rule.hyperparameters().size() + (CatchesUp(rule) ? 1 : 0); }

}  // namespace

absl::Status ApplyRule::Init(OpKernelConstruction* context, size_t tables) {
  std::string rule;
  TF_RETURN_IF_ERROR(context->GetAttr("rule", &rule));
  TF_RETURN_IF_ERROR(context->GetAttr("slot_names", &slot_names_));
  TF_RETURN_IF_ERROR(context->GetAttr("slot_initial_values", &slot_initial_values_));
  const Result<const UpdateRule*> found =
      rule == AdamCatchUpRule()->name() ? Result<const UpdateRule*>(AdamCatchUpRule()) : FindUpdateRule(rule);
  TF_RETURN_IF_ERROR(ToAbsl(found.status()));
  rule_ = *found;
  int num_hyper;
  TF_RETURN_IF_ERROR(context->GetAttr("H", &num_hyper));
  num_hyper_ = static_cast<size_t>(num_hyper);
  TF_RETURN_IF_ERROR(CheckCount("slot_initial_values", rule_->slots().size(), slot_initial_values_.size()));
  const size_t hyper = InputsOf(*rule_);
  if (num_hyper_ != tables * hyper) TF_RETURN_IF_ERROR(CheckCount("hyperparameters", hyper, num_hyper_));
  return CheckCount("slot_names", tables * rule_->slots().size(), slot_names_.size());
}

absl::Status ApplyRule::ParseStep(OpKernelContext* context, int step, const EmbeddingTable& table, size_t which,
                                  ApplyRequest* request) const {
  TF_RETURN_IF_ERROR(CheckRank(context, "global_step", context->input(step), 0));
  request->rule = rule_;
  request->global_step = context->input(step).scalar<int64_t>()();
  const auto& names = rule_->hyperparameters();
  const size_t of_each = InputsOf(*rule_);
  const size_t first = static_cast<size_t>(step) + 1 + (num_hyper_ == of_each ? 0 : which * of_each);
  for (size_t i = 0; i < names.size(); ++i) {
    const Tensor& value = context->input(static_cast<int>(first + i));
    TF_RETURN_IF_ERROR(CheckRank(context, names[i], value, 0));
    request->hyper.push_back(value.scalar<float>()());
  }
  if (CatchesUp(*rule_)) {
    const Tensor& rates = context->input(static_cast<int>(first + names.size()));
    TF_RETURN_IF_ERROR(CheckRank(context, "rates", rates, 1));
    const Span<const float> its = Elements<float>(rates);
    request->hyper.insert(request->hyper.end(), its.begin(), its.end());
  }
  const Status valid = rule_->Validate(request->hyper.data());
  if (valid.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("apply to embedding variable '", table.options().name, "': ", valid.message()));
}

absl::Status ApplyRule::ParseGradients(OpKernelContext* context, int input, const EmbeddingTable& table, size_t n,
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

absl::Status ApplyRule::CheckShapes(OpKernelContext* context, const EmbeddingTable& table, const float** grads) {
  const Tensor &keys = context->input(1), &counts = context->input(3);
  TF_RETURN_IF_ERROR(CheckRank(context, "keys", keys, 1));
  TF_RETURN_IF_ERROR(CheckRank(context, "counts", counts, 1));
  TF_RETURN_IF_ERROR(ParseGradients(context, 2, table, static_cast<size_t>(keys.NumElements()), grads));
  if (counts.NumElements() == keys.NumElements() || counts.NumElements() == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("apply to embedding variable '", table.options().name,
                                                 "': expected counts of shape [", keys.NumElements(), "] or [0], found ",
                                                 counts.shape().DebugString()));
}

absl::Status ApplyRule::FindSlots(EmbeddingTable* table, size_t which, ApplyRequest* request) const {
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

absl::Status ApplyRule::CheckCount(const char* what, size_t expected, size_t found) const {
  if (expected == found) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rule ", rule_->name(), ": expected ", expected, " ", what, ", found ", found));
}

}  // namespace multitier
