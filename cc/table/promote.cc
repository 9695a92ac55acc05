// Promote: brings keys up from the lower tier, or reads them where they are.
//
//   1. mark     under the shard's lock: keys that memory can answer are settled at once. A word below whose tag matches is
//               marked pending: its location becomes an id in the shard's side table, which keeps the word as it was. Nobody
//               else moves, frees or reads that record until it is resolved, so one read serves all.
//   2. read     all records of the batch in one call of the tier, no lock held.
//   3. install  under the shard's lock: the record's key is verified. Another key's record: the word is put back, its location
//               excluded, and the key probes on. Ours: the row goes into DRAM with `below` naming its clean copy, or the
//               word is put back where it only was to be read.
//   4. wait     for words that other operations hold, after all own words are resolved; then from 1 for what is left.
//
// An error puts every own word back and unpins every row this call pinned: nothing has changed.

#include <algorithm>
#include <cstring>

#include "cc/table/table_impl.h"

namespace multitier {
namespace {

bool Contains(const std::vector<uint32_t>& v, uint32_t x) { return std::find(v.begin(), v.end(), x) != v.end(); }

}  // namespace

Status EmbeddingTable::Impl::Promote(std::vector<BelowKey>* keys, Promotion promotion, const Settle* settle) {
  Status status;
  std::vector<size_t> unresolved(keys->size());
  for (size_t i = 0; i < keys->size(); ++i) unresolved[i] = i;
  while (status.ok() && !unresolved.empty()) {
    std::vector<size_t> mine, theirs;
    status = MarkPending(keys, unresolved, promotion, settle, &mine, &theirs);

    const size_t row_bytes = layout()->row_bytes();
    std::vector<ReadRecord> records(mine.size());
    for (size_t i = 0; i < mine.size(); ++i) {
      BelowKey& key = (*keys)[mine[i]];
      records[i].key = key.key;
      records[i].location = key.location;
      if (promotion != Promotion::kFacts) {
        key.data.resize(row_bytes);
        records[i].row_data = key.data.data();
      }
    }
    Status read = !mine.empty() && status.ok() ? lower_->Read(records) : status;
    unresolved.clear();
    for (size_t i = 0; i < mine.size(); ++i) {
      BelowKey& key = (*keys)[mine[i]];
      const Status installed = Install(&key, records[i], read.ok() ? records[i].status : read, promotion);
      if (!installed.ok() && status.ok()) status = installed;
      if (key.outcome == BelowKey::kUnresolved) unresolved.push_back(mine[i]);
    }
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
  return status;
}

Status EmbeddingTable::Impl::MarkPending(std::vector<BelowKey>* keys, const std::vector<size_t>& unresolved,
                                         Promotion promotion, const Settle* settle, std::vector<size_t>* mine,
                                         std::vector<size_t>* theirs) {
  for (const size_t i : unresolved) {
    BelowKey& key = (*keys)[i];
    Shard* shard = shards_[key.shard].get();
    std::lock_guard<SharedMutex> lock(shard->mutex);
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
          if (!Contains(key.excluded, ShardIndex::location(shard->pending[location]))) held_by_others = true;
          return false;
        default:
          if (candidate == nullptr && !Contains(key.excluded, location)) candidate = &word;
          return false;
      }
    });
    if (found.word == nullptr && candidate != nullptr) {
      key.location = ShardIndex::location(*candidate);
      key.pending_id = shard->AddPending(*candidate);
      ShardIndex::Switch(candidate, WordState::kPending, key.pending_id);
      mine->push_back(i);
      continue;
    }
    if (found.word == nullptr && held_by_others) {
      key.seen_resolutions = shard->resolutions;
      theirs->push_back(i);
      continue;
    }
    if (settle != nullptr) {
      key.outcome = BelowKey::kSettled;
      MT_RETURN_IF_ERROR((*settle)(shard, &key, found));
    } else {
      AnswerFromMemory(&key, found, promotion);
    }
  }
  return OkStatus();
}

void EmbeddingTable::Impl::AnswerFromMemory(BelowKey* key, const Found& found, Promotion promotion) {
  const bool born = found.row != nullptr && !(found.row->has(kRowNewborn));
  if (found.row != nullptr && promotion == Promotion::kPin) {
    ++found.row->pins;
    key->row = found.row;
  }
  if (born) {
    key->outcome = BelowKey::kInDram;
    key->facts = KeyFacts{found.row->frequency, found.row->version, 0};
    if (promotion == Promotion::kCopy) {
      const uint8_t* data = DramTier::Data(found.row);
      key->data.assign(data, data + layout()->row_bytes());
    }
  } else if (found.counted != nullptr) {
    key->outcome = BelowKey::kCounted;
    key->facts.frequency = found.counted->frequency;
  } else {
    key->outcome = BelowKey::kAbsent;
  }
}

Status EmbeddingTable::Impl::Install(BelowKey* key, const ReadRecord& record, const Status& read, Promotion promotion) {
  Shard* shard = shards_[key->shard].get();
  std::lock_guard<SharedMutex> lock(shard->mutex);
  ++shard->counters.reads;
  const uint64_t original = shard->pending[key->pending_id];
  uint64_t* word = shard->index.Find(key->hash, [&](uint64_t w) {
    return ShardIndex::state(w) == WordState::kPending && ShardIndex::location(w) == key->pending_id;
  });
  MT_CHECK(word != nullptr);
  shard->ResolvePending(key->pending_id);
  ShardIndex::Switch(word, ShardIndex::state(original), key->location);
  if (!read.ok()) {
    return Status(read.code(), StrCat("table '", options_.name, "': reading key ", key->key, " from tier ", lower_->name(),
                                      ": ", read.message()));
  }
  if (record.header.key != key->key) {
    ++shard->counters.false_matches;
    key->excluded.push_back(key->location);
    return OkStatus();
  }
  const std::shared_ptr<const RowLayout> layout = shard->dram.layout();
  ++shard->counters.hits_below;
  key->facts = KeyFacts{record.header.frequency, record.header.version, 1};
  key->outcome = BelowKey::kRead;
  if (promotion == Promotion::kFacts) return OkStatus();
  layout->FillSlots(key->data.data(), record.header.num_columns);
  const bool room = dram_rows_.load() < static_cast<int64_t>(budget_rows(*layout));
  if (promotion == Promotion::kCopy && (!room || !shard->dram.Reserve(1).ok())) return OkStatus();
  if (promotion == Promotion::kPin) MT_RETURN_IF_ERROR(shard->dram.Reserve(1));

  const uint32_t location = shard->dram.Allocate();
  RowHeader* row = shard->dram.Header(location);
  row->key = key->key;
  row->version = record.header.version;
  row->frequency = record.header.frequency;
  row->below = key->location;
  row->flags = kRowEverBelow;
  row->recency = operations_.load();
  std::memcpy(DramTier::Data(row), key->data.data(), layout->row_bytes());
  ShardIndex::Switch(word, WordState::kDram, location);
  --shard->rows_below;
  ++shard->counters.promotions;
  ++dram_rows_;
  key->outcome = BelowKey::kInDram;
  if (promotion == Promotion::kPin) {
    row->pins = 1;
    key->row = row;
  }
  return OkStatus();
}

void EmbeddingTable::Impl::Unpin(BelowKey* key) {
  Shard* shard = shards_[key->shard].get();
  std::lock_guard<SharedMutex> lock(shard->mutex);
  UnpinRow(shard, key->row);
  key->row = nullptr;
}

}  // namespace multitier
