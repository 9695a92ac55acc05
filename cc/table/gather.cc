// Gather: the first step of an apply (see embedding_table.h). It leaves every entry of the batch in one of three states:
//
//   kRow         a row in DRAM, pinned; a newborn one where the key had none
//   kCountedKey  under the counter filter, below its threshold: a counted entry, pinned
//   kNothing     not admitted by a filter that keeps no entry
//
// A counted key that reaches its threshold becomes a newborn row at once, which keeps the entry's slot in `below` and its
// count in `frequency` (so that Undo can put the entry back) and takes over the pins of the applies that hold the entry.
// Undo takes back exactly what gather did: pins, newborns that nobody else pinned, entries without a count.

#include <algorithm>

#include "cc/base/ieee.h"
#include "cc/table/table_impl.h"

namespace multitier {
namespace {

constexpr uint32_t kGroup = 32;
constexpr size_t kCachedBytes = 256 << 10;  // of a processor's second-level cache

}  // namespace

Status EmbeddingTable::Impl::Gather(ApplyContext* context, Executor* executor) {
  KeyBatch* const batch = context->batch;
  const int shards = static_cast<int>(shards_.size());
  Gathered* gathered = context->gathered;
  gathered->rows.resize(batch->num_keys());
  gathered->kinds.assign(batch->num_keys(), Gathered::kNothing);
  context->below.resize(shards_.size());
  if (evicts_) {
    context->no_room = RetryTrim();
    context->stamp = accesses_.fetch_add(batch->num_keys());
  }
  // A Bloom filter shares counters between keys: all counts of the batch are in before any key is tested. Undo takes them out
  // again, but for a counter that saturated, which stays so.
  const bool counts_first = bloom_ != nullptr && !context->admit_all;
  auto add_counts = [&](int s, bool add) {
    for (uint32_t e = batch->begin(s); e < batch->end(s); ++e) {
      const int64_t n = context->Occurrences(e);
      add ? bloom_->Add(batch->key(e), n) : bloom_->Subtract(batch->key(e), n);
    }
  };
  if (counts_first) {
    ParallelFor(executor, shards, [&](int s) {
      batch->Dedup(s);
      add_counts(s, true);
    });
  }
  std::vector<Status> statuses(shards_.size());
  ParallelFor(executor, shards, [&](int s) {
    const ScopedIeeeArithmetic ieee;
    if (!counts_first) batch->Dedup(s);
    statuses[s] = GatherShard(context, s);
  });
  Status status;
  for (Status& s : statuses) {
    if (status.ok() && !s.ok()) status = std::move(s);
  }
  if (status.ok() && levels_ > 0) status = GatherBelow(context);
  if (status.ok()) return status;
  for (int s = 0; s < shards; ++s) {
    UndoShard(context, s);
    if (counts_first) add_counts(s, false);
  }
  return status;
}

Status EmbeddingTable::Impl::GatherShard(ApplyContext* context, int s) {
  const KeyBatch& batch = *context->batch;
  const uint32_t begin = batch.begin(s), end = batch.end(s);
  if (begin == end) return OkStatus();
  Shard* const shard = shards_[s].get();
  Gathered& gathered = *context->gathered;
  std::vector<uint32_t> absent;
  std::lock_guard<SharedMutex> lock(shard->mutex);
  const ShardIndex& index = shard->index;
  RowHeader* rows[2][kGroup];
  auto place_of = [&](uint32_t e) {
    if (context->places.empty()) return kNoPlace;
    const uint32_t place = context->places[batch.first_position(e)];
    return place < shard->dram.end() ? place : kNoPlace;  // the table may be another one since
  };
  auto fetch_buckets = [&](uint32_t from) {
    for (uint32_t e = from; e < std::min(end, from + kGroup); ++e) {
      if (place_of(e) == kNoPlace) index.Prefetch(batch.hash(e));
    }
  };
  auto locate = [&](uint32_t e) {
    const uint32_t place = place_of(e);
    return place != kNoPlace ? place : index.FindHomeDram(batch.hash(e));
  };
  // Few rows are still in the cache when update comes to them.
  const bool whole_rows = (end - begin) * shard->dram.layout()->stride() <= kCachedBytes;
  auto fetch_rows = [&](uint32_t from, RowHeader** to) {
    for (uint32_t e = from; e < std::min(end, from + kGroup); ++e) {
      const uint32_t location = locate(e);
      to[e - from] = location == ShardIndex::kNone ? nullptr : shard->dram.Header(location);
      if (to[e - from] == nullptr) continue;
      if (whole_rows) {
        shard->dram.Prefetch(location);
      } else {
        __builtin_prefetch(to[e - from], 1);
      }
    }
  };
  fetch_buckets(begin);
  fetch_buckets(begin + kGroup);
  fetch_rows(begin, rows[0]);
  int current = 0;
  int64_t hits = 0;
  for (uint32_t from = begin; from < end; from += kGroup, current ^= 1) {
    fetch_buckets(from + 2 * kGroup);
    fetch_rows(from + kGroup, rows[current ^ 1]);
    for (uint32_t e = from; e < std::min(end, from + kGroup); ++e) {
      RowHeader* row = rows[current][e - from];
      if (row == nullptr || row->key != batch.key(e) || row->has(kRowFree)) {
        const Found found = shard->Find(batch.key(e), batch.hash(e));
        row = found.row;
        if (found.maybe_below) {
          context->below[s].push_back(e);
          continue;
        }
        if (row == nullptr) {
          if (found.counted == nullptr) {
            absent.push_back(e);
          } else {
            MT_RETURN_IF_ERROR(GatherCounted(context, shard, e, found));
          }
          continue;
        }
      }
      ++row->pins;
      gathered.rows[e] = row;
      gathered.kinds[e] = Gathered::kRow;
      ++hits;
    }
  }
  shard->counters.hits_dram += hits;
  return GatherAbsent(context, shard, absent);
}

Status EmbeddingTable::Impl::GatherCounted(ApplyContext* context, Shard* shard, uint32_t entry, const Found& found) {
  Gathered& gathered = *context->gathered;
  CountedKey* counted = found.counted;
  const int64_t n = context->admit_all ? 0 : context->Occurrences(entry);
  if (!context->admit_all && counted->frequency + static_cast<uint64_t>(n) < options_.admission.filter_freq) {
    ++counted->pins;
    gathered.kinds[entry] = Gathered::kCountedKey;
    return OkStatus();
  }
  MT_RETURN_IF_ERROR(TakeRoom(context, shard, 1));
  shard->marks.CountedChanges(ShardIndex::location(*found.word));
  const uint32_t location = shard->AllocateRow(context->stamp, counted->frequency + 1, 0);
  RowHeader* row = shard->dram.Header(location);
  row->key = counted->key;
  row->flags = kRowNewborn;
  ResetRow(shard, row);
  row->pins = static_cast<uint16_t>(1 + counted->pins);
  row->frequency = counted->frequency;
  row->below = ShardIndex::location(*found.word);
  if (counted->frequency > 0) --shard->counted_rows;
  ShardIndex::Switch(found.word, WordState::kDram, location);
  gathered.rows[entry] = row;
  gathered.kinds[entry] = Gathered::kRow;
  return OkStatus();
}

Status EmbeddingTable::Impl::GatherAbsent(ApplyContext* context, Shard* shard, const std::vector<uint32_t>& absent) {
  if (absent.empty()) return OkStatus();
  const KeyBatch& batch = *context->batch;
  Gathered& gathered = *context->gathered;
  const AdmissionSpec& admission = options_.admission;
  const std::vector<uint32_t>* create = &absent;
  std::vector<uint32_t> admitted, count;
  if (filters() && !context->admit_all) {
    for (const uint32_t e : absent) {
      bool admit = false;
      if (admission.kind == AdmissionKind::kCounter) {
        admit = context->Occurrences(e) >= static_cast<int64_t>(admission.filter_freq);
        if (!admit) count.push_back(e);
      } else if (admission.kind == AdmissionKind::kBloom) {
        admit = bloom_->Estimate(batch.key(e)) >= static_cast<int64_t>(admission.filter_freq);
      } else {
        admit = AdmitProbabilistic(admission.seed, batch.key(e), static_cast<uint64_t>(applies_.load()),
                                   context->Occurrences(e), admission.probability);
      }
      if (admit) admitted.push_back(e);
    }
    create = &admitted;
  }
  const ShardIndex::HashOfWord hash_of = shard->hash_of();
  MT_RETURN_IF_ERROR(OfThisTable(shard->index.Reserve(create->size() + count.size(), hash_of)));
  if (!count.empty()) {
    if (!shard->counted.Reserve(count.size())) {
      return ResourceExhaustedError("table '", options_.name, "': no memory for ", count.size(), " more counted keys");
    }
    for (const uint32_t e : count) {
      const uint32_t location = shard->AllocateCounted(batch.key(e));
      const Status inserted = shard->index.Insert(batch.hash(e), WordState::kCounted, location, hash_of);
      if (!inserted.ok()) {
        shard->counted.Release(location);
        return inserted;
      }
      shard->counted.at(location)->pins = 1;
      gathered.kinds[e] = Gathered::kCountedKey;
    }
  }
  if (create->empty()) return OkStatus();
  MT_RETURN_IF_ERROR(TakeRoom(context, shard, create->size()));
  const std::shared_ptr<const RowLayout>& layout = shard->dram.layout();
  int64_t keys[kGroup];
  float* values[kGroup];
  auto fetch_buckets = [&](size_t from) {
    for (size_t i = from; i < std::min(create->size(), from + kGroup); ++i) shard->index.Prefetch(batch.hash((*create)[i]));
  };
  fetch_buckets(0);
  for (size_t i = 0; i < create->size(); i += kGroup) {
    const size_t n = std::min<size_t>(kGroup, create->size() - i);
    fetch_buckets(i + kGroup);
    uint32_t locations[kGroup];
    for (size_t j = 0; j < n; ++j) {
      keys[j] = batch.key((*create)[i + j]);
      locations[j] = shard->AllocateRow(context->stamp, 1, 0);
      RowHeader* row = shard->dram.Header(locations[j]);
      values[j] = reinterpret_cast<float*>(DramTier::Data(row));
      row->key = keys[j];
      row->version = -1;
      row->pins = 1;
      row->flags = kRowNewborn;
      layout->FillSlots(DramTier::Data(row), 1);
    }
    initializer_->FillBatch(keys, n, values);
    for (size_t j = 0; j < n; ++j) {
      const uint32_t e = (*create)[i + j];
      const Status inserted = shard->index.Insert(batch.hash(e), WordState::kDram, locations[j], hash_of);
      if (!inserted.ok()) {
        for (size_t k = j; k < n; ++k) shard->ReleaseRow(locations[k]);
        dram_rows_ -= static_cast<int64_t>(create->size() - i - j);
        return inserted;
      }
      gathered.rows[e] = shard->dram.Header(locations[j]);
      gathered.kinds[e] = Gathered::kRow;
    }
  }
  return OkStatus();
}

Status EmbeddingTable::Impl::TakeRoom(ApplyContext* context, Shard* shard, size_t n) {
  if (!context->no_room.ok()) return context->no_room;
  size_t rows = shard->dram.rows();  // newborns included
  for (int level = 0; level < levels_; ++level) rows += static_cast<size_t>(shard->rows_lower[level]);
  if (const size_t most = capacity(budget_rows(*shard->dram.layout())); rows + n > most) {
    return ResourceExhaustedError("table '", options_.name, "': its tiers are full: one of ", shards_.size(), " shards holds ",
                                  rows, " of ", most, " rows; no room for ", n, " more");
  }
  if (!evicts_ && dram_budget_bytes_ != 0) {
    const int64_t budget = static_cast<int64_t>(budget_rows(*shard->dram.layout()));
    if (dram_rows_.fetch_add(static_cast<int64_t>(n)) + static_cast<int64_t>(n) > budget) {
      const int64_t rows = dram_rows_.fetch_sub(static_cast<int64_t>(n));
      return ResourceExhaustedError("table '", options_.name, "': tier ", first_tier_name(), " holds ",
                                    rows - static_cast<int64_t>(n), " of ", budget, " rows (", dram_budget_bytes_.load(),
                                    " bytes); no room for ", n, " more");
    }
  } else {
    dram_rows_ += static_cast<int64_t>(n);
  }
  const Status reserved = shard->dram.Reserve(n);
  if (reserved.ok()) return reserved;
  dram_rows_ -= static_cast<int64_t>(n);
  return OfThisTable(reserved);
}

void EmbeddingTable::Impl::ResetRow(Shard* shard, RowHeader* row) {
  row->version = -1;
  row->frequency = 0;
  initializer_->Fill(row->key, reinterpret_cast<float*>(DramTier::Data(row)));
  shard->dram.layout()->FillSlots(DramTier::Data(row), 1);
}

Status EmbeddingTable::Impl::GatherBelow(ApplyContext* context) {
  BelowKeys wanted;
  size_t n = 0;
  for (const std::vector<uint32_t>& entries : context->below) n += entries.size();
  wanted.reserve(n);
  for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
    for (const uint32_t e : context->below[s]) {
      BelowKey key;
      key.key = context->batch->key(e);
      key.hash = context->batch->hash(e);
      key.shard = s;
      key.entry = e;
      key.touched = context->Touched(e);
      wanted.push_back(std::move(key));
    }
  }
  if (wanted.empty()) return OkStatus();
  if (!context->no_room.ok()) return context->no_room;
  Gathered& gathered = *context->gathered;
  const Settle settle = [&](Shard* shard, BelowKey* key, const Found& found) -> Status {
    if (found.counted != nullptr) return GatherCounted(context, shard, key->entry, found);
    if (found.row == nullptr) return GatherAbsent(context, shard, {key->entry});
    ++found.row->pins;
    gathered.rows[key->entry] = found.row;
    gathered.kinds[key->entry] = Gathered::kRow;
    return OkStatus();
  };
  MT_RETURN_IF_ERROR(Promote(&wanted, Promotion::kPin, &settle));
  for (const BelowKey& key : wanted) {
    if (key.row == nullptr) continue;
    gathered.rows[key.entry] = key.row;
    gathered.kinds[key.entry] = Gathered::kRow;
  }
  return OkStatus();
}

void EmbeddingTable::Impl::UnpinRow(Shard* shard, RowHeader* row) {
  if (--row->pins != 0 || !row->has(kRowNewborn)) return;
  uint64_t* word = shard->Find(row->key, HashKey(row->key)).word;
  --dram_rows_;
  const uint32_t counted_location = row->below;
  if (counted_location == kNoLocation) return shard->EraseRow(word);
  CountedKey* counted = shard->counted.at(counted_location);
  *counted = CountedKey{row->key, counted->version, row->frequency, 0};
  if (row->frequency == 0) {
    shard->counted.Release(counted_location);
    return shard->EraseRow(word);
  }
  shard->ReleaseRow(ShardIndex::location(*word));
  ShardIndex::Switch(word, WordState::kCounted, counted_location);
  ++shard->counted_rows;
}

void EmbeddingTable::Impl::UnpinCounted(Shard* shard, int64_t key, uint64_t hash) {
  const Found found = shard->Find(key, hash);
  if (found.row != nullptr) return UnpinRow(shard, found.row);  // it became a row, which took our pin over
  if (--found.counted->pins == 0 && found.counted->frequency == 0) shard->EraseCounted(found.word);
}

void EmbeddingTable::Impl::UndoShard(ApplyContext* context, int s) {
  const KeyBatch& batch = *context->batch;
  Gathered& gathered = *context->gathered;
  Shard* shard = shards_[s].get();
  std::lock_guard<SharedMutex> lock(shard->mutex);
  for (uint32_t e = batch.begin(s); e < batch.end(s); ++e) {
    switch (gathered.kinds[e]) {
      case Gathered::kNothing:
        break;
      case Gathered::kRow:
        UnpinRow(shard, gathered.rows[e]);
        break;
      case Gathered::kCountedKey:
        UnpinCounted(shard, batch.key(e), batch.hash(e));
        break;
    }
  }
}

}  // namespace multitier
