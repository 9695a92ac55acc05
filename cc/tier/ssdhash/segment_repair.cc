// A new file for a segment whose write or sync failed: SegmentDraft::Repair for one that is being written, RewriteSealed for a
// sealed one. Both read the old file, check every held record, and write the records to the next attempt of the segment's file,
// at the same places. Readers see the new file once it is synced; then the old one is deleted.

#include <algorithm>
#include <cstring>
#include <utility>

#include "cc/tier/ssdhash/segment_draft.h"

namespace multitier {
namespace {

constexpr uint64_t kCopyBytes = 1 << 20;

// The first slot that does not end at or below `offset`.
uint32_t FirstSlotPast(const SegmentGeometry& geometry, uint64_t offset) {
  const uint64_t bytes = offset - geometry.header_bytes;
  return static_cast<uint32_t>(geometry.per_block == 0 ? bytes / geometry.record_bytes
                                                       : bytes / kBlockBytes * geometry.per_block);
}

Status WriteString(Env* env, SegmentSet* set, PositionedFile* file, uint64_t offset, const std::string& bytes) {
  WriteBuffer pages;
  if (!pages.Allocate(env, bytes.size(), false)) return WriteBuffer::NoMemory(bytes.size());
  std::memcpy(pages.data(), bytes.data(), bytes.size());
  return set->Write(file, offset, pages.data(), bytes.size());
}

// Copies the records of [header, end), at most `slots`, to another file of the segment. DataLoss if held records are damaged;
// it still copies the others. `entries` may be empty: then the keys of damaged records are unknown. *dead_damaged: the number
// of damaged records that are not held.
Status CopyRecords(Env* env, SegmentSet* set, const Segment& segment, const std::vector<FooterEntry>& entries, uint32_t slots,
                   uint64_t end, const PositionedFile& from, PositionedFile* to, uint32_t* dead_damaged) {
  const SegmentGeometry& geometry = segment.geometry;
  // Whole records at a time, from and to block boundaries.
  const uint64_t stride = std::max(kCopyBytes, RoundUpToBlock(geometry.record_bytes) + kBlockBytes);
  WriteBuffer pages;
  if (!pages.Allocate(env, stride + 2 * kBlockBytes, false)) return WriteBuffer::NoMemory(stride + 2 * kBlockBytes);
  Status damaged;
  uint32_t next_slot = 0;  // not looked at yet
  for (uint64_t at = geometry.header_bytes; at < end;) {
    const uint64_t until = std::min(at + stride, end);
    MT_RETURN_IF_ERROR(from.Read(at, until - at, pages.data()));
    // The next piece begins with the block of the first record that is not whole in this one.
    const uint32_t past = FirstSlotPast(geometry, until);
    for (; next_slot < std::min(past, slots); ++next_slot) {
      const uint32_t slot = next_slot;
      const uint64_t offset = geometry.RecordOffset(slot);
      RecordFields fields;
      if (DecodeRecord(geometry, slot, pages.data() + (offset - at), true, &fields)) continue;
      MutexLock lock(set->mutex);
      if (!segment.is_live(slot) && !segment.is_last(slot)) {
        ++*dead_damaged;
        continue;
      }
      const std::string key = slot < entries.size() ? StrCat(" of key ", entries[slot].key) : "";
      damaged = DataLossError("ssdhash tier: record", key, " in '", segment.file->path(), "' at offset ", offset,
                              " was lost by a failed write or sync: its checksum does not match");
    }
    MT_RETURN_IF_ERROR(set->Write(to, at, pages.data(), until - at));
    const uint64_t next = until < end && past < slots ? RoundDownToBlock(geometry.RecordOffset(past)) : until;
    at = next > at ? std::min(next, until) : until;
  }
  return damaged;
}

// The file of the segment's next rewriting. A name is not used again, whatever became of its file: one that could not be
// deleted is deleted by its name, later; and recovery takes several of a segment.
Result<std::shared_ptr<CachedFile>> CreateNextAttempt(const SegmentWriterOptions& options, SegmentSet* set, Segment* segment) {
  for (;;) {
    uint32_t attempt = 0;
    {
      MutexLock lock(set->mutex);
      attempt = ++segment->attempt;
    }
    Result<std::shared_ptr<CachedFile>> made = CreateSegmentFile(options, segment->header, attempt);
    if (made.status().code() != StatusCode::kAlreadyExists) return made;
  }
}

}  // namespace

Status SegmentDraft::Repair() {
  const bool write_failed = !AwaitWrite();
  const uint64_t in_file = write_failed ? in_flight_begin_ : begin_;
  MT_ASSIGN_OR_RETURN(std::shared_ptr<CachedFile> cached, CreateNextAttempt(options_, set_, segment_.get()));
  const uint64_t end = EndOfBlocks(true);
  uint32_t dead_damaged = 0;
  const auto copy = [&]() -> Status {
    MT_ASSIGN_OR_RETURN(const std::shared_ptr<PositionedFile> to, cached->Open());
    Status damaged;
    if (in_file > 0) {
      MT_ASSIGN_OR_RETURN(const std::shared_ptr<PositionedFile> from, segment_->file->Open());
      MT_RETURN_IF_ERROR(WriteString(options_.env, set_, to.get(), 0, segment_->header.Encode()));
      damaged =
          CopyRecords(options_.env, set_, *segment_, segment_->entries, next_slot_, in_file, *from, to.get(), &dead_damaged);
      if (!damaged.ok() && damaged.code() != StatusCode::kDataLoss) return damaged;
    }
    if (write_failed) {
      const uint64_t bytes = in_flight_end_ - in_flight_begin_;
      MT_RETURN_IF_ERROR(set_->Write(to.get(), in_flight_begin_, in_flight_.data(), bytes));
    }
    if (end > begin_) MT_RETURN_IF_ERROR(set_->Write(to.get(), begin_, buffer_.data(), end - begin_));
    MT_RETURN_IF_ERROR(to->Sync());
    MT_RETURN_IF_ERROR(CachedFile::SyncDir(options_.env, options_.directory));
    return damaged;
  };
  const Status copied = copy();
  if (!copied.ok() && copied.code() != StatusCode::kDataLoss) {
    const std::string path = cached->path();
    cached.reset();
    set_->DeleteFile(options_.env, path);
    return copied;
  }
  const std::string old_path = segment_->file->path();
  {
    MutexLock lock(set_->mutex);
    segment_->file = std::move(cached);
    segment_->file_attempt = segment_->attempt;
    segment_->sync_failed = false;
    segment_->damaged = dead_damaged;
    set_->SetFileBytes(segment_.get(), segment_->header.MaxFileBytes());
  }
  set_->DeleteFile(options_.env, old_path);
  Advance(end);
  {
    MutexLock lock(set_->mutex);
    segment_->synced_writes = ++segment_->writes;
    segment_->synced = segment_->in_file;
    segment_->entry_synced = true;
    segment_->in_flight = nullptr;
  }
  if (write_failed) second_ = std::move(in_flight_);
  {
    MutexLock lock(write_mutex_);
    write_state_ = WriteState::kNone;
  }
  broken_ = false;
  return copied;
}

Status RewriteSealed(const SegmentWriterOptions& options, SegmentSet* set, const std::shared_ptr<Segment>& segment) {
  std::shared_ptr<CachedFile> old;
  std::vector<FooterEntry> entries;
  uint32_t slots = 0;
  {
    MutexLock lock(set->mutex);
    old = segment->file;
    slots = segment->used;
  }
  MT_ASSIGN_OR_RETURN(const std::shared_ptr<PositionedFile> from, old->Open());
  uint64_t footer_bytes = segment->footer_bytes;  // 0: recovery found none
  WriteBuffer pages;
  if (footer_bytes > 0) {
    if (!pages.Allocate(options.env, footer_bytes, false)) return WriteBuffer::NoMemory(footer_bytes);
    MT_RETURN_IF_ERROR(from->Read(segment->footer_offset, footer_bytes, pages.data()));
    if (!DecodeFooter(segment->geometry.seed, pages.data(), footer_bytes, &entries)) footer_bytes = 0;  // that sync lost it
  }
  const uint64_t end = footer_bytes > 0 ? segment->footer_offset : RoundUpToBlock(segment->header.EndOfRecords(slots));
  MT_ASSIGN_OR_RETURN(std::shared_ptr<CachedFile> cached, CreateNextAttempt(options, set, segment.get()));
  uint32_t dead_damaged = 0;
  const auto copy = [&]() -> Status {
    MT_ASSIGN_OR_RETURN(const std::shared_ptr<PositionedFile> to, cached->Open());
    MT_RETURN_IF_ERROR(WriteString(options.env, set, to.get(), 0, segment->header.Encode()));
    MT_RETURN_IF_ERROR(CopyRecords(options.env, set, *segment, entries, slots, end, *from, to.get(), &dead_damaged));
    if (footer_bytes > 0) MT_RETURN_IF_ERROR(set->Write(to.get(), end, pages.data(), footer_bytes));
    MT_RETURN_IF_ERROR(to->Truncate(end + footer_bytes));
    MT_RETURN_IF_ERROR(to->Sync());
    return CachedFile::SyncDir(options.env, options.directory);
  };
  if (Status copied = copy(); !copied.ok()) {
    const std::string path = cached->path();
    cached.reset();
    set->DeleteFile(options.env, path);
    return copied;
  }
  cached->SetReadOnly();
  {
    MutexLock lock(set->mutex);
    segment->file = std::move(cached);
    segment->file_attempt = segment->attempt;
    segment->sync_failed = false;
    segment->damaged = dead_damaged;
    set->SetFileBytes(segment.get(), end + footer_bytes);
    segment->footer_bytes = footer_bytes;
    segment->synced_writes = segment->writes;
    segment->synced = segment->in_file;
    segment->entry_synced = true;
  }
  set->DeleteFile(options.env, old->path());
  return OkStatus();
}

}  // namespace multitier
