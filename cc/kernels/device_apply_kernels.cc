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
#include "cc/kernels/apply_rule.h"
#include "cc/kernels/device_call.h"
#include "cc/kernels/device_plan.h"
#include "cc/kernels/embedding_variable.h"
#include "cc/kernels/group_specs.h"
#include "cc/kernels/op_kernel.h"
#include "cc/kernels/status_bridge.h"

namespace multitier {
namespace {

class DeviceGroupLookupGradKernel : public AsyncOpKernel {
 public:
  explicit DeviceGroupLookupGradKernel(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, inputs_.Init(context, context->num_inputs() - 1));
    OP_REQUIRES_OK(context, context->GetAttr("units", &units_));
    OP_REQUIRES_OK(context, context->GetAttr("weighted", &weighted_));
    OP_REQUIRES_OK(context, context->GetAttr("U", &num_units_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto call = std::make_shared<DeviceCall>(context, std::move(done));
    std::shared_ptr<KeptDevicePlan> kept;
    const absl::Status found = GetDevicePlan(context, 0, &kept);
    if (!found.ok()) return call->End(found);
    KeptDevicePlan* const plan = kept.get();
    plan->Use([this, context, call = std::move(call), kept = std::move(kept)]() mutable {
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
    TF_RETURN_IF_ERROR(inputs_.Point(context, 1, ValuesOf(plan), &grads, &strides));
    std::vector<hbm::DeviceGradient> wanted;
    int weights_out = 3 * num_units_;
    for (size_t g = 0; g < inputs_.members().size(); ++g) {
      const int member = inputs_.members()[g], out = static_cast<int>(g);
      if (units_[g] != 1) {
        return absl::InvalidArgumentError(absl::StrCat("gradient of member ", member, ": expected 1 parts, found ", units_[g]));
      }
      const int64_t distinct = plan.distinct(member);
      hbm::DeviceGradient gradient;
      gradient.member = member;
      gradient.grad = grads[static_cast<size_t>(member)];
      gradient.stride = strides[static_cast<size_t>(member)];
      TF_RETURN_IF_ERROR(Give(context, out, TensorShape({distinct}), &gradient.keys));
      TF_RETURN_IF_ERROR(Give(context, num_units_ + out, TensorShape({distinct, plan.table(member)->dim()}), &gradient.sums));
      TF_RETURN_IF_ERROR(Give(context, 2 * num_units_ + out, TensorShape({distinct}), &gradient.counts));
      if (weighted_[g]) {
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

  GradientInputs inputs_;
  std::vector<int> units_;
  std::vector<bool> weighted_;
  int num_units_ = 0;
};

class DeviceGroupApplyKernel : public AsyncOpKernel {
 public:
  explicit DeviceGroupApplyKernel(OpKernelConstruction* context) : AsyncOpKernel(context) {
    int num_sums, num_grads;
    OP_REQUIRES_OK(context, context->GetAttr("units", &units_));
    OP_REQUIRES_OK(context, context->GetAttr("summed", &summed_));
    OP_REQUIRES_OK(context, context->GetAttr("S", &num_sums));
    OP_REQUIRES_OK(context, context->GetAttr("G", &num_grads));
    OP_REQUIRES_OK(context, inputs_.Init(context, num_grads));
    OP_REQUIRES_OK(context, rule_.Init(context, units_.size()));
    plan_input_ = static_cast<int>(units_.size());
    grads_input_ = plan_input_ + 1 + num_sums;
    step_input_ = grads_input_ + num_grads;
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto call = std::make_shared<DeviceCall>(context, std::move(done));
    std::shared_ptr<KeptDevicePlan> kept;
    const absl::Status found = GetDevicePlan(context, plan_input_, &kept);
    if (!found.ok()) return call->End(found);
    KeptDevicePlan* const plan = kept.get();
    plan->Use([this, context, call = std::move(call), kept = std::move(kept)]() mutable {
      std::vector<hbm::DeviceUpdate> updates(units_.size());
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
    TF_RETURN_IF_ERROR(inputs_.Point(context, grads_input_, ValuesOf(plan), &grads, &strides));
    int sums = plan_input_ + 1;
    for (size_t i = 0; i < units_.size(); ++i) {
      std::shared_ptr<VariableState> state;
      TF_RETURN_IF_ERROR(GetStateToChange(context, static_cast<int>(i), &state));
      const EmbeddingTable& table = *state->table;
      hbm::HbmTable* its = nullptr;
      TF_RETURN_IF_ERROR(call->Add(std::move(state), &its));
      hbm::DeviceUpdate& update = (*updates)[i];
      const int unit = update.member = units_[i];
      TF_RETURN_IF_ERROR(rule_.ParseStep(context, step_input_, table, i, &update.request));
      if (unit < 0 || unit >= plan.num_members() || plan.table(unit) != its) {
        return absl::InvalidArgumentError(absl::StrCat("apply to embedding variable '", table.options().name,
                                                       "': expected its part, below ", plan.num_members(), ", found ", unit));
      }
      if (summed_[i]) {
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
    for (size_t i = 0; i < units_.size(); ++i) {
      TF_RETURN_IF_ERROR(rule_.FindSlots(call->states()[i]->table.get(), i, &(*updates)[i].request));
    }
    return absl::OkStatus();
  }

  ApplyRule rule_;
  GradientInputs inputs_;
  std::vector<int> units_;
  std::vector<bool> summed_;
  int plan_input_ = 0, grads_input_ = 0, step_input_ = 0;
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
    const Tensor& keys = context->input(1);
    const Tensor& counts = context->input(3);
    TF_RETURN_IF_ERROR(CheckRank(context, "keys", keys, 1));
    TF_RETURN_IF_ERROR(CheckRank(context, "counts", counts, 1));
    const auto n = static_cast<size_t>(keys.NumElements());
    TF_RETURN_IF_ERROR(ApplyRule::ParseGradients(context, 2, *table, n, &apply->grads));
    TF_RETURN_IF_ERROR(rule_.ParseStep(context, 4, *table, 0, &apply->request));
    TF_RETURN_IF_ERROR(ApplyRule::CheckShapeOfCounts(*table, keys, counts));
    apply->keys = KeysOf(keys);
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
REGISTER_KERNEL_BUILDER(
    Name("MultitierApply").Device(tensorflow::DEVICE_GPU).HostMemory("handle").HostMemory("global_step").HostMemory("hyper"),
    DeviceApplyKernel);

}  // namespace
}  // namespace multitier
