// The two files that describe the directory: "ssd.id", its instance, and "ssd.list", the synced segments (segment_list.h). This
// file creates both and updates the list. Recovery uses it to check that it found everything in the list. Sync asks here
// whether recovery would find it: a file that was deleted or replaced goes on to be read and synced as long as it is open.

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <utility>

#include "cc/base/crc32c.h"
#include "cc/tier/ssdhash/ssdhash_impl.h"

namespace multitier {
namespace {

constexpr char kIdMagic[] = "MTSSDIDF";
constexpr uint32_t kIdFormatVersion = 1;
constexpr size_t kIdBytes = 32;  // magic 8, version 4, instance 16, crc 4

std::string IdPath(const std::string& directory) { return directory + "/ssd.id"; }

}  // namespace

Status SsdHashTier::Impl::InitFiles() {
  if (options_.recover) {
    MT_ASSIGN_OR_RETURN(instance_, ReadId());
    return Recover();
  }
  DeleteOwnFiles();
  std::random_device random;
  for (uint8_t& byte : instance_) byte = static_cast<uint8_t>(random());
  if (options_.keep) {
    list_ = std::make_unique<SegmentList>(options_.env, options_.directory, instance_);
    MT_RETURN_IF_ERROR(list_->Replace({}));
    list_->KeepRoom();
  }
  return WriteId();
}

Status SsdHashTier::Impl::WriteId() {
  std::string bytes(kIdMagic, 8);
  PutFixed32(&bytes, kIdFormatVersion);
  bytes.append(reinterpret_cast<const char*>(instance_.data()), instance_.size());
  PutFixed32(&bytes, Crc32c(bytes.data(), bytes.size()));
  // Renamed into place: a crash leaves it whole or not at all.
  const std::string path = IdPath(options_.directory), made = options_.directory + "/ssd.id+";
  MT_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, options_.env->NewWritableFile(made));
  MT_RETURN_IF_ERROR(file->Append(bytes.data(), bytes.size()));
  MT_RETURN_IF_ERROR(file->Sync());
  MT_RETURN_IF_ERROR(file->Close());
  MT_RETURN_IF_ERROR(options_.env->RenameFile(made, path));
  return CachedFile::SyncDir(options_.env, options_.directory);
}

Result<InstanceId> SsdHashTier::Impl::ReadId() const {
  const std::string path = IdPath(options_.directory);
  const Result<std::unique_ptr<RandomAccessFile>> file = options_.env->NewRandomAccessFile(path);
  // It is made, and synced, before a tier is open, so before anything is acknowledged.
  if (file.status().code() == StatusCode::kNotFound) return DataLossError("'", path, "' is missing");
  MT_RETURN_IF_ERROR(file.status());
  MT_ASSIGN_OR_RETURN(const uint64_t size, (*file)->Size());
  uint8_t bytes[kIdBytes] = {};
  if (size == kIdBytes) MT_RETURN_IF_ERROR((*file)->Read(0, kIdBytes, bytes));
  if (size != kIdBytes || std::memcmp(bytes, kIdMagic, 8) != 0 ||
      Crc32c(bytes, kIdBytes - 4) != DecodeFixed32(bytes + kIdBytes - 4)) {
    return DataLossError("'", path, "' at offset 0 is damaged");
  }
  if (const uint32_t version = DecodeFixed32(bytes + 8); version != kIdFormatVersion) {
    return UnimplementedError("'", path, "': expected format version ", kIdFormatVersion, ", found ", version,
                              ": use the release that wrote it");
  }
  InstanceId instance;
  std::copy(bytes + 12, bytes + 28, instance.begin());
  return instance;
}

ListedSegment SsdHashTier::Impl::EntryOf(const Segment& segment) {
  ListedSegment entry;
  if (!segment.entry_synced) return entry;
  entry.id = segment.header.id;
  entry.attempt = segment.file_attempt;
  entry.records = segment.synced.records;
  entry.newest_seq = segment.synced.newest_seq;
  entry.damaged = segment.damaged;
  entry.sealed = segment.sealed && segment.footer_bytes > 0 && !segment.dirty() && !segment.sync_failed;
  entry.bytes = entry.sealed ? segment.file_bytes : segment.header.EndOfRecords(entry.records);
  return entry;
}

Status SsdHashTier::Impl::ListSegments(Span<const std::shared_ptr<Segment>> leaving) {
  std::vector<ListedSegment> now;
  {
    MutexLock lock(set_.mutex);
    for (const auto& [segment, owner] : set_.segments) {
      const ListedSegment entry = EntryOf(*segment);
      if (entry.records == 0 || std::find(leaving.begin(), leaving.end(), owner) != leaving.end()) continue;
      now.push_back(entry);
    }
  }
  return list_->Replace(std::move(now));
}

Status SsdHashTier::Impl::CheckNames(bool list) const {
  MT_ASSIGN_OR_RETURN(const InstanceId instance, ReadId());
  if (instance != instance_) return DataLossError("'", IdPath(options_.directory), "' is of another instance");
  std::vector<std::shared_ptr<Segment>> segments;
  {
    MutexLock lock(set_.mutex);
    for (const auto& [segment, owner] : set_.segments) {
      if (EntryOf(*segment).records > 0) segments.push_back(owner);
    }
  }
  for (const std::shared_ptr<Segment>& segment : segments) MT_RETURN_IF_ERROR(CheckName(segment));
  if (!list) return OkStatus();
  SegmentList named(options_.env, options_.directory, instance_);
  MT_RETURN_IF_ERROR(named.Load());
  if (named.segments() == list_->segments()) return OkStatus();
  return DataLossError("'", named.path(), "' is not the list that was written: it was replaced");
}

Status SsdHashTier::Impl::CheckName(const std::shared_ptr<Segment>& segment) const {
  for (;;) {
    ListedSegment entry;
    std::shared_ptr<CachedFile> file;
    {
      MutexLock lock(set_.mutex);
      entry = EntryOf(*segment);
      file = segment->file;
    }
    const Result<uint64_t> bytes = file->CheckName();
    if (bytes.ok() && *bytes >= entry.bytes) return OkStatus();
    if (FileOf(*segment) != file) continue;  // it was rewritten, and the file before was deleted
    if (bytes.ok()) {
      return DataLossError("segment '", file->path(), "' at offset ", *bytes, ": expected at least ", entry.bytes,
                           " bytes, found ", *bytes);
    }
    if (bytes.status().code() != StatusCode::kNotFound) return bytes.status();
    return DataLossError("segment '", file->path(), "' is missing: expected a file with ", entry.records, " records");
  }
}

const ListedSegment* SsdHashTier::Impl::ListedAt(const std::string& path) const {
  uint32_t attempt = 0;
  const uint64_t id = SegmentIdOf(path, &attempt);
  const ListedSegment* listed = list_->Find(id);
  return listed != nullptr && attempt >= listed->attempt ? listed : nullptr;
}

Status SsdHashTier::Impl::CheckListedFiles(Span<const std::string> paths) const {
  std::set<uint64_t> found;
  for (const std::string& path : paths) {
    if (const ListedSegment* listed = ListedAt(path)) found.insert(listed->id);
  }
  for (const ListedSegment& listed : list_->segments()) {
    if (found.count(listed.id) > 0) continue;
    return DataLossError("segment '", SegmentPath(options_.directory, listed.id, listed.attempt), "' is missing: '",
                         list_->path(), "' names it, with ", listed.records, " records");
  }
  return OkStatus();
}

Status SsdHashTier::Impl::CheckListed(const std::string& path, const ListedSegment& listed, const Loaded& loaded) const {
  const auto lost = [&](uint64_t offset, const auto&... what) MT_REQUIRES(files_mutex_) {
    return DataLossError("segment '", path, "' at offset ", offset, ": '", list_->path(), "' says: ", what...);
  };
  if (loaded.segment == nullptr) return lost(0, listed.records, " records; found an empty file");
  const Segment& segment = *loaded.segment;
  if (listed.sealed && listed.attempt == segment.file_attempt && segment.file_bytes != listed.bytes) {
    return lost(std::min(segment.file_bytes, listed.bytes), listed.bytes, " bytes; found ", segment.file_bytes);
  }
  const std::vector<FooterEntry>& entries = loaded.entries;
  if (entries.size() < listed.records) {
    const auto first = static_cast<uint32_t>(entries.size());
    return lost(segment.geometry.RecordOffset(first), listed.records, " records; found ", first, " up to the last whole one");
  }
  uint32_t damaged = 0;
  for (uint32_t slot = 0; slot < listed.records; ++slot) {
    if (!entries[slot].damaged || ++damaged <= listed.damaged) continue;
    return lost(segment.geometry.RecordOffset(slot), listed.records, " records, ", listed.damaged,
                " of them damaged; found one more whose checksum does not match");
  }
  const uint64_t newest = PrefixOf(entries, listed.records).newest_seq;
  if (newest == listed.newest_seq) return OkStatus();
  return lost(segment.geometry.header_bytes, "records up to sequence number ", listed.newest_seq, "; found ", newest);
}

}  // namespace multitier
