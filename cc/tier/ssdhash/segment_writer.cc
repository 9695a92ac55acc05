#include "cc/tier/ssdhash/segment_writer.h"

#include <algorithm>
#include <utility>

namespace multitier {

SegmentWriter::SegmentWriter(SegmentWriterOptions options, SegmentSet* set, std::function<void()> sealed)
    : options_(std::move(options)), set_(set), sealed_(std::move(sealed)), worker_(IoWorker::Get()), job_([this] {
        if (FinishOne()) worker_->Schedule(&job_);
      }) {}

SegmentWriter::~SegmentWriter() { worker_->Cancel(&job_); }

uint64_t SegmentWriter::free_slots() const {
  uint64_t free = open_ == nullptr ? 0 : open_->segment()->geometry.slots - open_->next_slot();
  for (const auto& spare : spares_) free += spare->geometry.slots;
  return free;
}

uint64_t SegmentWriter::SegmentBytes() const {
  MutexLock lock(set_->mutex);
  return std::clamp(static_cast<uint64_t>(set_->live_bytes) / 64, options_.min_segment_bytes, options_.max_segment_bytes);
}

Result<std::shared_ptr<Segment>> SegmentWriter::CreateSegment(const RowLayout& layout, uint64_t bytes) {
  uint64_t id = 0;
  {
    MutexLock lock(set_->mutex);
    id = set_->next_segment_id++;
  }
  const SegmentHeader header = SegmentHeader::Make(options_.instance, id, options_.survivors, bytes, layout);
  Result<std::shared_ptr<CachedFile>> file = CreateSegmentFile(options_, header, 0);
  if (!file.ok()) {
    return Status(file.status().code(),
                  StrCat("ssdhash tier: new segment of ", header.MaxFileBytes(), " bytes: ", file.status().message()),
                  file.status().os_error());
  }
  auto segment = std::make_shared<Segment>(header, *std::move(file));
  segment->file_bytes = header.MaxFileBytes();
  MutexLock lock(set_->mutex);
  const Status added = set_->Add(segment);
  lock.Unlock();
  if (added.ok()) return segment;
  (void)options_.env->DeleteFile(segment->file->path());
  return added;
}

void SegmentWriter::DropSpares(size_t keep) {
  for (; spares_.size() > keep; spares_.erase(spares_.begin() + static_cast<std::ptrdiff_t>(keep))) {
    const std::shared_ptr<Segment>& spare = spares_[keep];
    {
      MutexLock lock(set_->mutex);
      set_->Erase(spare.get());
    }
    (void)options_.env->DeleteFile(spare->file->path());  // an empty segment is harmless
  }
}

Status SegmentWriter::Reserve(const std::shared_ptr<const RowLayout>& layout, size_t n) {
  MT_RETURN_IF_ERROR(Repair());
  const auto fits = [&layout](const Segment& segment) { return segment.header.columns.size() == layout->columns().size(); };
  if (!spares_.empty() && !fits(*spares_.back())) DropSpares(0);
  if (open_ != nullptr && (!fits(*open_->segment()) || open_->full())) QueueOpen();
  while (free_slots() < n) {
    MT_ASSIGN_OR_RETURN(std::shared_ptr<Segment> segment, CreateSegment(*layout, SegmentBytes()));
    spares_.insert(spares_.begin(), std::move(segment));
  }
  if (open_ == nullptr && n > 0) MT_RETURN_IF_ERROR(OpenNext());
  return OkStatus();
}

Status SegmentWriter::KeepSpare(const std::shared_ptr<const RowLayout>& layout) {
  const uint64_t bytes = SegmentBytes();
  const auto usable = [&](const Segment& segment) {
    return segment.header.columns.size() == layout->columns().size() && segment.file_bytes >= bytes / 2;
  };
  if (!spares_.empty() && spares_.back()->header.columns.size() != layout->columns().size()) DropSpares(0);
  const size_t wanted = open_ == nullptr || open_->full() ? 2 : 1;
  while (static_cast<size_t>(std::count_if(spares_.begin(), spares_.end(), [&](const auto& s) { return usable(*s); })) <
         wanted) {
    MT_ASSIGN_OR_RETURN(std::shared_ptr<Segment> segment, CreateSegment(*layout, bytes));
    spares_.insert(spares_.begin(), std::move(segment));
    DropSpares(wanted);
  }
  return OkStatus();
}

Status SegmentWriter::OpenNext() {
  MT_CHECK(open_ == nullptr && !spares_.empty());
  DraftMemory recycled;
  {
    MutexLock lock(queue_mutex_);
    if (!spare_memory_.empty()) {
      recycled = std::move(spare_memory_.back());
      spare_memory_.pop_back();
    }
  }
  auto draft = std::make_unique<SegmentDraft>(&options_, set_, spares_.back());
  MT_RETURN_IF_ERROR(draft->Prepare(std::move(recycled)));
  spares_.pop_back();
  open_ = std::move(draft);
  return OkStatus();
}

Status SegmentWriter::Append(const std::vector<LogRecord>& records, std::vector<Placement>* placements) {
  const size_t before = placements->size();
  const auto use = [this] {
    MutexLock lock(set_->mutex);
    ++open_->segment()->users;
    in_use_.push_back(open_->segment().get());
  };
  if (!records.empty()) use();
  Status status;
  for (const LogRecord& record : records) {
    if (open_->full()) {
      QueueOpen();
      status = OpenNext();
      if (!status.ok()) break;
      use();
    }
    const Placement placement{open_->segment().get(), open_->next_slot()};
    status = open_->Append(record);
    if (!status.ok()) break;
    placements->push_back(placement);
  }
  // Slots count as used whether or not they are published; an unpublished one is dead.
  MutexLock lock(set_->mutex);
  for (size_t i = before; i < placements->size(); ++i) {
    const Placement& placement = (*placements)[i];
    placement.segment->used = std::max(placement.segment->used, placement.slot + 1);
  }
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

void SegmentWriter::QueueOpen() {
  {
    MutexLock lock(queue_mutex_);
    queued_bytes_ += open_->memory_bytes();
    queue_.push_back(std::move(open_));
  }
  worker_->Schedule(&job_);
  HelpUntil(kMaxQueuedBytes);
}

void SegmentWriter::HelpUntil(uint64_t bytes) {
  for (;;) {
    {
      MutexLock lock(queue_mutex_);
      if (queued_bytes_ <= bytes) return;
    }
    if (!FinishOne()) return;
  }
}

bool SegmentWriter::FinishOne() {
  std::unique_ptr<SegmentDraft> draft;
  {
    MutexLock lock(queue_mutex_);
    if (queue_.empty()) return false;
    draft = std::move(queue_.front());
    queue_.pop_front();
    ++busy_;
  }
  const uint64_t bytes = draft->memory_bytes();
  const bool good = draft->Finish().ok();
  if (good) sealed_();
  const bool scarce = worker_->buffer_bytes() > IoWorker::kWriteBufferBytes / 2;
  DraftMemory memory;  // freed outside the lock
  MutexLock lock(queue_mutex_);
  --busy_;
  queued_bytes_ -= bytes;
  if (good) {
    memory = draft->TakeMemory();
    if (!scarce && spare_memory_.size() < kMaxSpareMemory) spare_memory_.push_back(std::move(memory));
  } else {
    failed_.push_back(std::move(draft));
  }
  finished_.notify_all();
  return true;
}

Status SegmentWriter::Repair() {
  for (;;) {
    std::unique_ptr<SegmentDraft> draft;
    {
      MutexLock lock(queue_mutex_);
      if (failed_.empty()) break;
      draft = std::move(failed_.back());
      failed_.pop_back();
    }
    if (Status status = draft->Finish(); !status.ok()) {
      MutexLock lock(queue_mutex_);
      failed_.push_back(std::move(draft));
      return status;
    }
  }
  return open_ == nullptr ? OkStatus() : open_->RepairIfBroken();
}

Status SegmentWriter::FlushFull() {
  while (FinishOne()) {
  }
  {
    MutexLock lock(queue_mutex_);
    lock.Wait(finished_, [this]() MT_REQUIRES(queue_mutex_) { return busy_ == 0; });
  }
  return Repair();
}

Status SegmentWriter::Flush() {
  MT_RETURN_IF_ERROR(FlushFull());
  return open_ == nullptr ? OkStatus() : open_->Flush();
}

Status SegmentWriter::Close() {
  DropSpares(0);
  if (open_ != nullptr) QueueOpen();
  return Flush();
}

}  // namespace multitier
