// Recovery:
//   1. Headers. "ssd.id" states the instance. Every segment must belong to it and have an intact header. If sectors of a header
//      are zero and all others are intact, they were lost with the power (the header is written with the first records) or by
//      the disk. If the file has no other data, the creation of the segment was interrupted before an acknowledgement: delete
//      it. Else read it with the layout of another segment; a record's checksum is correct only at one place of one segment. If
//      no layout fits and the trailer proves that the segment was synced: DataLoss, and the file stays. Without a proof: count
//      and delete it, because a synced segment has its header. Any other damage of a header is DataLoss.
//   2. Records. The footer of a sealed segment gives its records: at once if its trailer proves that they were synced, else if
//      all of them are intact. Without an intact footer (unsealed or damaged) read the records one by one up to the last intact
//      one. Damaged records before that were lost with the power (writes to one file may survive in any order) or are damaged:
//      count them and note the first.
//   3. List. Everything in "ssd.list" must exist (segment_list.h): each segment's file, with the listed number of intact
//      records. A missing, cut, zeroed or exchanged file is DataLoss with its name. Delete nothing before all files are
//      checked.
//      A sealed segment that is listed in full counts as proven.
//   4. Keys. Of all records of a key the one with the largest seq wins; equal ones are copies by compaction. If a record wins,
//      it is held. If a tombstone wins, the key is absent. All tombstones are kept until compaction drops them.
//
// A few threads load segments in parallel. Keys are spread over buckets that fit the processor cache, with one small
// open-addressed table each. Recovered segments become sealed without a change, so that an interrupted recovery finds the same
// data again. Segments without a proof are synced in the next round: their records count as acknowledged, because recovery has
// found them, but the process that wrote them may have died before it synced them.

#include <algorithm>
#include <map>
#include <utility>

#include "cc/base/can_allocate.h"
#include "cc/base/crc32c.h"
#include "cc/base/hash.h"
#include "cc/base/helpers.h"
#include "cc/env/posix_error.h"
#include "cc/row/schema.h"
#include "cc/tier/ssdhash/ssdhash_impl.h"

namespace multitier {
namespace {

constexpr size_t kBucketRecords = 1 << 14;
constexpr int kLoadHelpers = 3;
constexpr size_t kLoadGroup = 16;                // segments whose records are in memory twice
constexpr size_t kRemainsBytes = 64 << 10;       // looked through at once
constexpr uint64_t kMinFooterBytesPerSlot = 12;  // key, frequency
constexpr uint64_t kSeqGap = 1 << 28;            // past what lost segments may have used

// A record found, before it is known whether it is its key's newest.
struct Found {
  int64_t key;
  uint64_t seq;
  uint32_t segment;  // of the list of segments
  uint32_t slot;     // highest bit: a tombstone
};
constexpr uint32_t kTombstoneBit = 1u << 31;
constexpr size_t kScratchBytesOfRecord = 4 * sizeof(Found) + 4 * sizeof(uint32_t);  // vectors grow; ForNewest has a table

// What the entries of a segment may need. While it is loaded: that three more times, for entries that are read from its
// records, in a vector that grows.
size_t EntriesBytes(const SegmentHeader& header, uint64_t file_bytes) {
  return sizeof(FooterEntry) * std::min<uint64_t>(header.slots, file_bytes / kMinFooterBytesPerSlot + 1);
}
constexpr size_t kMoreWhileLoading = 3;

Status CheckMemory(size_t bytes) {
  return CanAllocate(bytes) ? OkStatus() : ResourceExhaustedError("ssdhash tier: recovery: no memory for ", bytes, " bytes");
}

// Calls keep for the newest record of each key.
template <typename Keep>
void ForNewest(const std::vector<Found>& records, std::vector<uint32_t>* table, Keep keep) {
  size_t capacity = 16;
  while (capacity < records.size() * 2) capacity *= 2;
  table->assign(capacity, ~0u);
  for (uint32_t i = 0; i < records.size(); ++i) {
    size_t at = HashKey(records[i].key) & (capacity - 1);
    for (; (*table)[at] != ~0u; at = (at + 1) & (capacity - 1)) {
      if (records[(*table)[at]].key == records[i].key) break;
    }
    uint32_t& newest = (*table)[at];
    if (newest == ~0u || records[newest].seq < records[i].seq) newest = i;
  }
  for (const uint32_t i : *table) {
    if (i != ~0u) keep(records[i]);
  }
}

Status ReadHeader(Env* env, const PositionedFile& file, const std::string& path, uint64_t size, SegmentHeader* header) {
  for (size_t needed = kBlockBytes;;) {
    if (size < needed) return DataLossError("segment '", path, "' is cut at offset ", size);
    const PageBuffer pages(env, needed);
    if (pages.data() == nullptr) return ResourceExhaustedError("no memory for ", needed, " bytes");
    const size_t have = needed;
    MT_RETURN_IF_ERROR(file.Read(0, have, pages.data()));
    Result<SegmentHeader> decoded = SegmentHeader::Decode(pages.data(), have, path, &needed);
    if (decoded.status().code() == StatusCode::kOutOfRange && needed > have) continue;
    if (!decoded.ok()) return decoded.status();
    *header = *std::move(decoded);
    return OkStatus();
  }
}

// Of a file whose header ReadHeader refused: whether it holds nothing but sectors of it and zeros. Where more is wrong with the
// header than that sectors of it are zero: `refused`. Not read directly: a file that was cut may end anywhere.
Result<bool> HoldsRemainsAlone(Env* env, const std::string& path, uint64_t size, const InstanceId& instance, uint64_t id,
                               const Status& refused) {
  MT_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file, env->NewRandomAccessFile(path));
  const PageBuffer pages(env, kRemainsBytes);
  if (pages.data() == nullptr) return ResourceExhaustedError("no memory for ", kRemainsBytes, " bytes");
  uint64_t header_bytes = 0;  // as the sectors have it that are left
  uint32_t sectors = 0, whole = 0;
  bool alone = true;
  for (uint64_t begin = 0; begin < size && alone; begin += kRemainsBytes) {
    const auto bytes = static_cast<size_t>(std::min<uint64_t>(kRemainsBytes, size - begin));
    MT_RETURN_IF_ERROR(file->Read(begin, bytes, pages.data()));
    for (size_t at = 0; at < bytes && alone; at += kSectorBytes) {
      const uint8_t* data = pages.data() + at;
      const uint64_t offset = begin + at;
      if (AllZero(data, std::min(kSectorBytes, bytes - at))) continue;
      if (bytes - at >= kSectorBytes && DecodeHeaderSector(instance, id, offset / kSectorBytes, data, &sectors)) {
        header_bytes = RoundUpToBlock(uint64_t{sectors} * kSectorBytes);
        ++whole;
      } else if (offset < std::max<uint64_t>(kBlockBytes, header_bytes)) {
        return refused;
      } else {
        alone = false;
      }
    }
  }
  const bool lost = whole == 0 || (whole < sectors && size >= header_bytes);
  if (!lost) return refused;
  return alone;
}

}  // namespace

Result<std::shared_ptr<CachedFile>> SsdHashTier::Impl::FileToRead(const std::string& path) const {
  if (!options_.read_only) return CachedFile::ForReading(options_.env, path, options_.direct_io);
  Result<std::shared_ptr<CachedFile>> held = CachedFile::HeldOpen(options_.env, path, options_.direct_io);
  if (held.ok() || !IsOutOfDescriptors(held.status())) return held;
  return Status(held.status().code(), StrCat(held.status().message(), ": a reader keeps each file open; raise 'ulimit -n'"));
}

Status SsdHashTier::Impl::LoadHeader(const std::string& path, Loaded* loaded) const {
  MT_ASSIGN_OR_RETURN(std::shared_ptr<CachedFile> cached, FileToRead(path));
  MT_ASSIGN_OR_RETURN(const std::shared_ptr<PositionedFile> file, cached->Open());
  MT_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
  if (size == 0) return OkStatus();
  SegmentHeader header;
  const Status read = ReadHeader(options_.env, *file, path, size, &header);
  if (read.code() == StatusCode::kDataLoss && size >= kBlockBytes) {
    MT_ASSIGN_OR_RETURN(const bool alone, HoldsRemainsAlone(options_.env, path, size, instance_, SegmentIdOf(path), read));
    loaded->headless = !alone;
    return OkStatus();
  }
  MT_RETURN_IF_ERROR(read);
  if (header.instance != instance_) return DataLossError("segment '", path, "' is of another instance");
  if (header.id != SegmentIdOf(path)) {
    return DataLossError("segment '", path, "' at offset 0: expected the header of segment ", SegmentIdOf(path),
                         ", found that of segment ", header.id);
  }
  loaded->file = std::move(cached);
  loaded->header = std::move(header);
  loaded->size = size;
  return OkStatus();
}

Status SsdHashTier::Impl::LoadSegment(Loaded* loaded) const {
  const std::string path = loaded->file->path();
  const SegmentGeometry within_file(loaded->header, loaded->size);
  MT_RETURN_IF_ERROR(LoadRecords(loaded->header, within_file, loaded->file, loaded->size, loaded));
  const Segment& segment = *loaded->segment;
  if (!segment.proven || segment.footer_bytes > 0 || !loaded->entries.empty()) return OkStatus();
  return DataLossError("segment '", path, "' at offset ", segment.geometry.header_bytes,
                       ": expected an intact record or footer, found neither");
}

Status SsdHashTier::Impl::LoadRecords(SegmentHeader header, const SegmentGeometry& geometry, std::shared_ptr<CachedFile> file,
                                      uint64_t size, Loaded* out) const {
  const std::string path = file->path();
  auto loaded = std::make_shared<Segment>(std::move(header), std::move(file), geometry);
  loaded->file_bytes = size;
  loaded->sealed = true;
  (void)SegmentIdOf(path, &loaded->file_attempt);
  loaded->attempt = loaded->file_attempt;
  const ListedSegment* listed = ListedAt(path);
  if (size % kBlockBytes == 0 && size >= loaded->geometry.header_bytes + kBlockBytes) {
    const PageBuffer block(options_.env, kBlockBytes);
    if (block.data() == nullptr) return ResourceExhaustedError("no memory for ", kBlockBytes, " bytes");
    MT_ASSIGN_OR_RETURN(const std::shared_ptr<PositionedFile> open, loaded->file->Open());
    MT_RETURN_IF_ERROR(open->Read(size - kBlockBytes, kBlockBytes, block.data()));
    SegmentTrailer trailer;
    if (DecodeTrailer(loaded->geometry.seed, block.data(), &trailer) && trailer.EndsAt(size)) {
      loaded->footer_offset = trailer.offset;
      loaded->footer_bytes = trailer.bytes;
      const bool whole = listed != nullptr && listed->sealed && listed->attempt == loaded->attempt && listed->bytes == size;
      loaded->proven = trailer.proven || whole;
    }
  }
  bool from_footer = false;
  MT_RETURN_IF_ERROR(LoadEntries(*loaded, &out->entries, &from_footer));
  if (!from_footer) {
    loaded->footer_offset = loaded->footer_bytes = 0;
  } else if (!loaded->proven) {
    // The footer may have reached the disk where records before it have not.
    std::vector<FooterEntry> records;
    MT_RETURN_IF_ERROR(ScanRecords(*loaded, &records));
    const auto damaged = [](const FooterEntry& entry) { return entry.damaged; };
    if (records.size() < out->entries.size() || std::any_of(records.begin(), records.end(), damaged)) {
      loaded->footer_offset = loaded->footer_bytes = 0;
      out->entries = std::move(records);
    }
  }
  // Acknowledged, for all that is known, but maybe never synced: a process that died may have left it to the cache.
  loaded->synced_writes = 1;
  loaded->writes = loaded->proven ? 1 : 2;
  loaded->entry_synced = loaded->proven || listed != nullptr;
  if (out->entries.size() > loaded->geometry.slots) return DataLossError("segment '", path, "' has an impossible footer");
  loaded->used = static_cast<uint32_t>(out->entries.size());
  loaded->in_file = PrefixOf(out->entries, loaded->used);
  if (loaded->proven) {
    loaded->synced = loaded->in_file;
  } else if (listed != nullptr) {
    loaded->synced = SegmentPrefix{listed->records, listed->newest_seq};
  }
  for (const FooterEntry& entry : out->entries) loaded->damaged += entry.damaged ? 1 : 0;
  out->segment = std::move(loaded);
  return OkStatus();
}

Status SsdHashTier::Impl::LoadHeadless(const std::string& path, uint64_t id, Span<const SegmentHeader> layouts,
                                       Loaded* loaded) const {
  for (SegmentHeader header : layouts) {
    MT_ASSIGN_OR_RETURN(std::shared_ptr<CachedFile> cached, FileToRead(path));
    MT_ASSIGN_OR_RETURN(const std::shared_ptr<PositionedFile> file, cached->Open());
    MT_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
    if (size < header.header_bytes()) continue;
    header.id = id;
    // Records of another layout may be smaller: no fewer than a footer in this file can name.
    header.slots = static_cast<uint32_t>(std::min<uint64_t>(size / kMinFooterBytesPerSlot + 1, 1u << 30));
    *loaded = Loaded();
    MT_RETURN_IF_ERROR(CheckMemory((1 + kMoreWhileLoading) * EntriesBytes(header, size)));
    MT_RETURN_IF_ERROR(LoadRecords(header, SegmentGeometry(header), cached, size, loaded));
    const bool footer = loaded->segment->footer_bytes > 0;
    std::vector<FooterEntry> records;  // what stands there, whatever a footer says: that has no layout of its own
    if (footer) MT_RETURN_IF_ERROR(ScanRecords(*loaded->segment, &records));
    const std::vector<FooterEntry>& found = footer ? records : loaded->entries;
    if (std::all_of(found.begin(), found.end(), [](const FooterEntry& entry) { return entry.damaged; })) continue;
    header.slots = static_cast<uint32_t>(loaded->entries.size());
    *loaded = Loaded();
    MT_RETURN_IF_ERROR(LoadRecords(header, SegmentGeometry(header), std::move(cached), size, loaded));
    loaded->segment->header_lost = true;
    return OkStatus();
  }
  *loaded = Loaded();
  MT_ASSIGN_OR_RETURN(const bool proven, HasProof(path, id));
  if (!proven && ListedAt(path) == nullptr) return OkStatus();
  return DataLossError("segment '", path,
                       "' at offset 0: the header is lost, and no other segment has the layout of its records");
}

Result<bool> SsdHashTier::Impl::HasProof(const std::string& path, uint64_t id) const {
  SegmentHeader header;  // as much of it as a checksum starts from
  header.instance = instance_;
  header.id = id;
  MT_ASSIGN_OR_RETURN(const std::shared_ptr<PositionedFile> file,
                      CachedFile::ForReading(options_.env, path, options_.direct_io)->Open());
  MT_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
  if (size % kBlockBytes != 0 || size == 0) return false;
  const PageBuffer block(options_.env, kBlockBytes);
  if (block.data() == nullptr) return ResourceExhaustedError("no memory for ", kBlockBytes, " bytes");
  MT_RETURN_IF_ERROR(file->Read(size - kBlockBytes, kBlockBytes, block.data()));
  SegmentTrailer trailer;
  return DecodeTrailer(header.Seed(), block.data(), &trailer) && trailer.proven;
}

void SsdHashTier::Impl::LoadHeaders(Span<const std::string> paths, std::vector<Loaded>* out) const {
  out->resize(paths.size());
  RunOnHelpers(paths.size(), kLoadHelpers, [&](size_t i) { (*out)[i].status = LoadHeader(paths[i], &(*out)[i]); });
}

void SsdHashTier::Impl::LoadSegments(std::vector<Loaded>* loaded) const {
  // The calling thread holds files_mutex_ for its helpers, which the analysis cannot know.
  RunOnHelpers(loaded->size(), kLoadHelpers, [&](size_t i) MT_NO_THREAD_SAFETY_ANALYSIS {
    Loaded* const one = &(*loaded)[i];
    if (one->file != nullptr) one->status = LoadSegment(one);
  });
}

void SsdHashTier::Impl::NoteDamage(const std::string& path, uint64_t offset) {
  if (recovery_.first_damage.empty()) recovery_.first_damage = StrCat("'", path, "' at offset ", offset);
}

Status SsdHashTier::Impl::CleanUp(Span<const std::string> empty, bool lost_headers) {
  for (const std::string& path : empty) set_.DeleteFile(options_.env, path);
  list_->KeepRoom();
  // What is given up for want of a layout must not come back once there is one.
  return lost_headers ? CachedFile::SyncDir(options_.env, options_.directory) : OkStatus();
}

// What recovery has found so far.
struct SsdHashTier::Impl::Recovering {
  std::vector<std::string> paths;                  // of the files of segments
  uint64_t max_id = 0;                             // of these segments
  std::vector<std::shared_ptr<Segment>> segments;  // those with records
  std::vector<std::vector<Found>> buckets;         // the intact records: 2^log2_buckets buckets, by the hash of the key
  size_t log2_buckets = 0;
  uint64_t max_seq = 0;                // of these records
  std::map<uint64_t, Status> listed;   // what came of each segment that the list names
  std::vector<std::string> empty;      // files without records
  std::vector<std::string> headless;   // files without a header
  std::vector<SegmentHeader> layouts;  // one of each width
  std::vector<ColumnSpec> widest;      // the columns of the widest segment; all others have the first of them

  // Enough buckets for what the files can hold.
  void MakeBuckets(size_t files) {
    for (; log2_buckets < 12 && (kBucketRecords << log2_buckets) < files * 8192; ++log2_buckets) {
    }
    buckets.resize(size_t{1} << log2_buckets);
  }
  void Add(const FooterEntry& entry, uint32_t slot) {
    max_seq = std::max(max_seq, entry.seq);
    const size_t bucket = log2_buckets == 0 ? 0 : HashKey(entry.key) >> (64 - log2_buckets);
    const auto segment = static_cast<uint32_t>(segments.size());
    buckets[bucket].push_back(Found{entry.key, entry.seq, segment, slot | (entry.tombstone ? kTombstoneBit : 0)});
  }
  // Also of segments with fewer columns: all of them may be deleted later.
  void NoteLayouts(SegmentHeader header) {
    for (size_t n = header.columns.size(); n > 0; --n) {
      const bool known =
          std::any_of(layouts.begin(), layouts.end(), [n](const SegmentHeader& layout) { return layout.columns.size() == n; });
      if (known) continue;
      header.columns.resize(n);
      header.row_bytes = static_cast<uint32_t>(header.BytesOfColumns(static_cast<uint32_t>(n)));
      layouts.push_back(header);
    }
  }
};

Status SsdHashTier::Impl::Recover() {
  list_ = std::make_unique<SegmentList>(options_.env, options_.directory, instance_);
  MT_RETURN_IF_ERROR(list_->Load());
  Recovering found;
  MT_RETURN_IF_ERROR(FindFiles(&found));
  for (size_t begin = 0; begin < found.paths.size(); begin += kLoadGroup) {
    MT_RETURN_IF_ERROR(TakeGroup(begin, std::min(kLoadGroup, found.paths.size() - begin), &found));
  }
  for (const std::string& path : found.headless) {
    Loaded loaded;
    MT_RETURN_IF_ERROR(LoadHeadless(path, SegmentIdOf(path), found.layouts, &loaded));
    ++recovery_.lost_headers;
    NoteDamage(path, 0);
    Take(path, loaded, &found);
  }
  for (const auto& [id, status] : found.listed) MT_RETURN_IF_ERROR(status);
  recovery_.listed_files = static_cast<int64_t>(found.listed.size());
  if (options_.read_only) {
    recovered_columns_.resize(std::min<size_t>(1, recovered_columns_.size()));
  } else {
    MT_RETURN_IF_ERROR(CleanUp(found.empty, !found.headless.empty()));
  }
  return HoldNewest(&found);
}

Status SsdHashTier::Impl::FindFiles(Recovering* found) const {
  MT_ASSIGN_OR_RETURN(const std::vector<std::string> names, CachedFile::ListDir(options_.env, options_.directory));
  found->MakeBuckets(names.size());
  for (const std::string& name : names) {
    uint64_t id = 0;
    if (!ParseSegmentName(name, &id)) continue;
    found->paths.push_back(options_.directory + "/" + name);
    found->max_id = std::max(found->max_id, id);
  }
  return CheckListedFiles(found->paths);
}

Status SsdHashTier::Impl::TakeGroup(size_t begin, size_t n, Recovering* found) {
  const Span<const std::string> paths(found->paths.data() + begin, n);
  std::vector<Loaded> group;
  LoadHeaders(paths, &group);
  size_t all = 0, largest = 0;
  for (const Loaded& loaded : group) {
    all += EntriesBytes(loaded.header, loaded.size);
    largest = std::max(largest, EntriesBytes(loaded.header, loaded.size));
  }
  MT_RETURN_IF_ERROR(CheckMemory(all + kMoreWhileLoading * largest * std::min<size_t>(group.size(), kLoadHelpers + 1)));
  LoadSegments(&group);
  size_t records = 0;
  for (const Loaded& loaded : group) records += loaded.entries.size();
  MT_RETURN_IF_ERROR(CheckMemory(records * kScratchBytesOfRecord));
  for (size_t i = 0; i < paths.size(); ++i) {
    MT_RETURN_IF_ERROR(group[i].status);
    if (group[i].headless) {
      found->headless.push_back(paths[i]);
      continue;
    }
    if (group[i].segment != nullptr) {
      const SegmentHeader& header = group[i].segment->header;
      if (!AreOfOneTable(header.columns, found->widest)) {
        return DataLossError("header of segment '", paths[i], "' at offset 0: expected columns of this table, found others");
      }
      if (header.columns.size() > found->widest.size()) found->widest = header.columns;
      found->NoteLayouts(header);
    }
    Take(paths[i], group[i], found);
  }
  return OkStatus();
}

void SsdHashTier::Impl::Take(const std::string& path, const Loaded& loaded, Recovering* found) {
  if (const ListedSegment* said = ListedAt(path)) {
    // One good file of several is enough: a crash may have left a part of the next.
    const auto [was, first] = found->listed.emplace(said->id, OkStatus());
    if (first || !was->second.ok()) was->second = CheckListed(path, *said, loaded);
  }
  const std::shared_ptr<Segment>& segment = loaded.segment;
  if (segment == nullptr || loaded.entries.empty()) {
    found->empty.push_back(path);
    return;
  }
  for (uint32_t slot = 0; slot < loaded.entries.size(); ++slot) {
    const FooterEntry& entry = loaded.entries[slot];
    if (entry.damaged) {
      ++recovery_.damaged_records;
      NoteDamage(path, segment->geometry.RecordOffset(slot));
      continue;
    }
    segment->Note(entry.version, entry.frequency);
    found->Add(entry, slot);
  }
  recovery_.records += static_cast<int64_t>(loaded.entries.size());
  recovery_.unsealed_files += segment->footer_bytes == 0 ? 1 : 0;
  if (segment->header.columns.size() > recovered_columns_.size()) recovered_columns_ = segment->header.columns;
  found->segments.push_back(segment);
}

Status SsdHashTier::Impl::HoldNewest(Recovering* found) {
  const std::vector<std::shared_ptr<Segment>>& segments = found->segments;
  MutexLock lock(set_.mutex);
  set_.unlinked = true;  // the previous process may have deleted files
  set_.next_segment_id = found->max_id + 1;
  next_seq_ = found->max_seq + kSeqGap;
  for (const auto& segment : segments) MT_RETURN_IF_ERROR(set_.Add(segment));
  std::vector<uint32_t> table;
  for (std::vector<Found>& bucket : found->buckets) {
    for (const Found& record : bucket) {
      if ((record.slot & kTombstoneBit) != 0) segments[record.segment]->SetTombstone(record.slot & ~kTombstoneBit);
    }
    ForNewest(bucket, &table, [&](const Found& record) MT_NO_THREAD_SAFETY_ANALYSIS {  // called with set_.mutex held
      if ((record.slot & kTombstoneBit) != 0) return;
      segments[record.segment]->SetLive(record.slot);
      set_.Hold(*segments[record.segment], 1);
    });
    bucket = std::vector<Found>();
  }
  for (const auto& segment : segments) {
    segment->tombstone_horizon = segment->num_tombstones > 0 ? set_.next_segment_id : 0;
    set_.NoteIfDead(*segment);
  }
  recovery_.files = static_cast<int64_t>(segments.size());
  recovery_.rows = set_.rows;
  return OkStatus();
}

}  // namespace multitier
