#include "cc/hbm/device_operations.h"

#include <set>
#include <utility>
#include <vector>

#include "cc/hbm/group_find.h"
#include "cc/hbm/member_output.h"
#include "cc/hbm/workers.h"
#include "cc/table/group_snapshot.h"
#include "cc/table/table_above.h"

namespace multitier::hbm {

using Operation = HbmTable::Operation;

struct DevicePlan::State {
  struct Member {
    std::unique_ptr<MemberOutput> output;
    std::shared_ptr<Operation> op;  // null: the member has no keys
    uint64_t number = 0;            // of the operation, once its group has looked
    int64_t distinct() const { return op == nullptr ? 0 : op->counted->distinct; }
  };
  std::vector<Member> members;
};

DevicePlan::DevicePlan() : state_(std::make_unique<State>()) {}
DevicePlan::~DevicePlan() = default;
DevicePlan::DevicePlan(DevicePlan&&) noexcept = default;
DevicePlan& DevicePlan::operator=(DevicePlan&&) noexcept = default;

int DevicePlan::num_members() const { return static_cast<int>(state_->members.size()); }
HbmTable* DevicePlan::table(int member) const { return state_->members[static_cast<size_t>(member)].output->table(); }
int64_t DevicePlan::rows(int member) const { return state_->members[static_cast<size_t>(member)].output->rows(); }
int64_t DevicePlan::entries(int member) const { return state_->members[static_cast<size_t>(member)].output->keys().n; }
int64_t DevicePlan::distinct(int member) const { return state_->members[static_cast<size_t>(member)].distinct(); }

HbmTable* HbmTableOf(const EmbeddingTable& table) { return dynamic_cast<HbmTable*>(table.front()); }
device::Device& DeviceOf(const HbmTable& table) { return *table.device(); }

namespace {

// All tables of an operation are on one device.
Status CheckTable(const HbmTable* first, const HbmTable* table) {
  if (table == nullptr) return InvalidArgumentError("expected a table in HBM, found none");
  if (table->queue() == first->queue()) return OkStatus();
  return InvalidArgumentError("expected tables on one device, found '", first->options().name, "' on another than '",
                              table->options().name, "'");
}

// The request, with the parts of the caller that are read alone.
ApplyRequest RequestOf(const ApplyRequest& given) {
  ApplyRequest request;
  request.rule = given.rule;
  request.slot_columns = given.slot_columns;
  request.hyper = given.hyper;
  request.global_step = given.global_step;
  return request;
}

Status LookUpMember(DevicePlan::State::Member* member, bool training) {
  MemberOutput* const output = member->output.get();
  HbmTable* const table = output->table();
  if (output->keys().n > 0) {
    std::shared_ptr<Operation> op;
    MT_RETURN_IF_ERROR(table->LookupTo(HbmTable::BatchKeys(output->keys()), output, training ? &op : nullptr, member->number));
    member->op = std::move(op);
    return OkStatus();
  }
  Operation op(table);
  return output->EnqueueZeros(&op);
}

// Looks up the members whose keys are all in HBM, in one set of launches. A table that occurs twice takes part once. *rest: the
// other members.
Status LookUpGroup(DevicePlan::State* state, bool training, std::vector<DevicePlan::State::Member*>* rest) {
  constexpr int64_t kMostKeys = int64_t{1} << 30;
  std::vector<DevicePlan::State::Member*> members;
  std::vector<MemberOutput*> outputs;
  std::set<HbmTable*> tables;
  int64_t keys = 0;
  for (auto& member : state->members) {
    const int64_t n = member.output->keys().n;
    if (n == 0 || keys + n > kMostKeys || !tables.insert(member.output->table()).second) {
      rest->push_back(&member);
      continue;
    }
    keys += n;
    members.push_back(&member);
    outputs.push_back(member.output.get());
  }
  if (members.size() >= 2) {
    GroupFind group(outputs, training);
    if (group.Run()) {
      for (size_t i = 0; i < members.size(); ++i) {
        std::shared_ptr<Operation> op = std::move(group.members()[i].op);
        MT_RETURN_IF_ERROR(outputs[i]->Check(*op));
        if (op->complete) {
          MT_RETURN_IF_ERROR(op->table->FinishFound(op.get(), outputs[i]));
          if (training) members[i]->op = std::move(op);
        } else {
          members[i]->number = op->number;  // a second look is the same use
          rest->push_back(members[i]);
        }
      }
      return OkStatus();
    }
  }
  rest->insert(rest->end(), members.begin(), members.end());
  return OkStatus();
}

}  // namespace

void LookupOnDevice(Span<const DeviceMember> members, DevicePlan* plan, device::Stream stream, Done done) {
  if (plan != nullptr) *plan = DevicePlan();
  auto state = std::make_shared<DevicePlan::State>();
  for (const DeviceMember& member : members) {
    Status status = CheckTable(members[0].table, member.table);
    state->members.emplace_back();
    state->members.back().output = std::make_unique<MemberOutput>(member);
    if (status.ok()) status = state->members.back().output->Validate();
    if (!status.ok()) return done(status);
  }
  if (members.empty()) return done(OkStatus());
  DeviceQueue* const queue = members[0].table->queue();
  if (const Status status = queue->Follow(stream); !status.ok()) return done(status);
  RunOnWorker([state, plan, queue, stream, done = std::move(done)] {
    std::vector<DevicePlan::State::Member*> rest;
    Status status = LookUpGroup(state.get(), plan != nullptr, &rest);
    for (DevicePlan::State::Member* member : rest) {
      if (status.ok()) status = LookUpMember(member, plan != nullptr);
    }
    const Status ordered = queue->Precede(stream);
    if (status.ok()) status = ordered;
    if (plan != nullptr && status.ok()) *plan->state() = std::move(*state);
    state->members.clear();  // the caller may end the tables in `done`
    done(status);
  });
}

namespace {

Status CheckMember(const DevicePlan& plan, int member) {
  if (member >= 0 && member < plan.num_members()) return OkStatus();
  return InvalidArgumentError("expected a member of the plan in [0, ", plan.num_members(), "), found ", member);
}

Status EnqueueGradient(DevicePlan::State::Member* member, const DeviceGradient& gradient) {
  const int64_t distinct = member->distinct();
  if (distinct == 0) return OkStatus();
  Operation* const op = member->op.get();
  HbmTable* const table = op->table;
  const device::Stream stream = table->queue()->stream();
  device::Device* const device = table->device();
  const auto n = static_cast<uint32_t>(distinct);
  if (gradient.keys != nullptr) {
    MT_RETURN_IF_ERROR(device->Copy(stream, gradient.keys, op->dedup.distinct, n * sizeof(int64_t)));
  }
  if (gradient.counts != nullptr) {
    const auto* const counts = reinterpret_cast<const int32_t*>(op->dedup.counts);
    MT_RETURN_IF_ERROR(device->kernels().widen(stream, device::WidenArgs{counts, gradient.counts, n}));
  }
  if (gradient.grad != nullptr && gradient.weight_grads != nullptr) {
    MT_RETURN_IF_ERROR(member->output->EnqueueWeightsGradient(gradient.grad, gradient.stride, gradient.weight_grads));
  }
  if (gradient.grad == nullptr || gradient.sums == nullptr) return OkStatus();
  auto* const occurrences = op->scratch.OnDevice<uint64_t>(n);
  MT_RETURN_IF_ERROR(op->scratch.status());
  return member->output->EnqueueSums(op, gradient.grad, gradient.stride, gradient.sums, occurrences);
}

}  // namespace

Status GradientOnDevice(const DevicePlan& plan, Span<const DeviceGradient> gradients, device::Stream stream) {
  for (const DeviceGradient& gradient : gradients) {
    MT_RETURN_IF_ERROR(CheckMember(plan, gradient.member));
    const auto& member = plan.state()->members[static_cast<size_t>(gradient.member)];
    if (gradient.weight_grads == nullptr || member.output->weighted()) continue;
    return InvalidArgumentError("gradient of member ", gradient.member, ": expected weights, found none");
  }
  if (gradients.empty()) return OkStatus();
  DeviceQueue* const queue = plan.table(0)->queue();
  MT_RETURN_IF_ERROR(queue->Follow(stream));
  Status status;
  for (const DeviceGradient& gradient : gradients) {
    if (status.ok()) status = EnqueueGradient(&plan.state()->members[static_cast<size_t>(gradient.member)], gradient);
  }
  const Status ordered = queue->Precede(stream);
  return status.ok() ? ordered : status;
}

namespace {

// An update that needs the host.
struct Remaining {
  HbmTable* table;
  DeviceKeys keys;
  HbmTable::BatchGrads grads;
  ApplyRequest request;
  std::shared_ptr<Operation> owner;  // of keys and grads, or null
};

// The end of an update: what remains, on a worker if there is any; then the caller's stream goes on.
struct UpdateEnd {
  DeviceQueue* queue;
  device::Stream stream;
  Done done;
  std::shared_ptr<void> several;  // a MaybeUpdateOfSeveral, or an UpdateOfSeveral

  void Run(std::vector<Remaining> remaining, Status status) {
    for (Remaining& one : remaining) {
      const Status applied = one.table->ApplyFrom(HbmTable::BatchKeys(one.keys), one.grads, one.request);
      if (status.ok()) status = applied;
    }
    remaining.clear();
    several = nullptr;
    const Status ordered = queue->Precede(stream);
    done(status.ok() ? ordered : status);
  }
};

// Enqueues the sums, and the update if it needs nothing else. Else it remains.
Status EnqueueUpdate(DevicePlan::State::Member* member, const DeviceUpdate& update, std::vector<Remaining>* remaining) {
  const auto distinct = static_cast<size_t>(member->distinct());
  HbmTable* const table = member->output->table();
  const ApplyRequest request = RequestOf(update.request);
  if (distinct == 0) return table->ApplyFrom(HbmTable::BatchKeys(Span<const int64_t>()), {}, request);
  Operation* const op = member->op.get();
  auto* const occurrences = op->scratch.OnDevice<uint64_t>(distinct);
  auto* const own_sums =
      update.sums != nullptr ? nullptr : op->scratch.OnDevice<float>(distinct * static_cast<size_t>(table->dim()));
  MT_RETURN_IF_ERROR(op->scratch.status());
  const float* const sums = update.sums != nullptr ? update.sums : own_sums;
  if (own_sums != nullptr) {
    MT_RETURN_IF_ERROR(member->output->EnqueueSums(op, update.grad, update.stride, own_sums, occurrences));
  } else {
    const device::WidenArgs counts{reinterpret_cast<const int32_t*>(op->dedup.counts), reinterpret_cast<int64_t*>(occurrences),
                                   static_cast<uint32_t>(distinct)};
    MT_RETURN_IF_ERROR(table->device()->kernels().widen(table->queue()->stream(), counts));
  }
  MT_ASSIGN_OR_RETURN(const bool updated, table->UpdateKept(member->op, request, sums, occurrences));
  if (updated) return OkStatus();
  remaining->push_back(Remaining{table, DeviceKeys{op->dedup.distinct, static_cast<int64_t>(distinct)},
                                 HbmTable::BatchGrads{sums, reinterpret_cast<const int64_t*>(occurrences), true}, request,
                                 member->op});
  return OkStatus();
}

// Enqueues what can be enqueued, then runs the rest on a worker. on_worker: this is one.
void EnqueueUpdates(DevicePlan::State* state, const std::vector<DeviceUpdate>& updates, bool on_worker, UpdateEnd end) {
  Status first;
  std::vector<Remaining> remaining;
  for (const DeviceUpdate& update : updates) {
    const Status status = EnqueueUpdate(&state->members[static_cast<size_t>(update.member)], update, &remaining);
    if (first.ok()) first = status;
  }
  if (on_worker || remaining.empty()) return end.Run(std::move(remaining), first);
  RunOnWorker(
      [remaining = std::move(remaining), first, end = std::move(end)]() mutable { end.Run(std::move(remaining), first); });
}

Status CheckUpdate(const DevicePlan& plan, const DeviceUpdate& update) {
  MT_RETURN_IF_ERROR(CheckMember(plan, update.member));
  MT_RETURN_IF_ERROR(plan.table(update.member)->CheckApply(RequestOf(update.request)));
  if (update.sums != nullptr || update.grad != nullptr || plan.distinct(update.member) == 0) return OkStatus();
  return InvalidArgumentError("update of member ", update.member, ": expected sums or a gradient, found neither");
}

}  // namespace

void UpdateOnDevice(const DevicePlan& plan, Span<const DeviceUpdate> updates, device::Stream stream, Done done) {
  for (const DeviceUpdate& update : updates) {
    if (const Status status = CheckUpdate(plan, update); !status.ok()) return done(status);
  }
  if (updates.empty()) return done(OkStatus());
  DeviceQueue* const queue = plan.table(0)->queue();
  if (const Status status = queue->Follow(stream); !status.ok()) return done(status);
  const std::vector<DeviceUpdate> all(updates.begin(), updates.end());
  UpdateEnd end{queue, stream, std::move(done), nullptr};
  if (all.size() > 1) {
    auto several = std::make_shared<MaybeUpdateOfSeveral>();
    if (!several->inside()) {  // a snapshot of several tables is at its moment
      return RunOnWorker([state = plan.state(), all, end = std::move(end)]() mutable {
        end.several = std::make_shared<UpdateOfSeveral>();
        EnqueueUpdates(state, all, /*on_worker=*/true, std::move(end));
      });
    }
    end.several = std::move(several);
  }
  EnqueueUpdates(plan.state(), all, /*on_worker=*/false, std::move(end));
}

void ApplyOnDevice(Span<const DeviceApply> applies, device::Stream stream, Done done) {
  std::vector<Remaining> remaining;
  for (const DeviceApply& apply : applies) {
    const ApplyRequest request = RequestOf(apply.request);
    Status status = CheckTable(applies[0].table, apply.table);
    if (status.ok()) status = apply.table->CheckApply(request);
    if (!status.ok()) return done(status);
    remaining.push_back(
        Remaining{apply.table, apply.keys, HbmTable::BatchGrads{apply.grads, apply.counts, true}, request, nullptr});
  }
  if (applies.empty()) return done(OkStatus());
  DeviceQueue* const queue = applies[0].table->queue();
  if (const Status status = queue->Follow(stream); !status.ok()) return done(status);
  UpdateEnd end{queue, stream, std::move(done), nullptr};
  RunOnWorker([remaining = std::move(remaining), end = std::move(end)]() mutable {
    if (remaining.size() > 1) end.several = std::make_shared<UpdateOfSeveral>();
    end.Run(std::move(remaining), OkStatus());
  });
}

}  // namespace multitier::hbm
