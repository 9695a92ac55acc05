#include "cc/table/tiering/tier_stack.h"

#include <utility>

namespace multitier {

void TierStack::Add(Tier* tier, bool bounded) {
  const int level = setup_->count++;
  const TierCapabilities can = tier->capabilities();
  setup_->tier[level] = tier;
  setup_->durable[level] = can.durable;
  setup_->needs_removal[level] = can.durable || can.keyed;
  setup_->middle[level] = can.middle;
  setup_->bounded[level] = bounded;
}

Status TierStack::SetLayout(std::shared_ptr<const RowLayout> layout) {
  for (int level = 0; level < count(); ++level) MT_RETURN_IF_ERROR(levels_.tier[level]->SetLayout(layout));
  return OkStatus();
}

void TierStack::LendRelocators() {
  for (int level = 0; level < count(); ++level) {
    if (!levels_.tier[level]->capabilities().relocates) continue;
    levels_.tier[level]->SetRelocator([this, level](Span<Relocation> moves) { Relocate(level, moves); });
  }
}

void TierStack::TakeRelocatorsBack() {
  for (int level = 0; level < count(); ++level) levels_.tier[level]->SetRelocator(nullptr);
}

void TierStack::Free(FreedRecords* freed) {
  for (int level = 0; level < count(); ++level) {
    if (!freed->at[level].empty()) levels_.tier[level]->Free(freed->at[level]);
    freed->at[level].clear();
  }
}

void TierStack::RemoveLater(Shard::Locked& lock, const FreedRecords& freed) {
  for (int level = 0; level < count(); ++level) {
    const std::vector<KeyLocation>& records = freed.at[level];
    std::vector<KeyLocation>& pending = lock.pending_removals()->at[level];
    pending.insert(pending.end(), records.begin(), records.end());
    pending_ += static_cast<int64_t>(records.size());
  }
}

Status TierStack::RemoveOrKeep(int level, std::vector<KeyLocation>* records) {
  if (records->empty()) return OkStatus();
  Status removed = levels_.tier[level]->Remove(*records);
  if (!removed.ok()) {
    for (const KeyLocation& record : *records) {
      Shard::Locked lock(shards_.of(HashKey(record.key)));
      lock.pending_removals()->at[level].push_back(record);
      ++pending_;
    }
    refused_(Error("removing keys", level, removed));
  }
  records->clear();
  return removed;
}

Status TierStack::RemoveOrKeep(FreedRecords* freed) {
  Status status;
  for (int level = 0; level < count(); ++level) {
    const Status removed = RemoveOrKeep(level, &freed->at[level]);
    if (status.ok() && !removed.ok()) status = Error("removing keys", level, removed);
  }
  return status;
}

Status TierStack::Write(const ShardWriter& writer, int level, Span<const WriteRecord> records, uint32_t* locations) {
  if (pending_.load() > 0) {
    std::vector<KeyLocation> pending;
    {
      Shard::Locked lock(writer.shard());
      std::swap(pending, lock.pending_removals()->at[level]);
    }
    pending_ -= static_cast<int64_t>(pending.size());
    MT_RETURN_IF_ERROR(RemoveOrKeep(level, &pending));
  }
  return levels_.tier[level]->Write(records, locations);
}

Status TierStack::RetryRemovals(const ShardWriter& writer) {
  if (pending_.load() == 0) return OkStatus();
  FreedRecords pending;
  {
    Shard::Locked lock(writer.shard());
    std::swap(pending, *lock.pending_removals());
    for (const auto& records : pending.at) pending_ -= static_cast<int64_t>(records.size());
  }
  return Remove(writer, &pending);
}

Status TierStack::RetryAllRemovals() {
  Status status;
  if (pending_.load() == 0) return status;
  for (auto& shard : shards_) {
    const ShardWriter writer(shard);
    const Status removed = RetryRemovals(writer);
    if (status.ok()) status = removed;
  }
  return status;
}

void TierStack::Relocate(int level, Span<Relocation> relocations) {
  std::vector<std::vector<Relocation*>> by_shard(shards_.size());
  for (Relocation& relocation : relocations) {
    by_shard[static_cast<size_t>(shards_.index(HashKey(relocation.key)))].push_back(&relocation);
  }
  for (size_t s = 0; s < shards_.size(); ++s) {
    if (by_shard[s].empty()) continue;
    Shard::Locked lock(shards_[s]);
    for (Relocation* relocation : by_shard[s]) lock->records().Relocate(level, relocation);
  }
}

Status TierStack::Sync(int level) {
  const Status synced = levels_.tier[level]->Sync();
  return synced.ok() ? synced : Error("flushing", level, synced);
}

Status TierStack::Compact() {
  for (int level = 0; level < count(); ++level) {
    const Status compacted = levels_.tier[level]->Compact();
    if (!compacted.ok()) return Error("compacting", level, compacted);
  }
  return OkStatus();
}

Status TierStack::Error(const std::string& what, int level, const Status& status) const {
  // What the table knows to be in a tier and is not there is lost; NotFound is for what a caller names.
  const bool missing = status.code() == StatusCode::kNotFound;
  const char* const cure = missing && status.os_error() != 0 ? ": expected the files of the table, found this one or its "
                                                               "folder deleted: restore the last checkpoint in a new table"
                                                             : "";
  return Status(missing ? StatusCode::kDataLoss : status.code(),
                StrCat("table '", table_, "': ", what, ": tier ", name(level), ": ", status.message(), cure));
}

Status TierStack::RecordError(const std::string& what, int level, const ReadRecord& record) const {
  if (record.any_key) return Error(what, level, record.status);
  const bool there = Shard::Locked(shards_.of(HashKey(record.key)))->records().Names(level, record.key, record.location);
  return Error(there ? StrCat(what, ", key ", record.key) : what, level, record.status);
}

}  // namespace multitier
