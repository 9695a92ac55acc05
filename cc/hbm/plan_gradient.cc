// Gradients of the members of a plan: one sort for a group, then one launch for each step.

#include <algorithm>

#include "cc/hbm/device_plan.h"
#include "cc/hbm/member_launch.h"

namespace multitier::hbm {

Status DevicePlan::State::Sort(Member* member) {
  Batch& batch = *member->batch;
  if (batch.sorted != nullptr) return OkStatus();
  HbmTable* const table = member->output->table();
  device::Device* const device = table->device();
  const device::Stream stream = table->queue()->stream();
  auto* const sorted = scratch->OnDevice<uint64_t>(batch.n);
  auto* const sort_scratch = scratch->OnDevice<uint8_t>(device->SortScratchBytes(batch.n));
  batch.begins = scratch->OnDevice<uint32_t>(batch.distinct);
  MT_RETURN_IF_ERROR(scratch->status());
  int bits = 1;
  while (batch.distinct > uint64_t{1} << bits) ++bits;
  MT_RETURN_IF_ERROR(device->SortByUpper(stream, batch.entries, sorted, batch.n, bits, sort_scratch));
  MT_RETURN_IF_ERROR(device->kernels().begins(stream, device::BeginsArgs{sorted, batch.n, batch.begins}));
  batch.sorted = sorted;
  return OkStatus();
}

Status DevicePlan::State::Describe(const DeviceGradient& gradient, device::GradientMember* described) {
  Member& member = members[static_cast<size_t>(gradient.member)];
  MT_RETURN_IF_ERROR(Sort(&member));
  const HbmTable::Operation& op = *member.op;
  device::GradientMember& g = *described;
  g = device::GradientMember{};
  g.output = member.output->described();
  g.entries = member.batch->sorted;
  g.first_entry = member.first_entry;
  g.begins = member.batch->begins + member.first;
  g.counts = op.dedup.counts;
  g.keys = op.dedup.distinct;
  g.num_keys = op.counted->distinct;
  g.keys_out = gradient.keys;
  g.counts_out = gradient.counts;
  if (gradient.grad == nullptr) return OkStatus();
  g.grads = gradient.grad;
  g.stride = gradient.stride != 0 ? static_cast<uint32_t>(gradient.stride) : g.output.dim;
  g.sums = gradient.sums;
  g.weight_grads = gradient.weight_grads;
  const uint32_t pieces = g.sums != nullptr ? device::LaterPieces(g.output.entries) : 0;
  if (pieces > 0) g.pieces = scratch->OnDevice<float>(size_t{pieces} * g.output.dim);
  return scratch->status();
}

size_t GradientGroup::Room(size_t members) {
  return Upload::Room<device::GradientMember>(members) + 2 * Upload::Room<uint32_t>(members);
}

Status GradientGroup::Describe(const std::vector<device::GradientMember>& gradients, bool given_values, Upload* upload) {
  const device::GradientMember* const on_device = upload->Add(gradients);
  MT_RETURN_IF_ERROR(DescribeLaunch(upload, gradients, on_device, device::GradientItems, &sums_));
  MT_RETURN_IF_ERROR(DescribeLaunch(upload, gradients, on_device, device::CorrectionItems, &corrections_));
  sums_.given_values = given_values;
  for (const device::GradientMember& g : gradients) sums_.most_dim = std::max(sums_.most_dim, g.output.dim);
  return OkStatus();
}

Status GradientGroup::Enqueue(device::Stream stream, const device::DeviceKernels& kernels) const {
  if (sums_.items > 0) MT_RETURN_IF_ERROR(kernels.gradients(stream, sums_));
  return corrections_.items == 0 ? OkStatus() : kernels.corrections(stream, corrections_);
}

Status DevicePlan::State::EnqueueGradients(const std::vector<device::GradientMember>& gradients) {
  if (gradients.empty()) return OkStatus();
  HbmTable* const table = members[0].output->table();
  Upload upload(table->queue(), scratch.get(), GradientGroup::Room(gradients.size()));
  MT_RETURN_IF_ERROR(upload.status());
  GradientGroup group;
  MT_RETURN_IF_ERROR(group.Describe(gradients, /*given_values=*/false, &upload));
  MT_RETURN_IF_ERROR(upload.Send());
  return group.Enqueue(table->queue()->stream(), table->device()->kernels());
}

}  // namespace multitier::hbm
