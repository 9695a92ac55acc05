// Updates of the members of a plan: their sums in one set of launches, then one launch for the rows of all tables with one
// rule.

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
  // On the device [updates].
  uint32_t* created_on_device = nullptr;
  device::UpdateArgs* args = nullptr;
  uint32_t* ends = nullptr;
};

// Of calls after which an operation cannot be undone.
template <typename Call>
Status Repeated(Call call) {
  Status status;
  for (int tries = 0; tries < HbmTable::kTries; ++tries) {
    status = call();
    if (status.ok()) break;
  }
  return status;
}

// One launch for each rule, of tables that differ. A table that is there again is updated in a later launch: two updates of
// one row must not run at the same time. An error: nothing was enqueued.
Status EnqueueByRule(DeviceQueue* queue, const device::DeviceKernels& kernels, const KeptUpdates& kept) {
  std::map<std::pair<int, device::DeviceRule>, std::vector<Kept*>> by_rule;
  std::map<const HbmTable*, int> before;  // updates of the table
  for (const auto& one : kept.updates) by_rule[{before[one->table()]++, one->rule}].push_back(one.get());
  std::vector<device::UpdateArgs> args;
  std::vector<uint32_t> ends;
  std::vector<device::UpdateMembersArgs> launches;
  for (const auto& [turn, updates] : by_rule) {
    const size_t begin = args.size();
    uint32_t end = 0;
    for (const Kept* one : updates) {
      args.push_back(one->args);
      ends.push_back(end += one->args.max_keys);
    }
    launches.push_back({kept.args + begin, kept.ends + begin, static_cast<uint32_t>(updates.size()), end});
  }
  MT_RETURN_IF_ERROR(Repeated([&] { return queue->CopyUp(kept.args, args.data(), args.size() * sizeof(device::UpdateArgs)); }));
  MT_RETURN_IF_ERROR(Repeated([&] { return queue->CopyUp(kept.ends, ends.data(), ends.size() * sizeof(uint32_t)); }));
  MutexLock lock(queue->enqueue());
  size_t at = 0;
  for (const auto& [turn, updates] : by_rule) {
    const device::UpdateMembersArgs& launch = launches[at++];
    const Status status = Repeated([&, rule = turn.second] { return kernels.update_members(queue->stream(), rule, launch); });
    for (Kept* one : updates) one->Note(status);
  }
  return OkStatus();
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
  if (with_keys.empty()) return OkStatus();
  MT_RETURN_IF_ERROR(EnqueueGradients(gradients));
  return EnqueueKept(with_keys, sums, remaining);
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
                                      std::vector<Remaining>* remaining) {
  HbmTable* const table = members[static_cast<size_t>(updates[0]->member)].output->table();
  DeviceQueue* const queue = table->queue();
  device::Device* const device = table->device();
  KeptUpdates kept;
  kept.scratch = table->NewScratch();
  kept.created = kept.scratch->Pinned<uint32_t>(updates.size());
  kept.created_on_device = kept.scratch->OnDevice<uint32_t>(updates.size());
  kept.args = kept.scratch->OnDevice<device::UpdateArgs>(updates.size());
  kept.ends = kept.scratch->OnDevice<uint32_t>(updates.size());
  MT_RETURN_IF_ERROR(kept.scratch->status());
  MT_RETURN_IF_ERROR(device->Fill(queue->stream(), kept.created_on_device, 0, updates.size() * sizeof(uint32_t)));
  Status first;
  for (size_t i = 0; i < updates.size(); ++i) {
    const Member& member = members[static_cast<size_t>(updates[i]->member)];
    Result<std::shared_ptr<Kept>> begun = member.output->table()->BeginUpdate(member.op, updates[i]->request);
    Status status = begun.status();
    if (status.ok() && *begun != nullptr) {
      (*begun)->args.sums = sums[i];
      (*begun)->args.counts = member.op->dedup.counts;
      (*begun)->args.created = kept.created_on_device + kept.updates.size();
      kept.updates.push_back(*std::move(begun));
    } else if (status.ok()) {
      status = Remain(*updates[i], sums[i], remaining);
    }
    if (first.ok()) first = status;
  }
  if (kept.updates.empty()) return first;
  MT_RETURN_IF_ERROR(EnqueueByRule(queue, device->kernels(), kept));
  const Status copied = Repeated([&] {
    return device->Copy(queue->stream(), kept.created, kept.created_on_device, kept.updates.size() * sizeof(uint32_t));
  });
  for (const auto& one : kept.updates) {
    if (!copied.ok()) one->Note(copied);
    if (first.ok()) first = one->table()->Check();
  }
  SettleOnWorker(std::move(kept));
  return first;
}

}  // namespace multitier::hbm
