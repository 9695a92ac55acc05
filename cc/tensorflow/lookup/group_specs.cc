#include "cc/tensorflow/lookup/group_specs.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"

namespace multitier {

absl::Status ReadMemberSpecs(OpKernelConstruction* context, std::vector<MemberSpec>* specs) {
  std::vector<std::string> names, sources, strategies, forms, combiners;
  std::vector<int> units, dims, tables;
  std::vector<bool> weighted;
  std::vector<float> max_norms;
  TF_RETURN_IF_ERROR(context->GetAttr("members", &names));
  if (context->HasAttr("sources")) {
    TF_RETURN_IF_ERROR(context->GetAttr("sources", &sources));
    TF_RETURN_IF_ERROR(context->GetAttr("strategies", &strategies));
  } else {  // of an exchange: embedding variables
    sources.assign(names.size(), "table");
    TF_RETURN_IF_ERROR(context->GetAttr("num_tables", &tables));
  }
  TF_RETURN_IF_ERROR(context->GetAttr("forms", &forms));
  TF_RETURN_IF_ERROR(context->GetAttr("combiners", &combiners));
  TF_RETURN_IF_ERROR(context->GetAttr("units", &units));
  TF_RETURN_IF_ERROR(context->GetAttr("dims", &dims));
  TF_RETURN_IF_ERROR(context->GetAttr("weighted", &weighted));
  TF_RETURN_IF_ERROR(context->GetAttr("max_norms", &max_norms));
  tables.resize(names.size(), 0);  // no list: no member has several
  // The op's shape function has checked that each list has one entry per member, and that the inputs match the lists.
  for (size_t i = 0; i < names.size(); ++i) {
    MemberSpec spec;
    spec.name = names[i];
    spec.source = sources[i] == "table"      ? MemberSource::kTable
                  : sources[i] == "variable" ? MemberSource::kVariable
                                             : MemberSource::kTensor;
    spec.routing = spec.source == MemberSource::kTable ? Routing::kHash
                   : strategies[i] == "mod"            ? Routing::kMod
                                                       : Routing::kDiv;
    spec.form = forms[i] == "dense"      ? GroupForm::kDense
                : forms[i] == "sparse"   ? GroupForm::kSparse
                : forms[i] == "sequence" ? GroupForm::kSequence
                : forms[i] == "ragged"   ? GroupForm::kRagged
                                         : GroupForm::kRaggedSequence;
    // A sequence is a pooling in which every entry has a row of its own.
    const Result<Combiner> combiner = ParseCombiner(spec.is_sequence() ? "sum" : combiners[i]);
    TF_RETURN_IF_ERROR(ToAbsl(combiner.status()));
    spec.combiner = *combiner;
    spec.units = units[i];
    spec.dim = dims[i];
    spec.weighted = weighted[i];
    spec.max_norm = max_norms[i];
    spec.tables = tables[i];
    specs->push_back(std::move(spec));
  }
  return absl::OkStatus();
}

absl::Status RefuseMember(const MemberSpec& spec, const std::string& expected, const Tensor& found) {
  return absl::InvalidArgumentError(
      absl::StrCat("group lookup, ", spec.name, ": expected ", expected, ", found shape ", found.shape().DebugString()));
}

absl::Status ShapeOfRows(const MemberSpec& spec, int64_t batch, int64_t steps, TensorShape* shape) {
  std::vector<int64_t> dims = {batch};
  if (spec.is_sequence()) dims.push_back(steps);
  dims.push_back(spec.dim);
  const absl::Status made = TensorShape::BuildTensorShape(dims, shape);
  if (made.ok()) return made;
  return absl::InvalidArgumentError(absl::StrCat("group lookup, ", spec.name,
                                                 ": expected a dense shape that fits in int64, found [", batch, ", ", steps,
                                                 "]: ", made.message()));
}

absl::Status ShapeSideBySide(const MemberSpec* specs, const TensorShape* shapes, int count, TensorShape* shape) {
  *shape = shapes[0];
  const int last = shape->dims() - 1;
  int64_t stride = 0;
  for (int i = 0; i < count; ++i) {
    stride += specs[i].dim;
    bool fits = shapes[i].dims() == shape->dims();
    for (int d = 0; fits && d < last; ++d) fits = shapes[i].dim_size(d) == shape->dim_size(d);
    if (fits) continue;
    return absl::InvalidArgumentError(absl::StrCat("group lookup, ", specs[i].name, ": expected the leading dimensions of ",
                                                   shapes[0].DebugString(), " to match ", specs[0].name,
                                                   ", with which it is concatenated, found shape ", shapes[i].DebugString()));
  }
  return count > 1 ? shape->SetDimWithStatus(last, stride) : absl::OkStatus();
}

absl::Status CheckRows(const MemberSpec& spec, const Tensor& ids, const Tensor& rows, const Tensor* shape) {
  if (ids.dims() != 1) return RefuseMember(spec, "ids of rank 1", ids);
  if (spec.is_ragged()) {
    if (rows.dims() != 1 || rows.NumElements() < 1) return RefuseMember(spec, "row splits [batch + 1]", rows);
    return absl::OkStatus();
  }
  if (rows.dims() != 2 || rows.dim_size(1) != 2) return RefuseMember(spec, "indices [ids, 2]", rows);
  if (shape->dims() != 1 || shape->NumElements() != 2) return RefuseMember(spec, "a dense shape of two numbers", *shape);
  return absl::OkStatus();
}

absl::Status CheckMemberWeights(const MemberSpec& spec, const Tensor& ids, const Tensor& weights) {
  if (weights.dims() == 1 && weights.NumElements() == ids.NumElements()) return absl::OkStatus();
  return RefuseMember(spec, absl::StrCat(ids.NumElements(), " weights (one per id)"), weights);
}

absl::Status GetJoins(OpKernelConstruction* context, size_t members, int tensors, std::vector<int>* joins) {
  TF_RETURN_IF_ERROR(context->GetAttr("joins", joins));
  if (joins->empty()) joins->assign(members, 1);
  if (static_cast<int>(joins->size()) == tensors && std::accumulate(joins->begin(), joins->end(), size_t{0}) == members) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("joins: expected ", tensors, " numbers of together ", members,
                                                 " members, found [", absl::StrJoin(*joins, ", "), "]"));
}

absl::Status GradientInputs::Init(OpKernelConstruction* context, int inputs) {
  TF_RETURN_IF_ERROR(context->GetAttr("members", &members_));
  return GetJoins(context, members_.size(), inputs, &joins_);
}

absl::Status GroupGradAttrs::Init(OpKernelConstruction* context) {
  TF_RETURN_IF_ERROR(inputs.Init(context, context->num_inputs() - 1));
  TF_RETURN_IF_ERROR(context->GetAttr("units", &units));
  TF_RETURN_IF_ERROR(context->GetAttr("weighted", &weighted));
  return context->GetAttr("U", &num_units);
}

absl::Status GradientInputs::Point(OpKernelContext* context, int first_input, const std::vector<MemberValues>& plan,
                                   std::vector<const float*>* grads, std::vector<int64_t>* strides) const {
  const int num_members = static_cast<int>(plan.size());
  grads->assign(plan.size(), nullptr);
  strides->assign(plan.size(), 0);
  size_t g = 0;
  for (size_t input = 0; input < joins_.size(); ++input) {
    const Tensor& grad = context->input(first_input + static_cast<int>(input));
    const size_t first = g, end = g + static_cast<size_t>(joins_[input]);
    int64_t stride = 0;
    for (; g < end; ++g) {
      const int member = members_[g];
      if (member < 0 || member >= num_members || (*strides)[static_cast<size_t>(member)] != 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("members: expected distinct numbers below ", num_members, ", found ", member));
      }
      (*grads)[static_cast<size_t>(member)] = grad.flat<float>().data() + stride;
      (*strides)[static_cast<size_t>(member)] = plan[static_cast<size_t>(member)].dim;
      stride += plan[static_cast<size_t>(member)].dim;
    }
    for (g = first; g < end; ++g) {
      const int member = members_[g];
      const int64_t rows = plan[static_cast<size_t>(member)].rows;
      if (grad.NumElements() != rows * stride) {
        return absl::InvalidArgumentError(absl::StrCat("gradient of member ", member, ": expected ", rows, " rows of dim ",
                                                       stride, ", found shape ", grad.shape().DebugString()));
      }
      (*strides)[static_cast<size_t>(member)] = stride;
    }
  }
  return absl::OkStatus();
}

}  // namespace multitier
