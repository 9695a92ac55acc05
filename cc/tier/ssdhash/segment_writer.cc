#include "cc/tier/ssdhash/segment_writer.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

namespace multitier {
namespace {

constexpr uint64_t kBufferBytes = 4 << 20;
constexpr uint64_t kCopyBytes = 1 << 20;

// Pages of an Env, freed at the end of a scope.
struct Pages {
  Pages(Env* from, size_t n) : env(from), bytes(n), data(static_cast<uint8_t*>(from->AllocatePages(n, false))) {}
  ~Pages() { env->FreePages(data, bytes); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  Env* const env;
  const size_t bytes;
  uint8_t* const data;
};

Status NoMemory(uint64_t bytes) { return ResourceExhaustedError("ssdhash tier: no memory for a buffer of ", bytes, " bytes"); }

// The first slot that does not end at or below `offset`.
uint32_t FirstSlotPast(const SegmentGeometry& geometry, uint64_t offset) {
  const uint64_t bytes = offset - geometry.header_bytes;
  return static_cast<uint32_t>(geometry.per_block == 0 ? bytes / geometry.record_bytes
                                                       : bytes / kBlockBytes * geometry.per_block);
}

}  // namespace

std::string SegmentPath(const std::string& directory, uint64_t id, uint32_t attempt) {
  char name[48];
  std::snprintf(name, sizeof(name), "/ssd-%016llx-%u.seg", static_cast<unsigned long long>(id), attempt);
  return directory + name;
}

bool IsSegmentName(const std::string& name) {
  return name.size() > 25 && name.rfind("ssd-", 0) == 0 && name[20] == '-' && name.compare(name.size() - 4, 4, ".seg") == 0;
}

SegmentWriter::SegmentWriter(SegmentWriterOptions options, SegmentSet* set) : options_(std::move(options)), set_(set) {}

SegmentWriter::~SegmentWriter() { options_.env->FreePages(buffer_, buffer_bytes_); }

uint64_t SegmentWriter::free_slots() const {
  uint64_t free = segment_ == nullptr ? 0 : segment_->geometry.slots - next_slot_;
  for (const auto& spare : spares_) free += spare->geometry.slots;
  return free;
}

Status SegmentWriter::CountWrite(PositionedFile* file, uint64_t offset, const void* data, size_t bytes) {
  {
    std::lock_guard<std::mutex> lock(set_->mutex);
    set_->written_bytes += static_cast<int64_t>(bytes);
  }
  return file->Write(offset, data, bytes);
}

Result<std::shared_ptr<PositionedFile>> SegmentWriter::CreateFile(const SegmentHeader& header, const std::string& path) {
  const std::string bytes = header.Encode();
  Pages pages(options_.env, bytes.size());
  if (pages.data == nullptr) return NoMemory(bytes.size());
  std::memcpy(pages.data, bytes.data(), bytes.size());
  MT_ASSIGN_OR_RETURN(std::shared_ptr<PositionedFile> file,
                      options_.env->OpenPositionedFile(path, Env::OpenMode::kCreate, options_.direct_io));
  Status status = file->Allocate(header.MaxFileBytes());
  if (status.ok()) status = CountWrite(file.get(), 0, pages.data, bytes.size());
  if (status.ok()) status = file->Sync();
  if (status.ok()) status = options_.env->SyncDir(options_.directory);
  if (status.ok()) return file;
  file.reset();
  (void)options_.env->DeleteFile(path);
  return status;
}

Result<std::shared_ptr<Segment>> SegmentWriter::CreateSegment(const RowLayout& layout) {
  uint64_t id = 0, bytes = 0;
  {
    std::lock_guard<std::mutex> lock(set_->mutex);
    id = set_->next_segment_id++;
    bytes = std::clamp(static_cast<uint64_t>(set_->live_bytes) / 64, options_.min_segment_bytes, options_.max_segment_bytes);
  }
  const std::string path = SegmentPath(options_.directory, id, 0);
  auto segment = std::make_shared<Segment>(
      SegmentHeader::Make(options_.instance, id, options_.survivors, bytes, layout), path);
  MT_ASSIGN_OR_RETURN(segment->file, CreateFile(segment->header, path));
  segment->file_bytes = segment->header.MaxFileBytes();
  segment->file_end = segment->geometry.header_bytes;
  std::unique_lock<std::mutex> lock(set_->mutex);
  const Status added = set_->Add(segment);
  if (added.ok()) return segment;
  lock.unlock();
  segment->file.reset();
  (void)options_.env->DeleteFile(path);
  return added;
}

void SegmentWriter::DropSpares() {
  for (const auto& spare : spares_) {
    {
      std::lock_guard<std::mutex> lock(set_->mutex);
      set_->Erase(spare.get());
    }
    (void)options_.env->DeleteFile(spare->path);  // an empty segment is harmless
  }
  spares_.clear();
}

Status SegmentWriter::Reserve(const std::shared_ptr<const RowLayout>& layout, size_t n) {
  if (broken_) MT_RETURN_IF_ERROR(Repair());
  const auto fits = [&layout](const Segment& segment) { return segment.header.columns.size() == layout->columns().size(); };
  if (!spares_.empty() && !fits(*spares_.back())) DropSpares();
  if (segment_ != nullptr && (!fits(*segment_) || next_slot_ == segment_->geometry.slots)) MT_RETURN_IF_ERROR(Seal());
  while (free_slots() < n) {
    MT_ASSIGN_OR_RETURN(std::shared_ptr<Segment> segment, CreateSegment(*layout));
    spares_.insert(spares_.begin(), std::move(segment));
  }
  if (segment_ == nullptr && n > 0) MT_RETURN_IF_ERROR(OpenNext());
  return OkStatus();
}

Status SegmentWriter::OpenNext() {
  MT_CHECK(segment_ == nullptr && !spares_.empty());
  const SegmentGeometry& geometry = spares_.back()->geometry;
  const uint64_t records = RoundUpToBlock(geometry.RecordOffset(geometry.slots - 1) + geometry.record_bytes) - geometry.header_bytes;
  const uint64_t bytes = std::min(records, std::max(kBufferBytes, RoundUpToBlock(geometry.record_bytes) + 2 * kBlockBytes));
  if (buffer_bytes_ < bytes) {
    auto* pages = static_cast<uint8_t*>(options_.env->AllocatePages(bytes, false));
    if (pages == nullptr) return NoMemory(bytes);
    options_.env->FreePages(buffer_, buffer_bytes_);
    buffer_ = pages;
    buffer_bytes_ = bytes;
  }
  segment_ = std::move(spares_.back());
  spares_.pop_back();
  begin_ = fill_ = geometry.header_bytes;
  next_slot_ = 0;
  entries_.clear();
  entries_.reserve(geometry.slots);
  std::lock_guard<std::mutex> lock(set_->mutex);
  segment_->buffer = buffer_;
  segment_->buffer_begin = begin_;
  return OkStatus();
}

Status SegmentWriter::Append(const std::vector<LogRecord>& records, std::vector<Placement>* placements) {
  placements->clear();
  const auto use = [this] {
    std::lock_guard<std::mutex> lock(set_->mutex);
    ++segment_->users;
    in_use_.push_back(segment_.get());
  };
  if (!records.empty()) use();
  Status status;
  for (const LogRecord& record : records) {
    if (next_slot_ == segment_->geometry.slots) {
      status = Seal();
      if (status.ok()) status = OpenNext();
      if (!status.ok()) break;
      use();
    }
    const SegmentGeometry& geometry = segment_->geometry;
    const uint64_t offset = geometry.RecordOffset(next_slot_);
    if (offset + geometry.record_bytes > begin_ + buffer_bytes_) {
      status = Flush(false);
      if (!status.ok()) break;
    }
    std::memset(buffer_ + (fill_ - begin_), 0, offset - fill_);
    EncodeRecord(geometry, next_slot_, record.header, record.seq, record.flags, record.row_data, record.data_bytes,
                 buffer_ + (offset - begin_));
    fill_ = offset + geometry.record_bytes;
    entries_.push_back(FooterEntry{record.header.key, record.seq, record.header.version, record.header.frequency,
                                   static_cast<uint16_t>(record.header.num_columns), (record.flags & kTombstoneFlag) != 0});
    placements->push_back(Placement{segment_.get(), next_slot_++});
    dirty_ = true;
  }
  // Slots count as used whether or not they are published; an unpublished one is dead.
  std::lock_guard<std::mutex> lock(set_->mutex);
  for (const Placement& placement : *placements) placement.segment->used = std::max(placement.segment->used, placement.slot + 1);
  if (!status.ok()) Published();
  return status;
}

void SegmentWriter::Published() {
  for (Segment* segment : in_use_) {
    --segment->users;
    set_->NoteIfDead(*segment);
  }
  in_use_.clear();
}

Status SegmentWriter::Flush(bool all) {
  if (!broken_) {
    Status status = WriteBuffer(all);
    if (status.ok()) return status;
    broken_ = true;
  }
  return Repair();
}

Status SegmentWriter::WriteBuffer(bool all) {
  // A record that straddles blocks must be whole in the file or whole in the buffer, so its last block is written early.
  all = all || segment_->geometry.per_block == 0;
  const uint64_t end = all ? RoundUpToBlock(fill_) : RoundDownToBlock(fill_);
  if (end <= begin_) return OkStatus();
  if (end > fill_) std::memset(buffer_ + (fill_ - begin_), 0, end - fill_);
  MT_RETURN_IF_ERROR(CountWrite(segment_->file.get(), begin_, buffer_, end - begin_));
  if (!segment_->file->direct()) MT_RETURN_IF_ERROR(segment_->file->Sync());
  Advance(end);
  return OkStatus();
}

void SegmentWriter::Advance(uint64_t written) {
  const uint64_t keep = RoundDownToBlock(fill_);
  std::lock_guard<std::mutex> lock(set_->mutex);
  std::memmove(buffer_, buffer_ + (keep - begin_), fill_ - keep);
  begin_ = keep;
  segment_->buffer_begin = keep;
  segment_->file_end = std::min(written, fill_);
}

Status SegmentWriter::Sync() {
  if (segment_ == nullptr || !dirty_) return OkStatus();
  MT_RETURN_IF_ERROR(Flush(true));
  if (!dirty_) return OkStatus();  // repaired
  if (!segment_->file->Sync().ok()) {
    broken_ = true;
    MT_RETURN_IF_ERROR(Repair());
  }
  dirty_ = false;
  return OkStatus();
}

Status SegmentWriter::Seal() {
  if (segment_ == nullptr) return OkStatus();
  if (broken_) MT_RETURN_IF_ERROR(Repair());
  MT_RETURN_IF_ERROR(Flush(true));
  Status status = WriteFooter();
  if (!status.ok()) {
    broken_ = true;
    MT_RETURN_IF_ERROR(Repair());
    MT_RETURN_IF_ERROR(WriteFooter());
  }
  std::lock_guard<std::mutex> lock(set_->mutex);
  segment_->buffer = nullptr;
  segment_->sealed = true;
  segment_->used = next_slot_;
  segment_->sealed_at = static_cast<uint64_t>(set_->appended_bytes);
  set_->NoteIfDead(*segment_);
  segment_ = nullptr;
  dirty_ = false;
  return OkStatus();
}

Status SegmentWriter::WriteFooter() {
  const uint64_t offset = RoundUpToBlock(fill_);
  const std::string footer = EncodeFooter(segment_->geometry.seed, offset, entries_);
  Pages pages(options_.env, footer.size());
  if (pages.data == nullptr) return NoMemory(footer.size());
  std::memcpy(pages.data, footer.data(), footer.size());
  PositionedFile* file = segment_->file.get();
  MT_RETURN_IF_ERROR(CountWrite(file, offset, pages.data, footer.size()));
  MT_RETURN_IF_ERROR(file->Truncate(offset + footer.size()));
  if (Status status = file->Sync(); !status.ok()) {
    broken_ = true;
    return status;
  }
  std::lock_guard<std::mutex> lock(set_->mutex);
  segment_->footer_offset = offset;
  segment_->footer_bytes = footer.size();
  set_->SetFileBytes(segment_.get(), offset + footer.size());
  return OkStatus();
}

Status SegmentWriter::Repair() {
  if (segment_ == nullptr) {
    broken_ = false;
    return OkStatus();
  }
  const std::string path = SegmentPath(options_.directory, segment_->header.id, ++attempts_);
  MT_ASSIGN_OR_RETURN(std::shared_ptr<PositionedFile> file, CreateFile(segment_->header, path));
  Status copied = CopyTo(file.get());
  if (copied.ok()) copied = file->Sync();
  const bool damaged = copied.code() == StatusCode::kDataLoss;  // written all the same
  if (!copied.ok() && !(damaged && file->Sync().ok())) {
    file.reset();
    set_->DeleteFile(options_.env, path);
    return copied;
  }
  std::string old_path = path;
  {
    std::lock_guard<std::mutex> lock(set_->mutex);
    segment_->file = std::move(file);
    std::swap(segment_->path, old_path);
    set_->SetFileBytes(segment_.get(), segment_->header.MaxFileBytes());
  }
  set_->DeleteFile(options_.env, old_path);
  Advance(RoundUpToBlock(fill_));
  broken_ = false;
  dirty_ = false;
  return copied;
}

Status SegmentWriter::CopyTo(PositionedFile* to) {
  const SegmentGeometry& geometry = segment_->geometry;
  // Whole records at a time, from and to block boundaries.
  const uint64_t stride = std::max(kCopyBytes, RoundUpToBlock(geometry.record_bytes) + kBlockBytes);
  Pages pages(options_.env, stride + 2 * kBlockBytes);
  if (pages.data == nullptr) return NoMemory(pages.bytes);
  Status damaged;
  for (uint64_t at = geometry.header_bytes; at < begin_;) {
    const uint64_t end = std::min(at + stride, begin_);
    MT_RETURN_IF_ERROR(segment_->file->Read(at, end - at, pages.data));
    // The next piece begins with the block of the first record that is not whole in this one.
    const uint32_t past = FirstSlotPast(geometry, end);
    for (uint32_t slot = FirstSlotPast(geometry, at); slot < std::min(past, next_slot_); ++slot) {
      const uint64_t offset = geometry.RecordOffset(slot);
      if (offset < at) continue;
      RecordFields fields;
      const bool good = DecodeRecord(geometry, slot, pages.data + (offset - at), true, &fields);
      std::lock_guard<std::mutex> lock(set_->mutex);
      if (good || !segment_->is_live(slot)) continue;
      damaged = DataLossError("ssdhash tier: record of key ", entries_[slot].key, " in '", segment_->path, "' at offset ",
                              offset, " was lost by a failed write or sync: its checksum does not match");
    }
    MT_RETURN_IF_ERROR(CountWrite(to, at, pages.data, end - at));
    const uint64_t next = end < begin_ && past < next_slot_ ? RoundDownToBlock(geometry.RecordOffset(past)) : end;
    at = next > at ? std::min(next, end) : end;
  }
  const uint64_t end = RoundUpToBlock(fill_);
  if (end > fill_) std::memset(buffer_ + (fill_ - begin_), 0, end - fill_);
  if (end > begin_) MT_RETURN_IF_ERROR(CountWrite(to, begin_, buffer_, end - begin_));
  return damaged;
}

}  // namespace multitier
