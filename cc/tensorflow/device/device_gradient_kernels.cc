// The kernels for GPUs of the gradient of a pooled lookup in one variable, and of clipping: values and gradients stay in the
// GPU's memory. The ops are asynchronous: no thread of TensorFlow waits for the GPU.

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/device/device_call.h"
#include "cc/tensorflow/lookup/lookup_inputs.h"
#include "cc/tensorflow/variable/embedding_variable.h"

namespace multitier {
namespace {

class DeviceLookupSparseGradKernel : public AsyncOpKernel {
 public:
  explicit DeviceLookupSparseGradKernel(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, CheckOneHandle(context, "MultitierLookupSparseGrad"));
    OP_REQUIRES_OK(context, attrs_.Init(context));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto call = std::make_shared<DeviceCall>(context, std::move(done));
    auto gradient = std::make_shared<Gradient>();
    const absl::Status parsed = Parse(context, call.get(), gradient.get());
    if (!parsed.ok()) return call->End(parsed);
    if (gradient->read.out == nullptr) return Run(std::move(gradient), std::move(call), OkStatus());
    const device::Stream stream = call->stream()->get();
    const hbm::DeviceMember read = gradient->read;
    hbm::LookupOnDevice(Span<const hbm::DeviceMember>(&read, 1), nullptr, stream,
                        [gradient = std::move(gradient), call = std::move(call)](Status status) mutable {
                          Run(std::move(gradient), std::move(call), std::move(status));
                        });
  }

 private:
  struct Gradient {
    hbm::DeviceValues values;
    Tensor memory;           // of the values, where they are needed
    hbm::DeviceMember read;  // reads them; out is null where they are not needed
    const float* grad = nullptr;
    float *entry_grads = nullptr, *weight_grads = nullptr;
  };

  absl::Status Parse(OpKernelContext* context, DeviceCall* call, Gradient* gradient) const {
    std::shared_ptr<VariableState> state;
    TF_RETURN_IF_ERROR(GetState(context, 0, &state));
    const EmbeddingTable& table = *state->table;
    hbm::DeviceValues& values = gradient->values;
    TF_RETURN_IF_ERROR(call->Add(std::move(state), &values.table));
    const Tensor &keys = context->input(1), &indices = context->input(2), &weights = context->input(3);
    TF_RETURN_IF_ERROR(CheckPooledInputs(context, table, keys, indices, weights, attrs_.has_weights, attrs_.dim));
    TF_RETURN_IF_ERROR(CheckPooledGrad(context, 4, attrs_.dim));
    const int64_t n = keys.NumElements();
    values.name = absl::StrCat("embedding variable '", table.options().name, "'");
    values.entries = n;
    values.max_norm = attrs_.max_norm;
    values.indices = indices.flat<int64_t>().data();
    values.weights = attrs_.has_weights ? weights.flat<float>().data() : nullptr;
    values.batch = context->input(4).dim_size(0);
    values.combiner = PoolCombinerOf(attrs_.combiner);
    gradient->grad = context->input(4).flat<float>().data();
    TF_RETURN_IF_ERROR(AllocateEntryGradients(context, attrs_, n, &gradient->entry_grads, &gradient->weight_grads));
    if (n == 0 || (attrs_.max_norm < 0 && gradient->weight_grads == nullptr)) return absl::OkStatus();
    TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_FLOAT, TensorShape({n, attrs_.dim}), &gradient->memory));
    values.values = gradient->memory.flat<float>().data();
    hbm::DeviceMember& read = gradient->read;
    read.table = values.table;
    read.name = values.name;
    read.reason = attrs_.reason;
    read.keys = KeysOf(keys);
    read.batch = n;
    read.out = gradient->memory.flat<float>().data();
    return absl::OkStatus();
  }

  // read: of the values.
  static void Run(std::shared_ptr<Gradient> gradient, std::shared_ptr<DeviceCall> call, Status read) {
    const device::Stream stream = call->stream()->get();
    hbm::Done finish = DeviceCall::Finisher(std::move(call));
    if (!read.ok()) return finish(std::move(read));
    const Gradient& g = *gradient;
    hbm::EntryGradientsOnDevice(g.values, g.grad, g.entry_grads, g.weight_grads, stream,
                                [gradient, finish = std::move(finish)](Status status) mutable {
                                  gradient.reset();
                                  finish(std::move(status));
                                });
  }

  PooledAttrs attrs_;
};

template <bool kGradient>
class DeviceClipByNormKernel : public AsyncOpKernel {
 public:
  explicit DeviceClipByNormKernel(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("max_norm", &max_norm_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto call = std::make_shared<DeviceCall>(context, std::move(done));
    hbm::DeviceValues values;
    float* out = nullptr;
    const absl::Status parsed = Parse(context, call.get(), &values, &out);
    if (!parsed.ok()) return call->End(parsed);
    const device::Stream stream = call->stream()->get();
    if constexpr (kGradient) {
      const float* const grad = context->input(2).flat<float>().data();
      hbm::EntryGradientsOnDevice(values, grad, out, nullptr, stream, DeviceCall::Finisher(call));
    } else {
      hbm::ClipOnDevice(values, out, stream, DeviceCall::Finisher(call));
    }
  }

 private:
  absl::Status Parse(OpKernelContext* context, DeviceCall* call, hbm::DeviceValues* values, float** out) const {
    std::shared_ptr<VariableState> state;
    TF_RETURN_IF_ERROR(GetState(context, 0, &state));
    const EmbeddingTable& table = *state->table;
    TF_RETURN_IF_ERROR(call->Add(std::move(state), &values->table));
    int dim;
    TF_RETURN_IF_ERROR(CheckClipped(context, kGradient, &dim));
    if (dim != table.dim()) {
      return absl::InvalidArgumentError(absl::StrCat("values of embedding variable '", table.options().name, "': expected dim ",
                                                     table.dim(), ", found ", dim));
    }
    const Tensor& given = context->input(1);
    Tensor* allocated = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, given.shape(), &allocated));
    *out = allocated->flat<float>().data();
    values->name = absl::StrCat("embedding variable '", table.options().name, "'");
    values->values = given.flat<float>().data();
    values->entries = values->batch = given.NumElements() / dim;
    values->max_norm = max_norm_;
    return absl::OkStatus();
  }

  float max_norm_ = 0.0f;
};

REGISTER_KERNEL_BUILDER(Name("MultitierLookupSparseGrad").Device(tensorflow::DEVICE_GPU).HostMemory("handles"),
                        DeviceLookupSparseGradKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierHbmClipByNorm").Device(tensorflow::DEVICE_GPU).HostMemory("handle"),
                        DeviceClipByNormKernel<false>);
REGISTER_KERNEL_BUILDER(Name("MultitierHbmClipByNormGrad").Device(tensorflow::DEVICE_GPU).HostMemory("handle"),
                        DeviceClipByNormKernel<true>);

}  // namespace
}  // namespace multitier
