// Update, the second step of an apply: see apply_operation.h. It works on memory that Gather pinned and cannot fail. Rows go
// through it a group of 32 at a time. Meanwhile the next group's rows are fetched into the second-level cache (the rule fetches
// them into the first), and its gradients into the first-level cache. Few rows are in the cache already: Gather fetched them.

#include <algorithm>
#include <cstring>
#include <optional>

#include "cc/base/ieee.h"
#include "cc/base/prefetch.h"
#include "cc/optimizer/catch_up.h"
#include "cc/optimizer/stochastic_update.h"
#include "cc/table/apply/apply_operation.h"

namespace multitier {
namespace {

constexpr uint32_t kUpdateGroup = 32;
constexpr size_t kGradientBytesAhead = 1024;  // of each gradient, likewise
constexpr int kOccurrencesAhead = 4;          // of a key; more of them overlap by themselves

uint32_t SaturatingAdd(uint32_t a, int64_t b) {
  return static_cast<uint32_t>(std::min<uint64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b), 0xffffffffu));
}

}  // namespace

void ApplyOperation::Update(const ApplyRequest& request, const std::vector<uint32_t>& slot_offsets, int64_t version,
                            int64_t step, Executor* executor) {
  std::optional<CatchUp> catch_up;
  if (CatchesUp(*request.rule)) catch_up.emplace(request.hyper, version);
  const UpdateArguments update{request, slot_offsets, version, step, catch_up.has_value() ? &*catch_up : nullptr};
  ParallelFor(executor, parts(), [&](int p) {
    const ScopedIeeeArithmetic ieee;
    UpdatePart(update, p);
  });
  held_.clear();
}

void ApplyOperation::CountKey(Shard::Locked& lock, uint32_t entry, int64_t version) {
  const KeyBatch& batch = *batch_;
  const int64_t n = Occurrences(entry);
  const Found found = lock->Find(batch.key(entry), batch.hash(entry));
  if (found.row != nullptr) {
    found.row->frequency = SaturatingAdd(found.row->frequency, n);
  } else if (n > 0) {
    lock->SetCount(found, SaturatingAdd(found.counted->frequency, n), version);
  }
  lock->UnpinCounted(batch.key(entry), batch.hash(entry));
}

void ApplyOperation::UpdatePart(const UpdateArguments& update, int part) {
  const uint32_t begin = batch_->begin(part), end = batch_->end(part);
  if (begin == end) return;
  FreedRecords freed;
  WithLocks(part, [&](auto lock_of, auto rows_of) {
    UpdateEntries(update, begin, end, lock_of, rows_of, &freed);
    rows_of(begin).counters().refused += held_.empty() ? refused_[static_cast<size_t>(part)] : refused();
    base_.tiers.Free(&freed);
  });
}

// Apart from UpdateEntries, as FinishRows is: with few values in use, the loops need no memory for them.
[[gnu::noinline]] void ApplyOperation::FetchRows(const ApplyRequest& request, size_t row_bytes, uint32_t begin,
                                                 uint32_t end) const {
  const KeyBatch& batch = *batch_;
  const size_t dim = static_cast<size_t>(base_.options.dim);
  const size_t gradient_bytes = std::min(dim * sizeof(float), kGradientBytesAhead);
  for (uint32_t e = begin; e < end; ++e) {
    if (states_[e] != State::kRow) continue;
    if (!rows_stay_cached_) PrefetchBytes<PrefetchTo::kSecondLevel>(rows_[e], row_bytes);
    uint32_t position = batch.first_position(e);
    for (int n = 0; n < kOccurrencesAhead && position != KeyBatch::kEnd; ++n, position = batch.next(position)) {
      PrefetchBytes(request.grads + position * dim, gradient_bytes);
    }
  }
}

template <typename RowsOf>
[[gnu::noinline]] void ApplyOperation::FinishRows(const UpdateArguments& update, const uint32_t* entries, size_t n,
                                                  RowsOf rows_of, FreedRecords* freed) {
  const KeyBatch& batch = *batch_;
  RowHeader* const* const rows = rows_.data();
  const CountingBloomFilter* const bloom = base_.bloom.get();
  // Of each entry, where nothing is to be added up.
  const int64_t* const counts = keys_.distinct && !keys_.counts.empty() ? keys_.counts.data() : nullptr;
  const int64_t version = update.version;
  // A row's place in the order is at most the newest version: it needs another one only where the version is older.
  const bool by_time = base_.options.score == Score::kTime;  // another update may have read the clock later
  const bool gets_colder = base_.common.strategy == Replacement::kScore && version < base_.common.newest_version.load();
  for (size_t i = 0; i < n; ++i) {
    const uint32_t e = entries[i];
    RowHeader* const row = rows[e];
    const int64_t occurrences = counts != nullptr ? counts[batch.first_position(e)] : Occurrences(e);
    if (row->has(kRowUncommitted)) {
      if (bloom != nullptr) {  // starts from the filter's count, which includes this batch
        const int64_t counted = std::min<int64_t>(bloom->Estimate(row->key), 0xffffffff);
        row->frequency = static_cast<uint32_t>(counted - std::min(counted, occurrences));
      }
      rows_of(e).Commit(row);
    }
    row->frequency = SaturatingAdd(row->frequency, occurrences);
    row->version = by_time ? std::max(row->version, version) : version;
    const uint64_t touched = Touched(e);
    if (!ShardRows::FinishPlainChange(row, touched)) rows_of(e).FinishChange(row, touched, batch.num_keys(), freed);
    if (gets_colder) rows_of(e).Reorder(row, batch.hash(e), stamp_);
  }
}

template <typename LockOf, typename RowsOf>
void ApplyOperation::UpdateEntries(const UpdateArguments& update, uint32_t begin, uint32_t end, LockOf lock_of, RowsOf rows_of,
                                   FreedRecords* freed) {
  const ApplyRequest& request = update.request;
  const KeyBatch& batch = *batch_;
  const size_t dim = static_cast<size_t>(base_.options.dim);
  std::vector<float> sums(keys_.distinct ? 0 : kUpdateGroup * dim);
  const float* grads[kUpdateGroup];
  uint8_t* data[kUpdateGroup];
  uint32_t entries[kUpdateGroup];
  int64_t keys[kUpdateGroup];  // of stochastic rounding
  int64_t versions[kUpdateGroup];

  const size_t row_bytes = RowBytesAhead(*rows_of(begin).layout());
  const bool has_tables = base_.absent.have_tables();
  const bool catches_up = update.catch_up != nullptr;
  const bool notes_changes = NotesChanges(rows_of(begin));  // no snapshot begins or ends while the locks are held
  auto fetch = [&](uint32_t from) {
    const uint32_t to = std::min(end, from + kUpdateGroup);
    FetchRows(request, row_bytes, from, to);
    for (uint32_t e = from; notes_changes && e < to; ++e) {
      if (states_[e] == State::kRow) rows_of(e).PrefetchChange(batch.hash(e), slots_[e]);
    }
  };
  fetch(begin);
  for (uint32_t from = begin; from < end; from += kUpdateGroup) {
    fetch(from + kUpdateGroup);
    size_t n = 0;
    for (uint32_t e = from; e < std::min(end, from + kUpdateGroup); ++e) {
      if (states_[e] == State::kNothing) continue;
      if (states_[e] == State::kCountedKey) {
        CountKey(lock_of(e), e, update.version);
        continue;
      }
      uint32_t position = batch.first_position(e);
      const float* grad = request.grads + position * dim;
      if (batch.next(position) != KeyBatch::kEnd) {  // sum in batch order
        float* sum = sums.data() + n * dim;
        std::memcpy(sum, grad, dim * sizeof(float));
        while ((position = batch.next(position)) != KeyBatch::kEnd) {
          const float* g = request.grads + position * dim;
          for (size_t i = 0; i < dim; ++i) sum[i] += g[i];
        }
        grad = sum;
      }
      RowHeader* const row = rows_[e];
      grads[n] = grad;
      data[n] = notes_changes ? rows_of(e).BeginChange(row, batch.hash(e), slots_[e]) : RowSlab::Data(row);
      keys[n] = batch.key(e);
      if (catches_up) versions[n] = row->version;
      if (has_tables && row->has(kRowUncommitted)) {  // here, as a removal may have made it so since Gather
        const uint16_t table = KnownTable(request.tables, batch.first_position(e));
        base_.absent.initial().FillRows(&keys[n], &table, 1, &data[n]);
      }
      entries[n++] = e;
    }
    UpdateBatch rows;
    rows.rows = data;
    rows.grads = grads;
    rows.n = n;
    rows.dim = base_.options.dim;
    rows.value_dtype = base_.options.value_dtype;
    rows.slot_offsets = update.slot_offsets.data();
    rows.hyper = request.hyper.data();
    if (catches_up) update.catch_up->MoveRows(rows, versions);
    if (base_.options.stochastic_rounding) {
      UpdateStochastically(*request.rule, rows, keys, update.step);
    } else {
      request.rule->Update(rows);
    }
    FinishRows(update, entries, n, rows_of, freed);
    rows_of(begin).counters().updates += static_cast<int64_t>(n);
  }
}

}  // namespace multitier
