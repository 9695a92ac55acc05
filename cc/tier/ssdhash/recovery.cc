// Recovery:
//   1. the directory's "ssd.id" names the instance; every segment must be of it, its header whole. An empty or zero-filled
//      file is a segment whose making was interrupted before anything was acknowledged: deleted
//   2. a sealed segment's footer gives its records. Without a good footer (unsealed, or damaged) the records are read one by
//      one up to the last good one. Bad ones before that were lost with the power (different writes of one file may survive in
//      any order) or are damaged: they are counted, and the first is named
//   3. of all records of a key the one of the largest seq wins; equal ones are copies by compaction. A record wins: held. A
//      tombstone wins: the key is absent; all tombstones are kept until compaction drops them
// Segments are loaded by a few threads side by side. Keys are spread over buckets that fit the cache, one small open-addressed table each. Recovered segments are sealed as they
// are: nothing is appended to them, so that an interrupted recovery finds the same again.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "cc/base/crc32c.h"
#include "cc/base/hash.h"
#include "cc/tier/ssdhash/ssdhash_impl.h"

namespace multitier {
namespace {

constexpr char kIdMagic[] = "MTSSDIDF";
constexpr size_t kIdBytes = 32;  // magic 8, version 4, instance 16, crc 4
constexpr size_t kBucketRecords = 1 << 14;
constexpr size_t kLoadThreads = 4;
constexpr size_t kLoadGroup = 16;  // segments whose records are in memory twice
constexpr size_t kSectorBytes = 512;
constexpr uint64_t kSeqGap = 1 << 20;  // past what a lost tail may have used

std::string IdPath(const std::string& directory) { return directory + "/ssd.id"; }

bool AllZero(const uint8_t* data, size_t bytes) {
  return std::all_of(data, data + bytes, [](uint8_t byte) { return byte == 0; });
}

// A record found, before it is known whether it is its key's newest.
struct Found {
  int64_t key;
  uint64_t seq;
  uint32_t segment;  // of the list of segments
  uint32_t slot;     // highest bit: a tombstone
};
constexpr uint32_t kTombstoneBit = 1u << 31;

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

}  // namespace

Status SsdHashTier::Impl::WriteInstanceId() {
  std::string bytes(kIdMagic, 8);
  PutFixed32(&bytes, kSegmentFormatVersion);
  bytes.append(reinterpret_cast<const char*>(instance_.data()), instance_.size());
  PutFixed32(&bytes, Crc32c(bytes.data(), bytes.size()));
  MT_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, options_.env->NewWritableFile(IdPath(options_.directory)));
  MT_RETURN_IF_ERROR(file->Append(bytes.data(), bytes.size()));
  MT_RETURN_IF_ERROR(file->Sync());
  MT_RETURN_IF_ERROR(file->Close());
  return options_.env->SyncDir(options_.directory);
}

Status SsdHashTier::Impl::ReadInstanceId(bool* found) {
  const std::string path = IdPath(options_.directory);
  *found = false;
  Result<std::unique_ptr<RandomAccessFile>> file = options_.env->NewRandomAccessFile(path);
  if (file.status().code() == StatusCode::kNotFound) {
    // Nothing was ever acknowledged here, unless the file was lost.
    MT_ASSIGN_OR_RETURN(const std::vector<std::string> names, options_.env->ListDir(options_.directory));
    if (std::any_of(names.begin(), names.end(), IsSegmentName)) return DataLossError("'", path, "' is missing");
    return OkStatus();
  }
  if (!file.ok()) return file.status();
  MT_ASSIGN_OR_RETURN(const uint64_t size, (*file)->Size());
  MT_ASSIGN_OR_RETURN(const std::vector<std::string> names, options_.env->ListDir(options_.directory));
  const bool segments = std::any_of(names.begin(), names.end(), IsSegmentName);
  if (size == 0 && !segments) return OkStatus();
  uint8_t bytes[kIdBytes] = {};
  if (size == kIdBytes) MT_RETURN_IF_ERROR((*file)->Read(0, kIdBytes, bytes));
  if (size != kIdBytes || std::memcmp(bytes, kIdMagic, 8) != 0 || Crc32c(bytes, kIdBytes - 4) != DecodeFixed32(bytes + kIdBytes - 4)) {
    return DataLossError("'", path, "' at offset 0 is damaged");
  }
  if (DecodeFixed32(bytes + 8) > kSegmentFormatVersion) {
    return UnimplementedError("'", path, "' has format version ", DecodeFixed32(bytes + 8), ", this program reads up to ",
                              kSegmentFormatVersion);
  }
  std::copy(bytes + 12, bytes + 28, instance_.begin());
  *found = true;
  return OkStatus();
}

Status SsdHashTier::Impl::LoadSegment(const std::string& path, std::shared_ptr<Segment>* segment,
                                      std::vector<FooterEntry>* entries) const {
  std::shared_ptr<CachedFile> cached = CachedFile::ForReading(options_.env, path, options_.direct_io);
  MT_ASSIGN_OR_RETURN(const std::shared_ptr<PositionedFile> file, cached->Open());
  MT_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
  struct FreeAtEnd {
    Env* env;
    void* data = nullptr;
    size_t bytes = 0;
    ~FreeAtEnd() { env->FreePages(data, bytes); }
  } pages{options_.env};
  uint8_t* data = nullptr;
  size_t have = 0, needed = kBlockBytes;
  SegmentHeader header;
  while (have < needed) {
    if (size < needed && size >= kBlockBytes) return DataLossError("segment '", path, "' is cut at offset ", size);
    if (size < needed) return OkStatus();  // its making was interrupted
    pages.env->FreePages(pages.data, pages.bytes);
    pages.data = options_.env->AllocatePages(needed, false);
    pages.bytes = needed;
    data = static_cast<uint8_t*>(pages.data);
    if (data == nullptr) return ResourceExhaustedError("no memory for ", needed, " bytes");
    have = needed;
    MT_RETURN_IF_ERROR(file->Read(0, have, data));
    Result<SegmentHeader> decoded = SegmentHeader::Decode(data, have, path, &needed);
    if (decoded.ok()) {
      header = *std::move(decoded);
      break;
    }
    // The header is written with the first records, and not synced on its own: a sector of it that is missing tells of that.
    if (AllZero(data, kSectorBytes) || AllZero(data + kBlockBytes - kSectorBytes, kSectorBytes)) return OkStatus();
    if (decoded.status().code() != StatusCode::kOutOfRange) return decoded.status();
  }
  if (header.instance != instance_) return DataLossError("segment '", path, "' is of another instance");
  auto loaded = std::make_shared<Segment>(std::move(header), std::move(cached));
  loaded->file_bytes = size;
  loaded->sealed = true;
  loaded->writes = loaded->synced_writes = 1;
  loaded->entry_synced = true;
  if (size % kBlockBytes == 0 && size >= loaded->geometry.header_bytes + kBlockBytes) {
    MT_RETURN_IF_ERROR(file->Read(size - kBlockBytes, kBlockBytes, data));
    uint64_t offset = 0, bytes = 0;
    if (DecodeTrailer(loaded->geometry.seed, data, &offset, &bytes) && offset + bytes == size) {
      loaded->footer_offset = offset;
      loaded->footer_bytes = bytes;
    }
  }
  MT_RETURN_IF_ERROR(LoadEntries(*loaded, entries));
  if (entries->size() > loaded->geometry.slots) return DataLossError("segment '", path, "' has an impossible footer");
  loaded->used = static_cast<uint32_t>(entries->size());
  *segment = std::move(loaded);
  return OkStatus();
}

void SsdHashTier::Impl::LoadSegments(Span<const std::string> paths, std::vector<Loaded>* out) const {
  out->clear();
  out->resize(paths.size());
  std::atomic<size_t> next{0};
  const auto load = [&] {
    for (size_t i = next++; i < paths.size(); i = next++) {
      Loaded& loaded = (*out)[i];
      loaded.status = LoadSegment(paths[i], &loaded.segment, &loaded.entries);
    }
  };
  std::vector<std::thread> threads;
  for (size_t t = 1; t < std::min(kLoadThreads, paths.size()); ++t) threads.emplace_back(load);
  load();
  for (std::thread& thread : threads) thread.join();
}

Status SsdHashTier::Impl::Recover() {
  MT_ASSIGN_OR_RETURN(const std::vector<std::string> names, options_.env->ListDir(options_.directory));
  std::vector<std::shared_ptr<Segment>> segments;
  std::vector<std::vector<Found>> buckets;
  // Enough buckets for what the files can hold.
  size_t log2_buckets = 0;
  for (; log2_buckets < 12 && (kBucketRecords << log2_buckets) < names.size() * 8192; ++log2_buckets) {
  }
  buckets.resize(size_t{1} << log2_buckets);
  std::vector<std::string> paths;
  for (const std::string& name : names) {
    if (IsSegmentName(name)) paths.push_back(options_.directory + "/" + name);
  }
  uint64_t max_seq = 0, max_id = 0;
  std::vector<Loaded> group;
  for (size_t begin = 0; begin < paths.size(); begin += kLoadGroup) {
    const Span<const std::string> part(paths.data() + begin, std::min(kLoadGroup, paths.size() - begin));
    LoadSegments(part, &group);
    for (size_t i = 0; i < part.size(); ++i) {
      MT_RETURN_IF_ERROR(group[i].status);
      const std::shared_ptr<Segment>& segment = group[i].segment;
      if (segment != nullptr) max_id = std::max(max_id, segment->header.id);
      if (segment == nullptr || group[i].entries.empty()) {
        (void)options_.env->DeleteFile(part[i]);
        continue;
      }
      const auto index = static_cast<uint32_t>(segments.size());
      for (uint32_t slot = 0; slot < group[i].entries.size(); ++slot) {
        const FooterEntry& entry = group[i].entries[slot];
        if (entry.damaged) {
          if (recovery_.damaged_records++ == 0) {
            recovery_.first_damage = StrCat("'", part[i], "' at offset ", segment->geometry.RecordOffset(slot));
          }
          continue;
        }
        max_seq = std::max(max_seq, entry.seq);
        const size_t bucket = log2_buckets == 0 ? 0 : HashKey(entry.key) >> (64 - log2_buckets);
        buckets[bucket].push_back(Found{entry.key, entry.seq, index, slot | (entry.tombstone ? kTombstoneBit : 0)});
      }
      recovery_.records += static_cast<int64_t>(group[i].entries.size());
      recovery_.unsealed_segments += segment->footer_bytes == 0 ? 1 : 0;
      if (segment->header.columns.size() > recovered_columns_.size()) recovered_columns_ = segment->header.columns;
      segments.push_back(segment);
    }
  }
  std::lock_guard<std::mutex> lock(set_.mutex);
  set_.next_segment_id = max_id + 1;
  next_seq_ = max_seq + kSeqGap;
  for (const auto& segment : segments) MT_RETURN_IF_ERROR(set_.Add(segment));
  std::vector<uint32_t> table;
  for (std::vector<Found>& bucket : buckets) {
    for (const Found& found : bucket) {
      if ((found.slot & kTombstoneBit) != 0) segments[found.segment]->SetTombstone(found.slot & ~kTombstoneBit);
    }
    ForNewest(bucket, &table, [&](const Found& found) {
      if ((found.slot & kTombstoneBit) != 0) return;
      segments[found.segment]->SetLive(found.slot);
      set_.Hold(*segments[found.segment], 1);
    });
    bucket = std::vector<Found>();
  }
  for (const auto& segment : segments) {
    segment->tombstone_horizon = segment->num_tombstones > 0 ? set_.next_segment_id : 0;
    set_.NoteIfDead(*segment);
  }
  recovery_.segments = static_cast<int64_t>(segments.size());
  recovery_.rows = set_.rows;
  return OkStatus();
}

}  // namespace multitier
