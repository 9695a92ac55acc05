// Keys leave the table: Remove, Expire, Clear.

#include <algorithm>
#include <cstring>

#include "cc/table/table_impl.h"

namespace multitier {
namespace {

constexpr uint32_t kExpireSlice = 4096;  // rows looked at under one hold of a shard's lock

}  // namespace

void EmbeddingTable::Impl::ForgetCount(int64_t key) {
  if (bloom_ != nullptr) bloom_->Subtract(key, bloom_->Estimate(key));
}

Status EmbeddingTable::Impl::Remove(Span<const int64_t> keys, int64_t* removed) {
  MT_RETURN_IF_ERROR(CheckProcess());
  snapshot_.Await();
  InsideGate inside(&gate_);
  BorrowedKeyBatch batch;
  batch->Partition(keys, shards_.log2());
  batch->PrepareDedup();
  int64_t n = 0;
  Status status;
  for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
    if (batch->begin(s) == batch->end(s)) continue;
    batch->Dedup(s);
    const Status one = RemoveOf(*batch, s, &n);
    if (status.ok()) status = one;
  }
  if (removed != nullptr) *removed = n;
  return status;
}

Status EmbeddingTable::Impl::RemoveOf(const KeyBatch& batch, int s, int64_t* removed) {
  Shard* shard = shards_[s].get();
  const ShardWriter writer(shard);
  Forgetting forgetting;
  int64_t in_memory = 0;
  auto forget = [&](Shard::Locked& lock, int64_t key, const Found& found) {
    if (found.row != nullptr) {
      in_memory += !found.row->has(kRowUncommitted);
      lock->Erase(found, &forgetting.freed);
    } else if (found.counted != nullptr) {
      lock->EraseCount(found);
    }
    ForgetCount(key);
  };
  BelowKeys below;
  {
    Shard::Locked lock(shard);
    for (uint32_t e = batch.begin(s); e < batch.end(s); ++e) {
      const Found found = lock->Find(batch.key(e), batch.hash(e));
      if (found.maybe_below) {
        below.push_back(BelowKeyOf(batch, e, s));
      } else {
        forget(lock, batch.key(e), found);
      }
    }
  }
  const Settle settle = [&](Shard::Locked& lock, BelowKey* key, const Found& found) {
    forget(lock, key->key, found);
    return OkStatus();
  };
  Status status = Promote(&below, Promotion::kForget, &settle, &forgetting);
  if (bloom_ != nullptr) {
    for (const BelowKey& key : below) {
      if (key.outcome == BelowKey::kRead) ForgetCount(key.key);
    }
  }
  {
    Shard::Locked lock(shard);
    lock->counters.removed += in_memory + forgetting.forgotten;
  }
  *removed += in_memory + forgetting.forgotten;
  (void)tiers_.Remove(writer, &forgetting.freed);  // the keys are out of the table: what a tier refuses is told to it again
  return status;
}

Status EmbeddingTable::Impl::Expire(int64_t step, int64_t* expired) {
  MT_RETURN_IF_ERROR(CheckProcess());
  if (expired != nullptr) *expired = 0;
  if (!options_.expiry.enabled()) return OkStatus();
  InsideGate inside(&gate_);
  int64_t n = 0;
  Status status;
  for (auto& shard : shards_) ExpireInMemory(shard.get(), step, &n);
  for (int level = 0; level < levels_.count; ++level) {
    const Status one = ExpireBelow(level, step, &n);
    if (status.ok()) status = one;
  }
  if (expired != nullptr) *expired = n;
  return status;
}

void EmbeddingTable::Impl::ExpireInMemory(Shard* shard, int64_t step, int64_t* expired) {
  for (uint32_t from = 0, end = 1; from < end; from += kExpireSlice) {
    snapshot_.Await();
    const ShardWriter writer(shard);
    FreedRecords freed;
    {
      Shard::Locked lock(shard);
      end = lock->row_slots();
      const uint32_t to = std::min<uint32_t>(end, from + kExpireSlice);
      for (uint32_t location = from; location < to; ++location) {
        const RowHeader* row = lock->row(location);
        if (row->has(kRowFree | kRowUncommitted) || row->pins != 0) continue;
        const float* value = reinterpret_cast<const float*>(DramTier::Data(row));
        if (!Expired(options_.expiry, step, row->version, value, options_.dim)) continue;
        ForgetCount(row->key);
        lock->Erase(lock->Find(row->key, HashKey(row->key)), &freed);
        ++*expired;
        ++lock->counters.expired;
      }
    }
    (void)tiers_.Remove(writer, &freed);  // what a tier refuses is told to it again
  }
  const bool counts = options_.expiry.steps_to_live != 0 && options_.admission.kind == AdmissionKind::kCounter;
  for (uint32_t from = 0, end = counts ? 1 : 0; from < end; from += kExpireSlice) {
    snapshot_.Await();
    Shard::Locked lock(shard);
    end = lock->counted_slots();
    for (uint32_t location = from; location < std::min(end, from + kExpireSlice); ++location) {
      const CountedKey counted = lock->counted(location);
      if (counted.frequency == 0 || counted.pins != 0 || !ExpiredBySteps(step, counted.version)) continue;
      const Found found = lock->Find(counted.key, HashKey(counted.key));
      if (found.counted == nullptr) continue;  // about to be a row
      lock->EraseCount(found);
    }
  }
}

bool EmbeddingTable::Impl::ExpiredBySteps(int64_t step, int64_t version) const {
  ExpirySpec by_steps = options_.expiry;
  by_steps.l2_weight_threshold = -1.0f;
  return Expired(by_steps, step, version, nullptr, 0);
}

Status EmbeddingTable::Impl::ExpireBelow(int level, int64_t step, int64_t* expired) {
  const bool by_weight = options_.expiry.l2_weight_threshold >= 0.0f;
  std::vector<int64_t> candidates;
  Status status = tiers_.Scan(level, [&](const RecordHeader& record, uint32_t) {
    if (by_weight || ExpiredBySteps(step, record.version)) candidates.push_back(record.key);
    return OkStatus();
  });
  if (!status.ok()) status = tiers_.Error("looking for expired rows", level, status);
  const size_t chunk = ChunkRows();
  for (size_t from = 0; from < candidates.size(); from += chunk) {
    snapshot_.Await();
    BorrowedKeyBatch batch;
    batch->Partition(Span<const int64_t>(candidates).subspan(from, std::min(chunk, candidates.size() - from)), shards_.log2());
    batch->PrepareDedup();
    for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
      if (batch->begin(s) == batch->end(s)) continue;
      batch->Dedup(s);
      const Status one = ExpireBelowOf(*batch, s, step, by_weight, expired);
      if (status.ok()) status = one;
    }
  }
  return status;
}

Status EmbeddingTable::Impl::ExpireBelowOf(const KeyBatch& batch, int s, int64_t step, bool by_weight, int64_t* expired) {
  Shard* shard = shards_[s].get();
  const ShardWriter writer(shard);
  BelowKeys keys;
  for (uint32_t e = batch.begin(s); e < batch.end(s); ++e) keys.push_back(BelowKeyOf(batch, e, s));
  Forgetting forgetting;
  forgetting.reads_rows = by_weight;
  int64_t in_memory = 0;
  forgetting.doomed = [&](const RecordHeader& header, const uint8_t* data) {
    const float* value = reinterpret_cast<const float*>(data);
    const bool doomed = Expired(options_.expiry, step, header.version, value, options_.dim);
    if (doomed) ForgetCount(header.key);
    return doomed;
  };
  const Settle settle = [&](Shard::Locked& lock, BelowKey* key, const Found& found) {  // came up meanwhile
    if (found.row == nullptr || found.row->pins != 0 || found.row->has(kRowUncommitted)) return OkStatus();
    const float* value = reinterpret_cast<const float*>(DramTier::Data(found.row));
    if (!Expired(options_.expiry, step, found.row->version, value, options_.dim)) return OkStatus();
    ForgetCount(key->key);
    lock->Erase(found, &forgetting.freed);
    ++in_memory;
    return OkStatus();
  };
  const Status status = Promote(&keys, Promotion::kForget, &settle, &forgetting);
  *expired += in_memory + forgetting.forgotten;
  {
    Shard::Locked lock(shard);
    lock->counters.expired += in_memory + forgetting.forgotten;
  }
  (void)tiers_.Remove(writer, &forgetting.freed);  // what a tier refuses is told to it again
  return status;
}

Status EmbeddingTable::Impl::Clear() {
  MT_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard<std::mutex> no_snapshot(snapshot_.one_at_a_time());
  ClosedGate closed(&gate_);
  FreedRecords freed;
  for (auto& shard : shards_) Shard::Locked(shard)->Clear(&freed);
  common_.dram_rows = 0;
  if (bloom_ != nullptr) std::memset(bloom_->Counters().data(), 0, bloom_->bytes());
  Status status = tiers_.RetryAllRemovals();  // what a tier refuses again is told to it later
  demoter_.Forget();
  // Nothing names a record any more, so none is moved from here on.
  for (int level = 0; level < levels_.count; ++level) {
    const Status scanned = tiers_.Scan(level, [&](const RecordHeader& record, uint32_t location) {
      freed.at[level].push_back(KeyLocation{record.key, location});
      for (int deeper = level + 1; deeper < levels_.count; ++deeper) {
        if (levels_.durable[deeper]) freed.at[deeper].push_back(KeyLocation{record.key, kNoLocation});
      }
      return OkStatus();
    });
    if (status.ok()) status = scanned;
  }
  const Status removed = tiers_.Remove(TableWriter(shards_), &freed);
  return status.ok() ? removed : status;
}

}  // namespace multitier
