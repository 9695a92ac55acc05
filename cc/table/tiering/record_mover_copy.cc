// Copies of the rows of the first of two lower tiers in the last one, for Flush: see record_mover.h. SwitchBelow names the
// copy.
//
// The shard's writer is held throughout, so that no row comes down meanwhile. Rows may leave: operations promote them, and the
// row of another shard's key may come to stand where one was.

#include <algorithm>

#include "cc/table/tiering/record_mover.h"

namespace multitier {
namespace {

constexpr size_t kCopiedRows = 4096;

}  // namespace

Status RecordMover::CopyToLast(const ShardWriter& writer) {
  Shard* const shard = writer.shard();
  std::vector<uint32_t> locations;
  {
    Shard::Locked lock(shard);
    // Operations are reading some: those go up, or are put back.
    while (!lock->records().RecordsOf(/*level=*/0, &locations)) lock.WaitForResolution(lock.resolutions());
  }
  std::vector<uint32_t> freed;  // where no record is any more
  for (size_t from = 0; from < locations.size(); from += kCopiedRows) {
    const size_t n = std::min(kCopiedRows, locations.size() - from);
    std::vector<ReadRecord> records;
    std::vector<uint8_t> data;
    MT_RETURN_IF_ERROR(ReadWithoutCopy(shard, Span<const uint32_t>(locations).subspan(from, n), &records, &data, &freed));
    MT_RETURN_IF_ERROR(WriteCopies(writer, records));
  }
  return freed.empty() ? OkStatus() : CheckUnnamed(shard, 0, std::move(freed));
}

Status RecordMover::ReadWithoutCopy(Shard* shard, Span<const uint32_t> locations, std::vector<ReadRecord>* records,
                                    std::vector<uint8_t>* data, std::vector<uint32_t>* freed) {
  const size_t row_bytes = base_.layout()->row_bytes();
  const auto ours = [&](const ReadRecord& record) { return base_.shards.of(HashKey(record.header.key)) == shard; };
  std::vector<ReadRecord> headers(locations.size());
  for (size_t i = 0; i < headers.size(); ++i) {
    headers[i].location = locations[i];
    headers[i].any_key = true;
  }
  MT_RETURN_IF_ERROR(tiers_.Read(0, headers));
  std::vector<ReadRecord> dirty;
  for (const ReadRecord& header : headers) {
    if (header.status.code() == StatusCode::kNotFound) freed->push_back(header.location);
    if (header.status.code() == StatusCode::kNotFound) continue;
    if (header.status.ok() && (!ours(header) || header.header.below != kNoLocation)) continue;
    ReadRecord record;
    record.any_key = !header.status.ok();
    record.key = header.header.key;
    record.location = header.location;
    dirty.push_back(record);
  }
  data->resize(dirty.size() * row_bytes);
  for (size_t i = 0; i < dirty.size(); ++i) dirty[i].row_data = data->data() + i * row_bytes;
  if (!dirty.empty()) MT_RETURN_IF_ERROR(tiers_.Read(0, dirty));
  for (const ReadRecord& record : dirty) {
    if (record.status.code() == StatusCode::kNotFound) freed->push_back(record.location);
    if (record.status.code() == StatusCode::kNotFound) continue;
    if (record.status.code() == StatusCode::kDataLoss && base_.options.on_corruption != OnCorruption::kError) continue;
    if (!record.status.ok()) return tiers_.RecordError("flushing", 0, record);
    if (ours(record)) records->push_back(record);
  }
  return OkStatus();
}

Status RecordMover::WriteCopies(const ShardWriter& writer, const std::vector<ReadRecord>& records) {
  if (records.empty()) return OkStatus();
  const int last = levels().last();
  std::vector<WriteRecord> copies;
  for (const ReadRecord& record : records) copies.push_back(WriteRecord{record.header, record.row_data});
  std::vector<uint32_t> locations(copies.size());
  const Status written = tiers_.Write(writer, last, copies, locations.data());
  if (!written.ok()) {
    base_.common.any_key_below = true;  // it may have left records behind
    return tiers_.Error(StrCat("flushing ", copies.size(), " rows from tier ", tiers_.name(0)), last, written);
  }
  FreedRecords unused;
  {
    Shard::Locked lock(writer.shard());
    lock->counters().lower[last].writes += static_cast<int64_t>(copies.size());
    for (size_t i = 0; i < copies.size(); ++i) {
      const int64_t key = copies[i].header.key;
      auto attached = ShardRecords::Attached::kReadNow;
      // An operation reads it: it goes up, or is put back.
      while ((attached = lock->records().AttachCopy(key, records[i].location, locations[i])) ==
             ShardRecords::Attached::kReadNow) {
        lock.WaitForResolution(lock.resolutions());
      }
      // Brought up by an operation: it is in DRAM without a copy, and is written from there.
      if (attached == ShardRecords::Attached::kNotThere) {
        unused.at[last].push_back(KeyLocation{key, locations[i], /*newest=*/true});
      }
    }
  }
  if (!unused.at[last].empty()) base_.common.any_key_below = true;  // records of rows that do not know of them
  tiers_.Free(&unused);
  return OkStatus();
}

Status RecordMover::CheckUnnamed(Shard* shard, int level, std::vector<uint32_t> locations) {
  std::sort(locations.begin(), locations.end());
  const int64_t named = Shard::Locked(shard)->records().CountNamed(level, locations);
  if (named == 0) return OkStatus();
  return tiers_.Error("flushing", level,
                      DataLossError("expected a record at each location of the index, found none for ", named, " rows"));
}

}  // namespace multitier
