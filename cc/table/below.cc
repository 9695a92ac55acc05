// Records of the lower tiers once nobody names them, and when a tier moves them.

#include <algorithm>

#include "cc/table/table_impl.h"

namespace multitier {

Status EmbeddingTable::Impl::OfThisTable(const Status& status) const {
  if (status.ok()) return status;
  return Status(status.code(), StrCat("table '", options_.name, "': ", status.message()), status.os_error());
}

Status EmbeddingTable::Impl::TierError(const std::string& what, int level, const Status& status) const {
  // What the table knows to be in a tier and is not there is lost; NotFound is for what a caller names.
  const StatusCode code = status.code() == StatusCode::kNotFound ? StatusCode::kDataLoss : status.code();
  return Status(code, StrCat("table '", options_.name, "': ", what, ": tier ", lower_[level]->name(), ": ", status.message()));
}

Status EmbeddingTable::Impl::RecordError(const std::string& what, int level, const ReadRecord& record) {
  if (record.any_key) return TierError(what, level, record.status);
  const uint64_t hash = HashKey(record.key);
  Shard* const shard = shard_of(hash);
  std::lock_guard<SharedMutex> lock(shard->mutex);
  const bool there = shard->index.Find(hash, [&](uint64_t word) {
    if (ShardIndex::state(word) == WordState::kPending) word = shard->pending[ShardIndex::location(word)];
    const uint32_t location = ShardIndex::location(word);
    if (ShardIndex::state(word) != WordState::kDram) {
      return ShardIndex::state(word) == LowerState(level) && location == record.location;
    }
    const RowHeader* row = shard->dram.Header(location);
    return row->key == record.key && level == levels_ - 1 && row->below == record.location;
  }) != nullptr;
  return TierError(there ? StrCat(what, ", key ", record.key) : what, level, record.status);
}

void EmbeddingTable::Impl::LendRelocator(int level) {
  if (!lower_[level]->capabilities().relocates) return;
  lower_[level]->SetRelocator([this, level](Span<Relocation> moves) { Relocate(level, moves); });
}

void EmbeddingTable::Impl::FreeGone(GoneRecords* gone) {
  for (int level = 0; level < levels_; ++level) {
    if (!gone->at[level].empty()) lower_[level]->Free(gone->at[level]);
    gone->at[level].clear();
  }
}

void EmbeddingTable::Impl::Owe(Shard* shard, int level, const KeyLocation& record) {
  shard->owed.at[level].push_back(record);
  ++owed_;
}

Status EmbeddingTable::Impl::RemoveGone(GoneRecords* gone) {
  Status status;
  for (int level = 0; level < levels_; ++level) {
    std::vector<KeyLocation>& records = gone->at[level];
    if (records.empty()) continue;
    const Status removed = lower_[level]->Remove(records);
    if (!removed.ok()) {
      if (status.ok()) status = TierError("removing keys", level, removed);
      for (const KeyLocation& record : records) {
        Shard* shard = shard_of(HashKey(record.key));
        std::lock_guard<SharedMutex> lock(shard->mutex);
        Owe(shard, level, record);
      }
      Remember(status);
    }
    records.clear();
  }
  return status;
}

Status EmbeddingTable::Impl::RemoveOwed(Shard* shard) {
  if (owed_.load() == 0) return OkStatus();
  GoneRecords owed;
  {
    std::lock_guard<SharedMutex> lock(shard->mutex);
    std::swap(owed, shard->owed);
    for (const auto& records : owed.at) owed_ -= static_cast<int64_t>(records.size());
  }
  return RemoveGone(&owed);
}

Status EmbeddingTable::Impl::RemoveAllOwed() {
  if (owed_.load() == 0) return OkStatus();
  for (auto& shard : shards_) {
    const TrimHold hold(this, shard.get());
    MT_RETURN_IF_ERROR(RemoveOwed(shard.get()));
  }
  return OkStatus();
}

void EmbeddingTable::Impl::EraseBelow(Shard* shard, uint64_t* word, int level, const RecordHeader& header, uint32_t location,
                                      GoneRecords* gone) {
  gone->at[level].push_back(KeyLocation{header.key, location});
  for (int deeper = level + 1; deeper < levels_; ++deeper) {
    const bool ever = (header.flags & kRowEverBelow) != 0 || any_key_below_;
    if (header.below != kNoLocation || (durable_[deeper] && ever)) {
      gone->at[deeper].push_back(KeyLocation{header.key, header.below});
    }
  }
  shard->index.Erase(word);
  --shard->rows_lower[level];
  --shard->rows;
}

void EmbeddingTable::Impl::PushLower(Shard* shard, int level, const LowerOrder::Entry& entry) {
  LowerOrder& order = shard->lower_order[level];
  order.Push(entry);
  if (!order.wants_keep(static_cast<size_t>(shard->rows_lower[level]))) return;
  std::vector<uint32_t> locations{entry.location};
  shard->index.ForEach([&](uint64_t word) {
    if (ShardIndex::state(word) == WordState::kPending) word = shard->pending[ShardIndex::location(word)];  // may be put back
    if (ShardIndex::state(word) == LowerState(level)) locations.push_back(ShardIndex::location(word));
  });
  std::sort(locations.begin(), locations.end());
  order.Keep(locations);
}

void EmbeddingTable::Impl::Relocate(int level, Span<Relocation> relocations) {
  std::vector<std::vector<Relocation*>> by_shard(shards_.size());
  for (Relocation& relocation : relocations) {
    by_shard[static_cast<size_t>(shard_index(HashKey(relocation.key)))].push_back(&relocation);
  }
  for (size_t s = 0; s < shards_.size(); ++s) {
    if (by_shard[s].empty()) continue;
    std::lock_guard<SharedMutex> lock(shards_[s]->mutex);
    for (Relocation* relocation : by_shard[s]) {
      relocation->moved = RelocateOne(shards_[s].get(), level, *relocation);
      if (relocation->moved) shards_[s]->marks.RecordRelocated(level, relocation->from, relocation->to);
    }
  }
}

bool EmbeddingTable::Impl::RelocateOne(Shard* shard, int level, const Relocation& relocation) {
  bool moved = false;
  shard->index.Find(HashKey(relocation.key), [&](uint64_t& word) {
    const uint32_t location = ShardIndex::location(word);
    switch (ShardIndex::state(word)) {
      case WordState::kDram: {
        RowHeader* row = shard->dram.Header(location);
        if (row->key != relocation.key) return false;
        // A newborn's `below` is a counted entry; a demoting row's has been copied.
        if (level != levels_ - 1 || row->has(kRowNewborn | kRowDemoting) || row->below != relocation.from) return true;
        row->below = relocation.to;
        moved = true;
        return true;
      }
      case WordState::kLower1:
      case WordState::kLower2:
        if (LevelOf(word) != level) {
          moved = lower_[LevelOf(word)]->SwitchBelow(KeyLocation{relocation.key, location}, relocation.from, relocation.to);
          return moved;
        }
        if (location != relocation.from) return false;
        ShardIndex::Switch(&word, LowerState(level), relocation.to);
        // What it was ranked is not known here: it counts as demoted again, and of its frequency TakeColdest asks the record.
        if (bounded(level)) {
          const uint64_t clock = accesses_.load();
          const uint64_t rank = RankOf(options_.cache_strategy, /*frequency=*/0, static_cast<uint32_t>(clock), clock);
          shard->lower_order[level].Push({rank, relocation.key, relocation.to});
        }
        moved = true;
        return true;
      default:
        return false;  // pending: for later
    }
  });
  return moved;
}

}  // namespace multitier
