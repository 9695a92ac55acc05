// Updates of the members of a plan: one upload, their sums in one set of launches, then one launch for the rows of all tables
// with one rule.

#include <map>
#include <utility>

#include "cc/hbm/device_plan.h"
#include "cc/hbm/kept_update.h"
#include "cc/hbm/workers.h"

namespace multitier::hbm {
namespace {

using Kept = HbmTable::KeptUpdate;

// Updates whose rows are where the plan says, and their memory.
struct KeptUpdates {
  std::vector<std::shared_ptr<Kept>> updates;
  std::shared_ptr<Scratch> scratch;
  uint32_t* created = nullptr;  // pinned [updates]
};

// Of one rule.
struct RuleLaunch {
  device::DeviceRule rule;
  device::UpdateMembersArgs args;
  std::vector<Kept*> updates;
};

// Of calls after which an operation cannot be undone, or whose tables have counted it.
template <typename Call>
Status Repeated(Call call) {
  Status status;
  for (int tries = 0; tries < HbmTable::kTries; ++tries) {
    status = call();
    if (status.ok()) break;
  }
  return status;
}

size_t RoomOfUpdates(size_t updates) {
  return Upload::Room<device::UpdateArgs>(updates) + (updates + 1) * Upload::Room<uint32_t>(1) +
         2 * Upload::Room<uint32_t>(updates);
}

// One launch for each rule, of tables that differ. A table that is there again is updated in a later launch: two updates of
// one row must not run at the same time.
std::vector<RuleLaunch> DescribeByRule(const std::vector<std::shared_ptr<Kept>>& kept, Upload* upload) {
  std::map<std::pair<int, device::DeviceRule>, std::vector<Kept*>> by_rule;
  std::map<const HbmTable*, int> before;  // updates of the table
  for (const auto& one : kept) by_rule[{before[one->table()]++, one->rule}].push_back(one.get());
  std::vector<device::UpdateArgs> args;
  for (const auto& [turn, updates] : by_rule) {
    for (const Kept* one : updates) args.push_back(one->args);
  }
  const device::UpdateArgs* on_device = upload->Add(args);
  std::vector<RuleLaunch> launches;
  for (const auto& [turn, updates] : by_rule) {
    std::vector<uint32_t> ends;
    uint32_t end = 0;
    for (const Kept* one : updates) ends.push_back(end += one->args.max_keys);
    const auto members = static_cast<uint32_t>(updates.size());
    launches.push_back({turn.second, {on_device, upload->Add(ends), members, end}, updates});
    on_device += members;
  }
  return launches;
}

// Counts the created rows once the device has done the updates.
void SettleOnWorker(KeptUpdates kept) {
  RunOnWorker([kept = std::move(kept)]() mutable {
    device::Device* const device = kept.updates[0]->table()->device();
    const device::Stream stream = kept.updates[0]->table()->queue()->stream();
    const Status done = Repeated([&] { return device->Synchronize(stream); });
    const std::vector<uint32_t> created(kept.created, kept.created + (done.ok() ? kept.updates.size() : 0));
    if (!done.ok()) kept.scratch->Bury();
    kept.scratch = nullptr;
    for (size_t i = 0; i < kept.updates.size(); ++i) kept.updates[i]->Settle(done, done.ok() ? created[i] : 0);
  });
}

}  // namespace

Status DevicePlan::State::EnqueueUpdates(const std::vector<DeviceUpdate>& updates, std::vector<Remaining>* remaining) {
  std::vector<const DeviceUpdate*> with_keys;
  std::vector<const float*> sums;
  std::vector<device::GradientMember> gradients;
  for (const DeviceUpdate& update : updates) {
    const Member& member = members[static_cast<size_t>(update.member)];
    HbmTable* const table = member.output->table();
    const auto distinct = static_cast<size_t>(member.distinct());
    if (distinct == 0) {  // the table below counts it, which may wait for a gate
      remaining->push_back(Remaining{table, DeviceKeys(), {}, update.request, nullptr});
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
  return with_keys.empty() ? OkStatus() : EnqueueKept(with_keys, sums, gradients, remaining);
}

Status DevicePlan::State::Remain(const DeviceUpdate& update, const float* sums, std::vector<Remaining>* remaining) {
  const Member& member = members[static_cast<size_t>(update.member)];
  HbmTable* const table = member.output->table();
  const auto distinct = static_cast<uint32_t>(member.distinct());
  auto* const counts = member.op->scratch.OnDevice<int64_t>(distinct);
  MT_RETURN_IF_ERROR(member.op->scratch.status());
  const auto* const narrow = reinterpret_cast<const int32_t*>(member.op->dedup.counts);
  MT_RETURN_IF_ERROR(table->device()->kernels().widen(table->queue()->stream(), device::WidenArgs{narrow, counts, distinct}));
  remaining->push_back(Remaining{table, DeviceKeys{member.op->dedup.distinct, distinct},
                                 HbmTable::BatchGrads{sums, counts, true}, update.request, member.op});
  return OkStatus();
}

Status DevicePlan::State::EnqueueKept(const std::vector<const DeviceUpdate*>& updates, const std::vector<const float*>& sums,
                                      const std::vector<device::GradientMember>& gradients, std::vector<Remaining>* remaining) {
  HbmTable* const table = members[static_cast<size_t>(updates[0]->member)].output->table();
  DeviceQueue* const queue = table->queue();
  device::Device* const device = table->device();
  const device::DeviceKernels& kernels = device->kernels();
  KeptUpdates kept;
  kept.scratch = table->NewScratch();
  kept.created = kept.scratch->Pinned<uint32_t>(updates.size());
  Upload upload(kept.scratch.get(), GradientGroup::Room(gradients.size()) + RoomOfUpdates(updates.size()));
  MT_RETURN_IF_ERROR(kept.scratch->status());
  uint32_t* const created = upload.Add(std::vector<uint32_t>(updates.size(), 0));
  GradientGroup backward;
  MT_RETURN_IF_ERROR(backward.Describe(gradients, /*given_values=*/false, &upload));
  Status first;
  std::vector<size_t> others;
  for (size_t i = 0; i < updates.size(); ++i) {
    const Member& member = members[static_cast<size_t>(updates[i]->member)];
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
  MT_RETURN_IF_ERROR(Repeated([&] { return upload.Send(queue); }));
  MT_RETURN_IF_ERROR(Repeated([&] { return backward.Enqueue(queue->stream(), kernels); }));
  for (const size_t i : others) {
    const Status status = Remain(*updates[i], sums[i], remaining);
    if (first.ok()) first = status;
  }
  {
    MutexLock lock(queue->enqueue());
    for (const RuleLaunch& launch : launches) {
      const Status status = Repeated([&] { return kernels.update_members(queue->stream(), launch.rule, launch.args); });
      for (Kept* one : launch.updates) one->Note(status);
    }
  }
  bool creates = false;
  for (const auto& one : kept.updates) creates = creates || one->creates();
  const Status copied = Repeated([&] {
    return device->Copy(queue->stream(), kept.created, created, creates ? kept.updates.size() * sizeof(uint32_t) : 0);
  });
  for (const auto& one : kept.updates) {
    if (!copied.ok()) one->Note(copied);
    if (first.ok()) first = one->table()->Check();
  }
  if (creates) SettleOnWorker(std::move(kept));
  return first;
}

}  // namespace multitier::hbm
