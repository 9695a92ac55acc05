#include "cc/tier/ssdhash/segment_draft.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace multitier {
namespace {

constexpr uint64_t kSmallBufferBytes = 64 << 10;
constexpr uint64_t kMaxBufferBytes = 2 << 20;  // of each of two
constexpr uint64_t kGrowth = 4;
constexpr uint64_t kFooterPieceBytes = 1 << 20;
constexpr uint64_t kKeptEntryBytes = 4 << 20;

}  // namespace

Result<std::shared_ptr<CachedFile>> CreateSegmentFile(const SegmentWriterOptions& options, const SegmentHeader& header,
                                                      uint32_t attempt) {
  const std::string path = SegmentPath(options.directory, header.id, attempt);
  MT_ASSIGN_OR_RETURN(std::shared_ptr<CachedFile> cached, CachedFile::Create(options.env, path, options.direct_io));
  Result<std::shared_ptr<PositionedFile>> file = cached->Open();
  Status status = file.status();
  if (status.ok()) status = (*file)->Allocate(header.MaxFileBytes());
  if (status.ok()) return cached;
  (void)options.env->DeleteFile(path);
  return status;
}

SegmentDraft::SegmentDraft(const SegmentWriterOptions* options, SegmentSet* set, std::shared_ptr<Segment> segment)
    : options_(*options), set_(set), segment_(std::move(segment)), write_job_([this] { RunWrite(); }) {}

SegmentDraft::~SegmentDraft() { IoWorker::Get()->Cancel(&write_job_); }

Status SegmentDraft::Prepare(DraftMemory recycled) {
  const SegmentGeometry& geometry = segment_->geometry;
  const uint64_t least = geometry.header_bytes + RoundUpToBlock(geometry.record_bytes) + 2 * kBlockBytes;
  const uint64_t bytes = std::max(least, std::min(kSmallBufferBytes, RoundUpToBlock(segment_->header.MaxFileBytes())));
  if (recycled.buffer.bytes() >= bytes) buffer_ = std::move(recycled.buffer);
  if (buffer_.data() == nullptr && !buffer_.Allocate(options_.env, bytes, true) &&
      !buffer_.Allocate(options_.env, bytes, false)) {
    return WriteBuffer::NoMemory(bytes);
  }
  second_ = std::move(recycled.second);
  const std::string header = segment_->header.Encode();
  std::memcpy(buffer_.data(), header.data(), header.size());
  begin_ = 0;
  fill_ = header.size();
  MutexLock lock(set_->mutex);
  segment_->entries = std::move(recycled.entries);
  segment_->entries.reserve(geometry.slots);  // memory only as it fills
  segment_->buffer = buffer_.data();
  segment_->memory_bytes = buffer_bytes();
  segment_->buffer_begin = 0;
  segment_->file_end = 0;
  return OkStatus();
}

Status SegmentDraft::MakeRoom(uint64_t bytes) {
  const uint64_t most = std::min(kMaxBufferBytes, RoundUpToBlock(segment_->header.MaxFileBytes()));
  while (fill_ + bytes > begin_ + buffer_.bytes() && buffer_.bytes() < most) {
    WriteBuffer larger;
    if (!larger.Allocate(options_.env, std::min(most, buffer_.bytes() * kGrowth), true)) break;
    std::memcpy(larger.data(), buffer_.data(), fill_ - begin_);
    MutexLock lock(set_->mutex);
    segment_->buffer = larger.data();
    std::swap(buffer_, larger);
    segment_->memory_bytes = buffer_bytes();
  }
  if (fill_ + bytes <= begin_ + buffer_.bytes()) return OkStatus();
  if (!Broken()) {
    if (StartWrite()) return OkStatus();
    if (AwaitWrite() && WriteBlocks(false).ok()) return OkStatus();
    broken_ = true;
  }
  return Repair();
}

bool SegmentDraft::StartWrite() {
  if (!AwaitWrite()) return false;
  if (second_.bytes() < buffer_.bytes() && !second_.Allocate(options_.env, buffer_.bytes(), true)) return false;
  const uint64_t end = EndOfBlocks(false), keep = RoundDownToBlock(fill_);
  std::memcpy(second_.data(), buffer_.data() + (keep - begin_), fill_ - keep);
  in_flight_begin_ = begin_;
  in_flight_end_ = end;
  in_flight_fill_ = std::min(end, fill_);
  in_flight_prefix_ = PrefixBelow(in_flight_fill_);
  begin_ = keep;
  {
    MutexLock lock(set_->mutex);
    segment_->in_flight = buffer_.data();
    segment_->in_flight_begin = in_flight_begin_;
    segment_->in_flight_end = in_flight_fill_;
    segment_->buffer = second_.data();
    segment_->buffer_begin = begin_;
    in_flight_ = std::move(buffer_);
    buffer_ = std::move(second_);
    segment_->memory_bytes = buffer_bytes();
  }
  {
    MutexLock lock(write_mutex_);
    write_state_ = WriteState::kWaiting;
  }
  IoWorker::Get()->Schedule(&write_job_);
  return true;
}

void SegmentDraft::RunWrite() {
  {
    MutexLock lock(write_mutex_);
    if (write_state_ != WriteState::kWaiting) return;
    write_state_ = WriteState::kRunning;
  }
  const auto write = [this]() -> Status {
    MT_ASSIGN_OR_RETURN(const std::shared_ptr<PositionedFile> file, segment_->file->Open());
    MT_RETURN_IF_ERROR(Write(file.get(), in_flight_begin_, in_flight_.data(), in_flight_end_ - in_flight_begin_));
    return SyncIfBuffered(file.get());
  };
  const bool written = write().ok();
  if (written) {
    MutexLock lock(set_->mutex);
    segment_->file_end = in_flight_fill_;
    segment_->in_file = in_flight_prefix_;
    segment_->in_flight = nullptr;
  }
  MutexLock lock(write_mutex_);
  write_state_ = written ? WriteState::kDone : WriteState::kFailed;
  write_done_.notify_all();
}

bool SegmentDraft::AwaitWrite() {
  if (in_flight_.data() == nullptr) return true;
  RunWrite();
  {
    MutexLock lock(write_mutex_);
    lock.Wait(write_done_, [this]() MT_REQUIRES(write_mutex_) {
      return write_state_ == WriteState::kDone || write_state_ == WriteState::kFailed;
    });
    if (write_state_ == WriteState::kFailed) return false;
    write_state_ = WriteState::kNone;
  }
  second_ = std::move(in_flight_);
  return true;
}

Status SegmentDraft::Append(const LogRecord& record) {
  const SegmentGeometry& geometry = segment_->geometry;
  const uint64_t offset = geometry.RecordOffset(next_slot_);
  const uint64_t end = offset + geometry.record_bytes;
  if (end > begin_ + buffer_.bytes()) MT_RETURN_IF_ERROR(MakeRoom(end - fill_));
  std::memset(buffer_.data() + (fill_ - begin_), 0, offset - fill_);
  EncodeRecord(geometry, next_slot_, record.header, record.seq, record.flags, record.row_data, record.data_bytes,
               buffer_.data() + (offset - begin_));
  fill_ = end;
  segment_->Note(record.header.version, record.header.frequency);
  segment_->entries.push_back(FooterEntry{record.header.key, record.seq, record.header.version, record.header.frequency,
                                          static_cast<uint16_t>(record.header.num_columns),
                                          (record.flags & kTombstoneFlag) != 0});
  ++next_slot_;
  return OkStatus();
}

bool SegmentDraft::Broken() {
  if (in_flight_.data() != nullptr) {
    MutexLock lock(write_mutex_);
    if (write_state_ == WriteState::kFailed) return true;
  }
  MutexLock lock(set_->mutex);
  return broken_ || segment_->sync_failed;
}

Status SegmentDraft::RepairIfBroken() { return Broken() ? Repair() : OkStatus(); }

Status SegmentDraft::Flush() {
  if (AwaitWrite() && !Broken()) {
    Status status = WriteBlocks(true);
    if (status.ok()) return status;
    broken_ = true;
  }
  return Repair();
}

Status SegmentDraft::Write(PositionedFile* file, uint64_t offset, const uint8_t* data, uint64_t bytes) {
  MT_RETURN_IF_ERROR(set_->Write(file, offset, data, bytes));
  MutexLock lock(set_->mutex);
  ++segment_->writes;
  return OkStatus();
}

Status SegmentDraft::SyncIfBuffered(const PositionedFile* file) {
  return file->direct() ? OkStatus() : set_->Sync(segment_.get());
}

uint64_t SegmentDraft::EndOfBlocks(bool all) {
  // A record that straddles blocks must be whole in the file or whole in the buffer, so its last block is written early.
  all = all || segment_->geometry.per_block == 0;
  const uint64_t end = all ? RoundUpToBlock(fill_) : RoundDownToBlock(fill_);
  if (end > fill_) std::memset(buffer_.data() + (fill_ - begin_), 0, end - fill_);
  return end;
}

Status SegmentDraft::WriteBlocks(bool all) {
  const uint64_t end = EndOfBlocks(all);
  if (end <= begin_ || segment_->file_end >= fill_) return OkStatus();
  MT_ASSIGN_OR_RETURN(const std::shared_ptr<PositionedFile> file, segment_->file->Open());
  MT_RETURN_IF_ERROR(Write(file.get(), begin_, buffer_.data(), end - begin_));
  MT_RETURN_IF_ERROR(SyncIfBuffered(file.get()));
  Advance(end);
  return OkStatus();
}

SegmentPrefix SegmentDraft::PrefixBelow(uint64_t offset) {
  const uint32_t records = std::min(next_slot_, segment_->geometry.RecordsBelow(offset));
  for (; counted_.records < records; ++counted_.records) {
    counted_.newest_seq = std::max(counted_.newest_seq, segment_->entries[counted_.records].seq);
  }
  return counted_;
}

void SegmentDraft::Advance(uint64_t written) {
  const uint64_t keep = RoundDownToBlock(fill_);
  const SegmentPrefix in_file = PrefixBelow(std::min(written, fill_));
  MutexLock lock(set_->mutex);
  std::memmove(buffer_.data(), buffer_.data() + (keep - begin_), fill_ - keep);
  begin_ = keep;
  segment_->buffer_begin = keep;
  segment_->file_end = std::min(written, fill_);
  segment_->in_file = in_file;
}

Status SegmentDraft::Finish() {
  (void)AwaitWrite();
  MT_RETURN_IF_ERROR(RepairIfBroken());
  Status status = WriteEnd();
  if (!status.ok()) {
    broken_ = true;
    MT_RETURN_IF_ERROR(Repair());
    MT_RETURN_IF_ERROR(WriteEnd());
  }
  segment_->file->SetReadOnly();
  std::vector<FooterEntry> entries;  // freed after the lock is given back
  MutexLock lock(set_->mutex);
  segment_->buffer = nullptr;
  segment_->memory_bytes = 0;
  memory_.buffer = std::move(buffer_);
  memory_.second = std::move(second_);
  entries.swap(segment_->entries);
  if (entries_bytes() <= kKeptEntryBytes) memory_.entries.swap(entries);
  memory_.entries.clear();
  segment_->sealed = true;
  segment_->used = next_slot_;
  segment_->sealed_at = static_cast<uint64_t>(set_->appended_bytes);
  set_->NoteIfDead(*segment_);
  return OkStatus();
}

Status SegmentDraft::WriteEnd() {
  const uint64_t offset = RoundUpToBlock(fill_);
  const std::string footer = EncodeFooter(segment_->geometry.seed, offset, segment_->entries);
  const bool fits = offset + footer.size() <= begin_ + buffer_.bytes();
  if (!fits) MT_RETURN_IF_ERROR(WriteBlocks(true));
  MT_ASSIGN_OR_RETURN(const std::shared_ptr<PositionedFile> file, segment_->file->Open());
  if (fits) {
    std::memset(buffer_.data() + (fill_ - begin_), 0, offset - fill_);
    std::memcpy(buffer_.data() + (offset - begin_), footer.data(), footer.size());
    MT_RETURN_IF_ERROR(Write(file.get(), begin_, buffer_.data(), offset + footer.size() - begin_));
  } else {
    WriteBuffer pages;
    const uint64_t piece = std::min<uint64_t>(footer.size(), kFooterPieceBytes);
    if (!pages.Allocate(options_.env, piece, false)) return WriteBuffer::NoMemory(piece);
    for (uint64_t at = 0; at < footer.size(); at += piece) {
      const uint64_t bytes = std::min<uint64_t>(piece, footer.size() - at);
      std::memcpy(pages.data(), footer.data() + at, bytes);
      MT_RETURN_IF_ERROR(Write(file.get(), offset + at, pages.data(), bytes));
    }
  }
  MT_RETURN_IF_ERROR(file->Truncate(offset + footer.size()));
  const SegmentPrefix all = PrefixBelow(fill_);
  {
    MutexLock lock(set_->mutex);
    segment_->in_file = all;
    ++segment_->writes;  // without its length the file has no footer: a sync before this one is none of all of it
  }
  MT_RETURN_IF_ERROR(SyncIfBuffered(file.get()));
  MutexLock lock(set_->mutex);
  segment_->footer_offset = offset;
  segment_->footer_bytes = footer.size();
  set_->SetFileBytes(segment_.get(), offset + footer.size());
  return OkStatus();
}

}  // namespace multitier
