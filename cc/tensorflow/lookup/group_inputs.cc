#include "cc/tensorflow/lookup/group_inputs.h"

#include "absl/strings/str_cat.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/lookup/lookup_inputs.h"

namespace multitier {
namespace {

// The rows of a member, and the shape of its values.
absl::Status ParseRows(OpKernelContext* context, const MemberSpec& spec, const Tensor& keys, int* indices, int* shape,
                       GroupMember* member, TensorShape* out) {
  if (spec.form == GroupForm::kDense) {
    member->batch = keys.NumElements();
    *out = keys.shape();
    return out->AddDimWithStatus(spec.dim);
  }
  const Tensor& rows = context->input((*indices)++);
  const Tensor* const dense = spec.has_shape() ? &context->input((*shape)++) : nullptr;
  TF_RETURN_IF_ERROR(CheckRows(spec, keys, rows, dense));
  member->indices = Elements<int64_t>(rows);
  if (spec.is_ragged()) {
    const Result<int64_t> steps = RaggedSteps(spec.name, member->indices, member->keys.size());
    TF_RETURN_IF_ERROR(ToAbsl(steps.status()));
    member->batch = rows.NumElements() - 1;
    if (spec.is_sequence()) member->steps = *steps;
  } else {
    member->batch = dense->flat<int64_t>()(0);
    if (spec.is_sequence()) member->steps = dense->flat<int64_t>()(1);
  }
  return ShapeOfRows(spec, member->batch, member->steps, out);
}

}  // namespace

absl::Status ParseMembers(OpKernelContext* context, const std::vector<MemberSpec>& specs, int first, bool training,
                          GroupInputs* inputs) {
  const size_t n = specs.size();
  int keys = first, indices = first + static_cast<int>(n), shape = indices;
  for (const MemberSpec& spec : specs) shape += spec.form != GroupForm::kDense;
  int weights = shape;
  for (const MemberSpec& spec : specs) weights += spec.has_shape();
  int tables = weights;
  for (const MemberSpec& spec : specs) tables += spec.weighted;
  inputs->members.resize(n);
  inputs->tables.resize(n);
  inputs->shapes.resize(n);
  for (size_t i = 0; i < n; ++i) {
    GroupMember& member = inputs->members[i];
    const MemberSpec& spec = specs[i];
    member.name = spec.name;
    member.routing = spec.routing;
    member.dim = spec.dim;
    member.combiner = spec.combiner;
    member.max_norm = spec.max_norm;
    member.reason = training ? ReadFor::kTraining : ReadFor::kEvaluation;
    member.form = spec.form;
    const Tensor& given = context->input(keys++);
    inputs->keys.push_back(std::make_unique<KeyInput>(given));
    member.keys = inputs->keys.back()->keys();
    if (spec.weighted) {
      const Tensor& w = context->input(weights++);
      TF_RETURN_IF_ERROR(CheckMemberWeights(spec, given, w));
      member.weights = Elements<float>(w);
      inputs->weights.push_back(w);
    }
    if (spec.tables > 0) {
      TF_RETURN_IF_ERROR(ParseTables(absl::StrCat("group lookup, ", spec.name, ": "), spec.tables, context->input(tables++),
                                     given.shape(), /*may_be_unknown=*/false, &inputs->tables[i]));
      if (spec.tables > 1) member.tables = inputs->tables[i];
    }
    TF_RETURN_IF_ERROR(ParseRows(context, spec, given, &indices, &shape, &member, &inputs->shapes[i]));
  }
  return absl::OkStatus();
}

}  // namespace multitier
