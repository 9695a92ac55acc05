// What is asked of keys outside training, and their removal: Frequency, Version, LookupTier, Remove, Expire, Clear.

#include <algorithm>
#include <cstring>

#include "cc/table/table_impl.h"

namespace multitier {
namespace {

constexpr size_t kChunkRows = 64 * 1024;
constexpr uint32_t kExpireSlice = 4096;  // rows looked at under one hold of a shard's lock

}  // namespace

template <typename Report>
Status EmbeddingTable::Impl::Facts(Span<const int64_t> keys, Report report) {
  MT_RETURN_IF_ERROR(CheckProcess());
  InsideGate inside(&gate_);
  std::vector<BelowKey> below;
  std::vector<size_t> positions;
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint64_t hash = HashKey(keys[i]);
    Shard* shard = shard_of(hash);
    std::lock_guard<SharedMutex> lock(shard->mutex);
    const Found found = shard->Find(keys[i], hash);
    KeyFacts facts;
    if (found.row != nullptr) {
      const bool born = !found.row->has(kRowNewborn);
      facts.frequency = found.row->frequency;
      facts.version = born ? found.row->version : -1;
      facts.tier = born ? 0 : -1;
    } else if (found.counted != nullptr) {
      facts.frequency = found.counted->frequency;
    } else if (found.maybe_below) {
      BelowKey key;
      key.key = keys[i];
      key.hash = hash;
      key.shard = shard_index(hash);
      below.push_back(std::move(key));
      positions.push_back(i);
      continue;
    }
    report(i, facts);
  }
  MT_RETURN_IF_ERROR(Promote(&below, Promotion::kFacts, nullptr));
  for (size_t j = 0; j < below.size(); ++j) report(positions[j], below[j].facts);
  return OkStatus();
}

Status EmbeddingTable::Impl::Frequency(Span<const int64_t> keys, int64_t* out) {
  return Facts(keys, [out](size_t i, const KeyFacts& facts) { out[i] = facts.frequency; });
}

Status EmbeddingTable::Impl::Version(Span<const int64_t> keys, int64_t* out) {
  return Facts(keys, [out](size_t i, const KeyFacts& facts) { out[i] = facts.version; });
}

Status EmbeddingTable::Impl::LookupTier(Span<const int64_t> keys, int32_t* out) {
  return Facts(keys, [out](size_t i, const KeyFacts& facts) { out[i] = facts.tier; });
}

void EmbeddingTable::Impl::ForgetRow(Shard* shard, uint64_t* word, GoneRecords* gone) {
  RowHeader* row = shard->dram.Header(ShardIndex::location(*word));
  if (!row->has(kRowNewborn)) {
    const bool ever_below = row->has(kRowEverBelow) || any_key_below_;
    for (int level = 0; level < levels_; ++level) {
      const uint32_t location = level == levels_ - 1 ? row->below : kNoLocation;
      if (location != kNoLocation || (durable_[level] && ever_below)) {
        gone->at[level].push_back(KeyLocation{row->key, location});
      }
    }
    row->below = kNoLocation;
    if (row->pins == 0) {
      shard->EraseRow(word);
      --dram_rows_;
      return;
    }
    --shard->rows;
    if (row->has(kRowPrefetched)) --shard->prefetched;
    row->flags = static_cast<uint16_t>((row->flags & kRowEverBelow) | kRowNewborn);
  }
  // An apply holds it: it trains a key that is absent again.
  ResetRow(shard, row);
  if (shard->orders_dram) shard->dram_order.Refresh(ShardIndex::location(*word), accesses_.load());
}

void EmbeddingTable::Impl::ForgetCount(int64_t key) {
  if (bloom_ != nullptr) bloom_->Subtract(key, bloom_->Estimate(key));
}

Status EmbeddingTable::Impl::Remove(Span<const int64_t> keys, int64_t* removed) {
  MT_RETURN_IF_ERROR(CheckProcess());
  InsideGate inside(&gate_);
  BorrowedKeyBatch batch;
  batch->Partition(keys, log2_shards_);
  batch->PrepareDedup();
  int64_t n = 0;
  std::vector<BelowKey> below;
  GoneRecords gone;
  for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
    batch->Dedup(s);
    Shard* shard = shards_[s].get();
    std::lock_guard<SharedMutex> lock(shard->mutex);
    for (uint32_t e = batch->begin(s); e < batch->end(s); ++e) {
      const Found found = shard->Find(batch->key(e), batch->hash(e));
      ForgetCount(batch->key(e));
      if (found.row != nullptr) {
        const bool born = !found.row->has(kRowNewborn);
        ForgetRow(shard, found.word, &gone);
        n += born;
        shard->counters.removed += born;
      } else if (found.counted != nullptr) {
        if (found.counted->pins == 0) {
          shard->EraseCounted(found.word);
        } else if (found.counted->frequency > 0) {
          --shard->counted_rows;
          found.counted->frequency = 0;
        }
      } else if (found.maybe_below) {
        BelowKey key;
        key.key = batch->key(e);
        key.hash = batch->hash(e);
        key.shard = s;
        below.push_back(std::move(key));
      }
    }
  }
  Status status = Promote(&below, Promotion::kPin, nullptr);
  for (BelowKey& key : below) {
    if (!status.ok() || key.row == nullptr) continue;
    Shard* shard = shards_[key.shard].get();
    std::lock_guard<SharedMutex> lock(shard->mutex);
    const bool born = !key.row->has(kRowNewborn);
    ForgetRow(shard, shard->Find(key.key, key.hash).word, &gone);  // leaves it a newborn while we hold it
    UnpinRow(shard, key.row);
    n += born;
    shard->counters.removed += born;
  }
  if (evicts_ && !below.empty()) TrimAndRemember();  // what was brought up for nothing
  const Status told = RemoveGone(&gone);
  if (status.ok()) status = told;
  if (removed != nullptr) *removed = n;
  return status;
}

Status EmbeddingTable::Impl::Expire(int64_t step, int64_t* expired) {
  MT_RETURN_IF_ERROR(CheckProcess());
  if (expired != nullptr) *expired = 0;
  if (!options_.expiry.enabled()) return OkStatus();
  InsideGate inside(&gate_);
  int64_t n = 0;
  GoneRecords gone;
  for (auto& shard : shards_) {
    for (uint32_t from = 0;; from += kExpireSlice) {
      std::lock_guard<SharedMutex> lock(shard->mutex);
      if (from >= shard->dram.end()) break;
      const uint32_t to = std::min<uint32_t>(shard->dram.end(), from + kExpireSlice);
      for (uint32_t location = from; location < to; ++location) {
        RowHeader* row = shard->dram.Header(location);
        if (row->has(kRowFree | kRowNewborn) || row->pins != 0) continue;
        const float* value = reinterpret_cast<const float*>(DramTier::Data(row));
        if (!Expired(options_.expiry, step, row->version, value, options_.dim)) continue;
        ForgetCount(row->key);
        ForgetRow(shard.get(), shard->Find(row->key, HashKey(row->key)).word, &gone);
        ++n;
        ++shard->counters.expired;
      }
    }
    if (options_.expiry.steps_to_live == 0 || options_.admission.kind != AdmissionKind::kCounter) continue;
    std::lock_guard<SharedMutex> lock(shard->mutex);
    shard->index.ForEach([&](uint64_t& word) {
      if (ShardIndex::state(word) != WordState::kCounted) return;
      const CountedKey* counted = shard->counted.at(ShardIndex::location(word));
      if (counted->pins == 0 && step - counted->version > options_.expiry.steps_to_live) shard->EraseCounted(&word);
    });
  }
  Status status = RemoveGone(&gone);
  for (int level = 0; level < levels_ && status.ok(); ++level) status = ExpireBelow(level, step, &n);
  if (expired != nullptr) *expired = n;
  return status;
}

Status EmbeddingTable::Impl::ExpireBelow(int level, int64_t step, int64_t* expired) {
  const bool by_weight = options_.expiry.l2_weight_threshold >= 0.0f;
  std::vector<int64_t> candidates;
  MT_RETURN_IF_ERROR(lower_[level]->Scan([&](const RecordHeader& record, uint32_t) {
    if (by_weight || step - record.version > options_.expiry.steps_to_live) candidates.push_back(record.key);
    return OkStatus();
  }));
  for (size_t from = 0; from < candidates.size(); from += kChunkRows) {
    BorrowedKeyBatch batch;
    batch->Partition(Span<const int64_t>(candidates).subspan(from, std::min(kChunkRows, candidates.size() - from)),
                     log2_shards_);
    batch->PrepareDedup();
    std::vector<BelowKey> keys;
    for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
      batch->Dedup(s);
      for (uint32_t e = batch->begin(s); e < batch->end(s); ++e) {
        BelowKey key;
        key.key = batch->key(e);
        key.hash = batch->hash(e);
        key.shard = s;
        keys.push_back(std::move(key));
      }
    }
    MT_RETURN_IF_ERROR(Promote(&keys, Promotion::kPin, nullptr));
    GoneRecords gone;
    for (BelowKey& key : keys) {
      if (key.row == nullptr) continue;
      Shard* shard = shards_[key.shard].get();
      std::lock_guard<SharedMutex> lock(shard->mutex);
      const float* value = reinterpret_cast<const float*>(DramTier::Data(key.row));
      const bool gone_now = key.row->pins == 1 && !key.row->has(kRowNewborn) &&
                            Expired(options_.expiry, step, key.row->version, value, options_.dim);
      if (!gone_now) {
        UnpinRow(shard, key.row);
        continue;
      }
      key.row->pins = 0;
      ForgetCount(key.key);
      ForgetRow(shard, shard->Find(key.key, key.hash).word, &gone);
      ++*expired;
      ++shard->counters.expired;
    }
    TrimAndRemember();
    MT_RETURN_IF_ERROR(RemoveGone(&gone));
  }
  return OkStatus();
}

Status EmbeddingTable::Impl::Clear() {
  MT_RETURN_IF_ERROR(CheckProcess());
  ClosedGate closed(&gate_);
  GoneRecords gone;
  for (auto& shard : shards_) {
    std::lock_guard<SharedMutex> lock(shard->mutex);
    for (uint32_t location = 0; location < shard->dram.end() && levels_ > 0; ++location) {
      const RowHeader* row = shard->dram.Header(location);
      if (row->has(kRowFree) || !(row->has(kRowEverBelow) || any_key_below_)) continue;
      for (int level = 0; level < levels_; ++level) {
        if (durable_[level]) gone.at[level].push_back(KeyLocation{row->key, kNoLocation});
      }
    }
    shard->index.Clear();
    shard->dram.Clear();
    shard->counted.Clear();
    shard->dram_order.Clear();
    shard->prefetches.clear();
    shard->prefetched = 0;
    shard->counters.removed += shard->rows;
    shard->rows = shard->counted_rows = 0;
    for (int level = 0; level < levels_; ++level) {
      shard->rows_lower[level] = 0;
      shard->lower_order[level].Clear();
    }
  }
  dram_rows_ = 0;
  if (bloom_ != nullptr) std::memset(bloom_->Counters().data(), 0, bloom_->bytes());
  MT_RETURN_IF_ERROR(RemoveOwed());
  {
    std::lock_guard<std::mutex> lock(trim_mutex_);
    trim_error_ = OkStatus();
    trim_failed_ = false;
  }
  // Nothing names a record any more, so none is moved from here on.
  for (int level = 0; level < levels_; ++level) {
    MT_RETURN_IF_ERROR(lower_[level]->Scan([&](const RecordHeader& record, uint32_t location) {
      gone.at[level].push_back(KeyLocation{record.key, location});
      for (int deeper = level + 1; deeper < levels_; ++deeper) {
        if (durable_[deeper]) gone.at[deeper].push_back(KeyLocation{record.key, kNoLocation});
      }
      return OkStatus();
    }));
  }
  return RemoveGone(&gone);
}

}  // namespace multitier
