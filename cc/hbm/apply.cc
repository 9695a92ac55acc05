// Apply: sums, rows in HBM, one optimizer's step on each.

#include <algorithm>
#include <utility>

#include "cc/hbm/device_rule.h"
#include "cc/hbm/kept_update.h"
#include "cc/hbm/operation.h"

namespace multitier::hbm {

using device::DeviceRowHeader;

namespace {

// Whether a row that CopyOut gave is that of a key without one.
bool IsAbsent(const uint8_t* staged) {
  return (reinterpret_cast<const DeviceRowHeader*>(staged)->flags & device::kRowProvisional) != 0;
}

}  // namespace

struct HbmTable::Gradients {
  std::vector<uint32_t> slot_offsets;
  device::DeviceRule rule{};
  device::SumArgs sum{};
};

Status HbmTable::Apply(const ApplyRequest& request, Executor*) {
  MT_RETURN_IF_ERROR(CheckMemory(request.keys.size()));
  MT_RETURN_IF_ERROR(Check());
  if (request.keys.empty()) {
    Inside inside(this);
    return below_->Apply(request);
  }
  std::vector<uint32_t> slot_offsets;
  MT_RETURN_IF_ERROR(below_->CheckApply(request, &slot_offsets));
  return RunGrowing(
      {request.keys, request.tables}, nullptr, [&](Operation* op) { return FinishApply(op, request); },
      /*kept=*/nullptr, /*number=*/0, /*prefetches=*/false, /*creates=*/true);
}

Status HbmTable::CheckApply(const ApplyRequest& request) const {
  MT_RETURN_IF_ERROR(Check());
  Gradients gradients;
  return PrepareRule(request, &gradients);
}

Status HbmTable::ApplyFrom(const BatchKeys& keys, const BatchGrads& grads, const ApplyRequest& request) {
  MT_RETURN_IF_ERROR(CheckApply(request));
  if (keys.n == 0) {
    Inside inside(this);
    return below_->Apply(request);  // counts it, and notes no step
  }
  return RunGrowing(
      keys, nullptr, [&](Operation* op) { return FinishApply(op, grads, request); }, /*kept=*/nullptr,
      /*number=*/0, /*prefetches=*/false, /*creates=*/true);
}

Status HbmTable::PrepareRule(const ApplyRequest& request, Gradients* gradients) const {
  MT_RETURN_IF_ERROR(below_->CheckApply(request, &gradients->slot_offsets));
  auto rule = DeviceRuleOf(*request.rule, request.hyper.data());
  if (!rule.ok()) return Status(rule.status().code(), StrCat("table '", options().name, "': ", rule.status().message()));
  gradients->rule = *rule;
  return OkStatus();
}

// Enqueues each key's sum of gradients and occurrences. Nothing of the table changes.
Status HbmTable::Sum(Operation* op, const BatchGrads& batch, const ApplyRequest& request, Gradients* gradients) {
  MT_RETURN_IF_ERROR(PrepareRule(request, gradients));
  const uint32_t n = op->n, distinct = op->counted->distinct;
  const size_t width = static_cast<size_t>(dim()), elements = size_t{n} * width;
  Scratch& s = op->scratch;
  const bool up = !batch.on_device, counted_up = up && batch.counts != nullptr;
  auto* const pinned_grads = up ? s.Pinned<float>(elements) : nullptr;
  auto* const grads = up ? s.OnDevice<float>(elements) : nullptr;
  auto* const sorted = s.OnDevice<uint64_t>(n);
  auto* const sort_scratch = s.OnDevice<uint8_t>(device_->SortScratchBytes(n));
  int64_t* const pinned_counts = counted_up ? s.Pinned<int64_t>(n) : nullptr;
  int64_t* const counts = counted_up ? s.OnDevice<int64_t>(n) : nullptr;
  gradients->sum = device::SumArgs{sorted,
                                   n,
                                   op->find.num_keys,
                                   distinct,
                                   op->dedup.counts,
                                   up ? grads : batch.grads,
                                   static_cast<uint32_t>(width),
                                   up ? counts : batch.counts,
                                   s.OnDevice<uint32_t>(distinct),
                                   s.OnDevice<float>(distinct * width),
                                   s.OnDevice<uint64_t>(distinct),
                                   s.OnDevice<float>(device::LaterPieces(n) * width),
                                   s.OnDevice<uint64_t>(device::LaterPieces(n))};
  MT_RETURN_IF_ERROR(s.status());
  int bits = 1;
  while (distinct > uint64_t{1} << bits) ++bits;
  op->busy = true;
  if (up) {
    std::copy_n(batch.grads, elements, pinned_grads);
    MT_RETURN_IF_ERROR(device_->Copy(stream_, grads, pinned_grads, elements * sizeof(float)));
  }
  if (counted_up) {
    std::copy_n(batch.counts, n, pinned_counts);
    MT_RETURN_IF_ERROR(device_->Copy(stream_, counts, pinned_counts, n * sizeof(int64_t)));
  }
  MT_RETURN_IF_ERROR(device_->SortByUpper(stream_, op->dedup.entries, sorted, n, bits, sort_scratch));
  return kernels_.sum(stream_, gradients->sum);
}

device::UpdateArgs HbmTable::UpdateArgsOf(const Operation& op, const ApplyRequest& request, const Gradients& gradients,
                                          const NotedApply& noted) const {
  device::UpdateArgs update{};
  update.rows = op.find.rows;
  update.num_keys = op.find.num_keys;
  update.max_keys = op.counted->distinct;
  update.sums = gradients.sum.sums;
  update.occurrences = gradients.sum.occurrences;
  update.dim = static_cast<uint32_t>(dim());
  std::copy(gradients.slot_offsets.begin(), gradients.slot_offsets.end(), update.slot_offsets);
  std::copy(request.hyper.begin(), request.hyper.end(), update.hyper);
  update.version = noted.version;
  update.value_dtype = options().value_dtype;
  update.stochastic = options().stochastic_rounding;
  update.keys = op.find.keys;
  update.step = noted.number;
  update.skip_provisional = new_keys_below_;
  if (table_->view().ranks != nullptr) update.ranked = table_->on_device();
  // The operations of a group have no numbers of their own on the device: the group sets `created`.
  if (op.counted_on_device != nullptr) update.created = &op.counted_on_device->created;
  return update;
}

void HbmTable::Update(Operation* op, const ApplyRequest& request, const Gradients& gradients, const NotedApply& noted) {
  const device::UpdateArgs update = UpdateArgsOf(*op, request, gradients, noted);
  Insist([&] { return kernels_.update(stream_, gradients.rule, update); });
}

Status HbmTable::BearBelow(Operation* op) {
  const size_t misses = op->counted->misses, stride = table_->stride();
  size_t created = 0;
  MT_RETURN_IF_ERROR(Synchronize(op));  // the device has read the staged rows: their flags may change
  MT_RETURN_IF_ERROR(rows_below_.Create(Span<const int64_t>(op->missed_keys, misses), stride, op->staged_below, &created));
  if (created == 0) return OkStatus();
  op->busy = true;  // their flags changed
  Insist([&] { return device_->Copy(stream_, op->stage.staged_rows, op->staged_below, misses * stride); });
  return OkStatus();
}

// If new_keys_below_: an apply of the table below for the keys that have no row. Counts of the
// others go into a Bloom filter first, since counters are shared.
Status HbmTable::TrainBelow(Operation* op, const ApplyRequest& request, const Gradients& gradients, bool noted,
                            NotedApply* apply, size_t* trained_below) {
  const uint32_t misses = op->counted->misses;
  std::vector<uint32_t> absent;  // places in the list of misses
  for (uint32_t i = 0; new_keys_below_ && i < misses; ++i) {
    if (IsAbsent(op->staged_below + i * table_->stride())) absent.push_back(i);
  }
  *trained_below = absent.size();
  last_refused_ = last_dropped_ = 0;
  if (absent.empty() && options().filter.kind != AdmissionKind::kBloom) {
    *apply = below_->NoteApply(request.global_step);
    return OkStatus();
  }
  const auto width = static_cast<size_t>(dim());
  const size_t distinct = op->counted->distinct, summed = absent.empty() ? 0 : distinct * width;
  Scratch& s = op->scratch;
  auto* const all_keys = s.Pinned<int64_t>(distinct);
  auto* const occurrences = s.Pinned<uint64_t>(distinct);
  auto* const list = s.Pinned<uint32_t>(misses);
  auto* const sums = s.Pinned<float>(summed);
  MT_RETURN_IF_ERROR(s.status());
  op->busy = true;
  MT_RETURN_IF_ERROR(device_->Copy(stream_, all_keys, op->find.keys, distinct * sizeof(int64_t)));
  MT_RETURN_IF_ERROR(device_->Copy(stream_, occurrences, gradients.sum.occurrences, distinct * sizeof(uint64_t)));
  MT_RETURN_IF_ERROR(device_->Copy(stream_, list, op->missed.list, misses * sizeof(uint32_t)));
  MT_RETURN_IF_ERROR(device_->Copy(stream_, sums, gradients.sum.sums, summed * sizeof(float)));
  MT_RETURN_IF_ERROR(Synchronize(op));
  std::vector<int64_t> keys, counts, others, other_counts;
  std::vector<float> grads;
  std::vector<uint16_t> tables;
  for (const uint32_t i : absent) {
    if (!op->missed_tables.empty()) tables.push_back(op->missed_tables[i]);
  }
  for (size_t i = 0, next = 0; i < distinct; ++i) {
    const bool is_absent = next < absent.size() && list[absent[next]] == i;  // both lists ascend
    (is_absent ? keys : others).push_back(all_keys[i]);
    (is_absent ? counts : other_counts).push_back(static_cast<int64_t>(occurrences[i]));
    if (!is_absent) continue;
    grads.insert(grads.end(), sums + i * width, sums + (i + 1) * width);
    ++next;
  }
  below_->CountInFilter(others, other_counts, /*take_back=*/false);
  if (absent.empty()) {
    *apply = below_->NoteApply(request.global_step);
    return OkStatus();
  }
  ApplyRequest below = request;
  below.keys = keys;
  below.counts = counts;
  below.grads = grads.data();
  below.distinct = true;
  below.places = {};
  below.tables = tables;
  below.noted = noted ? apply : nullptr;
  below.note = apply;
  const Status status = below_->Apply(below);
  const UpdateCounts last = below_->LastUpdate();
  last_refused_ = last.refused;
  last_dropped_ = last.dropped;
  if (!status.ok()) below_->CountInFilter(others, other_counts, /*take_back=*/true);
  return status;
}

Status HbmTable::TrainBelowAndForget(Operation* op, const ApplyRequest& request, const Gradients& gradients, NotedApply noted,
                                     size_t* trained_below) {
  MT_RETURN_IF_ERROR(HandDownAll());
  MT_RETURN_IF_ERROR(TrainBelow(op, request, gradients, /*noted=*/true, &noted, trained_below));
  return ForgetDropped();
}

// Near the budget of a table that grows: how many of the rows that were found are provisional. They count as soon as they are
// updated.
Status HbmTable::CountProvisional(Operation* op) {
  Scratch& s = op->scratch;
  const uint32_t n = op->n;
  auto* const marked = s.OnDevice<uint32_t>(n);
  auto* const list = s.OnDevice<uint32_t>(n);
  auto* const scan = s.OnDevice<uint64_t>(device::ScanScratch::Words(n));
  MT_RETURN_IF_ERROR(s.status());
  const uint8_t* const begin = table_->view().rows;
  const device::MarkArgs mark{op->find.num_keys,
                              n,
                              op->find.rows,
                              begin,
                              begin + size_t{table_->view().capacity} * table_->stride(),
                              device::Marked::kProvisional,
                              marked};
  const device::CompactArgs compact{marked, op->find.num_keys, n, {scan}, list, &op->counted_on_device->changed};
  op->busy = true;
  MT_RETURN_IF_ERROR(device_->Fill(stream_, scan, 0, device::ScanScratch::Words(n) * sizeof(uint64_t)));
  MT_RETURN_IF_ERROR(kernels_.mark(stream_, mark));
  MT_RETURN_IF_ERROR(kernels_.compact(stream_, compact));
  MT_RETURN_IF_ERROR(device_->Copy(stream_, &op->counted->changed, &op->counted_on_device->changed, sizeof(uint32_t)));
  MT_RETURN_IF_ERROR(Synchronize(op));
  op->provisional = op->counted->changed;
  return OkStatus();
}

Status HbmTable::FinishApply(Operation* op, const ApplyRequest& request) {
  return FinishApply(op, BatchGrads{request.grads, request.counts.empty() ? nullptr : request.counts.data()}, request);
}

// Each key has a row in HBM.
Status HbmTable::UpdateFound(Operation* op, const ApplyRequest& request, const Gradients& gradients, const NotedApply& noted) {
  Update(op, request, gradients, noted);
  maybe_dirty_ = true;
  last_refused_ = last_dropped_ = 0;
  BringNumbersDown(op, /*rows=*/false);
  MT_RETURN_IF_ERROR(broken());  // the device may still write the numbers
  rows_below_.AddNewRows(op->counted->created);
  surely_in_hbm_ += op->counted->created;
  hits_ += op->counted->distinct - op->counted->born;
  misses_ += op->counted->born;
  brought_up_ += op->counted->born;
  updates_ += op->counted->distinct;
  return OkStatus();
}

// Each missed key has a row, or a table. REQUIRES: CopyOutMisses
Status HbmTable::CheckMissedTables(const Operation& op) const {
  if (!below_->absent_values().differ_by_table()) return OkStatus();
  for (uint32_t i = 0; i < op.counted->misses; ++i) {
    if (!IsAbsent(op.staged_below + i * table_->stride())) continue;
    if (!op.missed_tables.empty() && op.missed_tables[i] != kNoTable) continue;
    return UnknownTable(options().name, below_->absent_values().initial().tables(), op.missed_keys[i]);
  }
  return OkStatus();
}

Status HbmTable::FinishApply(Operation* op, const BatchGrads& grads, const ApplyRequest& request) {
  Gradients gradients;
  MT_RETURN_IF_ERROR(Sum(op, grads, request, &gradients));
  const uint32_t misses = op->counted->misses, distinct = op->counted->distinct;
  const bool near_budget = op->may_ask && !bounded_below_ && static_cast<uint64_t>(TotalCount()) + distinct > MostRows();
  NotedApply noted;
  if (misses == 0 && !near_budget && options().filter.kind != AdmissionKind::kBloom) {
    noted = below_->NoteApply(request.global_step);
    return UpdateFound(op, request, gradients, noted);
  }
  MutexLock turn(turn_);
  if (near_budget) MT_RETURN_IF_ERROR(CountProvisional(op));
  if (misses == 0) {
    if (near_budget && AsksForRows(op, /*creates=*/true)) return OkStatus();
    size_t trained_below = 0;
    MT_RETURN_IF_ERROR(TrainBelow(op, request, gradients, /*noted=*/false, &noted, &trained_below));
    return UpdateFound(op, request, gradients, noted);
  }
  MT_RETURN_IF_ERROR(rows_below_.Retry());
  MT_RETURN_IF_ERROR(CopyOutMisses(op, CopyOutAs::kUse, ReadFor::kTraining));
  MT_RETURN_IF_ERROR(CheckMissedTables(*op));
  bool drops = false;  // or may
  for (uint32_t i = 0; drops_ && i < misses; ++i) drops = drops || IsAbsent(op->staged_below + i * table_->stride());
  op->asks_alone = drops && !op->alone;
  if (op->asks_alone) return OkStatus();
  ReleasePinsInTime();
  if (AsksForRows(op, /*creates=*/true)) return OkStatus();
  MT_RETURN_IF_ERROR(MakeRoomForPlacing(op));
  {
    MutexLock lock(enqueue_);
    MT_RETURN_IF_ERROR(FindAgain(op, /*stamp=*/true, /*insert=*/true, /*insert_provisional=*/!new_keys_below_));
  }
  if (bounded_below_ && !new_keys_below_) MT_RETURN_IF_ERROR(BearBelow(op));
  size_t trained_below = 0;
  if (drops) {
    noted = below_->NoteApply(request.global_step);
  } else {
    MT_RETURN_IF_ERROR(TrainBelow(op, request, gradients, /*noted=*/false, &noted, &trained_below));
  }
  {
    MutexLock lock(enqueue_);
    PlaceMisses(op);
    Update(op, request, gradients, noted);
    maybe_dirty_ = true;
    TakeOutChanged(op);
  }
  ComeDown(op);
  MT_RETURN_IF_ERROR(broken());  // as in UpdateFound
  if (drops) MT_RETURN_IF_ERROR(TrainBelowAndForget(op, request, gradients, noted, &trained_below));
  const uint32_t born = op->counted->born;
  hits_ += distinct - misses - born;
  misses_ += misses + born;
  brought_up_ += op->counted->placed.to_place + born;
  updates_ += static_cast<int64_t>(distinct - trained_below);
  return OkStatus();
}

Result<std::shared_ptr<HbmTable::KeptUpdate>> HbmTable::BeginUpdate(const std::shared_ptr<Operation>& op,
                                                                    const ApplyRequest& request) {
  Gradients gradients;
  MT_RETURN_IF_ERROR(Check());
  MT_RETURN_IF_ERROR(PrepareRule(request, &gradients));
  auto kept = std::make_shared<KeptUpdate>(this);
  const bool filters_keys = options().filter.kind == AdmissionKind::kBloom;
  if (filters_keys || !kept->Begin(op)) return std::shared_ptr<KeptUpdate>();
  kept->rule = gradients.rule;
  // Where keys are absent, their update in the table below notes it (TrainAbsent).
  const NotedApply noted = op->absent.empty() ? below_->NoteApply(request.global_step) : NotedApply();
  kept->args = UpdateArgsOf(*op, request, gradients, noted);
  return kept;
}

}  // namespace multitier::hbm
