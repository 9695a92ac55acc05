#include "cc/tier/ssdhash/salvage.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include "cc/row/schema.h"
#include "cc/tier/ssdhash/segment_format.h"
#include "cc/tier/ssdhash/segment_list.h"

namespace multitier {
namespace {

constexpr size_t kNoRow = ~size_t{0};

struct SegmentFile {
  std::string path;
  uint64_t id = 0;  // as the name has it
  uint64_t bytes = 0;
  SegmentHeader header;
  Status header_status;
};

// The state of a key.
struct Known {
  uint64_t newest = 0;  // seq of the newest record, damaged or whole
  bool newest_whole = false;
  bool newest_removal = false;
  uint64_t newest_row = 0;  // seq of the newest whole row
  size_t row = kNoRow;      // where it is kept
};

Status ReadAll(Env* env, const SegmentFile& segment, std::vector<uint8_t>* data) {
  MT_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, env->NewRandomAccessFile(segment.path));
  data->resize(segment.bytes);
  return file->Read(0, segment.bytes, data->data());
}

Status ReadHeader(Env* env, SegmentFile* segment) {
  MT_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, env->NewRandomAccessFile(segment->path));
  MT_ASSIGN_OR_RETURN(segment->bytes, file->Size());
  std::vector<uint8_t> data;
  size_t needed = kBlockBytes;
  while (data.size() < needed) {
    if (segment->bytes < needed) return DataLossError("segment '", segment->path, "' ends at offset ", segment->bytes);
    data.resize(needed);
    MT_RETURN_IF_ERROR(file->Read(0, needed, data.data()));
    Result<SegmentHeader> decoded = SegmentHeader::Decode(data.data(), data.size(), segment->path, &needed);
    if (decoded.ok()) {
      segment->header = *std::move(decoded);
      return OkStatus();
    }
    if (decoded.status().code() != StatusCode::kOutOfRange) return decoded.status();
  }
  return DataLossError("header of segment '", segment->path, "' at offset 0 cannot be read");
}

class Salvager {
 public:
  explicit Salvager(Salvage* out) : out_(out) {}

  // Takes what is whole in a segment of the given header. *whole: how many records were.
  void ReadSegment(const SegmentHeader& header, const std::vector<uint8_t>& data, int64_t* whole, int64_t* damaged) {
    const SegmentGeometry geometry(header);
    std::vector<FooterEntry> entries;
    const bool sealed = ReadFooter(geometry, data, &entries);
    const uint32_t slots = sealed ? static_cast<uint32_t>(entries.size()) : geometry.slots;
    *whole = *damaged = 0;
    for (uint32_t slot = 0; slot < slots; ++slot) {
      const uint64_t offset = geometry.RecordOffset(slot);
      if (offset + geometry.record_bytes > data.size()) break;
      const uint8_t* record = data.data() + offset;
      RecordFields fields;
      if (DecodeRecord(geometry, slot, record, true, &fields) && fields.header.num_columns <= header.columns.size()) {
        ++*whole;
        Take(header, fields);
      } else if (sealed || !AllZero(record, geometry.record_bytes)) {
        ++*damaged;
        if (sealed) Miss(entries[slot]);
      }
    }
  }

  void Finish() {
    for (const auto& [key, known] : keys_) {
      if (known.newest_removal) {
        if (known.row != kNoRow) dead_rows_.push_back(known.row);
      } else if (known.row == kNoRow) {
        out_->lost_keys.push_back(key);
      } else if (!known.newest_whole) {
        out_->stale_keys.push_back(key);
      }
    }
    std::sort(out_->lost_keys.begin(), out_->lost_keys.end());
    std::sort(out_->stale_keys.begin(), out_->stale_keys.end());
    // From the back, so that what moves into a gap is no gap itself.
    std::sort(dead_rows_.rbegin(), dead_rows_.rend());
    for (const size_t row : dead_rows_) {
      const size_t last = out_->headers.size() - 1;
      out_->headers[row] = out_->headers[last];
      std::memmove(RowAt(row), RowAt(last), out_->row_bytes);
      out_->headers.pop_back();
      out_->row_data.resize(last * out_->row_bytes);
    }
  }

 private:
  uint8_t* RowAt(size_t row) { return out_->row_data.data() + row * out_->row_bytes; }

  static bool ReadFooter(const SegmentGeometry& geometry, const std::vector<uint8_t>& data, std::vector<FooterEntry>* entries) {
    SegmentTrailer trailer;
    if (data.size() % kBlockBytes != 0 || data.size() < geometry.header_bytes + kBlockBytes) return false;
    return DecodeTrailer(geometry.seed, data.data() + data.size() - kBlockBytes, &trailer) && trailer.EndsAt(data.size()) &&
           DecodeFooter(geometry.seed, data.data() + trailer.offset, trailer.bytes, entries);  // whatever the header's slots
  }

  // A whole one of equal seq is the same record: a copy by compaction.
  static void Note(Known* known, uint64_t seq, bool whole, bool removal) {
    if (seq < known->newest || (seq == known->newest && !whole)) return;
    known->newest = seq;
    known->newest_whole = whole;
    known->newest_removal = removal;
  }

  void Miss(const FooterEntry& entry) { Note(&keys_[entry.key], entry.seq, false, entry.tombstone); }

  void Take(const SegmentHeader& header, const RecordFields& fields) {
    Known& known = keys_[fields.header.key];
    const bool removal = (fields.flags & kTombstoneFlag) != 0;
    Note(&known, fields.seq, true, removal);
    if (removal || (known.row != kNoRow && fields.seq <= known.newest_row)) return;
    known.newest_row = fields.seq;
    if (known.row == kNoRow) {
      known.row = out_->headers.size();
      out_->headers.emplace_back();
      out_->row_data.resize(out_->row_data.size() + out_->row_bytes);
    }
    out_->headers[known.row] = fields.header;
    const size_t bytes = header.BytesOfColumns(fields.header.num_columns);
    std::memcpy(RowAt(known.row), fields.row_data, bytes);
  }

  Salvage* const out_;
  std::unordered_map<int64_t, Known> keys_;
  std::vector<size_t> dead_rows_;
};

// Whose directory it is: what most headers say.
InstanceId InstanceOf(const std::vector<SegmentFile>& segments) {
  std::map<InstanceId, int> votes;
  for (const SegmentFile& segment : segments) {
    if (segment.header_status.ok()) ++votes[segment.header.instance];
  }
  const auto most =
      std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == votes.end() ? InstanceId{} : most->first;
}

// What the directory's list says was synced and is not there: segments without a file, or with fewer records. `records`: of
// each segment that has a file, how many are there, whole or named by a footer.
void ReportLost(Env* env, const std::string& directory, const InstanceId& instance, const std::map<uint64_t, uint64_t>& records,
                Salvage* out) {
  SegmentList list(env, directory, instance);
  if (const Status loaded = list.Load(); !loaded.ok()) {
    out->damage.push_back(loaded.message());
    return;
  }
  for (const ListedSegment& listed : list.segments()) {
    const std::string path = SegmentPath(directory, listed.id, listed.attempt);
    const auto found = records.find(listed.id);
    if (found == records.end()) {
      out->damage.push_back(
          StrCat("segment '", path, "' is missing: expected ", listed.records, " records, as '", list.path(), "' says"));
      ++out->missing_segments;
    } else if (found->second < listed.records) {
      out->damage.push_back(StrCat("segment '", path, "': expected ", listed.records, " records, as '", list.path(),
                                   "' says, found ", found->second));
    }
  }
}

}  // namespace

Result<Salvage> SalvageSegments(Env* env, const std::string& directory) {
  MT_ASSIGN_OR_RETURN(const std::vector<std::string> names, env->ListDir(directory));
  std::vector<SegmentFile> segments;
  for (const std::string& name : names) {
    SegmentFile segment;
    if (!ParseSegmentName(name, &segment.id)) continue;
    segment.path = directory + "/" + name;
    segment.header_status = ReadHeader(env, &segment);
    segments.push_back(std::move(segment));
  }
  if (segments.empty()) return NotFoundError("salvage of '", directory, "': expected segment files, found none");
  Salvage out;
  const InstanceId instance = InstanceOf(segments);
  std::vector<SegmentHeader> layouts;  // to try where a header is damaged
  for (const SegmentFile& segment : segments) {
    if (!segment.header_status.ok() || segment.header.instance != instance) continue;
    if (segment.header.columns.size() > out.columns.size()) {
      out.columns = segment.header.columns;
      out.row_bytes = segment.header.row_bytes;
    }
  }
  const auto is_of_table = [&out](const SegmentHeader& header) { return AreOfOneTable(header.columns, out.columns); };
  for (const SegmentFile& segment : segments) {
    if (!segment.header_status.ok() || segment.header.instance != instance || !is_of_table(segment.header)) continue;
    if (std::none_of(layouts.begin(), layouts.end(),
                     [&](const SegmentHeader& layout) { return layout.row_bytes == segment.header.row_bytes; })) {
      layouts.push_back(segment.header);
    }
  }
  Salvager salvager(&out);
  std::vector<uint8_t> data;
  std::map<uint64_t, uint64_t> records;  // found of each segment, in the best of its files
  for (const SegmentFile& segment : segments) {
    ++out.segments;
    int64_t whole = 0, damaged = 0;
    std::string trouble = segment.header_status.message();
    if (segment.header_status.ok() && segment.header.instance != instance) {
      out.damage.push_back(StrCat("segment '", segment.path, "' is of another instance"));
      continue;
    }
    if (segment.header_status.ok() && !is_of_table(segment.header)) {
      out.damage.push_back(StrCat("segment '", segment.path, "': expected columns of this table, found others"));
      continue;
    }
    if (const Status read = ReadAll(env, segment, &data); !read.ok()) {
      out.damage.push_back(read.message());
      continue;
    }
    if (AllZero(data.data(), data.size())) continue;  // its making was interrupted
    if (segment.header_status.ok()) {
      salvager.ReadSegment(segment.header, data, &whole, &damaged);
    } else {
      for (SegmentHeader layout : layouts) {
        layout.id = segment.id;
        layout.slots = 1u << 30;  // as far as the file goes
        salvager.ReadSegment(layout, data, &whole, &damaged);
        if (whole > 0) break;
      }
    }
    uint64_t& of_segment = records[segment.id];
    of_segment = std::max(of_segment, static_cast<uint64_t>(whole + damaged));
    out.records += whole;
    out.damaged_records += damaged;
    if (damaged > 0)
      trouble += StrCat(trouble.empty() ? StrCat("segment '", segment.path, "'") : "", ": ", damaged,
                        " places hold no whole record, ", whole, " do");
    if (!trouble.empty()) out.damage.push_back(std::move(trouble));
  }
  ReportLost(env, directory, instance, records, &out);
  salvager.Finish();
  return out;
}

}  // namespace multitier
