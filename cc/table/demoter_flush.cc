// Flush: what is only in memory, or in a tier that does not survive, gets a record in the last tier.
//
// A row of DRAM without a record there (`below` unset) is copied under the shard's lock and flagged kRowDemoting, as in
// demotion; written without the lock; and, where the flag is still set, the record becomes its clean copy. A row that was
// changed meanwhile was changed after the call: the record is freed. Of a row of the tier between SwitchBelow names the copy.
//
// Rows come down only in trims. Above one tier each slice holds the shard's trim for itself: a row that goes down between two
// slices stands in the last tier then. Above two it could stop in between, behind our back: there the trim is held for the
// whole shard, first over the tier between, then over DRAM, where rows that were promoted meanwhile have arrived.
//
// A last tier whose size is given holds no copies: there all rows are moved, with the gate closed.

#include <algorithm>

#include "cc/table/demoter.h"

namespace multitier {
namespace {

constexpr size_t kFlushRows = 4096;        // a slice
constexpr uint32_t kLookedAt = 64 * 1024;  // slots looked at for it under one hold of the lock

}  // namespace

Status Demoter::FlushShard(Shard* shard) {
  uint32_t from = 0;
  if (levels_.count > 1) {
    const ShardWriter writer(shard);
    MT_RETURN_IF_ERROR(tiers_.RetryRemovals(writer));
    MT_RETURN_IF_ERROR(FlushMiddle(writer));
    while (from != kNoLocation) MT_RETURN_IF_ERROR(FlushSlice(writer, &from));
  }
  while (from != kNoLocation) {
    const ShardWriter writer(shard);
    MT_RETURN_IF_ERROR(tiers_.RetryRemovals(writer));
    MT_RETURN_IF_ERROR(FlushSlice(writer, &from));
  }
  return OkStatus();
}

Status Demoter::FlushSlice(const ShardWriter& writer, uint32_t* from) {
  Shard* const shard = writer.shard();
  const int last = levels_.last();
  std::vector<WriteRecord> records;
  std::vector<uint8_t> copies;
  size_t row_bytes = 0;
  {
    Shard::Locked lock(shard);
    row_bytes = lock->layout()->row_bytes();
    const uint32_t end = lock->row_slots();
    uint32_t slot = *from;
    for (uint32_t looked = 0; slot < end && records.size() < kFlushRows && looked < kLookedAt; ++slot, ++looked) {
      const RowHeader* row = lock->row(slot);
      if (row->has(kRowFree | kRowUncommitted) || row->below != kNoLocation) continue;
      copies.resize(copies.size() + row_bytes);
      WriteRecord& record = records.emplace_back();
      record.header = lock->BeginWrite(slot, last, copies.data() + copies.size() - row_bytes);
      record.header.recency = 0;  // of tiers in the middle
      record.header.flags = 0;
    }
    *from = slot < end ? slot : kNoLocation;
  }
  if (records.empty()) return OkStatus();
  for (size_t i = 0; i < records.size(); ++i) records[i].row_data = copies.data() + i * row_bytes;
  std::vector<uint32_t> locations(records.size());
  const Status written = tiers_.Write(writer, last, records, locations.data());
  FreedRecords unused;
  {
    Shard::Locked lock(shard);
    if (written.ok()) lock->counters.lower[last].writes += static_cast<int64_t>(records.size());
    for (size_t i = 0; i < records.size(); ++i) {
      const int64_t key = records[i].header.key;
      if (!written.ok()) {
        lock->CancelWrite(key);
      } else if (lock->EndWrite(records[i].header, last, locations[i], /*keep=*/true) == ShardRows::Written::kStale) {
        unused.at[last].push_back(KeyLocation{key, locations[i], /*newest=*/true});
      }
    }
  }
  tiers_.Free(&unused);
  return written.ok() ? written
                      : tiers_.Error(StrCat("flushing ", records.size(), " rows (they stay in memory)"), last, written);
}

Status Demoter::FlushMiddle(const ShardWriter& writer) {
  Shard* const shard = writer.shard();
  const int last = levels_.last();
  const std::shared_ptr<const RowLayout> layout = this->layout();
  std::vector<uint32_t> locations;
  {
    Shard::Locked lock(shard);
    // Operations are reading some: those go up, or are put back.
    while (!lock->RecordsOf(/*level=*/0, &locations)) lock.WaitForResolution(lock.resolutions());
  }
  std::vector<uint32_t> freed;  // where no record is any more
  // Rows only leave from here on, and where one stood a row of another shard may stand now.
  const auto ours = [&](const ReadRecord& record) { return shards_.of(HashKey(record.header.key)) == shard; };
  for (size_t from = 0; from < locations.size(); from += kFlushRows) {
    std::vector<ReadRecord> headers(std::min(kFlushRows, locations.size() - from));
    for (size_t i = 0; i < headers.size(); ++i) {
      headers[i].location = locations[from + i];
      headers[i].any_key = true;
    }
    MT_RETURN_IF_ERROR(tiers_.Read(0, headers));
    std::vector<ReadRecord> dirty;
    for (const ReadRecord& header : headers) {
      if (header.status.code() == StatusCode::kNotFound) freed.push_back(header.location);
      if (header.status.code() == StatusCode::kNotFound) continue;
      if (header.status.ok() && (!ours(header) || header.header.below != kNoLocation)) continue;
      ReadRecord record;
      record.any_key = !header.status.ok();
      record.key = header.header.key;
      record.location = header.location;
      dirty.push_back(record);
    }
    std::vector<uint8_t> data(dirty.size() * layout->row_bytes());
    for (size_t i = 0; i < dirty.size(); ++i) dirty[i].row_data = data.data() + i * layout->row_bytes();
    if (!dirty.empty()) MT_RETURN_IF_ERROR(tiers_.Read(0, dirty));
    std::vector<WriteRecord> records;
    std::vector<uint32_t> of;
    for (const ReadRecord& record : dirty) {
      if (record.status.code() == StatusCode::kNotFound) freed.push_back(record.location);
      if (record.status.code() == StatusCode::kNotFound) continue;
      if (record.status.code() == StatusCode::kDataLoss && options_.on_corruption != OnCorruption::kError) continue;
      if (!record.status.ok()) return tiers_.RecordError("flushing", 0, record);
      if (!ours(record)) continue;
      records.push_back(WriteRecord{record.header, record.row_data});
      of.push_back(record.location);
    }
    if (records.empty()) continue;
    std::vector<uint32_t> written(records.size());
    const Status write = tiers_.Write(writer, last, records, written.data());
    if (!write.ok()) {
      common_.any_key_below = true;  // it may have left records behind
      return tiers_.Error(StrCat("flushing ", records.size(), " rows from tier ", tiers_.name(0)), last, write);
    }
    FreedRecords unused;
    {
      Shard::Locked lock(shard);
      lock->counters.lower[last].writes += static_cast<int64_t>(records.size());
      for (size_t i = 0; i < records.size(); ++i) {
        const int64_t key = records[i].header.key;
        auto attached = ShardRows::Attached::kReadNow;
        // An operation reads it: it goes up, or is put back.
        while ((attached = lock->AttachCopy(key, of[i], written[i])) == ShardRows::Attached::kReadNow) {
          lock.WaitForResolution(lock.resolutions());
        }
        // Brought up by an operation: it is in DRAM without a copy, and is written from there.
        if (attached == ShardRows::Attached::kNotThere) {
          unused.at[last].push_back(KeyLocation{key, written[i], /*newest=*/true});
        }
      }
    }
    if (!unused.at[last].empty()) common_.any_key_below = true;  // records of rows that do not know of it
    tiers_.Free(&unused);
  }
  return freed.empty() ? OkStatus() : CheckUnnamed(shard, 0, std::move(freed));
}

Status Demoter::CheckUnnamed(Shard* shard, int level, std::vector<uint32_t> locations) {
  std::sort(locations.begin(), locations.end());
  const int64_t named = Shard::Locked(shard)->CountNamed(level, locations);
  if (named == 0) return OkStatus();
  return tiers_.Error("flushing", level, DataLossError(named, " rows have no record where the index has them"));
}

Status Demoter::MoveAllToLast() {
  const int last = levels_.last();
  const size_t share = lower_share(last);
  for (auto& shard : shards_) {
    size_t rows = 0;
    {
      Shard::Locked lock(shard);
      rows = static_cast<size_t>(lock->rows());
      lock->SweepPrefetched(~uint64_t{0});
    }
    if (rows > share) {
      return ResourceExhaustedError("table '", options_.name, "': flush: tier ", tiers_.name(last), " of ",
                                    options_.lower_tiers[static_cast<size_t>(last)].budget_bytes, " bytes holds ", share,
                                    " rows of each of ", shards_.size(), " shards, one has ", rows);
    }
    size_t above = ~size_t{0};  // rows that are not there yet
    for (bool progress = true; above > 0 && progress;) {
      // The tier between is emptied first: what DRAM holds goes through it.
      if (last > 0) {
        const ShardWriter writer(shard);
        MT_RETURN_IF_ERROR(tiers_.RetryRemovals(writer));
        MT_RETURN_IF_ERROR(DemoteLower(writer, 0, kFlushRows));
      }
      MT_RETURN_IF_ERROR(TrimShard(shard.get(), 0, 1));
      Shard::Locked lock(shard);
      const size_t left = static_cast<size_t>(lock->rows() - lock->rows_in(last));
      progress = left < above;
      above = left;
    }
    if (above > 0) return InternalError("table '", options_.name, "': flush: ", above, " rows of a shard cannot be moved");
  }
  return OkStatus();
}

}  // namespace multitier
