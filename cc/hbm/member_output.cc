#include "cc/hbm/member_output.h"

#include <algorithm>
#include <string>

#include "cc/device/kernels/member_items.h"
#include "cc/hbm/member_launch.h"

namespace multitier::hbm {

using Operation = HbmTable::Operation;

namespace {

constexpr int64_t kMostRows = int64_t{1} << 31;

Status Refuse(const DeviceMember& m, const std::string& expected) {
  return InvalidArgumentError("table '", m.table->options().name, "', ", m.name, ": expected ", expected);
}

}  // namespace

Status MemberOutput::Validate() const {
  const bool sequence = m_.is_sequence(), dense = m_.form == EntryForm::kDense;
  if (m_.keys.n < 0 || m_.batch < 0 || m_.steps < 0) {
    return Refuse(m_, StrCat("sizes of at least 0, found ", m_.keys.n, " keys, batch ", m_.batch, ", steps ", m_.steps));
  }
  if (dense && (m_.batch != m_.keys.n || sequence || m_.weights != nullptr)) {
    return Refuse(m_, StrCat("a row of its own for each of ", m_.keys.n, " keys, no steps and no weights, found batch ",
                             m_.batch, ", steps ", m_.steps, m_.weights != nullptr ? " and weights" : ""));
  }
  if (!dense && m_.indices == nullptr && m_.keys.n > 0) return Refuse(m_, "indices or row splits, found none");
  if (m_.form == EntryForm::kRows && sequence) return Refuse(m_, StrCat("no steps, found ", m_.steps));
  if (m_.batch > kMostRows / std::max<int64_t>(m_.steps, 1)) {
    return Refuse(m_, StrCat("at most ", kMostRows, " rows, found ", m_.batch, " of ", std::max<int64_t>(m_.steps, 1)));
  }
  if (m_.batch == 0 && m_.keys.n > 0) return Refuse(m_, StrCat("rows in [0, 0), found ", m_.keys.n, " keys"));
  if (sequence && m_.steps == 0 && m_.keys.n > 0) return Refuse(m_, StrCat("steps in [0, 0), found ", m_.keys.n, " keys"));
  if (m_.stride != 0 && (m_.stride < m_.table->dim() || m_.stride > INT32_MAX)) {
    return Refuse(m_, StrCat("a stride of at least ", m_.table->dim(), ", found ", m_.stride));
  }
  return OkStatus();
}

Status MemberOutput::Describe(const Keys& keys, bool training, Scratch* scratch) {
  Scratch& s = *scratch;
  const bool dense = m_.form == EntryForm::kDense, clips = m_.max_norm >= 0 && keys.n > 0;
  const auto rows = static_cast<uint32_t>(this->rows());
  device::OutputMember& d = described_;
  d = device::OutputMember{};
  d.values = keys.values;
  d.rows = keys.rows;
  d.first = keys.first;
  d.num_keys = keys.num_keys;
  d.misses = keys.misses;
  d.max_keys = d.entries = keys.n;
  if (keys.values == nullptr) d.value_dtype = m_.table->options().value_dtype;
  d.inverse = keys.inverse;
  d.pooled = !dense || m_.max_norm >= 0;
  d.num_rows = rows;
  d.dim = dim();
  d.stride = static_cast<uint32_t>(m_.stride != 0 ? m_.stride : dim());
  d.out = m_.out;
  d.max_norm = m_.max_norm;
  if (!d.pooled) return OkStatus();
  d.indices = dense ? nullptr : m_.indices;
  d.splits_given = m_.form == EntryForm::kRagged && keys.n > 0;
  d.columns = m_.form == EntryForm::kSparse ? 2 : 1;
  d.batch = static_cast<uint32_t>(m_.batch);
  d.steps = m_.steps;
  d.first_bad = keys.first_bad;
  d.entry_rows = s.OnDevice<int64_t>(keys.n);
  d.splits = s.OnDevice<uint32_t>(size_t{rows} + 1);
  d.divisors = s.OnDevice<float>(rows);
  d.factors = s.OnDevice<float>(rows);
  d.weights = m_.weights;
  d.combiner = m_.is_sequence() || dense ? device::PoolCombiner::kSum : m_.combiner;
  if (clips) d.norms = s.OnDevice<float>(keys.n);
  if (training && keys.n > 0 && (clips || weighted())) d.unclipped = s.OnDevice<float>(size_t{keys.n} * dim());
  return s.status();
}

Status MemberOutput::Check(uint32_t bad) const {
  if (bad == device::kNone) return OkStatus();
  const std::string steps = m_.is_sequence() ? StrCat(" and steps in [0, ", m_.steps, ")") : "";
  if (m_.form == EntryForm::kRagged) {
    return Refuse(m_, StrCat("nondecreasing row splits from 0 to ", m_.keys.n, steps, ", found others"));
  }
  return Refuse(m_, StrCat("rows in [0, ", m_.batch, ")", steps, ", in row-major order, found indices[", bad,
                           "] out of range or before its predecessor"));
}

size_t OutputGroup::Room(size_t members) {
  return Upload::Room<device::OutputMember>(members) + 4 * Upload::Room<uint32_t>(members);
}

Status OutputGroup::Describe(const std::vector<const MemberOutput*>& members, bool brought_up, Upload* upload) {
  stream_ = members[0]->table()->queue()->stream();
  kernels_ = &members[0]->table()->device()->kernels();
  std::vector<device::OutputMember> described;
  for (const MemberOutput* member : members) {
    described.push_back(member->described());
    if (brought_up) described.back().misses = nullptr;
  }
  const device::OutputMember* const on_device = upload->Add(described);
  MT_RETURN_IF_ERROR(DescribeLaunch(upload, described, on_device, device::EntryItems, &rows_));
  MT_RETURN_IF_ERROR(DescribeLaunch(upload, described, on_device, device::ScaleItems, &scales_));
  MT_RETURN_IF_ERROR(DescribeLaunch(upload, described, on_device, device::ValueItems, &values_));
  MT_RETURN_IF_ERROR(DescribeLaunch(upload, described, on_device, device::HalfValueItems, &half_values_));
  half_values_.halves = true;
  return OkStatus();
}

Status OutputGroup::EnqueueRows() const { return rows_.items == 0 ? OkStatus() : kernels_->entry_rows(stream_, rows_); }

Status OutputGroup::EnqueueScales() const { return scales_.items == 0 ? OkStatus() : kernels_->scales(stream_, scales_); }

Status OutputGroup::EnqueueValues() const {
  MT_RETURN_IF_ERROR(EnqueueScales());
  if (values_.items > 0) MT_RETURN_IF_ERROR(kernels_->values(stream_, values_));
  return half_values_.items == 0 ? OkStatus() : kernels_->values(stream_, half_values_);
}

Status SoleOutput::Take(Operation* op) {
  const MemberOutput::Keys keys{op->find.rows, nullptr, op->find.num_keys, nullptr, op->dedup.inverse, op->first_bad, op->n};
  MT_RETURN_IF_ERROR(member_->Describe(keys, op->training, &op->scratch));
  upload_.emplace(op->table->queue(), &op->scratch, OutputGroup::Room(1));
  MT_RETURN_IF_ERROR(upload_->status());
  return group_.Describe({member_}, /*brought_up=*/false, &*upload_);
}

Status SoleOutput::Prepare(Operation*) {
  MT_RETURN_IF_ERROR(upload_->Send());
  return group_.EnqueueRows();
}

}  // namespace multitier::hbm
