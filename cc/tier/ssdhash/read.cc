// Read, of one batch:
//   1. look up   Under the set's mutex, a thousand records at a time: copy records in a writer's buffer; for the others pin the
//                segment and note the place.
//   2. coalesce  Sort the places by file and offset. Equal or adjacent blocks become one read, up to 16 KiB.
//   3. read      Read all through the BatchReader. As each read completes, check the checksum, copy the row data and report it.
// A segment's bytes are never overwritten while it is pinned, so a record that is freed meanwhile is old but not torn. A closed
// file may have been deleted when it is opened, because its segment was rewritten or deleted: its records are looked up again.

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "cc/tier/ssdhash/ssdhash_impl.h"

namespace multitier {
namespace {

constexpr size_t kLookUpBatch = 1024;
constexpr uint64_t kCoalescedBytes = 16 << 10;
constexpr uint64_t kScanBytes = 1 << 20;

// A reader of all locations meets many of free units, and asks for no key: the short message needs no memory.
Status NoRecord(const ReadRecord& out) {
  if (out.any_key) return Status(StatusCode::kNotFound, "no record here");
  return NotFoundError("ssdhash tier: no record at location ", out.location, " for key ", out.key);
}

}  // namespace

// A record to be read from a file.
struct SsdHashTier::Impl::FileRead {
  Segment* segment = nullptr;
  CachedFile* file = nullptr;
  uint64_t offset = 0;
  uint32_t slot = 0;
  uint32_t index = 0;  // in the batch
  const PositionedFile* open = nullptr;
};

void SsdHashTier::Impl::Answer(const Segment& segment, const RecordFields& fields, ReadRecord* out) const {
  const uint32_t columns = fields.header.num_columns;
  if ((fields.flags & kTombstoneFlag) != 0 || columns == 0 || columns >= segment.column_bytes.size()) {
    out->status = NoRecord(*out);
    return;
  }
  out->header = fields.header;
  if (options_.read_only) out->header.num_columns = std::min(1u, out->header.num_columns);
  if (out->row_data != nullptr) std::memcpy(out->row_data, fields.row_data, segment.column_bytes[out->header.num_columns]);
  out->status = OkStatus();
}

Status SsdHashTier::Impl::Read(Span<ReadRecord> records, const Tier::Answered* answered) {
  std::vector<FileRead> files, deleted;
  std::vector<std::shared_ptr<Segment>> pinned;
  std::vector<std::shared_ptr<CachedFile>> pinned_files;  // a repair may replace a file between two look-ups
  uint64_t batch = 0;
  const uint64_t begun = options_.env->NowMicros();
  // `missing`: the file in which it was not found.
  const auto look_up = [&](uint32_t i, const CachedFile* missing) MT_REQUIRES(set_.mutex) {
    ReadRecord& out = records[i];
    uint32_t slot = 0;
    Segment* segment = set_.Find(out.location, &slot);
    if (segment == nullptr || !segment->is_live(slot)) {
      out.status = NoRecord(out);
      return;
    }
    const SegmentGeometry& geometry = segment->geometry;
    const uint64_t offset = geometry.RecordOffset(slot);
    if (const uint8_t* record = segment->InMemory(offset); record != nullptr) {
      RecordFields fields;
      (void)DecodeRecord(geometry, slot, record, false, &fields);
      Answer(*segment, fields, &out);
      return;
    }
    if (segment->file.get() == missing) {
      out.status = DataLossError("ssdhash tier: record", OfKey(out), " in '", missing->path(), "' at offset ", offset,
                                 ": the file is missing");
      return;
    }
    const bool seen = std::exchange(segment->read_batch, batch) == batch;
    if (!seen || pinned_files[segment->read_index] != segment->file) {
      segment->read_index = static_cast<uint32_t>(pinned.size());
      pinned.push_back(set_.Pin(segment));
      pinned_files.push_back(segment->file);
    }
    CachedFile* file = pinned_files[segment->read_index].get();
    files.push_back(FileRead{segment, file, offset, slot, i});
  };
  for (size_t from = 0; from < records.size(); from += kLookUpBatch) {
    const size_t to = std::min(records.size(), from + kLookUpBatch);
    MutexLock lock(set_.mutex);
    if (batch == 0) batch = ++set_.read_batches;
    for (size_t i = from; i < to; ++i) look_up(static_cast<uint32_t>(i), nullptr);
  }
  ReadFromFiles(records, &files, &deleted, answered);
  while (!deleted.empty()) {
    files.clear();
    {
      MutexLock lock(set_.mutex);
      for (const FileRead& read : deleted) look_up(read.index, read.file);
    }
    deleted.clear();
    ReadFromFiles(records, &files, &deleted, answered);
  }
  FindKeysOfDamaged(records);
  const size_t bucket = LatencyBucket(options_.env->NowMicros() - begun);
  MutexLock lock(set_.mutex);
  ++set_.read_latency[bucket];
  return OkStatus();
}

void SsdHashTier::Impl::ReadFromFiles(Span<ReadRecord> records, std::vector<FileRead>* files, std::vector<FileRead>* deleted,
                                      const Tier::Answered* answered) {
  if (files->empty()) return;
  std::sort(files->begin(), files->end(), [](const FileRead& a, const FileRead& b) {
    return a.segment != b.segment ? a.segment->header.id < b.segment->header.id : a.offset < b.offset;
  });
  const size_t max_open = std::max<size_t>(8, CachedFile::capacity() / 4);
  std::vector<std::shared_ptr<PositionedFile>> open;
  size_t begin = 0;
  for (size_t i = 0; i < files->size();) {
    size_t next = i + 1;
    while (next < files->size() && (*files)[next].file == (*files)[i].file) ++next;
    const auto read_open = [&] {
      ReadOpenFiles(records, Span<const FileRead>(files->data() + begin, i - begin), answered);
      open.clear();
      begin = i;
    };
    if (open.size() == max_open) read_open();
    Result<std::shared_ptr<PositionedFile>> file = (*files)[i].file->Open();
    if (file.status().code() == StatusCode::kResourceExhausted && !open.empty()) {  // out of descriptors: give some back
      read_open();
      file = (*files)[i].file->Open();
    }
    for (size_t r = i; r < next; ++r) {
      ReadRecord& out = records[(*files)[r].index];
      if (file.ok()) {
        (*files)[r].open = file->get();
      } else if (file.status().code() == StatusCode::kNotFound) {
        deleted->push_back((*files)[r]);
      } else {
        out.status = Status(file.status().code(), StrCat("ssdhash tier: record", OfKey(out), ": ", file.status().message()));
      }
    }
    if (file.ok()) open.push_back(*std::move(file));
    i = next;
  }
  ReadOpenFiles(records, Span<const FileRead>(files->data() + begin, files->size() - begin), answered);
}

void SsdHashTier::Impl::ReadOpenFiles(Span<ReadRecord> records, Span<const FileRead> files, const Tier::Answered* answered) {
  std::vector<BlockRead> reads;
  std::vector<uint32_t> first;  // of each read in files
  reads.reserve(files.size());
  first.reserve(files.size() + 1);
  int64_t bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const FileRead& record = files[i];
    if (record.open == nullptr) continue;
    const uint64_t begin = RoundDownToBlock(record.offset);
    const uint64_t end = RoundUpToBlock(record.offset + record.segment->geometry.record_bytes);
    if (!reads.empty()) {
      BlockRead& previous = reads.back();
      const uint64_t previous_end = previous.offset + previous.bytes;
      const bool inside = end <= previous_end;
      const bool joins = begin <= previous_end && end - previous.offset <= kCoalescedBytes;
      if (previous.file == record.open && (inside || joins)) {
        previous.bytes = static_cast<uint32_t>(std::max(end, previous_end) - previous.offset);
        continue;
      }
    }
    reads.push_back(BlockRead{record.open, begin, static_cast<uint32_t>(end - begin)});
    first.push_back(static_cast<uint32_t>(i));
  }
  first.push_back(static_cast<uint32_t>(files.size()));
  for (const BlockRead& read : reads) bytes += read.bytes;
  {
    MutexLock lock(set_.mutex);
    set_.reads += static_cast<int64_t>(reads.size());
    set_.read_bytes += bytes;
  }
  const std::thread::id caller = std::this_thread::get_id();
  reader_->Read(reads, [&](size_t r, const Status& status, const uint8_t* data) {
    const bool tells = answered != nullptr && std::this_thread::get_id() == caller;
    for (size_t i = first[r]; i < first[r + 1]; ++i) {
      const FileRead& record = files[i];
      if (record.open == nullptr) continue;
      ReadRecord& out = records[record.index];
      RecordFields fields;
      if (!status.ok()) {
        out.status = Status(status.code(), StrCat("ssdhash tier: record", OfKey(out), ": ", status.message()));
      } else if (!DecodeRecord(record.segment->geometry, record.slot, data + (record.offset - reads[r].offset), true,
                               &fields)) {
        MutexLock lock(set_.mutex);
        ++set_.corrupt;
        record.segment->found_damaged = true;
        out.status = DataLossError("ssdhash tier: record", OfKey(out), " in '", record.file->path(), "' at offset ",
                                   record.offset, ": the checksum does not match");
      } else {
        Answer(*record.segment, fields, &out);
      }
      if (tells) (*answered)(record.index);
    }
  });
}

void SsdHashTier::Impl::FindKeysOfDamaged(Span<ReadRecord> records) {
  std::shared_ptr<Segment> segment;
  std::vector<FooterEntry> entries;
  for (ReadRecord& record : records) {
    if (!record.any_key || record.status.code() != StatusCode::kDataLoss) continue;
    uint32_t slot = 0;
    bool sealed = false;
    {
      MutexLock compact(compact_mutex_);  // of the cold head
      MutexLock append(append_mutex_);
      MutexLock lock(set_.mutex);
      Segment* const found = set_.Find(record.location, &slot);
      if (found == nullptr) continue;
      if (found != segment.get()) {
        segment = set_.Pin(found);
        sealed = segment->sealed;
        entries = segment->entries;
      }
    }
    if (sealed && !LoadEntries(*segment, &entries, nullptr).ok()) entries.clear();
    if (slot >= entries.size() || entries[slot].damaged) continue;
    record.key = entries[slot].key;
    record.any_key = false;
  }
}

bool SsdHashTier::Impl::IsHeld(const Segment* segment) const {
  MutexLock lock(set_.mutex);
  return set_.segments.count(const_cast<Segment*>(segment)) > 0;
}

std::shared_ptr<CachedFile> SsdHashTier::Impl::FileOf(const Segment& segment) const {
  MutexLock lock(set_.mutex);
  return segment.file;
}

Status SsdHashTier::Impl::ScanRecords(const Segment& segment, std::vector<FooterEntry>* entries) const {
  const SegmentGeometry& geometry = segment.geometry;
  const uint64_t window = std::max(kScanBytes, RoundUpToBlock(geometry.record_bytes) + kBlockBytes);
  const PageBuffer pages(options_.env, window);
  if (pages.data() == nullptr) return ResourceExhaustedError("no memory for ", window, " bytes");
  MT_ASSIGN_OR_RETURN(const std::shared_ptr<PositionedFile> file, FileOf(segment)->Open());
  MT_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
  const uint64_t whole = RoundDownToBlock(size);
  uint64_t have_begin = 0, have_end = 0;
  size_t good = 0;
  for (uint32_t slot = 0; slot < geometry.slots; ++slot) {
    const uint64_t offset = geometry.RecordOffset(slot);
    if (RoundUpToBlock(offset + geometry.record_bytes) > whole) break;
    if (offset + geometry.record_bytes > have_end) {
      have_begin = RoundDownToBlock(offset);
      have_end = std::min(whole, have_begin + window);
      MT_RETURN_IF_ERROR(file->Read(have_begin, have_end - have_begin, pages.data()));
    }
    RecordFields fields;
    FooterEntry entry;
    if (DecodeRecord(geometry, slot, pages.data() + (offset - have_begin), true, &fields) && fields.seq != 0) {
      const RecordHeader& header = fields.header;
      entry = FooterEntry{header.key,
                          fields.seq,
                          header.version,
                          header.frequency,
                          static_cast<uint16_t>(header.num_columns),
                          (fields.flags & kTombstoneFlag) != 0};
      good = slot + 1;
    } else {
      entry.damaged = true;
    }
    entries->push_back(entry);
  }
  entries->resize(good);  // the rest was never written
  return OkStatus();
}

Status SsdHashTier::Impl::LoadEntries(const Segment& segment, std::vector<FooterEntry>* entries, bool* from_footer) const {
  entries->clear();
  if (from_footer != nullptr) *from_footer = false;
  uint64_t offset = 0, bytes = 0;
  std::shared_ptr<CachedFile> cached;
  {
    MutexLock lock(set_.mutex);  // they change together where the file is rewritten
    offset = segment.footer_offset;
    bytes = segment.footer_bytes;
    cached = segment.file;
  }
  if (bytes > 0) {
    const PageBuffer pages(options_.env, bytes);
    if (pages.data() == nullptr) return ResourceExhaustedError("no memory for ", bytes, " bytes");
    MT_ASSIGN_OR_RETURN(const std::shared_ptr<PositionedFile> file, cached->Open());
    MT_RETURN_IF_ERROR(file->Read(offset, bytes, pages.data()));
    if (DecodeFooter(segment.geometry.seed, pages.data(), bytes, entries)) {
      if (from_footer != nullptr) *from_footer = true;
      return OkStatus();
    }
    entries->clear();
  }
  return ScanRecords(segment, entries);
}

Status SsdHashTier::Impl::Scan(const std::function<Status(const RecordHeader&, uint32_t location)>& visit) {
  struct View {
    std::shared_ptr<Segment> segment;
    std::vector<uint64_t> live;
    std::vector<FooterEntry> entries;  // of an open one
    bool open = false;
  };
  std::vector<View> views;
  const auto look = [&] {
    views.clear();
    // No relocation is between its steps while compact_mutex_ is held, and no writer between appending and publishing.
    MutexLock compact(compact_mutex_);
    MutexLock append(append_mutex_);
    MutexLock lock(set_.mutex);
    for (const auto& [segment, owner] : set_.segments) {
      if (segment->num_live == 0) continue;
      View view{owner, segment->live, {}, !segment->sealed};
      if (!segment->sealed) view.entries = segment->entries;
      views.push_back(std::move(view));
    }
  };
  look();
  Status damage;
  int64_t damaged = 0;
  for (size_t i = 0; i < views.size(); ++i) {
    View& view = views[i];
    const Segment& segment = *view.segment;
    if (!view.open) {
      const Status loaded = LoadEntries(segment, &view.entries, nullptr);
      if (loaded.code() == StatusCode::kNotFound && !IsHeld(&segment)) {
        // Compaction has moved its records and deleted it, while its file was closed for want of descriptors: again from the
        // beginning, for they may be where the scan has been.
        look();
        damage = OkStatus();
        damaged = 0;
        i = static_cast<size_t>(-1);
        continue;
      }
      MT_RETURN_IF_ERROR(loaded);
    }
    for (uint32_t slot = 0; slot < segment.geometry.slots; ++slot) {
      if (!segment.has(view.live, slot)) continue;
      if (slot >= view.entries.size() || view.entries[slot].damaged) {
        if (damaged++ > 0) continue;
        damage = DataLossError("ssdhash tier: scan of '", FileOf(segment)->path(), "' at offset ",
                               segment.geometry.RecordOffset(slot), ": the footer and this record are damaged");
        continue;
      }
      const FooterEntry& entry = view.entries[slot];
      const uint32_t num_columns = options_.read_only ? std::min<uint32_t>(1, entry.num_columns) : entry.num_columns;
      const RecordHeader header{entry.key, entry.version, entry.frequency, num_columns};
      // Its units are its own as long as it is pinned or not: they are written once, before it is seen.
      const uint32_t location =
          segment.units[slot / SegmentSet::kUnitSlots] * SegmentSet::kUnitSlots + slot % SegmentSet::kUnitSlots;
      MT_RETURN_IF_ERROR(visit(header, location));
    }
  }
  if (damaged > 1) return DataLossError(damage.message(), "; ", damaged, " records are damaged in all");
  return damage;
}

}  // namespace multitier
