// The kernels for GPUs of lookups in one variable. Keys and values stay in the GPU's memory; the engine's operations on device
// memory do the work (hbm/device_operations.h). The ops are asynchronous: no thread of TensorFlow waits for the GPU, or for
// rows that are not in HBM.

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/device/device_call.h"
#include "cc/tensorflow/lookup/lookup_inputs.h"
#include "cc/tensorflow/variable/embedding_variable.h"

namespace multitier {
namespace {

// An op with one handle, which looks up one member without a plan.
class DeviceReadKernel : public AsyncOpKernel {
 public:
  explicit DeviceReadKernel(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, ReadForAttr(context, &reason_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) final {
    auto call = std::make_shared<DeviceCall>(context, std::move(done));
    hbm::DeviceMember member;
    const absl::Status parsed = Start(context, call.get(), &member);
    if (!parsed.ok()) return call->End(parsed);
    hbm::LookupOnDevice(Span<const hbm::DeviceMember>(&member, 1), nullptr, call->stream()->get(), DeviceCall::Finisher(call));
  }

 private:
  absl::Status Start(OpKernelContext* context, DeviceCall* call, hbm::DeviceMember* member) const {
    std::shared_ptr<VariableState> state;
    TF_RETURN_IF_ERROR(GetState(context, 0, &state));
    const EmbeddingTable& table = *state->table;
    TF_RETURN_IF_ERROR(call->Add(std::move(state), &member->table));
    member->name = absl::StrCat("embedding variable '", table.options().name, "'");
    member->reason = reason_;
    member->keys = KeysOf(context->input(1));
    return Parse(context, table, member);
  }

  // Reads the other inputs, and allocates the output.
  virtual absl::Status Parse(OpKernelContext* context, const EmbeddingTable& table, hbm::DeviceMember* member) const = 0;

  ReadFor reason_ = ReadFor::kTraining;
};

class DeviceLookupKernel : public DeviceReadKernel {
 public:
  using DeviceReadKernel::DeviceReadKernel;

 private:
  absl::Status Parse(OpKernelContext* context, const EmbeddingTable& table, hbm::DeviceMember* member) const override {
    TensorShape shape = context->input(1).shape();
    TF_RETURN_IF_ERROR(TakeTables(context, table, 2, shape, /*may_be_unknown=*/false, &member->tables));
    TF_RETURN_IF_ERROR(shape.AddDimWithStatus(table.dim()));
    Tensor* out = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &out));
    member->batch = member->keys.n;
    member->out = out->flat<float>().data();
    return absl::OkStatus();
  }
};

class DeviceLookupSparseKernel : public DeviceReadKernel {
 public:
  explicit DeviceLookupSparseKernel(OpKernelConstruction* context) : DeviceReadKernel(context) {
    OP_REQUIRES_OK(context, CheckOneHandle(context, "MultitierLookupSparse"));
    OP_REQUIRES_OK(context, attrs_.Init(context));
  }

 private:
  absl::Status Parse(OpKernelContext* context, const EmbeddingTable& table, hbm::DeviceMember* member) const override {
    const Tensor& indices = context->input(2);
    const Tensor& weights = context->input(3);
    TF_RETURN_IF_ERROR(CheckPooledInputs(context, table, context->input(1), indices, weights, attrs_.has_weights, attrs_.dim));
    Tensor* out = nullptr;
    TF_RETURN_IF_ERROR(AllocatePooled(context, context->input(4), attrs_.dim, &out));
    member->batch = out->dim_size(0);
    member->form = hbm::EntryForm::kRows;
    member->indices = indices.flat<int64_t>().data();
    member->weights = attrs_.has_weights ? weights.flat<float>().data() : nullptr;
    member->combiner = PoolCombinerOf(attrs_.combiner);
    member->max_norm = attrs_.max_norm;
    member->out = out->flat<float>().data();
    return absl::OkStatus();
  }

  PooledAttrs attrs_;
};

REGISTER_KERNEL_BUILDER(Name("MultitierLookup").Device(tensorflow::DEVICE_GPU).HostMemory("handle").HostMemory("tables"),
                        DeviceLookupKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierLookupSparse").Device(tensorflow::DEVICE_GPU).HostMemory("handles").HostMemory("batch"),
                        DeviceLookupSparseKernel);

}  // namespace
}  // namespace multitier
