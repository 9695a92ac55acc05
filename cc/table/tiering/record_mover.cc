// See record_mover.h. Copies for Flush: record_mover_copy.cc.

#include "cc/table/tiering/record_mover.h"

#include <algorithm>
#include <utility>

#include "cc/base/can_allocate.h"

namespace multitier {
namespace {

constexpr size_t kUnreadable = 8;  // records that are passed over for warmer ones; more are no fault of theirs

// No later read of the record will do better than this one, in a call that gave `batch`.
bool IsForGood(const Status& batch, const Status& record) {
  return batch.ok() && (record.code() == StatusCode::kNotFound || record.code() == StatusCode::kDataLoss);
}

}  // namespace

Status RecordMover::NoMemory(const char* from, size_t n) const {
  return ResourceExhaustedError("table '", base_.options.name, "': moving ", n, " rows out of tier ", from,
                                " (they stay there): no memory for ", ScratchBytes(n), " bytes");
}

Status RecordMover::MakeRoom(const ShardWriter& writer, int level, size_t n, size_t* room) {
  Shard* const shard = writer.shard();
  *room = n;
  if (!levels().bounded[level]) return OkStatus();
  const size_t share = lower_share(level);
  const size_t wanted = std::min(n, share);
  size_t rows = 0;
  uint64_t seen = 0;
  bool others_read = false;
  auto look = [&] {
    Shard::Locked lock(shard);
    rows = static_cast<size_t>(lock->counts().rows_in[level]);
    seen = lock.resolutions();
    others_read = lock->records().reading();
  };
  for (;;) {
    look();
    const uint64_t before = seen;
    const bool may_come = others_read;
    Status status;
    if (rows + wanted > share && level < levels().last()) {
      status = Demote(writer, level, rows + wanted - share);
    } else if (rows + wanted > share && base_.options.drop_coldest) {
      status = DropColdest(writer, level, rows + wanted - share);
    }
    look();
    *room = rows < share ? std::min(n, share - rows) : 0;
    if (n == 0) return status;
    if (*room > 0) return OkStatus();
    MT_RETURN_IF_ERROR(status);
    if (level == levels().last() || !(may_come || others_read)) break;
    // Operations are reading all there is; they wait for nothing. Nothing is held here.
    Shard::Locked(shard).WaitForResolution(before);
  }
  return ResourceExhaustedError("table '", base_.options.name, "': tier ", tiers_.name(level),
                                " is full: ", base_.budgets.lower(level).text(), " hold ", share, " rows of each of ",
                                base_.shards.size(), " shards");
}

Status RecordMover::TakeColdest(Shard* shard, int level, size_t n, std::vector<Leaving>* taken) {
  std::vector<LowerOrder::Entry> later;  // operations are reading them, or they could not be read
  Status status;
  size_t unreadable = 0;
  const uint64_t clock = base_.common.accesses.load();  // one for all: what is not taken at one rank is at the next
  while (taken->size() < n && unreadable < kUnreadable) {
    const std::vector<LowerOrder::Entry> entries = Shard::Locked(shard)->records().PopColdest(level, n - taken->size());
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
      // A damaged one leaves like any other if on_corruption lets no reader have it; else it fails when it is read.
      const bool damaged = one.code() == StatusCode::kDataLoss && base_.options.on_corruption != OnCorruption::kError;
      if (IsForGood(read, record.status) && !damaged) continue;  // or it was freed
      if (!one.ok() && !damaged) {
        later.push_back(entries[i]);
        ++unreadable;
        if (status.ok()) status = one;
        continue;
      }
      Leaving leaving;
      switch (lock->records().BeginLeave(level, entries[i], damaged ? nullptr : &record.header, clock, &leaving)) {
        case ShardRecords::Leave::kBegun:
          taken->push_back(std::move(leaving));
          break;
        case ShardRecords::Leave::kReadNow:
          later.push_back(entries[i]);
          break;
        case ShardRecords::Leave::kNotColdest:
          break;
      }
    }
  }
  Shard::Locked lock(shard);
  for (const LowerOrder::Entry& entry : later) lock->records().PutBack(level, entry);
  if (status.ok() || taken->size() == n) return OkStatus();
  return tiers_.Error("looking for the coldest rows", level, status);
}

Result<Rank> RecordMover::Coldest(Shard* shard, int level) {
  std::vector<Leaving> taken;
  MT_RETURN_IF_ERROR(TakeColdest(shard, level, 1, &taken));
  Shard::Locked lock(shard);
  for (const Leaving& leaving : taken) lock->records().CancelLeave(level, leaving);
  if (!taken.empty()) return taken[0].rank;
  return lock->counts().rows_in[level] == 0 ? Rank{~uint64_t{0}, ~uint32_t{0}} : Rank();
}

Status RecordMover::Demote(const ShardWriter& writer, int level, size_t n) {
  if (!CanAllocate(ScratchBytes(n))) return NoMemory(tiers_.name(level), n);
  std::vector<Leaving> taken;
  Status status = TakeColdest(writer.shard(), level, n, &taken);
  std::vector<Moving> moving(taken.size());
  for (size_t i = 0; i < taken.size(); ++i) moving[i].leaving = std::move(taken[i]);
  std::vector<uint8_t> data;
  const Status read = ReadMoving(level, &moving, &data);
  if (status.ok()) status = read;
  const Status written = WriteMoving(writer, level, &moving);
  if (status.ok()) status = written;
  SwitchMoving(writer.shard(), level, moving);
  size_t unused = 0;
  return status.ok() && room_after(level + 1) ? MakeRoom(writer, level + 1, 0, &unused) : status;
}

Status RecordMover::ReadMoving(int level, std::vector<Moving>* moving, std::vector<uint8_t>* data) {
  if (moving->empty()) return OkStatus();
  const size_t row_bytes = base_.layout()->row_bytes();
  data->resize(moving->size() * row_bytes);
  std::vector<ReadRecord> reads(moving->size());
  for (size_t i = 0; i < reads.size(); ++i) {
    const Leaving& leaving = (*moving)[i].leaving;
    reads[i].key = leaving.header.key;
    reads[i].location = leaving.location;
    if (leaving.header.below != kNoLocation) continue;  // clean: only where its copy is by now
    reads[i].row_data = data->data() + i * row_bytes;
  }
  const Status read = tiers_.Read(level, reads);
  Status status;
  for (size_t i = 0; i < reads.size(); ++i) {
    Moving& one = (*moving)[i];
    const Status& result = read.ok() ? reads[i].status : read;
    if (result.ok()) {
      one.leaving.header = reads[i].header;
      one.to = reads[i].header.below;
      one.row_data = reads[i].row_data;
      one.state = one.to == kNoLocation ? Moving::kDirty : Moving::kClean;
    } else if (base_.options.on_corruption != OnCorruption::kError && result.code() == StatusCode::kDataLoss) {
      one.state = Moving::kDamaged;  // no reader could use it
    } else if (status.ok()) {
      status = tiers_.Error(StrCat("demoting key ", one.leaving.header.key), level, result);
    }
  }
  return status;
}

Status RecordMover::WriteMoving(const ShardWriter& writer, int level, std::vector<Moving>* moving) {
  const int to = level + 1;
  std::vector<Moving*> dirty;
  std::vector<WriteRecord> records;
  for (Moving& one : *moving) {
    if (one.state != Moving::kDirty) continue;
    dirty.push_back(&one);
    records.push_back(WriteRecord{one.leaving.header, one.row_data});
  }
  if (records.empty()) return OkStatus();
  size_t room = records.size();
  Status status = room_after(to) ? OkStatus() : MakeRoom(writer, to, records.size(), &room);
  if (!status.ok()) room = 0;
  std::vector<uint32_t> locations(room);
  if (room > 0) {
    const Status written = tiers_.Write(writer, to, Span<const WriteRecord>(records.data(), room), locations.data());
    if (!written.ok()) {
      status = tiers_.Error(StrCat("demoting ", room, " rows from tier ", tiers_.name(level)), to, written);
      if (levels().needs_removal[to]) base_.common.any_key_below = true;
    }
  }
  for (size_t i = 0; i < dirty.size(); ++i) {
    if (i < room && status.ok()) {
      dirty[i]->to = locations[i];
    } else {
      dirty[i]->state = Moving::kStays;
    }
  }
  return status;
}

void RecordMover::SwitchMoving(Shard* shard, int level, const std::vector<Moving>& moving) {
  const int to = level + 1;
  FreedRecords freed;
  {
    Shard::Locked lock(shard);
    lock->counters().lower[level].reads += static_cast<int64_t>(moving.size());
    for (const Moving& one : moving) {
      const RecordHeader& header = one.leaving.header;
      switch (one.state) {
        case Moving::kStays:
          lock->records().CancelLeave(level, one.leaving);
          break;
        case Moving::kDamaged:
          DropCorrupt(lock, lock->records().EndRead(HashKey(header.key), one.leaving.id), header.key, level,
                      one.leaving.location, header);
          break;
        default:
          lock->counters().lower[to].writes += one.state == Moving::kDirty;
          lock->records().MoveDown(level, one.leaving, header, to, one.to, &freed);
      }
    }
  }
  tiers_.Free(&freed);
}

Status RecordMover::ReadWanted(Shard* shard, int level, const std::vector<Leaving>& taken, std::vector<ReadRecord>* records,
                               std::vector<uint8_t>* data) {
  const bool all = dropped_.wants_rows();
  if ((!all && !base_.snapshot.taken()) || taken.empty()) return OkStatus();
  const size_t row_bytes = base_.layout()->row_bytes();
  {
    Shard::Locked lock(shard);
    for (const Leaving& leaving : taken) {
      if (!all && !lock->snapshot().wants_record(level, leaving.location)) continue;
      ReadRecord& record = records->emplace_back();
      record.key = leaving.header.key;
      record.location = leaving.location;
    }
  }
  data->resize(records->size() * row_bytes);
  for (size_t i = 0; i < records->size(); ++i) (*records)[i].row_data = data->data() + i * row_bytes;
  return records->empty() ? OkStatus() : tiers_.Read(level, *records);
}

Status RecordMover::DropColdest(const ShardWriter& writer, int level, size_t n) {
  if (!CanAllocate(ScratchBytes(n))) return NoMemory(tiers_.name(level), n);
  std::vector<Leaving> taken;
  Status status = TakeColdest(writer.shard(), level, n, &taken);
  std::vector<ReadRecord> wanted;
  std::vector<uint8_t> data;
  const Status read = ReadWanted(writer.shard(), level, taken, &wanted, &data);
  FreedRecords freed;
  {
    Shard::Locked lock(writer.shard());
    const size_t row_bytes = lock->layout()->row_bytes();
    auto record = wanted.begin();
    for (const Leaving& leaving : taken) {
      RecordHeader header;
      uint8_t* row_data = nullptr;
      if (record != wanted.end() && record->location == leaving.location) {
        const ReadRecord& one = *record++;
        const Status& failed = read.ok() ? one.status : read;
        const bool still_wanted = lock->snapshot().wants_record(level, leaving.location);
        if (failed.ok()) {
          header = one.header;
          row_data = one.row_data;
        } else if ((still_wanted || dropped_.wants_rows()) &&
                   !IsForGood(read, one.status)) {  // it stays until it can be given, or need not be any more
          lock->records().CancelLeave(level, leaving);
          if (status.ok()) status = tiers_.Error(StrCat("dropping key ", leaving.header.key), level, failed);
          continue;
        }
        lock->counters().corrupt += failed.code() == StatusCode::kDataLoss;
      }
      dropped_.Keep(leaving.header.key, leaving.header.frequency, leaving.header.version, header.num_columns, row_data,
                    row_bytes);
      lock->records().DropRecord(level, leaving, header, row_data, &freed);
    }
  }
  const Status removed = tiers_.Remove(writer, &freed);
  return status.ok() ? removed : status;
}

void RecordMover::DropCorrupt(Shard::Locked& lock, KeyWord word, int64_t key, int level, uint32_t location,
                              const RecordHeader& header) {
  FreedRecords freed;
  lock->records().EraseRecord(word, level, location, header, /*row_data=*/nullptr, &freed);
  tiers_.RemoveLater(lock, freed);  // the caller need not hold the writer
  ++lock->counters().dropped;
  dropped_.Keep(key);
}

}  // namespace multitier
