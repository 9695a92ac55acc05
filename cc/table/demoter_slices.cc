// Demotion: rows of DRAM go to the tier below, and what is beyond the budget of the first of two lower tiers to the second; or
// the coldest of all are dropped. What calls it, and when: demoter.cc.
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

#include "cc/table/demoter.h"

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

Status Demoter::DemoteSlice(const ShardWriter& writer, size_t n, size_t* moved) {
  Shard* const shard = writer.shard();
  // By recency, what comes is warmer than what is there. By frequency it may not be: then it comes first, and the coldest of
  // all go afterwards.
  const bool room_after = options_.cache_strategy == Replacement::kLfu && levels_.count > 0 && levels_.bounded[0] &&
                          (levels_.count > 1 || options_.drop_coldest);
  size_t room = n;
  if (levels_.count > 0 && levels_.bounded[0]) MT_RETURN_IF_ERROR(MakeRoom(writer, 0, room_after ? 0 : n, &room));
  n = room_after ? std::min(n, lower_share(0)) : room;
  std::vector<WriteRecord> records;
  std::unique_ptr<uint8_t[]> copies;
  {
    Shard::Locked lock(shard);
    const size_t row_bytes = lock->layout()->row_bytes();
    const std::vector<uint32_t> victims = lock->ChooseVictims(n);
    if (levels_.count == 0) {
      *moved = victims.size();
      KeepDropped(lock->Drop(victims));
      return OkStatus();
    }
    records.reserve(victims.size());
    copies.reset(new uint8_t[victims.size() * row_bytes]);
    for (size_t i = 0; i < victims.size(); ++i) {
      if (i + kAhead < victims.size()) lock->PrefetchRow(victims[i + kAhead]);
      if (i + kAhead / 2 < victims.size()) lock->PrefetchWordOf(victims[i + kAhead / 2]);
      if (levels_.count == 1 && lock->row(victims[i])->below != kNoLocation) {
        lock->MoveToCopy(victims[i]);
        ++*moved;
        continue;
      }
      uint8_t* const copy = copies.get() + records.size() * row_bytes;
      records.push_back(WriteRecord{lock->BeginWrite(victims[i], /*level=*/0, copy), copy});
    }
  }
  if (records.empty()) return OkStatus();
  std::vector<uint32_t> locations(records.size());
  const Status written = tiers_.Write(writer, 0, records, locations.data());
  *moved += SwitchDemoted(shard, records, locations.data(), written.ok());
  if (written.ok()) return room_after ? MakeRoom(writer, 0, 0, &room) : OkStatus();
  return tiers_.Error(StrCat("demoting ", records.size(), " rows from DRAM (they stay in memory)"), 0, written);
}

size_t Demoter::SwitchDemoted(Shard* shard, const std::vector<WriteRecord>& records, const uint32_t* locations, bool written) {
  size_t moved = 0;
  FreedRecords unused;
  {
    Shard::Locked lock(shard);
    if (written) lock->counters.lower[0].writes += static_cast<int64_t>(records.size());
    for (size_t i = 0; i < std::min(kAhead, records.size()); ++i) lock->Prefetch(HashKey(records[i].header.key));
    for (size_t i = 0; i < records.size(); ++i) {
      const RecordHeader& header = records[i].header;
      if (i + kAhead < records.size()) lock->Prefetch(HashKey(records[i + kAhead].header.key));
      if (!written) {
        lock->CancelWrite(header.key);
        continue;
      }
      const ShardRows::Written end = lock->EndWrite(header, /*level=*/0, locations[i], /*keep=*/false);
      if (end == ShardRows::Written::kStale) unused.at[0].push_back(KeyLocation{header.key, locations[i], /*newest=*/true});
      moved += end == ShardRows::Written::kMoved;
    }
  }
  tiers_.Free(&unused);
  return moved;
}

Status Demoter::MakeRoom(const ShardWriter& writer, int level, size_t n, size_t* room) {
  Shard* const shard = writer.shard();
  *room = n;
  if (!levels_.bounded[level]) return OkStatus();
  const size_t share = lower_share(level);
  const size_t wanted = std::min(n, share);
  size_t rows = 0;
  uint64_t seen = 0;
  bool others_read = false;
  auto look = [&] {
    Shard::Locked lock(shard);
    rows = static_cast<size_t>(lock->rows_in(level));
    seen = lock.resolutions();
    others_read = lock->reading();
  };
  for (;;) {
    look();
    const uint64_t before = seen;
    const bool may_come = others_read;
    Status status;
    if (rows + wanted > share && level < levels_.last()) {
      status = DemoteLower(writer, level, rows + wanted - share);
    } else if (rows + wanted > share && options_.drop_coldest) {
      status = DropColdest(writer, level, rows + wanted - share);
    }
    look();
    *room = rows < share ? std::min(n, share - rows) : 0;
    if (n == 0) return status;
    if (*room > 0) return OkStatus();
    MT_RETURN_IF_ERROR(status);
    if (level == levels_.last() || !(may_come || others_read)) break;
    // Operations are reading all there is; they wait for nothing. Nothing is held here: see DemoteSlice.
    Shard::Locked(shard).WaitForResolution(before);
  }
  return ResourceExhaustedError("table '", options_.name, "': tier ", tiers_.name(level),
                                " is full: ", options_.lower_tiers[static_cast<size_t>(level)].budget_bytes, " bytes hold ",
                                share, " rows of each of ", shards_.size(), " shards");
}

Status Demoter::TakeColdest(Shard* shard, int level, size_t n, std::vector<Leaving>* taken) {
  std::vector<LowerOrder::Entry> later;  // operations are reading them, or they could not be read
  Status status;
  size_t unreadable = 0;
  const uint64_t clock = common_.accesses.load();  // one for all: what is not taken at one rank is at the next
  while (taken->size() < n && unreadable < kUnreadable) {
    const std::vector<LowerOrder::Entry> entries = Shard::Locked(shard)->PopColdest(level, n - taken->size());
    if (entries.empty()) break;
    std::vector<ReadRecord> headers(entries.size());
    for (size_t i = 0; i < entries.size(); ++i) {
      headers[i].key = entries[i].key;
      headers[i].location = entries[i].location;
    }
    const Status read = tiers_.Read(level, headers);
    if (!read.ok()) unreadable = kUnreadable;
    Shard::Locked lock(shard);
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
      Leaving leaving;
      switch (lock->BeginLeave(level, entries[i], damaged ? nullptr : &record.header, clock, &leaving)) {
        case ShardRows::Leave::kBegun:
          taken->push_back(std::move(leaving));
          break;
        case ShardRows::Leave::kReadNow:
          later.push_back(entries[i]);
          break;
        case ShardRows::Leave::kNotColdest:
          break;
      }
    }
  }
  Shard::Locked lock(shard);
  for (const LowerOrder::Entry& entry : later) lock->PutBack(level, entry);
  if (status.ok() || taken->size() == n) return OkStatus();
  return tiers_.Error("looking for the coldest rows", level, status);
}

Status Demoter::DemoteLower(const ShardWriter& writer, int level, size_t n) {
  Shard* const shard = writer.shard();
  const int to = level + 1;
  std::vector<Leaving> taken;
  Status status = TakeColdest(shard, level, n, &taken);
  const std::shared_ptr<const RowLayout> layout = this->layout();
  std::vector<ReadRecord> reads(taken.size());
  std::vector<uint8_t> data(taken.size() * layout->row_bytes());
  for (size_t i = 0; i < taken.size(); ++i) {
    reads[i].key = taken[i].header.key;
    reads[i].location = taken[i].location;
    if (taken[i].header.below != kNoLocation) continue;  // clean: only where its copy is by now
    reads[i].row_data = data.data() + i * layout->row_bytes();
  }
  const Status read = reads.empty() ? OkStatus() : tiers_.Read(level, reads);
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
    if (failed[i] && status.ok()) status = tiers_.Error(StrCat("demoting key ", taken[i].header.key), level, one);
    if (failed[i]) continue;
    taken[i].header = reads[i].header;
    if (taken[i].header.below != kNoLocation) continue;
    WriteRecord record;
    record.header = taken[i].header;
    record.row_data = reads[i].row_data;
    records.push_back(record);
    written.push_back(i);
  }
  size_t room = 0;
  Status write;
  if (!records.empty()) write = MakeRoom(writer, to, records.size(), &room);
  if (!write.ok()) room = 0;
  for (size_t j = room; j < written.size(); ++j) failed[written[j]] = true;
  records.resize(room);
  std::vector<uint32_t> locations(room);
  if (room > 0) {
    const Status status_of_write = tiers_.Write(writer, to, records, locations.data());
    if (!status_of_write.ok()) {
      write = tiers_.Error(StrCat("demoting ", room, " rows from tier ", tiers_.name(level)), to, status_of_write);
      if (levels_.durable[to]) common_.any_key_below = true;
      for (size_t j = 0; j < room; ++j) failed[written[j]] = true;
    }
  }
  if (status.ok()) status = write;
  FreedRecords freed;
  {
    Shard::Locked lock(shard);
    if (write.ok()) lock->counters.lower[to].writes += static_cast<int64_t>(room);
    lock->counters.lower[level].reads += static_cast<int64_t>(taken.size());
    for (size_t i = 0, j = 0; i < taken.size(); ++i) {
      const RecordHeader& header = taken[i].header;
      const bool dirty = j < written.size() && written[j] == i;
      const size_t place = j;
      j += dirty;
      if (failed[i]) {
        lock->CancelLeave(level, taken[i]);
        continue;
      }
      if (corrupt[i]) {
        const KeyWord word = lock->EndRead(HashKey(header.key), taken[i].id);
        DropCorrupt(lock, word, header.key, level, taken[i].location, header);
        continue;
      }
      lock->MoveDown(level, taken[i], header, to, dirty ? locations[place] : header.below, &freed);
    }
  }
  tiers_.Free(&freed);
  return status;
}

Status Demoter::DropColdest(const ShardWriter& writer, int level, size_t n) {
  Shard* const shard = writer.shard();
  std::vector<Leaving> taken;
  Status status = TakeColdest(shard, level, n, &taken);
  std::vector<ReadRecord> wanted;  // of those taken, what a snapshot has still to give
  std::vector<uint8_t> data;
  Status read;
  if (snapshot_.taken() && !taken.empty()) {
    const size_t row_bytes = layout()->row_bytes();
    {
      Shard::Locked lock(shard);
      for (const Leaving& leaving : taken) {
        if (!lock->wants_record(level, leaving.location)) continue;
        ReadRecord& record = wanted.emplace_back();
        record.key = leaving.header.key;
        record.location = leaving.location;
      }
    }
    data.resize(wanted.size() * row_bytes);
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i].row_data = data.data() + i * row_bytes;
    if (!wanted.empty()) read = tiers_.Read(level, wanted);
  }
  FreedRecords freed;
  {
    Shard::Locked lock(shard);
    std::vector<int64_t> keys;
    auto record = wanted.begin();
    for (const Leaving& leaving : taken) {
      RecordHeader header;
      uint8_t* row_data = nullptr;
      if (record != wanted.end() && record->location == leaving.location) {
        const ReadRecord& one = *record++;
        const Status& failed = read.ok() ? one.status : read;
        const bool still_wanted = lock->wants_record(level, leaving.location);
        if (failed.ok()) {
          header = one.header;
          row_data = one.row_data;
        } else if (still_wanted && !IsForGood(read, one.status)) {  // it stays until it can be given, or need not be any more
          lock->CancelLeave(level, leaving);
          if (status.ok()) status = tiers_.Error(StrCat("dropping key ", leaving.header.key), level, failed);
          continue;
        }
        lock->counters.corrupt += failed.code() == StatusCode::kDataLoss;
      }
      keys.push_back(leaving.header.key);
      lock->DropRecord(level, leaving, header, row_data, &freed);
    }
    KeepDropped(keys);
  }
  const Status removed = tiers_.Remove(writer, &freed);
  return status.ok() ? removed : status;
}

void Demoter::DropCorrupt(Shard::Locked& lock, KeyWord word, int64_t key, int level, uint32_t location,
                          const RecordHeader& header) {
  FreedRecords freed;
  lock->EraseRecord(word, level, location, header, /*row_data=*/nullptr, &freed);
  tiers_.RemoveLater(lock, freed);  // our operation does not hold the writer
  ++lock->counters.dropped;
  KeepDropped({key});
}

void Demoter::KeepDropped(const std::vector<int64_t>& keys) {
  std::lock_guard<std::mutex> lock(mutex_);
  dropped_.insert(dropped_.end(), keys.begin(), keys.end());
  if (dropped_.size() > kKeptDropped) dropped_.erase(dropped_.begin(), dropped_.end() - kKeptDropped);
}

std::vector<int64_t> Demoter::PopDropped() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<int64_t> keys(dropped_.begin(), dropped_.end());
  dropped_.clear();
  return keys;
}

}  // namespace multitier
