// Updates of the members of a plan: one upload, their sums in one set of launches, then one launch for the rows of all tables
// with one rule.

#include <utility>

#include "cc/hbm/rule_launch.h"

namespace multitier::hbm {
namespace {

using Kept = HbmTable::KeptUpdate;

// Updates whose rows are where the plan says, and their memory.
struct KeptUpdates {
  std::vector<std::shared_ptr<Kept>> updates;
  std::shared_ptr<Scratch> scratch;
  uint32_t* created = nullptr;  // pinned [updates]
};

// Counts the created rows once the device has done the updates.
void SettleLater(DeviceQueue* queue, KeptUpdates kept) {
  struct Launched {
    HbmTable* table;
    uint64_t number;
    const uint32_t* created;
  };
  std::vector<Launched> launched;
  for (size_t i = 0; i < kept.updates.size(); ++i) {
    Kept* const one = kept.updates[i].get();
    if (one->creates()) launched.push_back({one->table(), one->Launched(), kept.created + i});
  }
  queue->SettleLater([launched = std::move(launched), scratch = std::move(kept.scratch)](const Status& done) mutable {
    if (!done.ok()) scratch->Bury();
    std::vector<uint32_t> created;
    for (const Launched& one : launched) created.push_back(done.ok() ? *one.created : 0);
    scratch = nullptr;
    for (size_t i = 0; i < launched.size(); ++i) Kept::Settle(launched[i].table, launched[i].number, done, created[i]);
  });
}

}  // namespace

Status DevicePlan::State::EnqueueUpdates(const std::vector<DeviceUpdate>& updates, Left* left) {
  std::vector<const DeviceUpdate*> with_keys;
  std::vector<const float*> sums;
  std::vector<device::GradientMember> gradients;
  for (const DeviceUpdate& update : updates) {
    const Member& member = members[static_cast<size_t>(update.member)];
    HbmTable* const table = member.output->table();
    const auto distinct = static_cast<size_t>(member.distinct());
    if (distinct == 0) {  // the table below counts it, which may wait for a gate
      left->remaining.push_back(Remaining{table, DeviceKeys(), {}, update.request, nullptr});
      continue;
    }
    with_keys.push_back(&update);
    sums.push_back(update.sums);
    if (update.sums != nullptr) continue;
    auto* const own_sums = scratch->OnDevice<float>(distinct * static_cast<size_t>(table->dim()));
    MT_RETURN_IF_ERROR(scratch->status());
    sums.back() = own_sums;
    gradients.emplace_back();
    DeviceGradient gradient;
    gradient.member = update.member;
    gradient.grad = update.grad;
    gradient.stride = update.stride;
    gradient.sums = own_sums;
    MT_RETURN_IF_ERROR(Describe(gradient, &gradients.back()));
  }
  return with_keys.empty() ? OkStatus() : EnqueueKept(with_keys, sums, gradients, left);
}

Status DevicePlan::State::Remain(const Member& member, const ApplyRequest& request, const float* sums,
                                 std::vector<Remaining>* remaining) {
  HbmTable* const table = member.output->table();
  const auto distinct = static_cast<uint32_t>(member.distinct());
  auto* const counts = member.op->scratch.OnDevice<int64_t>(distinct);
  MT_RETURN_IF_ERROR(member.op->scratch.status());
  const auto* const narrow = reinterpret_cast<const int32_t*>(member.op->dedup.counts);
  MT_RETURN_IF_ERROR(table->device()->kernels().widen(table->queue()->stream(), device::WidenArgs{narrow, counts, distinct}));
  remaining->push_back(Remaining{table, DeviceKeys{member.op->dedup.distinct, distinct},
                                 HbmTable::BatchGrads{sums, counts, true}, request, member.op});
  return OkStatus();
}

Status DevicePlan::State::EnqueueKept(const std::vector<const DeviceUpdate*>& updates, const std::vector<const float*>& sums,
                                      const std::vector<device::GradientMember>& gradients, Left* left) {
  HbmTable* const table = members[static_cast<size_t>(updates[0]->member)].output->table();
  DeviceQueue* const queue = table->queue();
  device::Device* const device = table->device();
  const device::DeviceKernels& kernels = device->kernels();
  KeptUpdates kept;
  kept.scratch = table->NewScratch();
  kept.created = kept.scratch->Pinned<uint32_t>(updates.size());
  Upload upload(queue, kept.scratch.get(), GradientGroup::Room(gradients.size()) + RoomOfUpdates(updates.size()));
  MT_RETURN_IF_ERROR(upload.status());
  uint32_t* const created = upload.Add(std::vector<uint32_t>(updates.size(), 0));
  GradientGroup backward;
  MT_RETURN_IF_ERROR(backward.Describe(gradients, /*given_values=*/false, &upload));
  Status first;
  std::vector<size_t> others;
  std::vector<Filtered> filtered;
  for (size_t i = 0; i < updates.size(); ++i) {
    const Member& member = members[static_cast<size_t>(updates[i]->member)];
    if (!member.op->absent.empty()) {
      filtered.push_back(Filtered{&member, sums[i], updates[i]->request});
      continue;
    }
    Result<std::shared_ptr<Kept>> begun = member.output->table()->BeginUpdate(member.op, updates[i]->request);
    if (begun.ok() && *begun != nullptr) {
      (*begun)->args.sums = sums[i];
      (*begun)->args.counts = member.op->dedup.counts;
      (*begun)->args.created = created + kept.updates.size();
      kept.updates.push_back(*std::move(begun));
    } else if (begun.ok()) {
      others.push_back(i);
    }
    if (first.ok()) first = begun.status();
  }
  const std::vector<RuleLaunch> launches = DescribeByRule(kept.updates, &upload);
  MT_RETURN_IF_ERROR(Repeated([&] { return upload.Send(); }));
  MT_RETURN_IF_ERROR(Repeated([&] { return backward.Enqueue(queue->stream(), kernels); }));
  left->filtered = std::move(filtered);  // their sums are enqueued
  for (const size_t i : others) {
    const Member& member = members[static_cast<size_t>(updates[i]->member)];
    const Status status = Remain(member, updates[i]->request, sums[i], &left->remaining);
    if (first.ok()) first = status;
  }
  EnqueueByRule(queue, kernels, launches);
  bool creates = false;
  for (const auto& one : kept.updates) creates = creates || one->creates();
  const Status copied = Repeated([&] {
    return device->Copy(queue->stream(), kept.created, created, creates ? kept.updates.size() * sizeof(uint32_t) : 0);
  });
  for (const auto& one : kept.updates) {
    if (!copied.ok()) one->Note(copied);
    if (first.ok()) first = one->table()->Check();
  }
  if (creates) SettleLater(queue, std::move(kept));
  return first;
}

}  // namespace multitier::hbm
