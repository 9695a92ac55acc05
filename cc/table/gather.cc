// Gather: the first step of an apply (see embedding_table.h). It leaves every entry of the batch in one of three states:
//
//   kRow         a row in DRAM, pinned; uncommitted where the key had none
//   kCountedKey  under the counter filter, below its threshold: a counted entry, pinned
//   kNothing     not admitted by a filter that keeps no entry
//
// A counted key that reaches its threshold becomes an uncommitted row at once, which keeps the entry's slot in `below` and its
// count in `frequency` (so that Undo can put the entry back) and takes over the pins of the applies that hold the entry.
// Undo takes back exactly what gather did: pins, uncommitted rows that nobody else pinned, entries without a count.

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
  if (common_.evicts) {
    context->no_room = demoter_.Retry();
    context->stamp = common_.accesses.fetch_add(batch->num_keys());
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
  if (status.ok() && levels_.count > 0) status = GatherBelow(context);
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
  Gathered& gathered = *context->gathered;
  std::vector<uint32_t> absent;
  Shard::Locked lock(shards_[s]);
  ShardRows& shard = *lock;
  RowHeader* rows[2][kGroup];
  auto place_of = [&](uint32_t e) {
    if (context->places.empty()) return kNoPlace;
    const uint32_t place = context->places[batch.first_position(e)];
    return place < shard.row_slots() ? place : kNoPlace;  // the table may be another one since
  };
  auto fetch_buckets = [&](uint32_t from) {
    for (uint32_t e = from; e < std::min(end, from + kGroup); ++e) {
      if (place_of(e) == kNoPlace) shard.Prefetch(batch.hash(e));
    }
  };
  auto locate = [&](uint32_t e) {
    const uint32_t place = place_of(e);
    return place != kNoPlace ? place : shard.FindHomeRow(batch.hash(e));
  };
  // Few rows are still in the cache when update comes to them.
  const bool whole_rows = (end - begin) * shard.layout()->stride() <= kCachedBytes;
  auto fetch_rows = [&](uint32_t from, RowHeader** to) {
    for (uint32_t e = from; e < std::min(end, from + kGroup); ++e) {
      const uint32_t location = locate(e);
      to[e - from] = location == ShardIndex::kNone ? nullptr : shard.row(location);
      if (to[e - from] == nullptr) continue;
      if (whole_rows) {
        shard.PrefetchRow(location);
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
        const Found found = shard.Find(batch.key(e), batch.hash(e));
        row = found.row;
        if (found.maybe_below) {
          context->below[s].push_back(e);
          continue;
        }
        if (row == nullptr) {
          if (found.counted == nullptr) {
            absent.push_back(e);
          } else {
            MT_RETURN_IF_ERROR(GatherCounted(context, lock, e, found));
          }
          continue;
        }
      }
      shard.Pin(row);
      gathered.rows[e] = row;
      gathered.kinds[e] = Gathered::kRow;
      ++hits;
    }
  }
  shard.counters.hits_dram += hits;
  return GatherAbsent(context, lock, absent);
}

Status EmbeddingTable::Impl::GatherCounted(ApplyContext* context, Shard::Locked& lock, uint32_t entry, const Found& found) {
  Gathered& gathered = *context->gathered;
  const int64_t n = context->admit_all ? 0 : context->Occurrences(entry);
  if (!context->admit_all && found.counted->frequency + static_cast<uint64_t>(n) < options_.admission.filter_freq) {
    lock->PinCounted(found);
    gathered.kinds[entry] = Gathered::kCountedKey;
    return OkStatus();
  }
  MT_RETURN_IF_ERROR(TakeRoom(context, lock, 1));
  gathered.rows[entry] = lock->CreateFromCounted(found, context->stamp);
  gathered.kinds[entry] = Gathered::kRow;
  return OkStatus();
}

Status EmbeddingTable::Impl::GatherAbsent(ApplyContext* context, Shard::Locked& lock, const std::vector<uint32_t>& absent) {
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
  MT_RETURN_IF_ERROR(base_.OfThisTable(lock->ReserveWords(create->size() + count.size())));
  if (!count.empty() && !lock->ReserveCounted(count.size())) {
    return ResourceExhaustedError("table '", options_.name, "': no memory for ", count.size(), " more counted keys");
  }
  for (const uint32_t e : count) {
    MT_RETURN_IF_ERROR(lock->CreateCounted(batch.key(e), batch.hash(e), /*pins=*/1));
    gathered.kinds[e] = Gathered::kCountedKey;
  }
  if (create->empty()) return OkStatus();
  MT_RETURN_IF_ERROR(TakeRoom(context, lock, create->size()));
  size_t created = 0;
  const Status status = lock->CreateUncommitted(batch, *create, context->stamp, gathered.rows.data(), &created);
  for (size_t i = 0; i < created; ++i) gathered.kinds[(*create)[i]] = Gathered::kRow;
  common_.dram_rows -= static_cast<int64_t>(create->size() - created);
  return status;
}

Status EmbeddingTable::Impl::TakeRoom(ApplyContext* context, Shard::Locked& lock, size_t n) {
  if (!context->no_room.ok()) return context->no_room;
  size_t rows = lock->dram_rows();
  for (int level = 0; level < levels_.count; ++level) rows += static_cast<size_t>(lock->rows_in(level));
  if (const size_t most = demoter_.capacity(demoter_.budget_rows(*lock->layout())); rows + n > most) {
    return ResourceExhaustedError("table '", options_.name, "': its tiers are full: one of ", shards_.size(), " shards holds ",
                                  rows, " of ", most, " rows; no room for ", n, " more");
  }
  if (!common_.evicts && demoter_.dram_budget_bytes() != 0) {
    const int64_t budget = static_cast<int64_t>(demoter_.budget_rows(*lock->layout()));
    if (common_.dram_rows.fetch_add(static_cast<int64_t>(n)) + static_cast<int64_t>(n) > budget) {
      const int64_t rows = common_.dram_rows.fetch_sub(static_cast<int64_t>(n));
      return ResourceExhaustedError("table '", options_.name, "': tier ", base_.first_tier_name(), " holds ",
                                    rows - static_cast<int64_t>(n), " of ", budget, " rows (", demoter_.dram_budget_bytes(),
                                    " bytes); no room for ", n, " more");
    }
  } else {
    common_.dram_rows += static_cast<int64_t>(n);
  }
  const Status reserved = lock->ReserveRows(n);
  if (reserved.ok()) return reserved;
  common_.dram_rows -= static_cast<int64_t>(n);
  return base_.OfThisTable(reserved);
}

// Brings rows up, and pins them.
class EmbeddingTable::Impl::GatherVisitor : public RecordVisitor {
 public:
  GatherVisitor(Impl* table, ApplyContext* context) : table_(table), context_(context) {}
  bool NeedsRow() const override { return true; }
  bool MustInstall() const override { return true; }
  Status OnMemory(Shard::Locked& lock, TierKey* key, const Found& found) override {
    if (found.counted != nullptr) return table_->GatherCounted(context_, lock, key->entry, found);
    if (found.row == nullptr) return table_->GatherAbsent(context_, lock, {key->entry});
    OnInstalled(lock, key, found.row);
    return OkStatus();
  }
  Answer OnRecord(Shard::Locked& lock, TierKey* key, const RecordHeader&) override {
    ++lock->counters.lower[key->level].hits;
    return Answer::kInstall;
  }
  void OnInstalled(Shard::Locked& lock, TierKey* key, RowHeader* row) override {
    lock->Pin(row);
    context_->gathered->rows[key->entry] = row;
    context_->gathered->kinds[key->entry] = Gathered::kRow;
  }

 private:
  Impl* const table_;
  ApplyContext* const context_;
};

Status EmbeddingTable::Impl::GatherBelow(ApplyContext* context) {
  TierKeys wanted;
  size_t n = 0;
  for (const std::vector<uint32_t>& entries : context->below) n += entries.size();
  wanted.reserve(n);
  for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
    for (const uint32_t e : context->below[s]) wanted.Add(*context->batch, e, s).touched = context->Touched(e);
  }
  if (wanted.empty()) return OkStatus();
  if (!context->no_room.ok()) return context->no_room;
  GatherVisitor visitor(this, context);
  return reader_.Read(&wanted, &visitor);
}

void EmbeddingTable::Impl::UndoShard(ApplyContext* context, int s) {
  const KeyBatch& batch = *context->batch;
  Gathered& gathered = *context->gathered;
  Shard::Locked lock(shards_[s]);
  for (uint32_t e = batch.begin(s); e < batch.end(s); ++e) {
    switch (gathered.kinds[e]) {
      case Gathered::kNothing:
        break;
      case Gathered::kRow:
        lock->Unpin(gathered.rows[e]);
        break;
      case Gathered::kCountedKey:
        lock->UnpinCounted(batch.key(e), batch.hash(e));
        break;
    }
  }
}

}  // namespace multitier
