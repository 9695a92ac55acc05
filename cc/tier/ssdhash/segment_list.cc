// | "MTSSDLST" 8 | format version 4 | instance 16 | n 4 | n entries of 40 bytes | crc32c of all before 4 |

#include "cc/tier/ssdhash/segment_list.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cc/base/coding.h"
#include "cc/base/crc32c.h"

namespace multitier {
namespace {

constexpr char kMagic[] = "MTSSDLST";
constexpr uint32_t kFormatVersion = 1;
constexpr size_t kFixedBytes = 32, kEntryBytes = 40, kChecksumBytes = 4;
constexpr uint32_t kSealedFlag = 1;
constexpr uint64_t kLeastSpareBytes = 16 << 10;

ListedSegment DecodeEntry(const uint8_t* in) {
  ListedSegment entry;
  entry.id = DecodeFixed64(in);
  entry.attempt = DecodeFixed32(in + 8);
  entry.sealed = (DecodeFixed32(in + 12) & kSealedFlag) != 0;
  entry.records = DecodeFixed32(in + 16);
  entry.damaged = DecodeFixed32(in + 20);
  entry.bytes = DecodeFixed64(in + 24);
  entry.newest_seq = DecodeFixed64(in + 32);
  return entry;
}

}  // namespace

SegmentList::SegmentList(Env* env, std::string directory, const InstanceId& instance)
    : env_(env), directory_(std::move(directory)), instance_(instance) {}

Result<bool> SegmentList::NamesAny(Env* env, const std::string& directory) {
  const Result<std::unique_ptr<RandomAccessFile>> file = env->NewRandomAccessFile(directory + "/ssd.list");
  if (file.status().code() == StatusCode::kNotFound) return false;
  MT_RETURN_IF_ERROR(file.status());
  MT_ASSIGN_OR_RETURN(const uint64_t size, (*file)->Size());
  return size != kFixedBytes + kChecksumBytes;
}

std::string SegmentList::Encode(const std::vector<ListedSegment>& segments) const {
  std::string out(kMagic, 8);
  PutFixed32(&out, kFormatVersion);
  out.append(reinterpret_cast<const char*>(instance_.data()), instance_.size());
  PutFixed32(&out, static_cast<uint32_t>(segments.size()));
  for (const ListedSegment& segment : segments) {
    PutFixed64(&out, segment.id);
    PutFixed32(&out, segment.attempt);
    PutFixed32(&out, segment.sealed ? kSealedFlag : 0);
    PutFixed32(&out, segment.records);
    PutFixed32(&out, segment.damaged);
    PutFixed64(&out, segment.bytes);
    PutFixed64(&out, segment.newest_seq);
  }
  PutFixed32(&out, Crc32c(out.data(), out.size()));
  return out;
}

Status SegmentList::Load() {
  Result<std::unique_ptr<RandomAccessFile>> file = env_->NewRandomAccessFile(path());
  if (file.status().code() == StatusCode::kNotFound) {
    return DataLossError("'", path(), "' is missing: which segments were synced is not known");
  }
  MT_RETURN_IF_ERROR(file.status());
  MT_ASSIGN_OR_RETURN(const uint64_t size, (*file)->Size());
  const auto damaged = [this](uint64_t offset, const std::string& what) {
    return DataLossError("'", path(), "' at offset ", offset, ": ", what);
  };
  if (size < kFixedBytes + kChecksumBytes) {
    return damaged(0, StrCat("expected at least ", kFixedBytes + kChecksumBytes, " bytes, found ", size));
  }
  std::string bytes(size, '\0');
  MT_RETURN_IF_ERROR((*file)->Read(0, size, bytes.data()));
  const auto* in = reinterpret_cast<const uint8_t*>(bytes.data());
  if (std::memcmp(in, kMagic, 8) != 0) return damaged(0, "it is no list of segments");
  if (Crc32c(in, size - kChecksumBytes) != DecodeFixed32(in + size - kChecksumBytes)) {
    return damaged(0, "its checksum does not match");
  }
  if (const uint32_t version = DecodeFixed32(in + 8); version != kFormatVersion) {
    return UnimplementedError("'", path(), "' has format version ", version, ", this program reads ", kFormatVersion);
  }
  if (!std::equal(instance_.begin(), instance_.end(), in + 12)) return damaged(12, "it is of another instance");
  const uint64_t n = DecodeFixed32(in + 28);
  if (size != kFixedBytes + n * kEntryBytes + kChecksumBytes) {
    return damaged(28, StrCat("expected ", n, " entries, found ", size, " bytes"));
  }
  segments_.clear();
  for (uint64_t i = 0; i < n; ++i) segments_.push_back(DecodeEntry(in + kFixedBytes + i * kEntryBytes));
  // A process that died may have renamed it and not synced the directory: the list before may come back with a loss of power.
  uncertain_ = true;
  return OkStatus();
}

const ListedSegment* SegmentList::Find(uint64_t id) const {
  const auto at = std::lower_bound(segments_.begin(), segments_.end(), id,
                                   [](const ListedSegment& segment, uint64_t wanted) { return segment.id < wanted; });
  return at != segments_.end() && at->id == id ? &*at : nullptr;
}

Status SegmentList::Replace(std::vector<ListedSegment> segments) {
  std::sort(segments.begin(), segments.end(), [](const ListedSegment& a, const ListedSegment& b) { return a.id < b.id; });
  if (!uncertain_ && segments == segments_) return OkStatus();
  const std::string contents = Encode(segments);
  if (spare_ == nullptr || spare_bytes_ < contents.size()) MT_RETURN_IF_ERROR(MakeSpare(contents.size()));
  const Status filled = FillSpare(contents);
  // What a failed sync left of it is not known: it is made anew.
  spare_.reset();
  MT_RETURN_IF_ERROR(filled);
  uncertain_ = true;
  MT_RETURN_IF_ERROR(env_->RenameFile(spare_path(), path()));
  MT_RETURN_IF_ERROR(CachedFile::SyncDir(env_, directory_));
  segments_ = std::move(segments);
  uncertain_ = false;
  return OkStatus();
}

Status SegmentList::FillSpare(const std::string& contents) {
  MT_ASSIGN_OR_RETURN(const std::shared_ptr<PositionedFile> file, spare_->Open());
  MT_RETURN_IF_ERROR(file->Write(0, contents.data(), contents.size()));
  MT_RETURN_IF_ERROR(file->Truncate(contents.size()));
  return file->Sync();
}

Status SegmentList::MakeSpare(uint64_t bytes) {
  spare_.reset();
  const Status deleted = env_->DeleteFile(spare_path());  // of a process that died, or of a failed attempt
  if (!deleted.ok() && deleted.code() != StatusCode::kNotFound) return deleted;
  MT_ASSIGN_OR_RETURN(std::shared_ptr<CachedFile> made, CachedFile::Create(env_, spare_path(), /*direct=*/false));
  MT_ASSIGN_OR_RETURN(const std::shared_ptr<PositionedFile> file, made->Open());
  spare_bytes_ = std::max(kLeastSpareBytes, RoundUpToBlock(2 * bytes));
  MT_RETURN_IF_ERROR(file->Allocate(spare_bytes_));
  spare_ = std::move(made);
  return OkStatus();
}

void SegmentList::KeepSpare() {
  const uint64_t bytes = kFixedBytes + (segments_.size() + 1) * kEntryBytes + kChecksumBytes;
  if (spare_ == nullptr || spare_bytes_ < bytes) (void)MakeSpare(bytes);
}

}  // namespace multitier
