// Updates of a plan where the table below trains new keys (under a filter, or OnFull::kRefuse). Keys without a row are those
// that the lookup found absent: the table below trains them, then the rows of the others are updated where the plan says.
// Absent keys alone are looked for again, since another operation may have brought one up; then all keys of that update are.

#include <algorithm>
#include <set>
#include <utility>

#include "cc/hbm/rule_launch.h"
#include "cc/hbm/workers.h"
#include "cc/table/marks/current_snapshot.h"

namespace multitier::hbm {
namespace {

using Filtered = DevicePlan::State::Filtered;

// The absent keys of updates, all in one list.
class AbsentKeys {
 public:
  AbsentKeys(const std::vector<Filtered>& updates, Scratch* scratch) : scratch_(scratch) {
    for (const Filtered& one : updates) {
      firsts_.push_back(n_);
      sums_begin_.push_back(floats_);
      n_ += static_cast<uint32_t>(one.member->op->absent.size());
      floats_ += one.member->op->absent.size() * static_cast<size_t>(one.member->output->table()->dim());
    }
    firsts_.push_back(n_);
  }

  // Whether they are in HBM by now, and their sums and counts. Waits for the device. tables: of the updates. REQUIRES: the
  // turns of the tables
  Status BringDown(const std::vector<Filtered>& updates, const std::vector<device::Table>& tables, DeviceQueue* queue,
                   device::Device* device) {
    missed_ = scratch_->Pinned<uint32_t>(n_);
    counts_ = scratch_->Pinned<uint32_t>(n_);
    sums_ = scratch_->Pinned<float>(floats_);
    auto* const missed = scratch_->OnDevice<uint32_t>(n_);
    auto* const counts = scratch_->OnDevice<uint32_t>(n_);
    auto* const sums = scratch_->OnDevice<float>(floats_);
    auto* const rows = scratch_->OnDevice<uint8_t*>(n_);
    Upload upload(queue, scratch_,
                  Upload::Room<device::Table>(tables.size()) + Upload::Room<int64_t>(n_) + Upload::Room<uint32_t>(n_) +
                      Upload::Room<uint32_t>(1) + Upload::Room<device::Piece>(size_t{n_} * 2));
    MT_RETURN_IF_ERROR(upload.status());
    std::vector<int64_t> keys;
    std::vector<uint32_t> key_tables;
    std::vector<device::Piece> pieces;
    float* to = sums;
    for (size_t u = 0; u < updates.size(); ++u) {
      const HbmTable::Operation& op = *updates[u].member->op;
      const auto dim = static_cast<uint32_t>(updates[u].member->output->table()->dim());
      for (const HbmTable::Operation::Absent& absent : op.absent) {
        const float* const from = updates[u].sums + size_t{absent.number} * dim;
        pieces.push_back({op.dedup.counts + absent.number, counts + keys.size(), 1});
        pieces.push_back({reinterpret_cast<const uint32_t*>(from), reinterpret_cast<uint32_t*>(to), dim});
        to += dim;
        keys.push_back(absent.key);
        key_tables.push_back(static_cast<uint32_t>(u));
      }
    }
    device::FindArgs find{};
    find.tables = upload.Add(tables);
    find.keys = upload.Add(keys);
    find.key_tables = upload.Add(key_tables);
    find.num_keys = upload.Add(&n_, 1);
    find.max_keys = n_;
    find.rows = rows;
    find.missed = missed;
    const device::PiecesArgs copies{upload.Add(pieces), static_cast<uint32_t>(pieces.size())};
    const auto enqueue = [&]() -> Status {
      const device::Stream stream = queue->stream();
      MutexLock lock(queue->enqueue());
      MT_RETURN_IF_ERROR(upload.Send());
      MT_RETURN_IF_ERROR(device->kernels().find(stream, find));
      MT_RETURN_IF_ERROR(device->kernels().pieces(stream, copies));
      MT_RETURN_IF_ERROR(device->Copy(stream, missed_, missed, n_ * sizeof(uint32_t)));
      MT_RETURN_IF_ERROR(device->Copy(stream, counts_, counts, n_ * sizeof(uint32_t)));
      return device->Copy(stream, sums_, sums, floats_ * sizeof(float));
    };
    const Status enqueued = enqueue(), done = device->Synchronize(queue->stream());
    if (!done.ok()) scratch_->Bury();
    return enqueued.ok() ? done : enqueued;
  }

  bool AnyInHbm(size_t update) const {
    const uint32_t *const begin = missed_ + firsts_[update], *const end = missed_ + firsts_[update + 1];
    return std::find(begin, end, 0u) != end;
  }
  const float* sums(size_t update) const { return sums_ + sums_begin_[update]; }
  std::vector<int64_t> counts(size_t update) const {
    return std::vector<int64_t>(counts_ + firsts_[update], counts_ + firsts_[update + 1]);
  }

 private:
  Scratch* const scratch_;
  uint32_t n_ = 0;
  size_t floats_ = 0;
  std::vector<uint32_t> firsts_;  // of each update, and the end
  std::vector<size_t> sums_begin_;
  uint32_t *missed_ = nullptr, *counts_ = nullptr;  // pinned
  float* sums_ = nullptr;                           // pinned
};

}  // namespace

Status DevicePlan::State::UpdateFilteredTogether(const std::vector<Filtered>& updates, std::vector<Remaining>* remaining) {
  using Kept = HbmTable::KeptUpdate;
  Status first;
  const auto note = [&first](const Status& status) {
    if (first.ok()) first = status;
    return status.ok();
  };
  const auto remain = [&](const Filtered& one) { note(Remain(*one.member, one.request, one.sums, remaining)); };
  const WithoutAwait without_await;
  std::vector<Filtered> begun;
  std::vector<std::shared_ptr<Kept>> kept, trained;
  std::vector<HbmTable*> tables;
  std::vector<device::Table> views;
  for (const Filtered& one : updates) {
    HbmTable* const table = one.member->output->table();
    Result<std::shared_ptr<Kept>> update = table->BeginUpdate(one.member->op, one.request);
    if (!note(update.status())) continue;
    if (*update == nullptr) {
      remain(one);
      continue;
    }
    begun.push_back(one);
    tables.push_back(table);
    views.push_back((*update)->view());
    kept.push_back(*std::move(update));
  }
  if (begun.empty()) return first;
  DeviceQueue* const queue = tables[0]->queue();
  device::Device* const device = tables[0]->device();
  const std::shared_ptr<Scratch> memory = tables[0]->NewScratch();
  Upload upload(queue, memory.get(), RoomOfUpdates(kept.size()));
  if (!note(upload.status())) return first;
  const std::vector<uint32_t> none(1, 0);
  uint32_t* const created = upload.Add(none);  // rows are created below
  AbsentKeys absent(begun, memory.get());
  std::vector<Status> statuses(begun.size());
  std::vector<char> again(begun.size(), 0);  // not bool: written side by side
  {
    const HbmTable::Turns turns(tables);
    if (!note(absent.BringDown(begun, views, queue, device))) return first;
    RunSideBySide(begun.size(), [&](size_t i) {
      const WithoutAwait on_this_thread;
      again[i] = absent.AnyInHbm(i);
      if (!again[i]) statuses[i] = kept[i]->TrainAbsent(begun[i].request, absent.sums(i), absent.counts(i));
    });
  }
  for (size_t i = 0; i < begun.size(); ++i) {
    if (!note(statuses[i])) continue;
    if (again[i]) {
      kept[i] = nullptr;
      remain(begun[i]);
      continue;
    }
    kept[i]->args.sums = begun[i].sums;
    kept[i]->args.counts = begun[i].member->op->dedup.counts;
    kept[i]->args.created = created;
    trained.push_back(kept[i]);
  }
  const std::vector<RuleLaunch> launches = DescribeByRule(trained, &upload);
  const Status sent = trained.empty() ? OkStatus() : Repeated([&] { return upload.Send(); });
  for (const auto& one : trained) {
    if (!sent.ok()) one->Note(sent);
  }
  if (sent.ok()) EnqueueByRule(queue, device->kernels(), launches);
  for (const auto& one : trained) note(one->table()->Check());
  return first;
}

Status DevicePlan::State::UpdateFiltered(std::vector<Filtered> updates, std::vector<Remaining>* remaining) {
  Status first;
  while (!updates.empty()) {
    std::set<const HbmTable*> tables;
    std::vector<Filtered> together, later;
    for (Filtered& one : updates) {
      HbmTable* const table = one.member->output->table();
      table->AwaitGate();
      (tables.insert(table).second ? together : later).push_back(std::move(one));
    }
    const Status status = UpdateFilteredTogether(together, remaining);
    if (first.ok()) first = status;
    updates = std::move(later);
  }
  return first;
}

}  // namespace multitier::hbm
