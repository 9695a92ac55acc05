// The contents of a SlotFile: | "MTSSDLST" 8 | format version 4 | instance 16 | n 4 | n entries of 40 bytes |

#include "cc/tier/ssdhash/segment_list.h"

#include <algorithm>
#include <utility>

#include "cc/base/coding.h"

namespace multitier {
namespace {

constexpr char kMagic[] = "MTSSDLST";
constexpr uint32_t kFormatVersion = 1;
constexpr size_t kFixedBytes = 32, kEntryBytes = 40;
constexpr uint32_t kSealedFlag = 1;

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

SegmentList::SegmentList(Env* env, const std::string& directory, const InstanceId& instance)
    : file_(env, directory + "/ssd.list"), instance_(instance) {}

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
  return out;
}

Status SegmentList::Load() {
  const Result<std::string> read = file_.Load();
  if (read.status().code() == StatusCode::kNotFound) {
    return DataLossError("'", path(), "' is missing: which segments were synced is not known");
  }
  MT_RETURN_IF_ERROR(read.status());
  const std::string& contents = *read;
  const auto damaged = [this](const auto&... what) { return DataLossError("'", path(), "' at offset 0: expected ", what...); };
  if (contents.size() < kFixedBytes || contents.compare(0, 8, kMagic) != 0) {
    return damaged("a list of segments, found something else");
  }
  const auto* in = reinterpret_cast<const uint8_t*>(contents.data());
  if (const uint32_t version = DecodeFixed32(in + 8); version != kFormatVersion) {
    return UnimplementedError("'", path(), "': expected format version ", kFormatVersion, ", found ", version,
                              ": use the release that wrote it");
  }
  if (!std::equal(instance_.begin(), instance_.end(), in + 12)) return damaged("a list of this instance, found another one's");
  const uint64_t n = DecodeFixed32(in + 28);
  if (contents.size() != kFixedBytes + n * kEntryBytes) return damaged(n, " entries, found ", contents.size(), " bytes");
  segments_.clear();
  for (uint64_t i = 0; i < n; ++i) segments_.push_back(DecodeEntry(in + kFixedBytes + i * kEntryBytes));
  // A process that died may have written it and not synced it: the list before may come back with a loss of power.
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
  const Status replaced = file_.Replace(Encode(segments));
  uncertain_ = !file_.certain();
  MT_RETURN_IF_ERROR(replaced);
  segments_ = std::move(segments);
  return OkStatus();
}

void SegmentList::KeepRoom() { file_.KeepRoom(kFixedBytes + (segments_.size() + segments_.size() / 4 + 16) * kEntryBytes); }

}  // namespace multitier
