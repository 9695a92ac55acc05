// Records of the lower tiers once nobody names them, and when a tier moves them.

#include "cc/table/table_impl.h"

namespace multitier {

Status EmbeddingTable::Impl::OfThisTable(const Status& status) const {
  if (status.ok()) return status;
  return Status(status.code(), StrCat("table '", options_.name, "': ", status.message()), status.os_error());
}

Status EmbeddingTable::Impl::TierError(const std::string& what, int level, const Status& status) const {
  // What the table knows to be in a tier and is not there is lost; NotFound is for what a caller names.
  const StatusCode code = status.code() == StatusCode::kNotFound ? StatusCode::kDataLoss : status.code();
  return Status(code, StrCat("table '", options_.name, "': ", what, ": tier ", levels_.tier[level]->name(), ": ",
                             status.message()));
}

Status EmbeddingTable::Impl::RecordError(const std::string& what, int level, const ReadRecord& record) {
  if (record.any_key) return TierError(what, level, record.status);
  const bool there = Shard::Locked(shard_of(HashKey(record.key)))->Names(level, record.key, record.location);
  return TierError(there ? StrCat(what, ", key ", record.key) : what, level, record.status);
}

void EmbeddingTable::Impl::LendRelocator(int level) {
  if (!levels_.tier[level]->capabilities().relocates) return;
  levels_.tier[level]->SetRelocator([this, level](Span<Relocation> moves) { Relocate(level, moves); });
}

void EmbeddingTable::Impl::FreeRecords(FreedRecords* gone) {
  for (int level = 0; level < levels_.count; ++level) {
    if (!gone->at[level].empty()) levels_.tier[level]->Free(gone->at[level]);
    gone->at[level].clear();
  }
}

void EmbeddingTable::Impl::Owe(Shard::Locked& lock, int level, const KeyLocation& record) {
  lock.pending_removals()->at[level].push_back(record);
  ++owed_;
}

Status EmbeddingTable::Impl::RemoveRecords(FreedRecords* gone) {
  Status status;
  for (int level = 0; level < levels_.count; ++level) {
    std::vector<KeyLocation>& records = gone->at[level];
    if (records.empty()) continue;
    const Status removed = levels_.tier[level]->Remove(records);
    if (!removed.ok()) {
      if (status.ok()) status = TierError("removing keys", level, removed);
      for (const KeyLocation& record : records) {
        Shard::Locked lock(shard_of(HashKey(record.key)));
        Owe(lock, level, record);
      }
      Remember(status);
    }
    records.clear();
  }
  return status;
}

Status EmbeddingTable::Impl::RemoveOwed(Shard* shard) {
  if (owed_.load() == 0) return OkStatus();
  FreedRecords owed;
  {
    Shard::Locked lock(shard);
    std::swap(owed, *lock.pending_removals());
    for (const auto& records : owed.at) owed_ -= static_cast<int64_t>(records.size());
  }
  return RemoveRecords(&owed);
}

Status EmbeddingTable::Impl::RemoveAllOwed() {
  if (owed_.load() == 0) return OkStatus();
  for (auto& shard : shards_) {
    const TrimHold hold(this, shard.get());
    MT_RETURN_IF_ERROR(RemoveOwed(shard.get()));
  }
  return OkStatus();
}

void EmbeddingTable::Impl::Relocate(int level, Span<Relocation> relocations) {
  std::vector<std::vector<Relocation*>> by_shard(shards_.size());
  for (Relocation& relocation : relocations) {
    by_shard[static_cast<size_t>(shard_index(HashKey(relocation.key)))].push_back(&relocation);
  }
  for (size_t s = 0; s < shards_.size(); ++s) {
    if (by_shard[s].empty()) continue;
    Shard::Locked lock(shards_[s]);
    for (Relocation* relocation : by_shard[s]) lock->Relocate(level, relocation);
  }
}

}  // namespace multitier
