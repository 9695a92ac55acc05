// The kernels of the grouped lookup and of its gradient. They parse the inputs, call group_lookup/group_lookup.h and return the
// outputs.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/group_lookup/group_lookup.h"
#include "cc/tensorflow/common/host_kernel.h"
#include "cc/tensorflow/common/intra_op_executor.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/lookup/group_inputs.h"
#include "cc/tensorflow/lookup/group_plan.h"
#include "cc/tensorflow/lookup/group_specs.h"
#include "cc/tensorflow/lookup/plan_input.h"
#include "cc/tensorflow/variable/embedding_variable.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/variant_op_registry.h"

namespace multitier {

absl::Status GetPlan(OpKernelContext* context, int input, std::shared_ptr<const KeptPlan>* kept) {
  return PlanInput<GroupPlanVariant>(context, input, "the plan of a grouped lookup", kept);
}

std::vector<MemberValues> ValuesOf(const GroupPlan& plan) {
  std::vector<MemberValues> values(static_cast<size_t>(plan.num_members()));
  for (int i = 0; i < plan.num_members(); ++i) values[static_cast<size_t>(i)] = MemberValues{plan.rows(i), plan.dim(i)};
  return values;
}

namespace {

// The resource variables of a group, held against dense assignments while their rows are read: in the order of their locks'
// addresses, as TensorFlow takes several, and each once.
class HeldVariables {
 public:
  ~HeldVariables() {
    for (tensorflow::Var* variable : held_) variable->mu()->unlock_shared();
  }
  tensorflow::Var* Add(tensorflow::core::RefCountPtr<tensorflow::Var> variable) {
    variables_.push_back(std::move(variable));
    return variables_.back().get();
  }
  void Lock() {
    for (const auto& variable : variables_) held_.push_back(variable.get());
    std::sort(held_.begin(), held_.end(), [](auto* a, auto* b) { return a->mu() < b->mu(); });
    held_.erase(std::unique(held_.begin(), held_.end()), held_.end());
    for (tensorflow::Var* variable : held_) variable->mu()->lock_shared();
  }

 private:
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
  std::vector<tensorflow::Var*> held_;
};

absl::Status CheckMatrix(const std::string& name, int dim, const Tensor& matrix) {
  if (matrix.dtype() == tensorflow::DT_FLOAT && matrix.dims() == 2 && matrix.dim_size(1) == dim) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("group lookup, ", name, ": expected a float variable of shape [rows,", dim,
                                                 "], found ", tensorflow::DataTypeString(matrix.dtype()), " ",
                                                 matrix.shape().DebugString()));
}

class GroupLookupKernel : public OpKernel {
 public:
  explicit GroupLookupKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadMemberSpecs(context, &specs_));
    OP_REQUIRES_OK(context, context->GetAttr("training", &training_));
    for (const MemberSpec& spec : specs_) {
      (spec.source == MemberSource::kTensor ? num_matrices_ : num_handles_) += spec.units;
    }
    OP_REQUIRES_OK(context, GetJoins(context, specs_.size(), context->num_outputs() - 1, &joins_));
  }

  void Compute(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, Parse(context, &call));
    const int plan_output = static_cast<int>(joins_.size());
    std::shared_ptr<KeptPlan> kept;
    if (context->output_required(plan_output)) {
      kept = plans_->Take();
      kept->weights = std::move(call.inputs.weights);
    }
    IntraOpExecutor executor(context);
    OP_REQUIRES_OK(context, ToAbsl(LookupGroup(call.inputs.members, kept == nullptr ? nullptr : &kept->plan, &executor)));
    if (kept == nullptr) return;
    Tensor plan(tensorflow::DT_VARIANT, TensorShape({}));
    plan.scalar<tensorflow::Variant>()() = GroupPlanVariant(std::move(kept));
    context->set_output(plan_output, plan);
  }

 private:
  struct Call {
    GroupInputs inputs;
    std::vector<std::vector<GroupUnit>> units;
    std::vector<std::shared_ptr<VariableState>> states;
    HeldVariables variables;
  };

  absl::Status Parse(OpKernelContext* context, Call* call) const {
    const size_t n = specs_.size();
    call->units.resize(n);
    int handle = 0, matrix = num_handles_;
    std::vector<std::vector<tensorflow::Var*>> variables(n);
    for (size_t i = 0; i < n; ++i) {
      const MemberSpec& spec = specs_[i];
      for (int u = 0; u < spec.units; ++u) {
        GroupUnit unit;
        if (spec.source == MemberSource::kTable) {
          std::shared_ptr<VariableState> state;
          TF_RETURN_IF_ERROR(GetState(context, handle++, &state));
          unit.table = state->table.get();
          call->states.push_back(std::move(state));
        } else if (spec.source == MemberSource::kVariable) {
          tensorflow::ResourceHandle resource;
          TF_RETURN_IF_ERROR(tensorflow::HandleFromInput(context, handle++, &resource));
          tensorflow::core::RefCountPtr<tensorflow::Var> variable;
          const absl::Status found = tensorflow::LookupResource(context, resource, &variable);
          if (!found.ok()) {
            return absl::FailedPreconditionError(
                absl::StrCat("group lookup, ", spec.name, ": variable '", resource.name(), "' is not initialized"));
          }
          variables[i].push_back(call->variables.Add(std::move(variable)));
        } else {
          const Tensor& values = context->input(matrix++);
          TF_RETURN_IF_ERROR(CheckMatrix(spec.name, spec.dim, values));
          unit.matrix = values.flat<float>().data();
          unit.rows = values.dim_size(0);
        }
        call->units[i].push_back(unit);
      }
    }
    call->variables.Lock();
    for (size_t i = 0; i < n; ++i) {
      for (size_t u = 0; u < variables[i].size(); ++u) {
        tensorflow::Var* variable = variables[i][u];
        if (!variable->is_initialized) {
          return absl::FailedPreconditionError(
              absl::StrCat("group lookup, ", specs_[i].name, ": the variable is not initialized"));
        }
        TF_RETURN_IF_ERROR(CheckMatrix(specs_[i].name, specs_[i].dim, *variable->tensor()));
        call->units[i][u].matrix = variable->tensor()->flat<float>().data();
        call->units[i][u].rows = variable->tensor()->dim_size(0);
      }
    }
    TF_RETURN_IF_ERROR(ParseMembers(context, specs_, num_handles_ + num_matrices_, training_, &call->inputs));
    for (size_t i = 0; i < n; ++i) call->inputs.members[i].units = call->units[i];
    return AllocateValues(context, specs_, joins_, call->inputs.shapes, &call->inputs.members);
  }

  const std::shared_ptr<PlanPool<KeptPlan>> plans_ = std::make_shared<PlanPool<KeptPlan>>();
  bool training_ = true;
  std::vector<MemberSpec> specs_;
  std::vector<int> joins_;  // members of each output
  int num_handles_ = 0, num_matrices_ = 0;
};

class GroupLookupGradKernel : public OpKernel {
 public:
  explicit GroupLookupGradKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, attrs_.Init(context));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<const KeptPlan> kept;
    OP_REQUIRES_OK(context, GetPlan(context, 0, &kept));
    const GroupPlan& plan = kept->plan;
    std::vector<const float*> grads;
    std::vector<int64_t> strides;
    std::vector<float*> sums(static_cast<size_t>(plan.num_units()), nullptr);
    std::vector<float*> weights_gradients(static_cast<size_t>(plan.num_members()), nullptr);
    OP_REQUIRES_OK(context, attrs_.inputs.Point(context, 1, ValuesOf(plan), &grads, &strides));
    int out = 0, weights_out = 3 * attrs_.num_units;
    for (size_t g = 0; g < attrs_.inputs.members().size(); ++g) {
      const int member = attrs_.inputs.members()[g], dim = plan.dim(member), first = plan.first_unit(member);
      const int end = member + 1 < plan.num_members() ? plan.first_unit(member + 1) : plan.num_units();
      OP_REQUIRES(context, attrs_.units[g] == end - first,
                  absl::InvalidArgumentError(absl::StrCat("gradient of member ", member, ": expected ", end - first,
                                                          " parts, found ", attrs_.units[g])));
      for (int u = first; u < end; ++u, ++out) {
        OP_REQUIRES_OK(context, GiveList(context, out, plan.keys(u)));
        OP_REQUIRES_OK(context, GiveList(context, 2 * attrs_.num_units + out, plan.counts(u)));
        if (!context->output_required(attrs_.num_units + out)) continue;
        Tensor* summed = nullptr;
        OP_REQUIRES_OK(context,
                       context->allocate_output(attrs_.num_units + out,
                                                TensorShape({static_cast<int64_t>(plan.keys(u).size()), dim}), &summed));
        sums[static_cast<size_t>(u)] = summed->flat<float>().data();
      }
      if (!attrs_.weighted[g]) continue;
      if (context->output_required(weights_out)) {
        Tensor* gradient = nullptr;
        OP_REQUIRES_OK(context, context->allocate_output(weights_out, TensorShape({plan.entries(member)}), &gradient));
        if (plan.weighted(member)) weights_gradients[static_cast<size_t>(member)] = gradient->flat<float>().data();
      }
      ++weights_out;
    }
    IntraOpExecutor executor(context);
    GroupGradients gradients;
    gradients.grads = Span<const float* const>(grads.data(), grads.size());
    gradients.strides = strides;
    gradients.sums = Span<float* const>(sums.data(), sums.size());
    gradients.weights_gradients = Span<float* const>(weights_gradients.data(), weights_gradients.size());
    GradientOfGroup(plan, gradients, &executor);
  }

 private:
  static absl::Status GiveList(OpKernelContext* context, int output, Span<const int64_t> list) {
    if (!context->output_required(output)) return absl::OkStatus();
    Tensor* given = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(output, TensorShape({static_cast<int64_t>(list.size())}), &given));
    std::copy(list.begin(), list.end(), given->flat<int64_t>().data());
    return absl::OkStatus();
  }

  GroupGradAttrs attrs_;
};

// A tape around a tf.function asks for zeros of each output of the function, also of the plan. The gradient does not read them.
absl::Status NoGroupPlan(OpKernelContext*, const GroupPlanVariant&, GroupPlanVariant* zeros) {
  *zeros = GroupPlanVariant();
  return absl::OkStatus();
}

using tensorflow::TypeIndex;  // the macro expects the name here
REGISTER_UNARY_VARIANT_UNARY_OP_FUNCTION(tensorflow::ZEROS_LIKE_VARIANT_UNARY_OP, tensorflow::DEVICE_CPU, GroupPlanVariant,
                                         NoGroupPlan);
REGISTER_UNARY_VARIANT_UNARY_OP_FUNCTION(tensorflow::ZEROS_LIKE_VARIANT_UNARY_OP, tensorflow::DEVICE_GPU, GroupPlanVariant,
                                         NoGroupPlan);

[[maybe_unused]] const HostVariant<GroupPlanVariant> host_group_plan;

REGISTER_KERNEL_BUILDER(Name("MultitierGroupLookup").Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("dtype"),
                        GroupLookupKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierGroupLookupGrad").Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("dtype"),
                        GroupLookupGradKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierHbmGroupLookup").Device(tensorflow::DEVICE_CPU), GroupLookupKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierHbmGroupLookupGrad").Device(tensorflow::DEVICE_CPU), GroupLookupGradKernel);

}  // namespace
}  // namespace multitier
