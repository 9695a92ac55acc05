// Demotion: rows of DRAM go to the tier below, and what is beyond the budget of the first of two lower tiers to the second; or
// the coldest of all are dropped. What calls it, and when: trim.cc.
//
// A slice of rows of one shard, from DRAM:
//   1. room     in a bounded tier below: its own coldest records leave first (see below).
//   2. choose   under the shard's lock: unpinned rows, coldest first. Right above the last tier, a clean row (its copy below
//               is valid) only has its word switched: no write. Any other is copied and flagged kRowDemoting; it stays where
//               it is, readable and writable. A copy for the middle tier takes the row's `below` along.
//   3. write    the copies in one call of the tier, no lock held.
//   4. switch   under the lock: a row that still carries the flag has not changed since it was copied: its word is switched
//               to the record, and its slot freed. A row that has changed, is pinned or is gone keeps its place, and the
//               record is freed (or, in a tier that keeps copies, stays as a pinned row's clean copy).
//
// From a middle tier, where rows cannot change: their words are made pending, the records read, the dirty ones written to the
// last tier, and the words switched there, or to the clean copy where there is one; the records are freed.
//
// A failed write puts everything back: the rows are still where they were. So does, of rows that are to be dropped, a failed
// read of one that a snapshot has still to give.

#include <algorithm>
#include <cstring>

#include "cc/table/table_impl.h"

namespace multitier {
namespace {

constexpr size_t kAhead = 8;  // rows on their way into the processor's cache while one is worked on
constexpr size_t kKeptDropped = 1u << 20;
constexpr size_t kUnreadable = 8;  // records that are passed over for warmer ones; more are no fault of theirs

// No later read of the record will do better than this one, in a call that gave `batch`.
bool IsForGood(const Status& batch, const Status& record) {
  return batch.ok() && (record.code() == StatusCode::kNotFound || record.code() == StatusCode::kDataLoss);
}

}  // namespace

Status EmbeddingTable::Impl::DemoteSlice(Shard* shard, size_t n, size_t* moved) {
  // By recency, what comes is warmer than what is there. By frequency it may not be: then it comes first, and the coldest of
  // all go afterwards.
  const bool room_after = options_.cache_strategy == Replacement::kLfu && levels_ > 0 && bounded(0) &&
                          (levels_ > 1 || options_.drop_coldest);
  size_t room = n;
  if (levels_ > 0 && bounded(0)) MT_RETURN_IF_ERROR(MakeRoom(shard, 0, room_after ? 0 : n, &room));
  n = room_after ? std::min(n, lower_share(0)) : room;
  std::vector<WriteRecord> records;
  std::unique_ptr<uint8_t[]> copies;
  size_t row_bytes = 0;
  {
    std::lock_guard<SharedMutex> lock(shard->mutex);
    DramTier& dram = shard->dram;
    row_bytes = dram.layout()->row_bytes();
    if (!shard->prefetches.empty()) SweepPrefetched(shard, env_->NowMicros());
    const std::vector<uint32_t> victims = shard->dram_order.Choose(n, accesses_.load());
    if (levels_ == 0) {
      *moved = victims.size();
      DropRows(shard, victims);
      return OkStatus();
    }
    records.reserve(victims.size());
    copies.reset(new uint8_t[victims.size() * row_bytes]);
    for (size_t i = 0; i < victims.size(); ++i) {
      if (i + kAhead < victims.size()) dram.Prefetch(victims[i + kAhead]);
      if (i + kAhead / 2 < victims.size()) shard->index.Prefetch(HashKey(dram.Header(victims[i + kAhead / 2])->key));
      const uint32_t location = victims[i];
      RowHeader* row = dram.Header(location);
      if (levels_ == 1 && row->below != kNoLocation) {
        shard->marks.RowDemoted(location, 0, row->below);
        shard->MoveBelow(shard->Find(row->key, HashKey(row->key)).word, 0, row->below);
        --dram_rows_;
        ++*moved;
        continue;
      }
      // Even a write that fails may leave a record behind.
      row->flags |= durable_[0] ? kRowDemoting | kRowEverBelow : kRowDemoting;
      uint8_t* const copy = copies.get() + records.size() * row_bytes;
      std::memcpy(copy, DramTier::Data(row), row_bytes);
      WriteRecord& record = records.emplace_back();
      record.header.key = row->key;
      record.header.version = row->version;
      record.header.frequency = row->frequency;
      record.header.num_columns = static_cast<uint32_t>(dram.layout()->columns().size());
      record.header.below = row->below;
      record.header.recency = row->recency;
      record.header.flags = row->flags & kRowEverBelow;
      record.row_data = copy;
    }
  }
  if (records.empty()) return OkStatus();
  std::vector<uint32_t> locations(records.size());
  const Status written = lower_[0]->Write(records, locations.data());
  *moved += SwitchDemoted(shard, records, locations.data(), written.ok());
  if (written.ok()) return room_after ? MakeRoom(shard, 0, 0, &room) : OkStatus();
  return TierError(StrCat("demoting ", records.size(), " rows from DRAM (they stay in memory)"), 0, written);
}

size_t EmbeddingTable::Impl::SwitchDemoted(Shard* shard, const std::vector<WriteRecord>& records, const uint32_t* locations,
                                           bool written) {
  size_t moved = 0;
  GoneRecords unused;
  {
    std::lock_guard<SharedMutex> lock(shard->mutex);
    if (written) shard->counters.lower[0].writes += static_cast<int64_t>(records.size());
    for (size_t i = 0; i < std::min(kAhead, records.size()); ++i) shard->index.Prefetch(HashKey(records[i].header.key));
    for (size_t i = 0; i < records.size(); ++i) {
      const RecordHeader& header = records[i].header;
      if (i + kAhead < records.size()) shard->index.Prefetch(HashKey(records[i + kAhead].header.key));
      const Found found = shard->Find(header.key, HashKey(header.key));
      const bool unchanged = found.row != nullptr && found.row->has(kRowDemoting);
      if (unchanged) found.row->flags &= static_cast<uint16_t>(~kRowDemoting);
      if (!written) continue;
      if (!unchanged || (found.row->pins != 0 && !keeps_copies(0))) {
        unused.at[0].push_back(KeyLocation{header.key, locations[i], /*newest=*/true});
      } else if (found.row->pins != 0) {
        shard->marks.RowCopied(ShardIndex::location(*found.word), locations[i]);
        found.row->below = locations[i];
      } else {
        shard->marks.RowDemoted(ShardIndex::location(*found.word), 0, locations[i]);
        shard->MoveBelow(found.word, 0, locations[i]);
        --dram_rows_;
        ++moved;
        if (bounded(0)) PushLower(shard, 0, {RankOfRecord(header), header.key, locations[i]});
      }
    }
  }
  FreeGone(&unused);
  return moved;
}

Status EmbeddingTable::Impl::MakeRoom(Shard* shard, int level, size_t n, size_t* room) {
  *room = n;
  if (!bounded(level)) return OkStatus();
  const size_t share = lower_share(level);
  const size_t wanted = std::min(n, share);
  size_t rows = 0;
  uint64_t seen = 0;
  bool others_read = false;
  auto look = [&] {
    std::lock_guard<SharedMutex> lock(shard->mutex);
    rows = static_cast<size_t>(shard->rows_lower[level]);
    seen = shard->resolutions;
    others_read = shard->pending.size() > shard->free_pending.size();
  };
  for (;;) {
    look();
    const uint64_t before = seen;
    const bool may_come = others_read;
    Status status;
    if (rows + wanted > share && level < levels_ - 1) {
      status = DemoteLower(shard, level, rows + wanted - share);
    } else if (rows + wanted > share && options_.drop_coldest) {
      status = DropColdest(shard, level, rows + wanted - share);
    }
    look();
    *room = rows < share ? std::min(n, share - rows) : 0;
    if (n == 0) return status;
    if (*room > 0) return OkStatus();
    MT_RETURN_IF_ERROR(status);
    if (level == levels_ - 1 || !(may_come || others_read)) break;
    // Operations are reading all there is; they wait for nothing. Nothing is held here: see DemoteSlice.
    std::unique_lock<SharedMutex> lock(shard->mutex);
    shard->resolved.wait(lock, [&] { return shard->resolutions != before; });
  }
  return ResourceExhaustedError("table '", options_.name, "': tier ", lower_[level]->name(), " is full: ",
                                options_.lower_tiers[static_cast<size_t>(level)].budget_bytes, " bytes hold ", share,
                                " rows of each of ", shards_.size(), " shards");
}

Status EmbeddingTable::Impl::TakeColdest(Shard* shard, int level, size_t n, std::vector<Leaving>* taken) {
  std::vector<LowerOrder::Entry> later;  // operations are reading them, or they could not be read
  Status status;
  size_t unreadable = 0;
  const uint64_t clock = accesses_.load();  // one for all: what is not taken at one rank is at the next
  while (taken->size() < n && unreadable < kUnreadable) {
    std::vector<LowerOrder::Entry> entries;
    std::vector<ReadRecord> headers;
    {
      std::lock_guard<SharedMutex> lock(shard->mutex);
      LowerOrder& order = shard->lower_order[level];
      while (entries.size() < n - taken->size() && !order.empty()) {
        entries.push_back(order.Pop());
        ReadRecord header;
        header.key = entries.back().key;
        header.location = entries.back().location;
        headers.push_back(std::move(header));
      }
    }
    if (entries.empty()) break;
    const Status read = lower_[level]->Read(headers);
    if (!read.ok()) unreadable = kUnreadable;
    std::lock_guard<SharedMutex> lock(shard->mutex);
    for (size_t i = 0; i < entries.size(); ++i) {
      const ReadRecord& record = headers[i];
      const Status& one = read.ok() ? record.status : read;
      // A damaged one goes as any other where nobody could use it; else it shows when it is asked for.
      const bool damaged = one.code() == StatusCode::kDataLoss && options_.on_corruption != OnCorruption::kError;
      if (IsForGood(read, record.status) && !damaged) continue;  // or it was freed
      if (!one.ok() && !damaged) {
        later.push_back(entries[i]);
        ++unreadable;
        if (status.ok()) status = one;
        continue;
      }
      RecordHeader header = record.header;
      header.key = entries[i].key;
      bool pending = false;
      uint64_t* word = shard->index.Find(HashKey(header.key), [&](uint64_t w) {
        pending = ShardIndex::state(w) == WordState::kPending;
        if (pending) w = shard->pending[ShardIndex::location(w)];
        return ShardIndex::state(w) == LowerState(level) && ShardIndex::location(w) == record.location;
      });
      if (word != nullptr && pending) later.push_back(entries[i]);
      if (word == nullptr || pending) continue;
      // A warmer row stands where that one was, or it was moved without a word of its frequency (RelocateOne): not yet. While
      // the recency is the entry's own it is not asked: what it says is over after 2^32 accesses, the rank is not.
      const auto ranked = static_cast<uint32_t>(entries[i].rank);
      const uint32_t recency = middle_[level] ? header.recency : ranked;
      if (!damaged && (recency != ranked || options_.cache_strategy == Replacement::kLfu)) {
        const uint64_t rank = RankOf(options_.cache_strategy, header.frequency, recency, clock);
        if (rank > entries[i].rank) {
          shard->lower_order[level].Push({rank, header.key, record.location});
          continue;
        }
      }
      Leaving leaving;
      leaving.header = header;
      leaving.location = record.location;
      leaving.pending_id = shard->AddPending(*word);
      leaving.rank = entries[i].rank;
      ShardIndex::Switch(word, WordState::kPending, leaving.pending_id);
      taken->push_back(std::move(leaving));
    }
  }
  std::lock_guard<SharedMutex> lock(shard->mutex);
  for (const LowerOrder::Entry& entry : later) shard->lower_order[level].Push(entry);
  if (status.ok() || taken->size() == n) return OkStatus();
  return TierError("looking for the coldest rows", level, status);
}

void EmbeddingTable::Impl::PutBack(Shard* shard, int level, const Leaving& leaving) {
  shard->TakePending(HashKey(leaving.header.key), leaving.pending_id);
  PushLower(shard, level, {leaving.rank, leaving.header.key, leaving.location});
}

Status EmbeddingTable::Impl::DemoteLower(Shard* shard, int level, size_t n) {
  const int to = level + 1;
  std::vector<Leaving> taken;
  Status status = TakeColdest(shard, level, n, &taken);
  const std::shared_ptr<const RowLayout> layout = this->layout();
  std::vector<ReadRecord> reads(taken.size());
  for (size_t i = 0; i < taken.size(); ++i) {
    reads[i].key = taken[i].header.key;
    reads[i].location = taken[i].location;
    if (taken[i].header.below != kNoLocation) continue;  // clean: only where its copy is by now
    taken[i].data.resize(layout->row_bytes());
    reads[i].row_data = taken[i].data.data();
  }
  const Status read = reads.empty() ? OkStatus() : lower_[level]->Read(reads);
  std::vector<WriteRecord> records;
  std::vector<size_t> written;  // in `taken`
  std::vector<bool> failed(taken.size()), corrupt(taken.size());
  for (size_t i = 0; i < taken.size(); ++i) {
    const Status& one = read.ok() ? reads[i].status : read;
    failed[i] = !one.ok();
    if (failed[i] && options_.on_corruption != OnCorruption::kError && one.code() == StatusCode::kDataLoss) {
      failed[i] = false;  // nobody could use it
      corrupt[i] = true;
      continue;
    }
    if (failed[i] && status.ok()) status = TierError(StrCat("demoting key ", taken[i].header.key), level, one);
    if (failed[i]) continue;
    taken[i].header = reads[i].header;
    if (taken[i].header.below != kNoLocation) continue;
    WriteRecord record;
    record.header = taken[i].header;
    record.row_data = taken[i].data.data();
    records.push_back(record);
    written.push_back(i);
  }
  size_t room = 0;
  Status write;
  if (!records.empty()) write = MakeRoom(shard, to, records.size(), &room);
  if (!write.ok()) room = 0;
  for (size_t j = room; j < written.size(); ++j) failed[written[j]] = true;
  records.resize(room);
  std::vector<uint32_t> locations(room);
  if (room > 0) {
    const Status status_of_write = lower_[to]->Write(records, locations.data());
    if (!status_of_write.ok()) {
      write = TierError(StrCat("demoting ", room, " rows from tier ", lower_[level]->name()), to, status_of_write);
      if (durable_[to]) any_key_below_ = true;
      for (size_t j = 0; j < room; ++j) failed[written[j]] = true;
    }
  }
  if (status.ok()) status = write;
  GoneRecords gone;
  {
    std::lock_guard<SharedMutex> lock(shard->mutex);
    if (write.ok()) shard->counters.lower[to].writes += static_cast<int64_t>(room);
    shard->counters.lower[level].reads += static_cast<int64_t>(taken.size());
    for (size_t i = 0, j = 0; i < taken.size(); ++i) {
      const RecordHeader& header = taken[i].header;
      const bool dirty = j < written.size() && written[j] == i;
      const size_t place = j;
      j += dirty;
      if (failed[i]) {
        PutBack(shard, level, taken[i]);
        continue;
      }
      uint64_t* word = shard->TakePending(HashKey(header.key), taken[i].pending_id);
      if (corrupt[i]) {
        BelowKey key;
        key.key = header.key;
        key.level = level;
        key.location = taken[i].location;
        DropCorrupt(shard, word, key, header);
        continue;
      }
      ShardIndex::Switch(word, LowerState(to), dirty ? locations[place] : header.below);
      shard->marks.RecordCopied(level, taken[i].location, to, ShardIndex::location(*word));
      --shard->rows_lower[level];
      ++shard->rows_lower[to];
      ++shard->counters.lower[to].demotions;
      if (bounded(to)) PushLower(shard, to, {RankOfRecord(header), header.key, ShardIndex::location(*word)});
      gone.at[level].push_back(KeyLocation{header.key, taken[i].location});
    }
  }
  FreeGone(&gone);
  return status;
}

Status EmbeddingTable::Impl::DropColdest(Shard* shard, int level, size_t n) {
  std::vector<Leaving> taken;
  Status status = TakeColdest(shard, level, n, &taken);
  std::vector<ReadRecord> wanted;  // of those taken, what a snapshot has still to give
  std::vector<uint8_t> data;
  Status read;
  if (saving_ && !taken.empty()) {
    const size_t row_bytes = layout()->row_bytes();
    {
      std::lock_guard<SharedMutex> lock(shard->mutex);
      for (const Leaving& leaving : taken) {
        if (!shard->marks.wants_record(level, leaving.location)) continue;
        ReadRecord& record = wanted.emplace_back();
        record.key = leaving.header.key;
        record.location = leaving.location;
      }
    }
    data.resize(wanted.size() * row_bytes);
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i].row_data = data.data() + i * row_bytes;
    if (!wanted.empty()) read = lower_[level]->Read(wanted);
  }
  GoneRecords gone;
  {
    std::lock_guard<SharedMutex> lock(shard->mutex);
    std::vector<int64_t> keys;
    auto record = wanted.begin();
    for (const Leaving& leaving : taken) {
      if (record != wanted.end() && record->location == leaving.location) {
        const ReadRecord& one = *record++;
        const Status& failed = read.ok() ? one.status : read;
        const bool still_wanted = shard->marks.wants_record(level, leaving.location);
        if (failed.ok()) {
          shard->marks.RecordGoes(level, leaving.location, one.header, one.row_data);
        } else if (still_wanted && !IsForGood(read, one.status)) {  // it stays until it can be given, or need not be any more
          PutBack(shard, level, leaving);
          if (status.ok()) status = TierError(StrCat("dropping key ", leaving.header.key), level, failed);
          continue;
        } else {
          shard->marks.RecordLost(level, leaving.location);
        }
        shard->counters.corrupt += failed.code() == StatusCode::kDataLoss;
      }
      shard->index.Erase(shard->TakePending(HashKey(leaving.header.key), leaving.pending_id));
      --shard->rows_lower[level];
      --shard->rows;
      keys.push_back(leaving.header.key);
      for (int other = 0; other < levels_; ++other) {
        if (other != level && !durable_[other]) continue;
        gone.at[other].push_back(KeyLocation{leaving.header.key, other == level ? leaving.location : kNoLocation});
      }
    }
    KeepDropped(shard, keys);
  }
  const Status removed = RemoveGone(&gone);
  return status.ok() ? removed : status;
}

void EmbeddingTable::Impl::DropRows(Shard* shard, const std::vector<uint32_t>& locations) {
  std::vector<int64_t> keys;
  for (const uint32_t location : locations) {
    const int64_t key = shard->dram.Header(location)->key;
    shard->marks.RowChanges(location);
    shard->EraseRow(shard->Find(key, HashKey(key)).word);
    --dram_rows_;
    keys.push_back(key);
  }
  KeepDropped(shard, keys);
}

void EmbeddingTable::Impl::KeepDropped(Shard* shard, const std::vector<int64_t>& keys) {
  shard->counters.dropped += static_cast<int64_t>(keys.size());
  std::lock_guard<std::mutex> lock(trim_mutex_);
  dropped_.insert(dropped_.end(), keys.begin(), keys.end());
  if (dropped_.size() > kKeptDropped) dropped_.erase(dropped_.begin(), dropped_.end() - kKeptDropped);
}

std::vector<int64_t> EmbeddingTable::Impl::PopDropped() {
  std::lock_guard<std::mutex> lock(trim_mutex_);
  std::vector<int64_t> keys(dropped_.begin(), dropped_.end());
  dropped_.clear();
  return keys;
}

}  // namespace multitier
