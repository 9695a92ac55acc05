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
  const bool reads_rows = promotion == Promotion::kForget ? forgetting->reads_rows || snapshot_.taken() : promotion != Promotion::kFacts;
  FreedRecords freed;
  std::vector<size_t> unresolved(keys->size());
  for (size_t i = 0; i < keys->size(); ++i) unresolved[i] = i;
  while (status.ok() && !unresolved.empty()) {
    std::vector<size_t> mine, theirs;
    status = MarkPending(keys, unresolved, promotion, settle, &mine, &theirs);

    const size_t row_bytes = layout()->row_bytes();
    if (reads_rows) keys->MakeRows(row_bytes);
    unresolved.clear();
    const Status marked = status;
    for (int level = 0; level < levels_.count; ++level) {
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
          Shard::Locked lock(shard);
          for (size_t i = from; i < to; ++i) {
            if (i + kAhead < to) lock->Prefetch((*keys)[which[i + kAhead]].hash);
            BelowKey& key = (*keys)[which[i]];
            const ReadRecord& record = records[key.record];
            const Status installed =
                Install(lock, &key, record, batch.ok() ? record.status : batch, promotion, forgetting, &freed);
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
      if (marked.ok()) batch = tiers_.ReadAndTell(level, records, answered);
      for (size_t i = 0; i < read.size(); ++i) {
        if (!told[i]) group.push_back(read[i]);
      }
      std::sort(group.begin(), group.end());
      install(group);
    }
    tiers_.Free(&freed);
    if (!status.ok()) break;
    for (const size_t i : theirs) {
      BelowKey& key = (*keys)[i];
      Shard::Locked(shards_[key.shard]).WaitForResolution(key.seen_resolutions);
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
    Shard::Locked lock(shard);
    for (size_t i = from; i < to && status.ok(); ++i) {
      if (i + kAhead < to) lock->Prefetch((*keys)[unresolved[i + kAhead]].hash);
      status = MarkOne(lock, keys, unresolved[i], promotion, settle, mine, theirs);
    }
  });
  return status;
}

Status EmbeddingTable::Impl::MarkOne(Shard::Locked& lock, BelowKeys* keys, size_t i, Promotion promotion, const Settle* settle,
                                     std::vector<size_t>* mine, std::vector<size_t>* theirs) {
  BelowKey& key = (*keys)[i];
  const ReadProbe probe = lock->BeginRead(key.key, key.hash, key.excluded);
  switch (probe.where) {
    case ReadProbe::kBegun:
      key.level = probe.level;
      key.location = probe.location;
      key.pending_id = probe.id;
      mine->push_back(i);
      return OkStatus();
    case ReadProbe::kReadByOthers:
      key.seen_resolutions = lock.resolutions();
      theirs->push_back(i);
      return OkStatus();
    default:
      break;
  }
  if (settle != nullptr) {
    key.outcome = BelowKey::kSettled;
    return (*settle)(lock, &key, probe.found);
  }
  AnswerFromMemory(lock, &key, i, probe.found, promotion, keys);
  return OkStatus();
}

void EmbeddingTable::Impl::AnswerFromMemory(Shard::Locked& lock, BelowKey* key, size_t i, const Found& found,
                                            Promotion promotion, BelowKeys* keys) {
  const bool born = found.row != nullptr && !(found.row->has(kRowUncommitted));
  if (found.row != nullptr && promotion == Promotion::kPin) {
    lock->Pin(found.row);
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

Status EmbeddingTable::Impl::ForgetBelow(Shard::Locked& lock, KeyWord word, BelowKey* key, const RecordHeader& header,
                                         bool whole, Forgetting* forgetting) {
  key->outcome = BelowKey::kRead;
  if (forgetting->doomed != nullptr && !forgetting->doomed(header, key->data.data())) return OkStatus();
  lock->EraseRecord(word, key->level, key->location, header, whole ? key->data.data() : nullptr, &forgetting->freed);
  ++forgetting->forgotten;
  return OkStatus();
}

void EmbeddingTable::Impl::Reinit(Shard::Locked& lock, BelowKey* key, RecordHeader* header) {
  const RowLayout& layout = *lock->layout();
  header->version = -1;
  header->frequency = 0;
  header->num_columns = static_cast<uint32_t>(layout.columns().size());
  if (key->data.empty()) return;
  std::fill(key->data.begin(), key->data.end(), uint8_t{0});
  initializer_->Fill(key->key, reinterpret_cast<float*>(key->data.data()));
  layout.FillSlots(key->data.data(), 1);
}

Status EmbeddingTable::Impl::Install(Shard::Locked& lock, BelowKey* key, const ReadRecord& record, const Status& read,
                                     Promotion promotion, Forgetting* forgetting, FreedRecords* freed) {
  RecordHeader header = record.header;
  ++lock->counters.lower[key->level].reads;
  const KeyWord word = lock->EndRead(key->hash, key->pending_id);
  const bool corrupt = read.code() == StatusCode::kDataLoss;
  if (!read.ok() && !corrupt) return tiers_.Error(StrCat("reading key ", key->key), key->level, read);
  if (header.key != key->key) {
    ++lock->counters.false_matches;
    key->excluded.push_back(PlaceOf(key->level, key->location));
    return OkStatus();
  }
  const RowLayout* const layout = lock->layout().get();
  if (corrupt) {
    ++lock->counters.corrupt;
    const bool removes = promotion == Promotion::kForget && forgetting->doomed == nullptr;
    if (!removes && options_.on_corruption == OnCorruption::kDrop) {
      demoter_.DropCorrupt(lock, word, key->key, key->level, key->location, header);
      return OkStatus();  // and the key is looked for further on
    }
    if (!removes && (options_.on_corruption == OnCorruption::kError || promotion == Promotion::kForget)) {
      return tiers_.Error(StrCat("reading key ", key->key), key->level, read);
    }
    if (!removes) Reinit(lock, key, &header);
  }
  if (promotion == Promotion::kForget) return ForgetBelow(lock, word, key, header, /*whole=*/!corrupt, forgetting);
  ++lock->counters.lower[key->level].hits;
  key->facts = KeyFacts{header.frequency, header.version, levels_.number(key->level)};
  key->outcome = BelowKey::kRead;
  bool install = promotion == Promotion::kPin;
  if (promotion != Promotion::kFacts) layout->FillSlots(key->data.data(), header.num_columns);
  if (promotion == Promotion::kCopy) install = demoter_.budget_rows(*layout) > 0 && !demoter_.failed();
  const Status reserved = install ? lock->ReserveRows(1) : OkStatus();
  if (!install || !reserved.ok()) return promotion == Promotion::kPin ? base_.OfThisTable(reserved) : OkStatus();
  RowHeader* row = lock->Install(word, key->level, key->location, header, key->data.data(), key->touched,
                                 IdleOf(key->level, header, common_.accesses.load()), freed);
  if (corrupt) lock->DetachCopy(word, freed);  // what it is now stands nowhere below
  key->outcome = BelowKey::kInDram;
  if (promotion == Promotion::kPin) {
    lock->Pin(row);
    key->row = row;
  }
  return OkStatus();
}

uint64_t EmbeddingTable::Impl::IdleOf(int level, const RecordHeader& header, uint64_t clock) const {
  if (levels_.middle[level]) return static_cast<uint32_t>(static_cast<uint32_t>(clock) - header.recency);
  // A tier that does not keep the recency has the step of the last update.
  const int64_t steps = newest_step_.load() - header.version;
  const int64_t applies = applies_.load();
  if (steps <= 0 || header.version < 0 || applies <= 0) return 0;
  return clock / static_cast<uint64_t>(applies) * static_cast<uint64_t>(std::min(steps, applies));
}

void EmbeddingTable::Impl::Unpin(BelowKey* key) {
  Shard::Locked(shards_[key->shard])->Unpin(key->row);
  key->row = nullptr;
}

}  // namespace multitier
