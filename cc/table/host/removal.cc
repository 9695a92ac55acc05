// Keys leave the table: Remove, Clear. Expire: expiration.cc.

#include <cstring>

#include "cc/table/host/host_table.h"

namespace multitier {
// Takes keys out of the table wherever they are, damaged records too.
class HostTable::RemoveVisitor : public RecordVisitor {
 public:
  explicit RemoveVisitor(HostTable* table) : table_(table), needs_row_(table->snapshot_.taken()) {}
  // A snapshot that is being taken may have the row still to give.
  bool NeedsRow() const override { return needs_row_; }
  Damage OnDamage() const override { return Damage::kErase; }
  FreedRecords* removed() override { return &freed_; }
  Status OnMemory(Shard::Locked& lock, TierKey* key, const Found& found) override {
    Forget(lock, key->key, found);
    return OkStatus();
  }
  Answer OnRecord(Shard::Locked&, TierKey* key, const RecordHeader&) override {
    table_->ForgetCount(key->key);
    ++rows_;
    return Answer::kErase;
  }
  void Forget(Shard::Locked& lock, int64_t key, const Found& found) {
    if (found.row != nullptr) {
      rows_ += !found.row->has(kRowUncommitted);
      lock->Erase(found, &freed_);
    } else if (found.counted != nullptr) {
      lock->EraseCount(found);
    }
    table_->ForgetCount(key);
  }
  int64_t rows() const { return rows_; }

 private:
  HostTable* const table_;
  const bool needs_row_;
  FreedRecords freed_;
  int64_t rows_ = 0;  // that keys had
};

void HostTable::ForgetCount(int64_t key) {
  if (bloom_ != nullptr) bloom_->Subtract(key, bloom_->Estimate(key));
}

Status HostTable::Remove(Span<const int64_t> keys, int64_t* removed) {
  MT_RETURN_IF_ERROR(CheckMemory(keys.size()));
  MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::EnterToChange(&base_));
  BorrowedKeyBatch batch;
  batch->SortByShard(keys, shards_.log2());
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

Status HostTable::RemoveOf(const KeyBatch& batch, int s, int64_t* removed) {
  Shard* shard = shards_[s].get();
  const ShardWriter writer(shard);
  RemoveVisitor visitor(this);
  TierKeys below;
  {
    Shard::Locked lock(shard);
    for (uint32_t e = batch.begin(s); e < batch.end(s); ++e) {
      const Found found = lock->Find(batch.key(e), batch.hash(e));
      if (found.maybe_below) {
        below.Add(batch, e, s);
      } else {
        visitor.Forget(lock, batch.key(e), found);
      }
    }
  }
  const Status status = reader_.Read(&below, &visitor);
  Shard::Locked(shard)->counters().removed += visitor.rows();
  *removed += visitor.rows();
  (void)tiers_.Remove(writer, visitor.removed());  // the keys are out of the table; a refused removal is repeated
  base_.removed.Spill();
  return status;
}

Status HostTable::Clear() {
  MT_ASSIGN_OR_RETURN(const ExclusiveScope alone, ExclusiveScope::Enter(&base_));
  FreedRecords freed;
  base_.changes_since = 0;
  for (auto& shard : shards_) Shard::Locked(shard)->Clear(&freed);
  common_.dram_rows = 0;
  base_.removed.Forget();
  if (bloom_ != nullptr) std::memset(bloom_->Counters().data(), 0, bloom_->bytes());
  Status status = tiers_.RetryAllRemovals();  // a refused removal is repeated later
  demoter_.Forget();
  // Nothing names a record any more, so none is moved from here on.
  for (int level = 0; level < levels_.count; ++level) {
    const Status scanned = tiers_.Scan(level, [&](const RecordHeader& record, uint32_t location) {
      freed.at[level].push_back(KeyLocation{record.key, location});
      for (int deeper = level + 1; deeper < levels_.count; ++deeper) {
        if (levels_.needs_removal[deeper]) freed.at[deeper].push_back(KeyLocation{record.key, kNoLocation});
      }
      return OkStatus();
    });
    if (status.ok()) status = scanned;
  }
  const Status removed = tiers_.Remove(TableWriter(shards_), &freed);
  return status.ok() ? removed : status;
}

void HostTable::NoteRemoved(Span<const int64_t> keys) {
  for (const int64_t key : keys) base_.removed.Note(key);
  base_.removed.Spill();
}

Result<std::vector<int64_t>> HostTable::RemovedSince(int64_t version) {
  MT_RETURN_IF_ERROR(base_.CheckProcess());  // and not into the gate: reading the file may take long
  Result<std::vector<int64_t>> keys = base_.removed.Since(version);
  if (!keys.ok()) return base_.OfThisTable(keys.status());
  MT_RETURN_IF_ERROR(DropPresent(&*keys));
  return keys;
}

}  // namespace multitier
