#include "cc/hbm/device_operations.h"

#include <set>
#include <utility>
#include <vector>

#include "cc/hbm/device_plan.h"
#include "cc/hbm/group_find.h"
#include "cc/hbm/workers.h"
#include "cc/table/snapshot/snapshot_together.h"

namespace multitier::hbm {

using Operation = HbmTable::Operation;

DevicePlan::DevicePlan() : state_(std::make_unique<State>()) {}
DevicePlan::~DevicePlan() = default;
DevicePlan::DevicePlan(DevicePlan&&) noexcept = default;
DevicePlan& DevicePlan::operator=(DevicePlan&&) noexcept = default;

int DevicePlan::num_members() const { return static_cast<int>(state_->members.size()); }
HbmTable* DevicePlan::table(int member) const { return state_->members[static_cast<size_t>(member)].output->table(); }
int64_t DevicePlan::rows(int member) const { return state_->members[static_cast<size_t>(member)].output->rows(); }
int64_t DevicePlan::entries(int member) const { return state_->members[static_cast<size_t>(member)].output->keys().n; }
int64_t DevicePlan::distinct(int member) const { return state_->members[static_cast<size_t>(member)].distinct(); }

HbmTable* HbmTableOf(EmbeddingTable* table) { return dynamic_cast<HbmTable*>(table); }
device::Device& DeviceOf(const HbmTable& table) { return *table.device(); }

namespace {

// All tables of an operation are on one device.
Status CheckTable(const HbmTable* first, const HbmTable* table) {
  if (table == nullptr) return InvalidArgumentError("expected a table in HBM, found none");
  MT_RETURN_IF_ERROR(table->Check());
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

// A member with keys, whatever it misses.
Status LookUpMember(DevicePlan::State::Member* member, bool training) {
  MemberOutput* const output = member->output.get();
  SoleOutput alone(output);
  std::shared_ptr<Operation> op;
  MT_RETURN_IF_ERROR(output->table()->LookupTo(HbmTable::BatchKeys(output->keys(), output->tables()), &alone, output->reason(),
                                               training ? &op : nullptr, member->number));
  member->op = std::move(op);
  if (!training) return OkStatus();
  const Operation& found = *member->op;
  member->batch = std::make_shared<DevicePlan::State::Batch>();
  *member->batch = {found.n, found.counted->distinct, found.dedup.entries};
  return OkStatus();
}

// False: the members must go on one at a time. *alone: those that must.
Result<bool> LookUpTogether(const std::vector<DevicePlan::State::Member*>& members, bool training,
                            std::vector<DevicePlan::State::Member*>* alone) {
  if (members.empty()) return true;
  std::vector<MemberOutput*> outputs;
  for (DevicePlan::State::Member* member : members) outputs.push_back(member->output.get());
  GroupFind group(outputs, training);
  if (!group.Run()) {
    if (group.status().ok() || members[0]->output->keys().n > 0) return false;
    return group.status();
  }
  std::vector<char> found;
  for (size_t i = 0; i < members.size(); ++i) {
    const GroupFind::Member& member = group.members()[i];
    if (member.op != nullptr) MT_RETURN_IF_ERROR(outputs[i]->Check(member.op->counted->first_bad));
    found.push_back(member.looked_up);
  }
  MT_RETURN_IF_ERROR(group.BringUp());
  const auto batch = std::make_shared<DevicePlan::State::Batch>();
  *batch = {group.n(), group.distinct(), group.entries()};
  for (size_t i = 0; i < members.size(); ++i) {
    std::shared_ptr<Operation> op = std::move(group.members()[i].op);
    if (op == nullptr) continue;
    if (!group.members()[i].looked_up) {
      members[i]->number = op->number;  // a second look is the same use
      op->table->NoteBorn(*op);
      alone->push_back(members[i]);
      continue;
    }
    if (found[i]) op->table->NoteFound(*op);
    if (!training) continue;
    members[i]->batch = batch;
    members[i]->first = group.first(i);
    members[i]->first_entry = group.first_entry(i);
    members[i]->op = std::move(op);
  }
  return true;
}

// Looks up the members in one set of launches, and those without keys. A table that occurs twice takes part once. *rest: the
// members that are not looked up yet.
Status LookUpGroup(DevicePlan::State* state, bool training, std::vector<DevicePlan::State::Member*>* rest) {
  constexpr int64_t kMostKeys = int64_t{1} << 30;
  std::vector<DevicePlan::State::Member*> members, empty;
  std::set<HbmTable*> tables;
  int64_t keys = 0;
  for (auto& member : state->members) {
    const int64_t n = member.output->keys().n;
    if (n == 0) {
      if (member.output->rows() > 0) empty.push_back(&member);
    } else if (keys + n > kMostKeys || !tables.insert(member.output->table()).second) {
      rest->push_back(&member);
    } else {
      keys += n;
      members.push_back(&member);
    }
  }
  if (members.size() >= 2) {
    std::vector<DevicePlan::State::Member*> all = members;
    all.insert(all.end(), empty.begin(), empty.end());
    MT_ASSIGN_OR_RETURN(const bool together, LookUpTogether(all, training, rest));
    if (together) return OkStatus();
  }
  rest->insert(rest->end(), members.begin(), members.end());
  return LookUpTogether(empty, training, rest).status();
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
    if (status.ok()) status = member.table->CheckTables(member.tables, static_cast<size_t>(member.keys.n));
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
    if (plan != nullptr && status.ok()) {
      state->scratch = state->members[0].output->table()->NewScratch();
      *plan->state() = std::move(*state);
    }
    state->members.clear();  // the caller may end the tables in `done`
    done(status);
  });
}

namespace {

Status CheckMember(const DevicePlan& plan, int member) {
  if (member >= 0 && member < plan.num_members()) return OkStatus();
  return InvalidArgumentError("expected a member of the plan in [0, ", plan.num_members(), "), found ", member);
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
  MT_RETURN_IF_ERROR(plan.table(0)->Check());
  DeviceQueue* const queue = plan.table(0)->queue();
  MT_RETURN_IF_ERROR(queue->Follow(stream));
  std::vector<device::GradientMember> members;
  Status status;
  for (const DeviceGradient& gradient : gradients) {
    if (!status.ok() || plan.distinct(gradient.member) == 0) continue;
    members.emplace_back();
    status = plan.state()->Describe(gradient, &members.back());
  }
  if (status.ok()) status = plan.state()->EnqueueGradients(members);
  const Status ordered = queue->Precede(stream);
  return status.ok() ? ordered : status;
}

namespace {

using Remaining = DevicePlan::State::Remaining;
using Left = DevicePlan::State::Left;

// The end of an update: what is left, on a worker if there is any; then the caller's stream goes on.
struct UpdateEnd {
  DeviceQueue* queue;
  device::Stream stream;
  Done done;
  std::shared_ptr<void> several;  // a MaybeUpdateOfSeveral, or an UpdateOfSeveral

  // state: of the plan, if there is one.
  void Run(DevicePlan::State* state, Left left, Status status) {
    if (!left.filtered.empty()) {
      const Status updated = state->UpdateFiltered(std::move(left.filtered), &left.remaining);
      if (status.ok()) status = updated;
    }
    for (Remaining& one : left.remaining) {
      const Status applied = one.table->ApplyFrom(HbmTable::BatchKeys(one.keys, one.tables), one.grads, one.request);
      if (status.ok()) status = applied;
    }
    left.remaining.clear();
    several = nullptr;
    const Status ordered = queue->Precede(stream);
    done(status.ok() ? ordered : status);
  }
};

// Enqueues what can be enqueued, then runs the rest on a worker. on_worker: this is one.
void EnqueueUpdates(DevicePlan::State* state, const std::vector<DeviceUpdate>& updates, bool on_worker, UpdateEnd end) {
  Left left;
  const Status first = state->EnqueueUpdates(updates, &left);
  if (on_worker || (left.remaining.empty() && left.filtered.empty())) return end.Run(state, std::move(left), first);
  RunOnWorker(
      [state, left = std::move(left), first, end = std::move(end)]() mutable { end.Run(state, std::move(left), first); });
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
  std::vector<DeviceUpdate> all(updates.begin(), updates.end());
  for (DeviceUpdate& update : all) update.request = RequestOf(update.request);
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
  Left left;
  for (const DeviceApply& apply : applies) {
    const ApplyRequest request = RequestOf(apply.request);
    Status status = CheckTable(applies[0].table, apply.table);
    if (status.ok()) status = apply.table->CheckApply(request);
    if (!status.ok()) return done(status);
    left.remaining.push_back(Remaining{apply.table, apply.keys, HbmTable::BatchGrads{apply.grads, apply.counts, true}, request,
                                       nullptr, apply.tables});
  }
  if (applies.empty()) return done(OkStatus());
  DeviceQueue* const queue = applies[0].table->queue();
  if (const Status status = queue->Follow(stream); !status.ok()) return done(status);
  UpdateEnd end{queue, stream, std::move(done), nullptr};
  RunOnWorker([left = std::move(left), end = std::move(end)]() mutable {
    if (left.remaining.size() > 1) end.several = std::make_shared<UpdateOfSeveral>();
    end.Run(nullptr, std::move(left), OkStatus());
  });
}

}  // namespace multitier::hbm
