// Clipping and pooling of values that are given: the kernels of a lookup, without a lookup.

#include <memory>
#include <optional>
#include <utility>

#include "cc/hbm/device_operations.h"
#include "cc/hbm/device_plan.h"
#include "cc/hbm/workers.h"

namespace multitier::hbm {
namespace {

// The values as a member: each entry is a key of its own.
DeviceMember MemberOf(const DeviceValues& values, float* out) {
  DeviceMember member;
  member.table = values.table;
  member.name = values.name;
  member.keys.n = values.entries;
  member.form = values.indices != nullptr ? EntryForm::kRows : EntryForm::kDense;
  member.indices = values.indices;
  member.weights = values.weights;
  member.batch = values.batch;
  member.combiner = values.combiner;
  member.max_norm = values.max_norm;
  member.out = out;
  return member;
}

struct Gradients {
  const float* grad;
  float* entry_grads;
  float* weight_grads;
};

class GivenValues {
 public:
  GivenValues(const DeviceValues& values, float* out)
      : values_(values.values),
        output_(MemberOf(values, out)),
        queue_(values.table->queue()),
        device_(values.table->device()),
        scratch_(values.table->NewScratch()) {}

  Status Validate() const { return output_.Validate(); }
  DeviceQueue* queue() const { return queue_; }

  // gradients: null for the values. Waits for the device, which checks the rows.
  Status Run(const Gradients* gradients) {
    auto* const bad = scratch_->Pinned<uint32_t>(1);
    auto* const bad_on_device = scratch_->OnDevice<uint32_t>(1);
    Upload upload(queue_, scratch_.get(), OutputGroup::Room(1) + GradientGroup::Room(1));
    MT_RETURN_IF_ERROR(upload.status());
    MT_RETURN_IF_ERROR(Describe(gradients, bad_on_device, &upload));
    Status status;
    {
      MutexLock lock(queue_->enqueue());
      status = Enqueue(gradients, bad_on_device, upload);
      if (status.ok()) status = device_->Copy(queue_->stream(), bad, bad_on_device, sizeof(uint32_t));
    }
    const Status done = device_->Synchronize(queue_->stream());
    if (!done.ok()) scratch_->Bury();
    if (status.ok()) status = done;
    return status.ok() ? output_.Check(*bad) : status;
  }

 private:
  Status Describe(const Gradients* gradients, uint32_t* bad, Upload* upload) {
    MemberOutput::Keys keys{};
    keys.first_bad = bad;
    keys.n = static_cast<uint32_t>(output_.keys().n);
    keys.values = values_;
    MT_RETURN_IF_ERROR(output_.Describe(keys, /*training=*/false, scratch_.get()));
    MT_RETURN_IF_ERROR(group_.Describe({&output_}, /*brought_up=*/false, upload));
    return gradients == nullptr ? OkStatus() : backward_.Describe({Described(*gradients)}, /*given_values=*/true, upload);
  }

  Status Enqueue(const Gradients* gradients, uint32_t* bad, const Upload& upload) {
    MT_RETURN_IF_ERROR(device_->Fill(queue_->stream(), bad, 0xff, sizeof(uint32_t)));
    MT_RETURN_IF_ERROR(upload.Send());
    MT_RETURN_IF_ERROR(group_.EnqueueRows());
    if (gradients == nullptr) return group_.EnqueueValues();
    MT_RETURN_IF_ERROR(group_.EnqueueScales());
    return backward_.Enqueue(queue_->stream(), device_->kernels());
  }

  device::GradientMember Described(const Gradients& gradients) const {
    device::GradientMember g{};
    g.output = output_.described();
    g.num_keys = g.output.entries;
    g.grads = gradients.grad;
    g.stride = g.output.dim;
    g.sums = gradients.entry_grads;
    g.weight_grads = gradients.weight_grads;
    return g;
  }

  const float* const values_;
  MemberOutput output_;
  OutputGroup group_;
  GradientGroup backward_;
  DeviceQueue* const queue_;
  device::Device* const device_;
  const std::shared_ptr<Scratch> scratch_;
};

void RunBehind(std::shared_ptr<GivenValues> given, std::optional<Gradients> gradients, device::Stream stream, Done done) {
  Status status = given->Validate();
  if (status.ok()) status = given->queue()->Follow(stream);
  if (!status.ok()) return done(status);
  RunOnWorker([given = std::move(given), gradients, stream, done = std::move(done)]() mutable {
    DeviceQueue* const queue = given->queue();
    Status status = given->Run(gradients ? &*gradients : nullptr);
    const Status ordered = queue->Precede(stream);
    if (status.ok()) status = ordered;
    given.reset();  // the caller may end the table in `done`
    done(status);
  });
}

}  // namespace

void ClipOnDevice(const DeviceValues& values, float* out, device::Stream stream, Done done) {
  if (const Status status = values.table->Check(); !status.ok()) return done(status);
  if (values.entries == 0) return done(OkStatus());
  RunBehind(std::make_shared<GivenValues>(values, out), std::nullopt, stream, std::move(done));
}

void EntryGradientsOnDevice(const DeviceValues& values, const float* grad, float* entry_grads, float* weight_grads,
                            device::Stream stream, Done done) {
  if (const Status status = values.table->Check(); !status.ok()) return done(status);
  if (values.entries == 0) return done(OkStatus());
  if (weight_grads != nullptr && values.weights == nullptr) {
    return done(InvalidArgumentError(values.name, ": gradient of weights: expected weights, found none"));
  }
  RunBehind(std::make_shared<GivenValues>(values, nullptr), Gradients{grad, entry_grads, weight_grads}, stream,
            std::move(done));
}

}  // namespace multitier::hbm
