// The kernel for GPUs of the grouped lookup: keys, indices and weights in the GPU's memory -> values there, and a plan in host
// memory (device_plan.h).
//
// The host reads the row splits of ragged sequences, for the number of steps of the output. A thread of the engine waits for
// them.

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/group_lookup/group_lookup.h"
#include "cc/hbm/hbm_table.h"
#include "cc/hbm/workers.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/device/device_call.h"
#include "cc/tensorflow/device/device_plan.h"
#include "cc/tensorflow/lookup/group_specs.h"
#include "cc/tensorflow/lookup/lookup_inputs.h"
#include "cc/tensorflow/variable/embedding_variable.h"

namespace multitier {
namespace {

using hbm::DeviceMember;

// The longest row of row splits in device memory. Waits for them.
absl::Status ReadSteps(const OpStream& stream, const MemberSpec& spec, const Tensor& splits, DeviceMember* member) {
  device::Device* const device = stream.device();
  const auto n = static_cast<size_t>(splits.NumElements());
  const std::shared_ptr<hbm::Scratch> scratch = member->table->NewScratch();
  auto* const read = scratch->Pinned<int64_t>(n);
  TF_RETURN_IF_ERROR(ToAbsl(scratch->status()));
  const Status copied = device->Copy(stream.get(), read, splits.flat<int64_t>().data(), n * sizeof(int64_t));
  const Status done = device->Synchronize(stream.get());
  if (!done.ok()) scratch->Bury();
  TF_RETURN_IF_ERROR(ToAbsl(copied.ok() ? done : copied));
  const Result<int64_t> steps = RaggedSteps(spec.name, Span<const int64_t>(read, n), static_cast<size_t>(member->keys.n));
  if (steps.ok()) member->steps = *steps;
  return ToAbsl(steps.status());
}

class DeviceGroupLookupKernel : public AsyncOpKernel {
 public:
  explicit DeviceGroupLookupKernel(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, ReadMemberSpecs(context, &specs_));
    OP_REQUIRES_OK(context, ReadForAttr(context, &reason_));
    for (const MemberSpec& spec : specs_) {
      OP_REQUIRES(context, spec.source == MemberSource::kTable && spec.units == 1,
                  absl::UnimplementedError(
                      absl::StrCat("group lookup on a GPU, ", spec.name, ": expected an embedding variable of one part")));
      num_indices_ += spec.form != GroupForm::kDense;
      num_shapes_ += spec.has_shape();
      reads_splits_ = reads_splits_ || spec.form == GroupForm::kRaggedSequence;
    }
    OP_REQUIRES_OK(context, GetJoins(context, specs_.size(), context->num_outputs() - 1, &joins_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto call = std::make_shared<Call>(context, std::move(done), specs_.size());
    const absl::Status found = FindTables(context, call.get());
    if (!found.ok()) return call->running->End(found);
    if (!reads_splits_) return Run(context, std::move(call));
    hbm::RunOnWorker([this, context, call = std::move(call)]() mutable { Run(context, std::move(call)); });
  }

 private:
  struct Call {
    Call(OpKernelContext* context, DoneCallback done, size_t n)
        : running(std::make_shared<DeviceCall>(context, std::move(done))), members(n) {}
    std::shared_ptr<DeviceCall> running;
    std::vector<DeviceMember> members;
    std::shared_ptr<KeptDevicePlan> kept = std::make_shared<KeptDevicePlan>();
  };

  absl::Status FindTables(OpKernelContext* context, Call* call) const {
    for (size_t i = 0; i < specs_.size(); ++i) {
      std::shared_ptr<VariableState> state;
      TF_RETURN_IF_ERROR(GetState(context, static_cast<int>(i), &state));
      const int dim = state->table->dim();
      TF_RETURN_IF_ERROR(call->running->Add(std::move(state), &call->members[i].table));
      if (dim == specs_[i].dim) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "group lookup, ", specs_[i].name, ": expected an embedding variable of dim ", specs_[i].dim, ", found dim ", dim));
    }
    return absl::OkStatus();
  }

  void Run(OpKernelContext* context, std::shared_ptr<Call> call) const {
    std::shared_ptr<DeviceCall> running = std::move(call->running);
    const absl::Status parsed = Parse(context, *running->stream(), call.get());
    if (!parsed.ok()) return running->End(parsed);
    const int plan_output = static_cast<int>(joins_.size());
    const device::Stream stream = running->stream()->get();
    std::shared_ptr<KeptDevicePlan> kept = std::move(call->kept);
    if (!context->output_required(plan_output)) {
      return hbm::LookupOnDevice(call->members, nullptr, stream, DeviceCall::Finisher(std::move(running)));
    }
    kept->states = running->states();
    hbm::DevicePlan* const plan = &kept->plan;
    hbm::LookupOnDevice(call->members, plan, stream,
                        [context, plan_output, kept = std::move(kept),
                         finish = DeviceCall::Finisher(std::move(running))](Status status) mutable {
                          Tensor* out = nullptr;
                          if (status.ok()) status = FromAbsl(context->allocate_output(plan_output, TensorShape({}), &out));
                          if (status.ok()) out->scalar<tensorflow::Variant>()() = DevicePlanVariant(std::move(kept));
                          kept.reset();
                          finish(status);
                        });
  }

  absl::Status Parse(OpKernelContext* context, const OpStream& stream, Call* call) const {
    const size_t n = specs_.size();
    int keys = static_cast<int>(n), indices = 2 * keys, shape = indices + num_indices_, weights = shape + num_shapes_;
    std::vector<TensorShape> shapes(n);
    for (size_t i = 0; i < n; ++i) {
      const MemberSpec& spec = specs_[i];
      DeviceMember* const member = &call->members[i];
      const Tensor& given = context->input(keys++);
      member->name = absl::StrCat("group lookup, ", spec.name);
      member->reason = reason_;
      member->keys = KeysOf(given);
      member->combiner = PoolCombinerOf(spec.combiner);
      member->max_norm = spec.max_norm;
      member->sequence = spec.is_sequence();
      call->kept->inputs.push_back(given);
      call->kept->weighted.push_back(spec.weighted);
      if (spec.weighted) {
        const Tensor& its = context->input(weights++);
        TF_RETURN_IF_ERROR(CheckMemberWeights(spec, given, its));
        member->weights = its.flat<float>().data();
        call->kept->inputs.push_back(its);
      }
      if (spec.form != GroupForm::kDense) {
        call->kept->inputs.push_back(context->input(indices));
        const Tensor* const dense = spec.has_shape() ? &context->input(shape++) : nullptr;
        TF_RETURN_IF_ERROR(Rows(stream, spec, given, context->input(indices++), dense, member));
        TF_RETURN_IF_ERROR(ShapeOfRows(spec, member->batch, member->steps, &shapes[i]));
      } else {
        member->batch = given.NumElements();
        shapes[i] = given.shape();
        TF_RETURN_IF_ERROR(shapes[i].AddDimWithStatus(spec.dim));
      }
    }
    return AllocateValues(context, specs_, joins_, shapes, &call->members);
  }

  // The rows of a member that is not dense. dense: the dense shape, of a sparse one.
  static absl::Status Rows(const OpStream& stream, const MemberSpec& spec, const Tensor& keys, const Tensor& rows,
                           const Tensor* dense, DeviceMember* member) {
    TF_RETURN_IF_ERROR(CheckRows(spec, keys, rows, dense));
    member->indices = rows.flat<int64_t>().data();
    if (spec.is_ragged()) {
      member->form = hbm::EntryForm::kRagged;
      member->batch = rows.NumElements() - 1;
      return spec.is_sequence() ? ReadSteps(stream, spec, rows, member) : absl::OkStatus();
    }
    if (rows.dim_size(0) != keys.NumElements()) {
      return RefuseMember(spec, absl::StrCat("indices [", keys.NumElements(), ", 2]"), rows);
    }
    member->form = hbm::EntryForm::kSparse;
    member->batch = dense->flat<int64_t>()(0);
    if (spec.is_sequence()) member->steps = dense->flat<int64_t>()(1);
    return absl::OkStatus();
  }

  std::vector<MemberSpec> specs_;
  std::vector<int> joins_;  // members of each output
  ReadFor reason_ = ReadFor::kTraining;
  int num_indices_ = 0, num_shapes_ = 0;
  bool reads_splits_ = false;
};

REGISTER_KERNEL_BUILDER(Name("MultitierHbmGroupLookup")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("handles")
                            .HostMemory("shapes")
                            .HostMemory("plan"),
                        DeviceGroupLookupKernel);

}  // namespace
}  // namespace multitier
