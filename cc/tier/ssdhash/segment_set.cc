#include "cc/tier/ssdhash/segment_set.h"

#include <errno.h>

#include <algorithm>
#include <utility>

namespace multitier {

SegmentPrefix PrefixOf(const std::vector<FooterEntry>& entries, uint32_t records) {
  SegmentPrefix prefix{records, 0};
  for (uint32_t i = 0; i < records; ++i) {
    if (!entries[i].damaged) prefix.newest_seq = std::max(prefix.newest_seq, entries[i].seq);
  }
  return prefix;
}

Segment::Segment(SegmentHeader segment_header, std::shared_ptr<CachedFile> segment_file,
                 const SegmentGeometry& segment_geometry)
    : header(std::move(segment_header)),
      geometry(segment_geometry),
      file(std::move(segment_file)),
      live((size_t{geometry.slots} + 63) / 64) {
  for (uint32_t n = 0; n <= header.columns.size(); ++n) {
    column_bytes.push_back(static_cast<uint32_t>(header.BytesOfColumns(n)));  // at most row_bytes
  }
}

void Segment::SetLive(uint32_t slot) {
  live[slot / 64] |= uint64_t{1} << slot % 64;
  ++num_live;
}

void Segment::ClearLive(uint32_t slot) {
  live[slot / 64] &= ~(uint64_t{1} << slot % 64);
  --num_live;
}

void Segment::SetTombstone(uint32_t slot) {
  if (tombstones.empty()) tombstones.resize(live.size());
  tombstones[slot / 64] |= uint64_t{1} << slot % 64;
  ++num_tombstones;
  ++num_deletions;
}

void Segment::ClearTombstone(uint32_t slot) {
  tombstones[slot / 64] &= ~(uint64_t{1} << slot % 64);
  --num_tombstones;
}

void Segment::SetLast(uint32_t slot) {
  if (last.empty()) last.resize(live.size());
  last[slot / 64] |= uint64_t{1} << slot % 64;
  ++num_last;
}

void Segment::ClearLast(uint32_t slot) {
  last[slot / 64] &= ~(uint64_t{1} << slot % 64);
  --num_last;
}

Status SegmentSet::Add(std::shared_ptr<Segment> segment) {
  const uint32_t n = (segment->geometry.slots + kUnitSlots - 1) / kUnitSlots;
  // Uses the unit that was freed first, so that a stale location rarely refers to another record.
  const size_t unused = kMaxUnits - units.size();
  if (n > unused + free_units.size()) {
    return Status(StatusCode::kResourceExhausted, "ssdhash tier: all 2^32 record locations are in use: partition the table",
                  ENOSPC);
  }
  for (uint32_t i = 0; i < n; ++i) {
    uint32_t unit = static_cast<uint32_t>(units.size());
    if (free_units.size() > 64 || unit == kMaxUnits) {
      unit = free_units.front();
      free_units.pop_front();
    } else {
      units.emplace_back();
    }
    units[unit] = Unit{segment.get(), i * kUnitSlots};
    segment->units.push_back(unit);
  }
  file_bytes += segment->file_bytes;
  segments.emplace(segment.get(), std::move(segment));
  return OkStatus();
}

void SegmentSet::Erase(Segment* segment) {
  for (const uint32_t unit : segment->units) {
    units[unit] = Unit();
    free_units.push_back(unit);
  }
  file_bytes -= segment->file_bytes;
  if (segment->condemned) condemned_bytes -= segment->file_bytes;
  segments.erase(segment);
}

Status SegmentSet::Sync(Segment* segment) {
  MutexLock one_at_a_time(segment->sync_mutex);
  std::shared_ptr<CachedFile> cached;
  uint64_t written = 0;
  SegmentPrefix in_file;
  {
    MutexLock lock(mutex);
    const Status& failed = segment->sync_error;
    if (segment->sync_failed) {
      return Status(failed.code(), StrCat("ssdhash tier: '", segment->file->path(),
                                          "' is not yet rewritten since its sync failed: ", failed.message()));
    }
    cached = segment->file;
    written = segment->writes;
    in_file = segment->in_file;
  }
  MT_ASSIGN_OR_RETURN(const std::shared_ptr<PositionedFile> file, cached->Open());
  const Status synced = file->Sync();
  MutexLock lock(mutex);
  if (segment->file != cached) return OkStatus();  // rewritten meanwhile, and synced
  if (synced.ok()) {
    segment->synced_writes = std::max(segment->synced_writes, written);
    if (in_file.records > segment->synced.records) segment->synced = in_file;
  } else {
    segment->sync_failed = true;
    segment->sync_error = synced;
  }
  return synced;
}

Status SegmentSet::Write(PositionedFile* file, uint64_t offset, const void* data, size_t bytes) {
  {
    MutexLock lock(mutex);
    written_bytes += static_cast<int64_t>(bytes);
  }
  return file->Write(offset, data, bytes);
}

void SegmentSet::DeleteFile(Env* env, const std::string& path) {
  {
    MutexLock lock(mutex);
    ++deleting;
  }
  const Status deleted = env->DeleteFile(path);
  MutexLock lock(mutex);
  --deleting;
  unlinked = true;
  if (!deleted.ok() && deleted.code() != StatusCode::kNotFound) undeleted.push_back(path);
}

void SegmentSet::Release(Segment* segment, uint32_t slot) {
  MT_CHECK(segment->is_live(slot));
  segment->ClearLive(slot);
  Hold(*segment, -1);
  NoteIfDead(*segment);
}

void SegmentSet::Retire(Segment* segment, uint32_t slot, int64_t key) {
  Supersede(key);
  MT_CHECK(segment->is_live(slot));
  segment->ClearLive(slot);
  Hold(*segment, -1);
  segment->SetLast(slot);
  live_bytes += segment->geometry.file_bytes_per_slot;
  last_copies[key] = LocationOf(*segment, slot);
}

void SegmentSet::Supersede(int64_t key) {
  if (last_copies.empty()) return;
  const auto found = last_copies.find(key);
  if (found == last_copies.end()) return;
  uint32_t slot = 0;
  Segment* segment = Find(found->second, &slot);
  last_copies.erase(found);
  MT_CHECK(segment != nullptr && segment->is_last(slot));
  segment->ClearLast(slot);
  live_bytes -= segment->geometry.file_bytes_per_slot;
  NoteIfDead(*segment);
}

void SegmentSet::MoveLast(int64_t key, Segment* from, uint32_t from_slot, Segment* to, uint32_t to_slot) {
  from->ClearLast(from_slot);
  to->SetLast(to_slot);
  live_bytes += int64_t{to->geometry.file_bytes_per_slot} - int64_t{from->geometry.file_bytes_per_slot};
  last_copies[key] = LocationOf(*to, to_slot);
  ++relocated;
}

}  // namespace multitier
