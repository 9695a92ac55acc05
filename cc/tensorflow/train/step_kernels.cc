// Kernels of steps in flight: which scores updates that have begun may still write.
//
//   MultitierBeginStep(iterations, scores)  -> step     reads the variables; the step is in flight while its tensor lives
//   update ops                              <- step
//   MultitierLeastInFlight(iterations)      -> least    of the variable, and of what the steps in flight read of it
//
// A step ends when nothing holds its tensor any more: its updates have run, or failed. So a step that fails leaves nothing
// behind.

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"

namespace multitier {
namespace {

using VarPtr = tensorflow::core::RefCountPtr<tensorflow::Var>;

absl::Status Find(OpKernelContext* context, int input, VarPtr* variable) {
  TF_RETURN_IF_ERROR(tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, input), variable));
  const tensorflow::tf_shared_lock lock(*(*variable)->mu());
  const Tensor& value = *(*variable)->tensor();
  if (value.dtype() == tensorflow::DT_INT64 && value.dims() == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("variable ", input, ": expected an int64 scalar, found ", value.DebugString(0)));
}

int64_t ValueOf(tensorflow::Var* variable) {
  const tensorflow::tf_shared_lock lock(*variable->mu());
  return variable->tensor()->scalar<int64_t>()();
}

// What the steps in flight read, of every variable. Reading and noting are one action: no variable rises between them.
class StepsInFlight {
 public:
  static StepsInFlight* Get() {
    static auto* const steps = new StepsInFlight;
    return steps;
  }

  std::vector<int64_t> Begin(const std::vector<VarPtr>& variables) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<int64_t> values;
    for (const VarPtr& variable : variables) {
      values.push_back(ValueOf(variable.get()));
      read_[variable.get()].insert(values.back());
    }
    return values;
  }
  void End(const std::vector<VarPtr>& variables, const std::vector<int64_t>& values) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < variables.size(); ++i) {
      const auto its = read_.find(variables[i].get());
      its->second.erase(its->second.find(values[i]));
      if (its->second.empty()) read_.erase(its);
    }
  }
  int64_t Least(tensorflow::Var* variable) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t value = ValueOf(variable);
    const auto its = read_.find(variable);
    return its == read_.end() ? value : std::min(value, *its->second.begin());
  }

 private:
  std::mutex mutex_;
  std::map<tensorflow::Var*, std::multiset<int64_t>> read_;
};

// The buffer of a step's tensor: its life is that of the step.
class StepBuffer : public tensorflow::TensorBuffer {
 public:
  explicit StepBuffer(std::vector<VarPtr> variables)
      : TensorBuffer(&step_), variables_(std::move(variables)), values_(StepsInFlight::Get()->Begin(variables_)) {
    step_ = values_.front();
  }
  ~StepBuffer() override { StepsInFlight::Get()->End(variables_, values_); }

  size_t size() const override { return sizeof(step_); }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription* proto) const override {
    proto->set_requested_bytes(sizeof(step_));
  }
  // No op writes its result here.
  bool OwnsMemory() const override { return false; }

 private:
  alignas(EIGEN_MAX_ALIGN_BYTES) int64_t step_ = 0;
  const std::vector<VarPtr> variables_;
  const std::vector<int64_t> values_;
};

class BeginStepKernel : public OpKernel {
 public:
  explicit BeginStepKernel(OpKernelConstruction* context) : OpKernel(context) {}
  void Compute(OpKernelContext* context) override {
    std::vector<VarPtr> variables(static_cast<size_t>(context->num_inputs()));
    for (int i = 0; i < context->num_inputs(); ++i) {
      OP_REQUIRES_OK(context, Find(context, i, &variables[static_cast<size_t>(i)]));
    }
    const tensorflow::core::RefCountPtr<StepBuffer> buffer(new StepBuffer(std::move(variables)));
    context->set_output(0, Tensor(tensorflow::DT_INT64, {}, buffer.get()));
  }
};

class LeastInFlightKernel : public OpKernel {
 public:
  explicit LeastInFlightKernel(OpKernelConstruction* context) : OpKernel(context) {}
  void Compute(OpKernelContext* context) override {
    VarPtr variable;
    OP_REQUIRES_OK(context, Find(context, 0, &variable));
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &out));
    out->scalar<int64_t>()() = StepsInFlight::Get()->Least(variable.get());
  }
};

REGISTER_KERNEL_BUILDER(Name("MultitierBeginStep").Device(tensorflow::DEVICE_CPU), BeginStepKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierLeastInFlight").Device(tensorflow::DEVICE_CPU), LeastInFlightKernel);

}  // namespace
}  // namespace multitier
