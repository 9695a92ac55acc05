// Apply: gather (gather.cc), update, trim (trim.cc); see embedding_table.h. Update works on memory that gather pinned
// and cannot fail. Rows go through it a group of 32 at a time, the next group's rows and gradients on their way meanwhile.

#include <algorithm>
#include <cstring>

#include "cc/base/ieee.h"
#include "cc/table/table_impl.h"

namespace multitier {
namespace {

constexpr uint32_t kGroup = 32;

void PrefetchForWrite(const void* address, size_t bytes) {
  for (size_t b = 0; b < bytes; b += 64) __builtin_prefetch(static_cast<const char*>(address) + b, 1);
}

uint32_t SaturatingAdd(uint32_t a, int64_t b) {
  return static_cast<uint32_t>(std::min<uint64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b), 0xffffffffu));
}

}  // namespace

Status EmbeddingTable::Impl::Apply(const ApplyRequest& request, Executor* executor) {
  MT_RETURN_IF_ERROR(CheckProcess());
  const size_t n = request.keys.size();
  if (request.rule == nullptr) return InvalidArgumentError("table '", options_.name, "': apply without an update rule");
  if (!request.places.empty() && (!request.distinct || request.places.size() != n)) {
    return InvalidArgumentError("table '", options_.name, "': apply expects places of ", n, " distinct keys or none, found ",
                                request.places.size(), request.distinct ? "" : " of keys that may repeat");
  }
  if (!request.counts.empty() && request.counts.size() != n) {
    return InvalidArgumentError("table '", options_.name, "': apply expects a count for each of ", n, " keys, found ",
                                request.counts.size());
  }
  for (const int64_t count : request.counts) {
    if (count < 0) {
      return InvalidArgumentError("table '", options_.name, "': apply expects counts >= 0, found ", count);
    }
  }
  if (request.hyper.size() != request.rule->hyperparameters().size()) {
    return InvalidArgumentError("table '", options_.name, "': rule ", request.rule->name(), " expects ",
                                request.rule->hyperparameters().size(), " hyperparameters, found ", request.hyper.size());
  }
  MT_RETURN_IF_ERROR(request.rule->Validate(request.hyper.data()));

  AwaitSnapshot();
  InsideGate inside(&gate_);
  const std::shared_ptr<const RowLayout> layout = this->layout();
  const Span<const SlotSpec> slots = request.rule->slots();
  if (request.slot_columns.size() != slots.size()) {
    return InvalidArgumentError("table '", options_.name, "': rule ", request.rule->name(), " expects ", slots.size(),
                                " slot columns, found ", request.slot_columns.size());
  }
  std::vector<uint32_t> slot_offsets;
  for (size_t i = 0; i < slots.size(); ++i) {
    const int column = layout->Find(request.slot_columns[i]);
    if (column <= 0) {
      return InvalidArgumentError("table '", options_.name, "': rule ", request.rule->name(), " expects slot '",
                                  request.slot_columns[i], "', which the table does not have");
    }
    const int dim = slots[i].per_row ? 1 : options_.dim;
    if (layout->columns()[column].dim != dim) {
      return InvalidArgumentError("table '", options_.name, "': rule ", request.rule->name(), " expects slot '",
                                  request.slot_columns[i], "' of dim ", dim, ", found ", layout->columns()[column].dim);
    }
    slot_offsets.push_back(layout->columns()[column].offset);
  }
  const int64_t version = request.global_step >= 0 ? request.global_step : applies_.load() + 1;
  if (n == 0) {
    ++applies_;
    return OkStatus();
  }

  BorrowedKeyBatch batch;
  batch->Partition(request.keys, log2_shards_, request.distinct);
  batch->PrepareDedup();
  Gathered gathered;
  ApplyContext context;
  context.batch = &*batch;
  context.counts = request.counts;
  context.places = request.places;
  context.gathered = &gathered;
  MT_RETURN_IF_ERROR(Gather(&context, executor));

  const int64_t step = applies_.fetch_add(1) + 1;
  UpdateContext update{&context, &request, slot_offsets, request.global_step >= 0 ? version : step};
  RaiseTo(&newest_step_, update.version);
  ParallelFor(executor, static_cast<int>(shards_.size()), [&](int s) {
    const ScopedIeeeArithmetic ieee;
    UpdateShard(update, s);
  });
  if (evicts_) TrimAndRemember();
  return OkStatus();
}

void EmbeddingTable::Impl::CountKey(ApplyContext* context, Shard* shard, uint32_t entry, int64_t version) {
  const KeyBatch& batch = *context->batch;
  const int64_t n = context->Occurrences(entry);
  const Found found = shard->Find(batch.key(entry), batch.hash(entry));
  if (found.row != nullptr) {
    found.row->frequency = SaturatingAdd(found.row->frequency, n);
  } else if (n > 0) {
    shard->marks.CountedChanges(ShardIndex::location(*found.word));
    if (found.counted->frequency == 0) ++shard->counted_rows;
    found.counted->frequency = SaturatingAdd(found.counted->frequency, n);
    found.counted->version = version;
  }
  UnpinCounted(shard, batch.key(entry), batch.hash(entry));
}

void EmbeddingTable::Impl::UpdateShard(const UpdateContext& update, int s) {
  ApplyContext* context = update.gather;
  const ApplyRequest& request = *update.request;
  const KeyBatch& batch = *context->batch;
  const uint32_t begin = batch.begin(s), end = batch.end(s);
  if (begin == end) return;
  Gathered& gathered = *context->gathered;
  Shard* const shard = shards_[s].get();
  const size_t dim = static_cast<size_t>(options_.dim);
  GoneRecords gone;
  std::vector<float> sums(kGroup * dim);
  const float* grads[kGroup];
  uint8_t* data[kGroup];
  uint32_t entries[kGroup];

  std::unique_lock<SharedMutex> lock(shard->mutex);
  const size_t row_bytes = sizeof(RowHeader) + shard->dram.layout()->row_bytes();
  auto fetch = [&](uint32_t from) {
    for (uint32_t e = from; e < std::min(end, from + kGroup); ++e) {
      if (gathered.kinds[e] != Gathered::kRow) continue;
      PrefetchForWrite(gathered.rows[e], row_bytes);
      const float* grad = request.grads + batch.first_position(e) * dim;
      for (size_t i = 0; i < dim; i += 16) __builtin_prefetch(grad + i);
    }
  };
  fetch(begin);
  for (uint32_t from = begin; from < end; from += kGroup) {
    fetch(from + kGroup);
    size_t n = 0;
    for (uint32_t e = from; e < std::min(end, from + kGroup); ++e) {
      if (gathered.kinds[e] == Gathered::kNothing) continue;
      if (gathered.kinds[e] == Gathered::kCountedKey) {
        CountKey(context, shard, e, update.version);
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
      grads[n] = grad;
      data[n] = DramTier::Data(gathered.rows[e]);
      entries[n++] = e;
    }
    if (!shard->marks.no_rows()) {
      for (size_t i = 0; i < n; ++i) {
        const int64_t key = gathered.rows[entries[i]]->key;
        shard->marks.RowChanges(ShardIndex::location(*shard->Find(key, batch.hash(entries[i])).word));
      }
    }
    UpdateBatch rows;
    rows.rows = data;
    rows.grads = grads;
    rows.n = n;
    rows.dim = options_.dim;
    rows.value_dtype = options_.value_dtype;
    rows.slot_offsets = update.slot_offsets.data();
    rows.hyper = request.hyper.data();
    request.rule->Update(rows);
    for (size_t i = 0; i < n; ++i) {
      RowHeader* row = gathered.rows[entries[i]];
      const int64_t occurrences = context->Occurrences(entries[i]);
      if (bloom_ != nullptr && row->has(kRowNewborn)) {  // goes on from the filter's count, which has this batch in it
        const int64_t counted = std::min<int64_t>(bloom_->Estimate(row->key), 0xffffffff);
        row->frequency = static_cast<uint32_t>(counted - std::min(counted, occurrences));
      }
      BearRow(shard, row);
      row->frequency = SaturatingAdd(row->frequency, occurrences);
      row->version = update.version;
      FinishChange(shard, row, context->Touched(entries[i]), batch.num_keys(), &gone);
    }
    shard->counters.updates += static_cast<int64_t>(n);
  }
  lock.unlock();
  FreeGone(&gone);
}

void EmbeddingTable::Impl::BearRow(Shard* shard, RowHeader* row) {
  if (!row->has(kRowNewborn)) return;
  ++shard->rows;
  ++shard->counters.created;
  row->flags &= static_cast<uint16_t>(~kRowNewborn);
  if (row->below == kNoLocation) return;
  shard->counted.Release(row->below);  // the slot of the counted entry it was
  row->below = kNoLocation;
}

void EmbeddingTable::Impl::FinishChange(Shard* shard, RowHeader* row, uint64_t touched, size_t batch,
                                        GoneRecords* gone) {
  row->flags &= static_cast<uint16_t>(~kRowDemoting);
  if (touched != 0 && NoteUse(row, static_cast<uint32_t>(touched), static_cast<uint32_t>(2 * batch))) --shard->prefetched;
  if (row->below != kNoLocation) {  // the copy below is no longer the row's
    gone->at[levels_ - 1].push_back(KeyLocation{row->key, row->below, /*newest=*/true});
    row->below = kNoLocation;
  }
  --row->pins;
}

}  // namespace multitier
