#include "cc/hbm/member_output.h"

#include <algorithm>
#include <string>

namespace multitier::hbm {

using Operation = HbmTable::Operation;

namespace {

constexpr int64_t kMostRows = int64_t{1} << 31;

Status Refuse(const DeviceMember& m, const std::string& expected) {
  return InvalidArgumentError("table '", m.table->options().name, "', ", m.name, ": expected ", expected);
}

}  // namespace

Status MemberOutput::Validate() const {
  const bool sequence = m_.steps > 0, dense = m_.form == EntryForm::kDense;
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
  if (m_.stride != 0 && (m_.stride < m_.table->dim() || m_.stride > INT32_MAX)) {
    return Refuse(m_, StrCat("a stride of at least ", m_.table->dim(), ", found ", m_.stride));
  }
  return OkStatus();
}

Status MemberOutput::Prepare(Operation* op) {
  const auto stride = static_cast<uint32_t>(m_.stride != 0 ? m_.stride : dim());
  if (!pooled()) {
    gather_ = device::GatherArgs{op->find.rows, op->dedup.inverse, op->n, dim(), m_.out, stride};
    return op->scratch.status();
  }
  Scratch& s = op->scratch;
  const auto rows = static_cast<uint32_t>(this->rows());
  auto* const of_entries = s.OnDevice<int64_t>(op->n);
  const bool clips = m_.max_norm >= 0 && op->n > 0;
  const bool sums = m_.steps > 0 || m_.form == EntryForm::kDense;
  pool_ = device::PoolArgs{op->find.rows,
                           op->find.num_keys,
                           op->n,
                           op->dedup.inverse,
                           of_entries,
                           op->n,
                           m_.weights,
                           rows,
                           dim(),
                           stride,
                           sums ? device::PoolCombiner::kSum : m_.combiner,
                           m_.max_norm,
                           clips ? s.OnDevice<float>(op->n) : nullptr,
                           s.OnDevice<uint32_t>(size_t{rows} + 1),
                           s.OnDevice<float>(rows),
                           s.OnDevice<float>(rows),
                           m_.out};
  if ((clips || weighted()) && op->training && op->n > 0) unclipped_ = s.OnDevice<float>(size_t{op->n} * dim());
  MT_RETURN_IF_ERROR(s.status());
  if (op->n == 0) return OkStatus();
  device::EntryRowsArgs entries{};
  entries.indices = m_.form == EntryForm::kDense ? nullptr : m_.indices;
  entries.splits = m_.form == EntryForm::kRagged;
  entries.columns = m_.form == EntryForm::kSparse ? 2 : 1;
  entries.entries = op->n;
  entries.batch = static_cast<uint32_t>(m_.batch);
  entries.steps = m_.steps;
  entries.rows = of_entries;
  entries.first_bad = op->first_bad;
  return device()->kernels().entry_rows(m_.table->queue()->stream(), entries);
}

Status MemberOutput::Check(const Operation& op) const {
  const uint32_t bad = op.counted->first_bad;
  if (!pooled() || bad == device::kNone) return OkStatus();
  const std::string steps = m_.steps > 0 ? StrCat(" and steps in [0, ", m_.steps, ")") : "";
  if (m_.form == EntryForm::kRagged) {
    return Refuse(m_, StrCat("nondecreasing row splits from 0 to ", m_.keys.n, steps, ", found others"));
  }
  return Refuse(m_, StrCat("rows in [0, ", m_.batch, ")", steps, ", in row-major order, found indices[", bad,
                           "] out of range or before its predecessor"));
}

Status MemberOutput::Enqueue(const Operation& op) {
  const device::Stream stream = m_.table->queue()->stream();
  const device::DeviceKernels& kernels = device()->kernels();
  if (!pooled()) return kernels.gather(stream, gather_);
  if (unclipped_ != nullptr) {
    const device::GatherArgs values{op.find.rows, nullptr, op.counted->distinct, dim(), unclipped_};
    MT_RETURN_IF_ERROR(kernels.gather(stream, values));
  }
  return kernels.pool(stream, pool_);
}

Status MemberOutput::EnqueueZeros(Operation* op) {
  if (!pooled() || rows() == 0) return OkStatus();
  MT_RETURN_IF_ERROR(Prepare(op));
  return device()->kernels().pool(m_.table->queue()->stream(), pool_);
}

Status MemberOutput::EnqueueWeightsGradient(const float* grad, int64_t stride, float* out) {
  device::WeightsGradientArgs args{pool_, grad, unclipped_, out};
  args.pool.stride = static_cast<uint32_t>(stride != 0 ? stride : dim());
  return device()->kernels().weights_gradient(m_.table->queue()->stream(), args);
}

Status MemberOutput::EnqueueSums(Operation* op, const float* grad, int64_t stride, float* sums, uint64_t* occurrences) {
  const device::Stream stream = m_.table->queue()->stream();
  const device::DeviceKernels& kernels = device()->kernels();
  const uint32_t n = op->n, distinct = op->counted->distinct;
  Scratch& s = op->scratch;
  auto* const begins = s.OnDevice<uint32_t>(distinct);
  auto* const sorted = sorted_ == nullptr ? s.OnDevice<uint64_t>(n) : nullptr;
  auto* const sort_scratch = sorted_ == nullptr ? s.OnDevice<uint8_t>(device()->SortScratchBytes(n)) : nullptr;
  MT_RETURN_IF_ERROR(s.status());
  if (sorted_ == nullptr) {
    int bits = 1;
    while (distinct > uint64_t{1} << bits) ++bits;
    MT_RETURN_IF_ERROR(device()->SortByUpper(stream, op->dedup.entries, sorted, n, bits, sort_scratch));
    sorted_ = sorted;
  }
  const auto step = static_cast<uint32_t>(stride != 0 ? stride : dim());
  const device::SumArgs sum{sorted_, n,    op->find.num_keys, distinct, op->dedup.counts, grad, dim(), nullptr,
                            begins,  sums, occurrences,       step};
  if (!pooled()) return kernels.sum(stream, sum);
  device::PooledSumArgs pooled{pool_, sum};
  pooled.pool.stride = step;
  MT_RETURN_IF_ERROR(kernels.pooled_sum(stream, pooled));
  if (m_.max_norm < 0) return OkStatus();
  return kernels.clip_gradient(stream, device::ClipGradientArgs{unclipped_, sums, distinct, dim(), m_.max_norm});
}

}  // namespace multitier::hbm
