// Apply: sums, rows in HBM, one optimizer's step on each.

#include <algorithm>
#include <unordered_map>

#include "cc/hbm/device_rule.h"
#include "cc/hbm/operation.h"

namespace multitier::hbm {

using device::DeviceRowHeader;

struct HbmTable::Gradients {
  std::vector<uint32_t> slot_offsets;
  device::DeviceRule rule{};
  device::SumArgs sum{};
};

Status HbmTable::Apply(const ApplyRequest& request, Executor*) {
  MT_RETURN_IF_ERROR(Check());
  if (request.keys.empty()) {
    Inside inside(this);
    return below_->Apply(request);
  }
  std::vector<uint32_t> slot_offsets;
  MT_RETURN_IF_ERROR(below_->CheckApply(request, &slot_offsets));
  return RunGrowing(request.keys, [&](Operation* op) { return FinishApply(op, request); });
}

// Enqueues each key's sum of gradients and occurrences. Nothing of the table changes.
Status HbmTable::Sum(Operation* op, const ApplyRequest& request, Gradients* gradients) {
  MT_RETURN_IF_ERROR(below_->CheckApply(request, &gradients->slot_offsets));
  auto rule = DeviceRuleOf(*request.rule, request.hyper.data());
  if (!rule.ok()) return Status(rule.status().code(), StrCat("table '", options().name, "': ", rule.status().message()));
  gradients->rule = *rule;
  const uint32_t n = op->n, distinct = op->counted->distinct;
  const size_t elements = size_t{n} * static_cast<size_t>(dim());
  Scratch& s = op->scratch;
  auto* const pinned_grads = s.Pinned<float>(elements);
  auto* const grads = s.OnDevice<float>(elements);
  auto* const sorted = s.OnDevice<uint64_t>(n);
  auto* const sort_scratch = s.OnDevice<uint8_t>(device_->SortScratchBytes(n));
  int64_t* const pinned_counts = request.counts.empty() ? nullptr : s.Pinned<int64_t>(n);
  int64_t* const counts = request.counts.empty() ? nullptr : s.OnDevice<int64_t>(n);
  gradients->sum = device::SumArgs{sorted,
                                   n,
                                   op->find.num_keys,
                                   distinct,
                                   op->dedup.counts,
                                   grads,
                                   static_cast<uint32_t>(dim()),
                                   counts,
                                   s.OnDevice<uint32_t>(distinct),
                                   s.OnDevice<float>(size_t{distinct} * static_cast<size_t>(dim())),
                                   s.OnDevice<uint64_t>(distinct)};
  MT_RETURN_IF_ERROR(s.status());
  std::copy_n(request.grads, elements, pinned_grads);
  std::copy(request.counts.begin(), request.counts.end(), pinned_counts);
  int bits = 1;
  while (distinct > uint64_t{1} << bits) ++bits;
  op->busy = true;
  MT_RETURN_IF_ERROR(device_->Copy(stream_, grads, pinned_grads, elements * sizeof(float)));
  if (counts != nullptr) MT_RETURN_IF_ERROR(device_->Copy(stream_, counts, pinned_counts, n * sizeof(int64_t)));
  MT_RETURN_IF_ERROR(device_->SortByUpper(stream_, op->dedup.entries, sorted, n, bits, sort_scratch));
  return kernels_.sum(stream_, gradients->sum);
}

void HbmTable::Update(Operation* op, const ApplyRequest& request, const Gradients& gradients, int64_t version) {
  device::UpdateArgs update{};
  update.rows = op->find.rows;
  update.num_keys = op->find.num_keys;
  update.max_keys = op->counted->distinct;
  update.sums = gradients.sum.sums;
  update.occurrences = gradients.sum.occurrences;
  update.dim = static_cast<uint32_t>(dim());
  std::copy(gradients.slot_offsets.begin(), gradients.slot_offsets.end(), update.slot_offsets);
  std::copy(request.hyper.begin(), request.hyper.end(), update.hyper);
  update.version = version;
  update.skip_unborn = filters_;
  update.born = &op->counted_on_device->born;
  Insist([&] { return kernels_.update(stream_, gradients.rule, update); });
}

namespace {

// Occurrences of each key of the batch.
std::unordered_map<int64_t, int64_t> OccurrencesOf(const ApplyRequest& request) {
  std::unordered_map<int64_t, int64_t> occurrences;
  for (size_t i = 0; i < request.keys.size(); ++i)
    occurrences[request.keys[i]] += request.counts.empty() ? 1 : request.counts[i];
  return occurrences;
}

}  // namespace

// Under a filter: an apply of the table below for the keys that have no row. Counts of the others go into a Bloom filter first,
// since counters are shared.
Status HbmTable::TrainBelow(Operation* op, const ApplyRequest& request, const Gradients& gradients, int64_t* version,
                            size_t* trained_below) {
  const uint32_t misses = op->counted->misses;
  std::vector<uint32_t> absent;  // places in the list of misses
  for (uint32_t i = 0; i < misses; ++i) {
    const auto* header = reinterpret_cast<const DeviceRowHeader*>(op->staged_below + i * table_->stride());
    if ((header->flags & device::kRowUnborn) != 0) absent.push_back(i);
  }
  std::unordered_map<int64_t, int64_t> occurrences = OccurrencesOf(request);
  std::vector<int64_t> keys, counts, others, other_counts;
  for (const uint32_t i : absent) {
    const auto at = occurrences.find(op->missed_keys[i]);
    keys.push_back(at->first);
    counts.push_back(at->second);
    occurrences.erase(at);
  }
  for (const auto& [key, count] : occurrences) {
    others.push_back(key);
    other_counts.push_back(count);
  }
  *trained_below = absent.size();
  below_->CountInFilter(others, other_counts, /*take_back=*/false);
  if (absent.empty()) {
    *version = below_->NoteApply(request.global_step);
    return OkStatus();
  }
  Status status;
  const auto width = static_cast<size_t>(dim());
  const size_t distinct = op->counted->distinct;
  auto* const sums = op->scratch.Pinned<float>(distinct * width);
  auto* const list = op->scratch.Pinned<uint32_t>(misses);
  auto* const grads = op->scratch.Pinned<float>(absent.size() * width);
  status = op->scratch.status();
  op->busy = true;
  if (status.ok()) status = device_->Copy(stream_, sums, gradients.sum.sums, distinct * width * sizeof(float));
  if (status.ok()) status = device_->Copy(stream_, list, op->missed.list, misses * sizeof(uint32_t));
  if (status.ok()) status = Synchronize(op);
  if (status.ok()) {
    for (size_t i = 0; i < absent.size(); ++i) std::copy_n(sums + list[absent[i]] * width, width, grads + i * width);
    ApplyRequest below = request;
    below.keys = keys;
    below.counts = counts;
    below.grads = grads;
    below.distinct = true;
    below.places = {};
    below.version_set = version;
    status = below_->Apply(below);
  }
  if (!status.ok()) below_->CountInFilter(others, other_counts, /*take_back=*/true);
  return status;
}

Status HbmTable::FinishApply(Operation* op, const ApplyRequest& request) {
  Gradients gradients;
  MT_RETURN_IF_ERROR(Sum(op, request, &gradients));
  const uint32_t misses = op->counted->misses, distinct = op->counted->distinct;
  int64_t version = 0;
  if (misses == 0) {
    if (options().admission.kind == AdmissionKind::kBloom) {
      MutexLock turn(turn_);
      size_t trained_below = 0;
      MT_RETURN_IF_ERROR(TrainBelow(op, request, gradients, &version, &trained_below));
    } else {
      version = below_->NoteApply(request.global_step);
    }
    Update(op, request, gradients, version);
    maybe_dirty_ = true;
    BringNumbersDown(op);
    rows_below_.AddNewRows(op->counted->born);
    hits_ += distinct;
    updates_ += distinct;
    return broken();
  }
  MutexLock turn(turn_);
  MT_RETURN_IF_ERROR(rows_below_.Retry());
  MT_RETURN_IF_ERROR(CopyOutMisses(op, CopyOutAs::kUse));
  if (AsksForRows(op, /*creates=*/true)) return OkStatus();
  MT_RETURN_IF_ERROR(MakeRoomForPlacing(op));
  {
    MutexLock lock(enqueue_);
    MT_RETURN_IF_ERROR(FindAgain(op, /*stamp=*/true, /*insert=*/true, /*insert_unborn=*/!filters_));
  }
  size_t trained_below = 0;
  if (filters_) {
    MT_RETURN_IF_ERROR(TrainBelow(op, request, gradients, &version, &trained_below));
  } else {
    version = below_->NoteApply(request.global_step);
  }
  {
    MutexLock lock(enqueue_);
    PlaceMisses(op);
    Update(op, request, gradients, version);
    maybe_dirty_ = true;
    TakeOutChanged(op);
  }
  ComeDown(op);
  hits_ += distinct - misses;
  misses_ += misses;
  brought_up_ += op->counted->to_place;
  updates_ += static_cast<int64_t>(distinct - trained_below);
  return broken();
}

}  // namespace multitier::hbm
