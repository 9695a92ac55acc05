// Promote: brings keys up from the lower tiers, or reads them where they are.
//
//   1. mark     under the shard's lock: keys that memory can answer are settled at once. A word below whose tag matches is
//               marked pending: its location becomes an id in the shard's side table, which keeps the word as it was. Nobody
//               else moves, frees or reads that record until it is resolved, so one read serves all.
//   2. read     all records of the batch in one call of each tier, no lock held.
//   3. install  under the shard's lock, a group at a time while the tier reads on: the record's key is verified. Another
//               key's record: the word is put back, its location excluded, and the key probes on. Ours: the row goes into
//               DRAM, or the word is put back where it only was to be read. A record of the last tier stays as the row's
//               clean copy, named by `below`; any other tier hands over the `below` it was given, and its record is freed.
//   4. wait     for words that other operations hold, after all own words are resolved; then from 1 for what is left.
//
// An error puts every own word back and unpins every row this call pinned: nothing has changed.
//
// A damaged record (DataLoss) is an error, or, as on_corruption says, the key starts anew or is dropped. Its key is the one the
// tier knows it by; where it knows none, the one that was asked for: a tag match is all there is.
//
// Removal and expiry do the same with another step 3: the word is erased, the record's removal is for the caller to tell.
//
// Keys come in the order of their shards, and a shard is locked once for each run of up to a thousand of them, in step 1 and
// again in step 3, while the buckets of the next ones are on their way into the processor's cache.

#include <algorithm>
#include <cstring>

#include "cc/table/table_impl.h"

namespace multitier {
namespace {

constexpr size_t kRun = 1024;   // keys of a shard under one hold of its lock
constexpr size_t kAhead = 8;    // buckets on their way
constexpr size_t kGroup = 128;  // records that are installed while others are read

// A place below memory, as one number.
uint64_t PlaceOf(int level, uint32_t location) { return static_cast<uint64_t>(level) << 32 | location; }
uint64_t PlaceOf(uint64_t word) { return PlaceOf(LevelOf(word), ShardIndex::location(word)); }

bool Contains(const std::vector<uint64_t>& v, uint64_t x) { return std::find(v.begin(), v.end(), x) != v.end(); }

}  // namespace

template <typename Visit>
void EmbeddingTable::Impl::ForEachRun(const BelowKeys& keys, const std::vector<size_t>& which, Visit visit) {
  for (size_t from = 0, to = 0; from < which.size(); from = to) {
    const int shard = keys[which[from]].shard;
    while (to < which.size() && to - from < kRun && keys[which[to]].shard == shard) ++to;
    visit(shards_[static_cast<size_t>(shard)].get(), from, to);
  }
}

Status EmbeddingTable::Impl::Promote(BelowKeys* keys, Promotion promotion, const Settle* settle, Forgetting* forgetting) {
  Status status, forget_error;
  // A snapshot that is being taken may have the rows still to give.
  const bool reads_rows = promotion == Promotion::kForget ? forgetting->reads_rows || saving_ : promotion != Promotion::kFacts;
  GoneRecords gone;
  std::vector<size_t> unresolved(keys->size());
  for (size_t i = 0; i < keys->size(); ++i) unresolved[i] = i;
  while (status.ok() && !unresolved.empty()) {
    std::vector<size_t> mine, theirs;
    status = MarkPending(keys, unresolved, promotion, settle, &mine, &theirs);

    const size_t row_bytes = layout()->row_bytes();
    if (reads_rows) keys->MakeRows(row_bytes);
    unresolved.clear();
    const Status marked = status;
    for (int level = 0; level < levels_; ++level) {
      std::vector<ReadRecord> records;
      std::vector<size_t> read;
      records.reserve(mine.size());
      read.reserve(mine.size());
      for (const size_t i : mine) {
        BelowKey& key = (*keys)[i];
        if (key.level != level) continue;
        if (reads_rows) key.data = keys->RowOf(i, row_bytes);
        ReadRecord& record = records.emplace_back();
        record.key = record.header.key = key.key;
        record.location = key.location;
        record.row_data = key.data.data();
        key.record = static_cast<uint32_t>(read.size());
        read.push_back(i);
      }
      if (read.empty()) continue;
      Status batch = marked;
      const auto install = [&](const std::vector<size_t>& which) {
        ForEachRun(*keys, which, [&](Shard* shard, size_t from, size_t to) {
          std::lock_guard<SharedMutex> lock(shard->mutex);
          for (size_t i = from; i < to; ++i) {
            if (i + kAhead < to) shard->index.Prefetch((*keys)[which[i + kAhead]].hash);
            BelowKey& key = (*keys)[which[i]];
            const ReadRecord& record = records[key.record];
            const Status installed =
                Install(shard, &key, record, batch.ok() ? record.status : batch, promotion, forgetting, &gone);
            Status* const first = promotion == Promotion::kForget && batch.ok() ? &forget_error : &status;
            if (!installed.ok() && first->ok()) *first = installed;
            if (installed.ok() && key.outcome == BelowKey::kUnresolved) unresolved.push_back(which[i]);
          }
        });
      };
      std::vector<bool> told(read.size());
      std::vector<size_t> group;
      const auto answered = [&](size_t i) {
        told[i] = true;
        group.push_back(read[i]);
        if (group.size() < kGroup) return;
        std::sort(group.begin(), group.end());
        install(group);
        group.clear();
      };
      if (marked.ok()) batch = lower_[level]->ReadAndTell(records, answered);
      for (size_t i = 0; i < read.size(); ++i) {
        if (!told[i]) group.push_back(read[i]);
      }
      std::sort(group.begin(), group.end());
      install(group);
    }
    FreeGone(&gone);
    if (!status.ok()) break;
    for (const size_t i : theirs) {
      BelowKey& key = (*keys)[i];
      Shard* shard = shards_[key.shard].get();
      std::unique_lock<SharedMutex> lock(shard->mutex);
      shard->resolved.wait(lock, [&] { return shard->resolutions != key.seen_resolutions; });
      unresolved.push_back(i);
    }
  }
  if (!status.ok()) {
    for (BelowKey& key : *keys) {
      if (key.row != nullptr) Unpin(&key);
    }
  }
  return status.ok() ? forget_error : status;
}

Status EmbeddingTable::Impl::MarkPending(BelowKeys* keys, const std::vector<size_t>& unresolved, Promotion promotion,
                                         const Settle* settle, std::vector<size_t>* mine, std::vector<size_t>* theirs) {
  Status status;
  ForEachRun(*keys, unresolved, [&](Shard* shard, size_t from, size_t to) {
    if (!status.ok()) return;
    std::lock_guard<SharedMutex> lock(shard->mutex);
    for (size_t i = from; i < to && status.ok(); ++i) {
      if (i + kAhead < to) shard->index.Prefetch((*keys)[unresolved[i + kAhead]].hash);
      status = MarkOne(shard, keys, unresolved[i], promotion, settle, mine, theirs);
    }
  });
  return status;
}

Status EmbeddingTable::Impl::MarkOne(Shard* shard, BelowKeys* keys, size_t i, Promotion promotion, const Settle* settle,
                                     std::vector<size_t>* mine, std::vector<size_t>* theirs) {
  BelowKey& key = (*keys)[i];
  uint64_t* candidate = nullptr;
  bool held_by_others = false;
  Found found;
  found.word = shard->index.Find(key.hash, [&](uint64_t& word) {
    const uint32_t location = ShardIndex::location(word);
    switch (ShardIndex::state(word)) {
      case WordState::kDram:
        if (shard->dram.Header(location)->key != key.key) return false;
        found.row = shard->dram.Header(location);
        return true;
      case WordState::kCounted:
        if (shard->counted.at(location)->key != key.key) return false;
        found.counted = shard->counted.at(location);
        return true;
      case WordState::kPending:
        if (!Contains(key.excluded, PlaceOf(shard->pending[location]))) held_by_others = true;
        return false;
      default:
        if (candidate == nullptr && !Contains(key.excluded, PlaceOf(word))) candidate = &word;
        return false;
    }
  });
  if (found.word == nullptr && candidate != nullptr) {
    key.level = LevelOf(*candidate);
    key.location = ShardIndex::location(*candidate);
    key.pending_id = shard->AddPending(*candidate);
    ShardIndex::Switch(candidate, WordState::kPending, key.pending_id);
    mine->push_back(i);
    return OkStatus();
  }
  if (found.word == nullptr && held_by_others) {
    key.seen_resolutions = shard->resolutions;
    theirs->push_back(i);
    return OkStatus();
  }
  if (settle != nullptr) {
    key.outcome = BelowKey::kSettled;
    return (*settle)(shard, &key, found);
  }
  AnswerFromMemory(&key, i, found, promotion, keys);
  return OkStatus();
}

void EmbeddingTable::Impl::AnswerFromMemory(BelowKey* key, size_t i, const Found& found, Promotion promotion,
                                            BelowKeys* keys) {
  const bool born = found.row != nullptr && !(found.row->has(kRowNewborn));
  if (found.row != nullptr && promotion == Promotion::kPin) {
    ++found.row->pins;
    key->row = found.row;
  }
  if (born) {
    key->outcome = BelowKey::kInDram;
    key->facts = KeyFacts{found.row->frequency, found.row->version, 0};
    if (promotion == Promotion::kCopy || promotion == Promotion::kPeek) {
      const size_t row_bytes = layout()->row_bytes();
      keys->MakeRows(row_bytes);
      key->data = keys->RowOf(i, row_bytes);
      std::memcpy(key->data.data(), DramTier::Data(found.row), row_bytes);
    }
  } else if (found.counted != nullptr) {
    key->outcome = BelowKey::kCounted;
    key->facts.frequency = found.counted->frequency;
  } else {
    key->outcome = BelowKey::kAbsent;
  }
}

Status EmbeddingTable::Impl::ForgetBelow(Shard* shard, uint64_t* word, BelowKey* key, const RecordHeader& header, bool whole,
                                         Forgetting* forgetting) {
  key->outcome = BelowKey::kRead;
  if (forgetting->doomed != nullptr && !forgetting->doomed(header, key->data.data())) return OkStatus();
  if (!whole) shard->marks.RecordLost(key->level, key->location);
  if (whole && !key->data.empty()) shard->marks.RecordGoes(key->level, key->location, header, key->data.data());
  EraseBelow(shard, word, key->level, header, key->location, &forgetting->gone);
  ++forgetting->forgotten;
  return OkStatus();
}

void EmbeddingTable::Impl::Reinit(Shard* shard, BelowKey* key, RecordHeader* header) {
  const RowLayout& layout = *shard->dram.layout();
  header->version = -1;
  header->frequency = 0;
  header->num_columns = static_cast<uint32_t>(layout.columns().size());
  if (key->data.empty()) return;
  std::fill(key->data.begin(), key->data.end(), uint8_t{0});
  initializer_->Fill(key->key, reinterpret_cast<float*>(key->data.data()));
  layout.FillSlots(key->data.data(), 1);
}

void EmbeddingTable::Impl::DropCorrupt(Shard* shard, uint64_t* word, const BelowKey& key, const RecordHeader& header) {
  GoneRecords gone;
  shard->marks.RecordLost(key.level, key.location);
  EraseBelow(shard, word, key.level, header, key.location, &gone);
  for (int level = 0; level < levels_; ++level) {  // our operation does not hold the trim
    for (const KeyLocation& record : gone.at[level]) Owe(shard, level, record);
  }
  KeepDropped(shard, {key.key});
}

Status EmbeddingTable::Impl::Install(Shard* shard, BelowKey* key, const ReadRecord& record, const Status& read,
                                     Promotion promotion, Forgetting* forgetting, GoneRecords* gone) {
  RecordHeader header = record.header;
  ++shard->counters.lower[key->level].reads;
  uint64_t* word = shard->TakePending(key->hash, key->pending_id);
  const bool corrupt = read.code() == StatusCode::kDataLoss;
  if (!read.ok() && !corrupt) return TierError(StrCat("reading key ", key->key), key->level, read);
  if (header.key != key->key) {
    ++shard->counters.false_matches;
    key->excluded.push_back(PlaceOf(key->level, key->location));
    return OkStatus();
  }
  const RowLayout* const layout = shard->dram.layout().get();
  if (corrupt) {
    ++shard->counters.corrupt;
    const bool removes = promotion == Promotion::kForget && forgetting->doomed == nullptr;
    if (!removes && options_.on_corruption == OnCorruption::kDrop) {
      DropCorrupt(shard, word, *key, header);
      return OkStatus();  // and the key is looked for further on
    }
    if (!removes && (options_.on_corruption == OnCorruption::kError || promotion == Promotion::kForget)) {
      return TierError(StrCat("reading key ", key->key), key->level, read);
    }
    if (!removes) Reinit(shard, key, &header);
  }
  if (promotion == Promotion::kForget) return ForgetBelow(shard, word, key, header, /*whole=*/!corrupt, forgetting);
  ++shard->counters.lower[key->level].hits;
  key->facts = KeyFacts{header.frequency, header.version, tier_number(key->level)};
  key->outcome = BelowKey::kRead;
  bool install = promotion == Promotion::kPin;
  if (promotion != Promotion::kFacts) layout->FillSlots(key->data.data(), header.num_columns);
  if (promotion == Promotion::kCopy) install = budget_rows(*layout) > 0 && !trim_failed_;
  const Status reserved = install ? shard->dram.Reserve(1) : OkStatus();
  if (!install || !reserved.ok()) return promotion == Promotion::kPin ? OfThisTable(reserved) : OkStatus();
  RowHeader* row = InstallRow(shard, word, *key, header, gone);
  if (corrupt && row->below != kNoLocation) {  // what it is now stands nowhere below
    shard->marks.RowChanges(ShardIndex::location(*word));
    gone->at[levels_ - 1].push_back(KeyLocation{key->key, row->below});
    row->below = kNoLocation;
  }
  key->outcome = BelowKey::kInDram;
  if (promotion == Promotion::kPin) {
    row->pins = 1;
    key->row = row;
  }
  return OkStatus();
}

uint64_t EmbeddingTable::Impl::IdleOf(int level, const RecordHeader& header, uint64_t clock) const {
  if (middle_[level]) return static_cast<uint32_t>(static_cast<uint32_t>(clock) - header.recency);
  // A tier that does not keep the recency has the step of the last update.
  const int64_t steps = newest_step_.load() - header.version;
  const int64_t applies = applies_.load();
  if (steps <= 0 || header.version < 0 || applies <= 0) return 0;
  return clock / static_cast<uint64_t>(applies) * static_cast<uint64_t>(std::min(steps, applies));
}

RowHeader* EmbeddingTable::Impl::InstallRow(Shard* shard, uint64_t* word, const BelowKey& key, const RecordHeader& header,
                                            GoneRecords* gone) {
  const uint64_t clock = accesses_.load();
  const uint32_t location = shard->AllocateRow(clock, header.frequency, IdleOf(key.level, header, clock));
  RowHeader* row = shard->dram.Header(location);
  row->key = key.key;
  row->version = header.version;
  row->frequency = header.frequency;
  if (middle_[key.level]) row->flags = header.flags & kRowEverBelow;
  if (durable_[key.level] || header.below != kNoLocation) row->flags |= kRowEverBelow;
  if (keeps_copies(key.level)) {
    row->below = key.location;
  } else {
    // It is freed once the lock is given back. Should the row be written again before, the older record counts as its last copy
    // until the next write of the key: that costs its space, and recovery takes the newer one.
    if (middle_[key.level]) row->below = header.below;
    gone->at[key.level].push_back(KeyLocation{key.key, key.location, /*newest=*/true});
  }
  // Read for no access that counts: as cold as it was, or, where that is not known, as anything can be.
  constexpr uint32_t kColdest = 0x80000000u;
  const uint32_t was = middle_[key.level] ? header.recency : static_cast<uint32_t>(clock) - kColdest;
  row->recency = key.touched != 0 ? static_cast<uint32_t>(key.touched) : was;
  if (shard->orders_dram) shard->dram_order.Refresh(location, clock);
  std::memcpy(DramTier::Data(row), key.data.data(), shard->dram.layout()->row_bytes());
  ShardIndex::Switch(word, WordState::kDram, location);
  shard->marks.RowPromoted(location, key.level, key.location);
  --shard->rows_lower[key.level];
  ++shard->counters.lower[key.level].promotions;
  ++dram_rows_;
  return row;
}

void EmbeddingTable::Impl::Unpin(BelowKey* key) {
  Shard* shard = shards_[key->shard].get();
  std::lock_guard<SharedMutex> lock(shard->mutex);
  UnpinRow(shard, key->row);
  key->row = nullptr;
}

}  // namespace multitier
