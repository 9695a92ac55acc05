// The kernels for GPUs of the gradient of the grouped lookup, and of updates.
//
//   gradient        plan, gradients of values -> distinct keys, their summed gradients and counts, all in the GPU's memory
//   grouped update  plan, sums or gradients of values -> one optimizer step
//   update          keys, gradients -> one optimizer step

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/hbm/hbm_table.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/device/device_call.h"
#include "cc/tensorflow/device/device_plan.h"
#include "cc/tensorflow/lookup/group_specs.h"
#include "cc/tensorflow/lookup/lookup_inputs.h"
#include "cc/tensorflow/train/apply_rule.h"
#include "cc/tensorflow/train/group_apply_attrs.h"
#include "cc/tensorflow/variable/embedding_variable.h"

namespace multitier {
namespace {

// Calls work(call, kept) with the plan in input `input`, once no other operation uses it. The work releases the plan.
template <typename Work>
void WithPlan(OpKernelContext* context, int input, AsyncOpKernel::DoneCallback done, Work work) {
  auto call = std::make_shared<DeviceCall>(context, std::move(done));
  std::shared_ptr<KeptDevicePlan> kept;
  const absl::Status found = GetDevicePlan(context, input, &kept);
  if (!found.ok()) return call->End(found);
  KeptDevicePlan* const plan = kept.get();
  plan->Use([call = std::move(call), kept = std::move(kept), work = std::move(work)]() mutable {
    work(std::move(call), std::move(kept));
  });
}

class DeviceGroupLookupGradKernel : public AsyncOpKernel {
 public:
  explicit DeviceGroupLookupGradKernel(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, attrs_.Init(context));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    WithPlan(context, 0, std::move(done), [this, context](auto call, auto kept) {
      const absl::Status status = Run(context, call.get(), kept.get());
      kept->Release();
      kept.reset();
      call->End(status);
    });
  }

 private:
  absl::Status Run(OpKernelContext* context, DeviceCall* call, KeptDevicePlan* kept) const {
    const hbm::DevicePlan& plan = kept->plan;
    std::vector<const float*> grads;
    std::vector<int64_t> strides;
    TF_RETURN_IF_ERROR(attrs_.inputs.Point(context, 1, ValuesOf(plan), &grads, &strides));
    std::vector<hbm::DeviceGradient> wanted;
    int weights_out = 3 * attrs_.num_units;
    for (size_t g = 0; g < attrs_.inputs.members().size(); ++g) {
      const int member = attrs_.inputs.members()[g], out = static_cast<int>(g);
      if (attrs_.units[g] != 1) {
        return absl::InvalidArgumentError(
            absl::StrCat("gradient of member ", member, ": expected 1 parts, found ", attrs_.units[g]));
      }
      const int64_t distinct = plan.distinct(member);
      hbm::DeviceGradient gradient;
      gradient.member = member;
      gradient.grad = grads[static_cast<size_t>(member)];
      gradient.stride = strides[static_cast<size_t>(member)];
      TF_RETURN_IF_ERROR(Give(context, out, TensorShape({distinct}), &gradient.keys));
      TF_RETURN_IF_ERROR(
          Give(context, attrs_.num_units + out, TensorShape({distinct, plan.table(member)->dim()}), &gradient.sums));
      TF_RETURN_IF_ERROR(Give(context, 2 * attrs_.num_units + out, TensorShape({distinct}), &gradient.counts));
      if (attrs_.weighted[g]) {
        float** const to = kept->weighted[static_cast<size_t>(member)] ? &gradient.weight_grads : nullptr;
        TF_RETURN_IF_ERROR(Give(context, weights_out++, TensorShape({plan.entries(member)}), to));
      }
      wanted.push_back(gradient);
    }
    hbm::HbmTable* table = nullptr;
    TF_RETURN_IF_ERROR(call->Add(kept->states[0], &table));
    TF_RETURN_IF_ERROR(ToAbsl(hbm::GradientOnDevice(plan, wanted, call->stream()->get())));
    return ToAbsl(call->stream()->Finish());
  }

  // Allocates an output that another op uses.
  template <typename T>
  static absl::Status Give(OpKernelContext* context, int output, const TensorShape& shape, T** data) {
    if (!context->output_required(output)) return absl::OkStatus();
    Tensor* given = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(output, shape, &given));
    if (data != nullptr) *data = given->flat<T>().data();
    return absl::OkStatus();
  }

  GroupGradAttrs attrs_;
};

class DeviceGroupApplyKernel : public AsyncOpKernel {
 public:
  explicit DeviceGroupApplyKernel(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, attrs_.Init(context));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    WithPlan(context, attrs_.plan_input, std::move(done), [this, context](auto call, auto kept) {
      std::vector<hbm::DeviceUpdate> updates(attrs_.units.size());
      const absl::Status parsed = Parse(context, call.get(), kept->plan, &updates);
      if (!parsed.ok()) {
        kept->Release();
        kept.reset();
        return call->End(parsed);
      }
      const hbm::DevicePlan& its = kept->plan;
      const device::Stream stream = call->stream()->get();
      hbm::UpdateOnDevice(its, updates, stream,
                          [kept = std::move(kept), finish = DeviceCall::Finisher(std::move(call))](Status status) mutable {
                            kept->Release();
                            kept.reset();
                            finish(std::move(status));
                          });
    });
  }

 private:
  absl::Status Parse(OpKernelContext* context, DeviceCall* call, const hbm::DevicePlan& plan,
                     std::vector<hbm::DeviceUpdate>* updates) const {
    std::vector<const float*> grads;
    std::vector<int64_t> strides;
    TF_RETURN_IF_ERROR(attrs_.gradients.Point(context, attrs_.grads_input, ValuesOf(plan), &grads, &strides));
    int sums = attrs_.sums_input;
    for (size_t i = 0; i < attrs_.units.size(); ++i) {
      std::shared_ptr<VariableState> state;
      TF_RETURN_IF_ERROR(GetStateToChange(context, static_cast<int>(i), &state));
      const EmbeddingTable& table = *state->table;
      hbm::HbmTable* its = nullptr;
      TF_RETURN_IF_ERROR(call->Add(std::move(state), &its));
      hbm::DeviceUpdate& update = (*updates)[i];
      const int unit = update.member = attrs_.units[i];
      TF_RETURN_IF_ERROR(attrs_.rule.ParseStep(context, attrs_.step_input, table, i, &update.request));
      if (unit < 0 || unit >= plan.num_members() || plan.table(unit) != its) {
        return absl::InvalidArgumentError(absl::StrCat("apply to embedding variable '", table.options().name,
                                                       "': expected its part, below ", plan.num_members(), ", found ", unit));
      }
      if (attrs_.summed[i]) {
        const auto distinct = static_cast<size_t>(plan.distinct(unit));
        TF_RETURN_IF_ERROR(ApplyRule::ParseGradients(context, sums++, table, distinct, &update.sums));
        continue;
      }
      update.grad = grads[static_cast<size_t>(unit)];
      update.stride = strides[static_cast<size_t>(unit)];
      if (update.stride == 0) {
        return absl::InvalidArgumentError(absl::StrCat("apply to embedding variable '", table.options().name,
                                                       "': expected a gradient of dim ", table.dim(), " of part ", unit));
      }
    }
    for (size_t i = 0; i < attrs_.units.size(); ++i) {
      TF_RETURN_IF_ERROR(attrs_.rule.FindSlots(call->states()[i]->table.get(), i, &(*updates)[i].request));
    }
    return absl::OkStatus();
  }

  GroupApplyAttrs attrs_;
};

class DeviceApplyKernel : public AsyncOpKernel {
 public:
  explicit DeviceApplyKernel(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, rule_.Init(context, 1));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto call = std::make_shared<DeviceCall>(context, std::move(done));
    hbm::DeviceApply apply;
    const absl::Status parsed = Parse(context, call.get(), &apply);
    if (!parsed.ok()) return call->End(parsed);
    hbm::ApplyOnDevice(Span<const hbm::DeviceApply>(&apply, 1), call->stream()->get(), DeviceCall::Finisher(call));
  }

 private:
  absl::Status Parse(OpKernelContext* context, DeviceCall* call, hbm::DeviceApply* apply) const {
    std::shared_ptr<VariableState> state;
    TF_RETURN_IF_ERROR(GetStateToChange(context, 0, &state));
    EmbeddingTable* const table = state->table.get();
    TF_RETURN_IF_ERROR(call->Add(std::move(state), &apply->table));
    const Tensor& counts = context->input(3);
    TF_RETURN_IF_ERROR(ApplyRule::CheckShapes(context, *table, &apply->grads));
    TF_RETURN_IF_ERROR(rule_.ParseStep(context, 4, *table, 0, &apply->request));
    apply->keys = KeysOf(context->input(1));
    TF_RETURN_IF_ERROR(
        TakeTables(context, *table, rule_.inputs(), context->input(1).shape(), /*may_be_unknown=*/true, &apply->tables));
    apply->counts = counts.NumElements() == 0 ? nullptr : counts.flat<int64_t>().data();
    return rule_.FindSlots(table, 0, &apply->request);
  }

  ApplyRule rule_;
};

REGISTER_KERNEL_BUILDER(Name("MultitierHbmGroupLookupGrad").Device(tensorflow::DEVICE_GPU).HostMemory("plan"),
                        DeviceGroupLookupGradKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierHbmGroupApply")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("handles")
                            .HostMemory("plan")
                            .HostMemory("global_step")
                            .HostMemory("hyper"),
                        DeviceGroupApplyKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierApply")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("handle")
                            .HostMemory("global_step")
                            .HostMemory("hyper")
                            .HostMemory("tables"),
                        DeviceApplyKernel);

}  // namespace
}  // namespace multitier
