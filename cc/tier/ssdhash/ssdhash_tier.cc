#include "cc/tier/ssdhash/ssdhash_tier.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "cc/env/posix_error.h"
#include "cc/tier/ssdhash/ssdhash_impl.h"

namespace multitier {
namespace {

constexpr size_t kAppendedAtOnce = 1024;  // records

}  // namespace

SsdHashTier::Impl::Impl(SsdHashOptions options)
    : options_(std::move(options)),
      pid_(::getpid()),
      worker_(IoWorker::Get()),
      files_job_([this] { (void)SyncAndDelete(false); }),
      compact_job_([this] { CompactInBackground(); }) {}

SsdHashTier::Impl::~Impl() {
  worker_->Cancel(&compact_job_);
  worker_->Cancel(&files_job_);
  if (hot_ != nullptr && options_.keep) {
    // Seals the segments: with a footer, recovery distinguishes damage from the end of the written records.
    (void)hot_->Close();
    (void)cold_->Close();
    (void)Sync();
    (void)SyncAndDelete(false);  // what Sync has condemned
  }
  hot_.reset();
  cold_.reset();
  victim_.reset();
  options_.env->FreePages(compact_buffer_, compact_buffer_bytes_);
  if (ready_ && !options_.keep) DeleteOwnFiles();
}

void SsdHashTier::Impl::DeleteOwnFiles() {
  const Result<std::vector<std::string>> names = CachedFile::ListDir(options_.env, options_.directory);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (name.rfind("ssd", 0) == 0) (void)options_.env->DeleteFile(options_.directory + "/" + name);
  }
}

Status SsdHashTier::Impl::Init() {
  if (options_.directory.empty() && options_.instance != nullptr) options_.directory = options_.instance->path();
  if (options_.directory.empty()) return InvalidArgumentError("ssdhash tier: expected a directory, found none");
  if (options_.max_rows < 0)
    return InvalidArgumentError("ssdhash tier: max_rows: expected at least 0, found ", options_.max_rows);
  if (options_.min_segment_bytes == 0 || options_.min_segment_bytes > options_.max_segment_bytes ||
      options_.max_segment_bytes > (uint64_t{4} << 30)) {
    return InvalidArgumentError("ssdhash tier: expected 0 < min_segment_bytes <= max_segment_bytes <= 4 GiB, found ",
                                options_.min_segment_bytes, " and ", options_.max_segment_bytes);
  }
  if (options_.read_only && (options_.keep || !options_.recover)) {
    return InvalidArgumentError("ssdhash tier: read_only: expected recover=true and keep=false, found recover=",
                                options_.recover ? "true" : "false", " and keep=", options_.keep ? "true" : "false");
  }
  MT_ASSIGN_OR_RETURN(reader_, BatchReader::Create(options_.reader));
  {
    MutexLock append(append_mutex_);
    MutexLock round(files_mutex_);
    MT_RETURN_IF_ERROR(InitFiles());
  }
  if (options_.read_only) return OkStatus();
  writer_options_.env = options_.env;
  writer_options_.directory = options_.directory;
  writer_options_.instance = instance_;
  writer_options_.direct_io = options_.direct_io;
  writer_options_.min_segment_bytes = options_.min_segment_bytes;
  writer_options_.max_segment_bytes = options_.max_segment_bytes;
  const auto sealed = [this] {
    if (options_.keep) worker_->Schedule(&files_job_);
  };
  hot_ = std::make_unique<SegmentWriter>(writer_options_, &set_, sealed);
  SegmentWriterOptions cold = writer_options_;
  cold.survivors = true;
  cold_ = std::make_unique<SegmentWriter>(cold, &set_, sealed);
  ready_ = true;
  return OkStatus();
}

Status SsdHashTier::Impl::RefuseChange(const char* operation) const {
  return FailedPreconditionError("ssdhash tier '", options_.directory, "': ", operation,
                                 ": expected a tier that was opened for writing, found one opened read-only");
}

Status SsdHashTier::Impl::CheckProcess() const {
  if (::getpid() == pid_) return OkStatus();
  return FailedPreconditionError("ssdhash tier '", options_.directory, "': made by process ", static_cast<int64_t>(pid_),
                                 ", called in its child ", static_cast<int64_t>(::getpid()));
}

std::shared_ptr<const RowLayout> SsdHashTier::Impl::layout() const {
  MutexLock lock(layout_mutex_);
  return layout_;
}

Status SsdHashTier::Impl::SetLayout(std::shared_ptr<const RowLayout> layout) {
  const std::vector<Column>& columns = layout->columns();
  if (columns.size() > 0xffff)
    return InvalidArgumentError("ssdhash tier: expected at most 65535 columns, found ", columns.size());
  for (size_t i = 0; i < recovered_columns_.size(); ++i) {
    const ColumnSpec& found = recovered_columns_[i];
    if (i < columns.size() && found.dtype == columns[i].dtype && found.dim == columns[i].dim) continue;
    return FailedPreconditionError("ssdhash tier '", options_.directory, "': recovered column ", i, " '", found.name,
                                   "': expected ", DTypeName(found.dtype), " x ", found.dim, ", found in the layout ",
                                   i < columns.size() ? StrCat(DTypeName(columns[i].dtype), " x ", columns[i].dim) : "none");
  }
  MutexLock lock(layout_mutex_);
  has_spare_ = false;  // it is made for the layout before
  layout_ = std::move(layout);
  return OkStatus();
}

Status SsdHashTier::Impl::CheckRecords(const RowLayout& layout, Span<const WriteRecord> records) const {
  for (const WriteRecord& record : records) {
    if (record.header.num_columns >= 1 && record.header.num_columns <= layout.columns().size()) continue;
    return InvalidArgumentError("ssdhash tier: write of key ", record.header.key, ": expected 1 to ", layout.columns().size(),
                                " columns, found ", record.header.num_columns);
  }
  return OkStatus();
}

Status SsdHashTier::Impl::ReserveHot(const std::shared_ptr<const RowLayout>& layout, size_t n) {
  for (bool first = true;; first = false) {
    Status status;
    if (hot_->free_slots() < n && !has_spare_) {
      // Space that is free, or has just been freed in the background, goes to compaction first: without a segment to move
      // records to it could reclaim nothing once the disk is full.
      append_mutex_.unlock();
      {
        MutexLock compact(compact_mutex_);
        status = KeepSpare();
      }
      append_mutex_.lock();
    }
    if (!IsOutOfSpace(status)) status = hot_->Reserve(layout, n);
    if (!IsOutOfSpace(status)) return status;
    append_mutex_.unlock();
    // A disk on which nothing can be sealed makes new files of the same segments again and again: once is enough to know.
    const bool reclaimed = ReclaimOnFullDisk(/*sealing_counts=*/first);
    append_mutex_.lock();
    if (!reclaimed) return status;
  }
}

Status SsdHashTier::Impl::Write(Span<const WriteRecord> records, uint32_t* locations) {
  if (options_.read_only) return RefuseChange("write");
  const std::shared_ptr<const RowLayout> layout = this->layout();
  if (layout == nullptr) return FailedPreconditionError("ssdhash tier: write before SetLayout");
  MT_RETURN_IF_ERROR(CheckRecords(*layout, records));
  if (records.empty()) return OkStatus();
  const uint64_t begun = options_.env->NowMicros();
  const uint64_t bytes = records.size() * (kRecordHeaderBytes + layout->row_bytes());
  PayCompaction(bytes);
  MutexLock append(append_mutex_);
  if (options_.max_rows > 0) {
    MutexLock lock(set_.mutex);
    if (set_.rows + static_cast<int64_t>(records.size()) > options_.max_rows) {
      return ResourceExhaustedError("ssdhash tier: write of ", records.size(), " records: the tier holds ", set_.rows,
                                    " rows of at most ", options_.max_rows);
    }
  }
  MT_RETURN_IF_ERROR(ReserveHot(layout, records.size()));
  std::vector<LogRecord> piece;  // of the batch: little enough to stay in the processor's cache
  std::vector<Placement> placements;
  placements.reserve(records.size());
  for (size_t from = 0; from < records.size(); from += kAppendedAtOnce) {
    piece.clear();
    for (size_t i = from; i < std::min(records.size(), from + kAppendedAtOnce); ++i) {
      const Column& last = layout->columns()[records[i].header.num_columns - 1];
      piece.push_back(LogRecord{records[i].header, next_seq_++, 0, records[i].row_data, last.offset + last.bytes});
    }
    MT_RETURN_IF_ERROR(hot_->Append(piece, &placements));
  }
  const size_t bucket = LatencyBucket(options_.env->NowMicros() - begun);
  MutexLock lock(set_.mutex);
  ++set_.write_latency[bucket];
  for (size_t i = 0; i < placements.size(); ++i) {
    Segment* segment = placements[i].segment;
    segment->SetLive(placements[i].slot);
    set_.Hold(*segment, 1);
    set_.Supersede(records[i].header.key);
    locations[i] = set_.LocationOf(*segment, placements[i].slot);
  }
  set_.appended_bytes += static_cast<int64_t>(bytes);
  hot_->Published();
  return OkStatus();
}

bool SsdHashTier::Impl::MayReach(uint32_t location, int64_t min_version, int64_t min_frequency) const {
  MutexLock lock(set_.mutex);
  uint32_t slot = 0;
  const Segment* const segment = set_.Find(location, &slot);
  if (segment == nullptr) return true;
  return segment->newest_version.load() >= min_version && segment->highest_frequency.load() >= min_frequency;
}

void SsdHashTier::Impl::Free(Span<const KeyLocation> records) {
  MutexLock lock(set_.mutex);
  for (const KeyLocation& record : records) {
    uint32_t slot = 0;
    Segment* segment = set_.Find(record.location, &slot);
    MT_CHECK(segment != nullptr);
    options_.keep&& record.newest ? set_.Retire(segment, slot, record.key) : set_.Release(segment, slot);
  }
}

Status SsdHashTier::Impl::Remove(Span<const KeyLocation> records) {
  if (records.empty()) return OkStatus();
  if (options_.read_only) {
    MutexLock lock(set_.mutex);
    for (const KeyLocation& record : records) {
      uint32_t slot = 0;
      if (record.location == kNoLocation) continue;
      Segment* segment = set_.Find(record.location, &slot);
      MT_CHECK(segment != nullptr);
      set_.Release(segment, slot);
    }
    return OkStatus();
  }
  const std::shared_ptr<const RowLayout> layout = this->layout();
  if (layout == nullptr) return FailedPreconditionError("ssdhash tier: remove before SetLayout");
  const uint64_t bytes = records.size() * (kRecordHeaderBytes + layout->row_bytes());
  PayCompaction(bytes);
  MutexLock append(append_mutex_);
  MT_RETURN_IF_ERROR(ReserveHot(layout, records.size()));
  std::vector<LogRecord> log(records.size());
  for (size_t i = 0; i < records.size(); ++i) {
    log[i].header.key = records[i].key;
    log[i].seq = next_seq_++;
    log[i].flags = kTombstoneFlag;
  }
  std::vector<Placement> placements;
  placements.reserve(records.size());
  MT_RETURN_IF_ERROR(hot_->Append(log, &placements));
  MutexLock lock(set_.mutex);
  for (size_t i = 0; i < placements.size(); ++i) {
    Segment* segment = placements[i].segment;
    segment->SetTombstone(placements[i].slot);
    // Every record of the key that is in a file, or that compaction is copying, is in a segment made before now.
    segment->tombstone_horizon = set_.next_segment_id;
    set_.Supersede(records[i].key);
    uint32_t slot = 0;
    if (records[i].location == kNoLocation) continue;
    Segment* held_by = set_.Find(records[i].location, &slot);
    MT_CHECK(held_by != nullptr);
    set_.Release(held_by, slot);
  }
  set_.appended_bytes += static_cast<int64_t>(bytes);
  hot_->Published();
  return OkStatus();
}

Status SsdHashTier::Impl::FlushHeads() {
  {
    MutexLock append(append_mutex_);
    MT_RETURN_IF_ERROR(hot_->Flush());
  }
  return cold_->Flush();
}

Status SsdHashTier::Impl::FlushFullSegments() {
  {
    MutexLock append(append_mutex_);
    MT_RETURN_IF_ERROR(hot_->FlushFull());
  }
  return cold_->FlushFull();
}

Status SsdHashTier::Impl::Sync() {
  if (options_.read_only) return OkStatus();
  MutexLock compact(compact_mutex_);
  Status synced;
  // An open segment whose sync failed is rewritten by its head; then everything is synced once more.
  for (int attempt = 0; attempt == 0 || (attempt == 1 && !synced.ok()); ++attempt) {
    synced = FlushHeads();
    if (!synced.ok()) break;
    synced = SyncAndDelete(true);
  }
  if (synced.ok()) return Reap();
  if (list_ == nullptr) return synced;
  // A file that is missing says more than the call that failed for want of it.
  MutexLock round(files_mutex_);
  MT_RETURN_IF_ERROR(CheckNames(/*list=*/false));
  return synced;
}

uint64_t SsdHashTier::Impl::location_end() const {
  MutexLock lock(set_.mutex);
  return uint64_t{set_.units.size()} * SegmentSet::kUnitSlots;
}

TierStats SsdHashTier::Impl::stats() const {
  MutexLock lock(set_.mutex);
  TierStats stats;
  stats.rows = set_.rows;
  stats.row_bytes = set_.row_bytes;
  stats.stored_bytes = static_cast<int64_t>(set_.file_bytes);
  stats.device_reads = set_.reads;
  stats.device_read_bytes = set_.read_bytes;
  stats.device_written_bytes = set_.written_bytes;
  stats.appended_bytes = set_.appended_bytes;
  stats.segments = static_cast<int64_t>(set_.segments.size());
  stats.relocated_rows = set_.relocated;
  const uint64_t wanted = WantedBytes();
  stats.compaction_debt_bytes = set_.file_bytes > wanted ? static_cast<int64_t>(set_.file_bytes - wanted) : 0;
  stats.read_backend = reader_->name();
  stats.read_latency = set_.read_latency;
  stats.write_latency = set_.write_latency;
  size_t resident = sizeof(*this) + set_.units.capacity() * sizeof(SegmentSet::Unit);
  for (const auto& [segment, owner] : set_.segments) {
    stats.dead_bytes += static_cast<int64_t>(segment->dead()) * static_cast<int64_t>(segment->geometry.file_bytes_per_slot);
    resident += sizeof(Segment) + (segment->live.capacity() + segment->tombstones.capacity() + segment->last.capacity()) * 8;
    if (segment->buffer != nullptr) {
      resident += segment->used * sizeof(FooterEntry) + segment->memory_bytes;
    }
  }
  resident += set_.last_copies.size() * 32 + set_.last_copies.bucket_count() * 8;
  stats.resident_bytes = static_cast<int64_t>(resident);
  return stats;
}

// --- The public face: the process is checked first.

Result<std::unique_ptr<SsdHashTier>> SsdHashTier::Open(SsdHashOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  if (Status status = impl->Init(); !status.ok()) {
    return Status(status.code(), StrCat("open of ssdhash tier '", impl->options().directory, "': ", status.message()));
  }
  return std::unique_ptr<SsdHashTier>(new SsdHashTier(std::move(impl)));
}

SsdHashTier::SsdHashTier(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

SsdHashTier::~SsdHashTier() {
  // A forked child has none of the threads, and nothing of the files is its own.
  if (!impl_->CheckProcess().ok()) (void)impl_.release();
}

TierRecovery SsdHashTier::recovery() const { return impl_->recovery(); }
std::vector<ColumnSpec> SsdHashTier::recovered_columns() const { return impl_->recovered_columns(); }

TierCapabilities SsdHashTier::capabilities() const {
  TierCapabilities capabilities;
  capabilities.durable = true;
  capabilities.relocates = true;
  return capabilities;
}

Status SsdHashTier::SetLayout(std::shared_ptr<const RowLayout> layout) {
  MT_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->SetLayout(std::move(layout));
}
void SsdHashTier::SetRelocator(Relocator relocator) {
  if (impl_->CheckProcess().ok()) impl_->SetRelocator(std::move(relocator));
}
Status SsdHashTier::Write(Span<const WriteRecord> records, uint32_t* locations) {
  MT_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->Write(records, locations);
}
Status SsdHashTier::Read(Span<ReadRecord> records) {
  MT_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->Read(records, nullptr);
}
Status SsdHashTier::ReadAndTell(Span<ReadRecord> records, const Answered& answered) {
  MT_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->Read(records, &answered);
}
bool SsdHashTier::MayReach(uint32_t location, int64_t min_version, int64_t min_frequency) const {
  return !impl_->CheckProcess().ok() || impl_->MayReach(location, min_version, min_frequency);
}
void SsdHashTier::Free(Span<const KeyLocation> records) {
  if (impl_->CheckProcess().ok()) impl_->Free(records);
}
Status SsdHashTier::Remove(Span<const KeyLocation> records) {
  MT_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->Remove(records);
}
Status SsdHashTier::Scan(const std::function<Status(const RecordHeader&, uint32_t location)>& visit) {
  MT_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->Scan(visit);
}
uint64_t SsdHashTier::location_end() const { return impl_->CheckProcess().ok() ? impl_->location_end() : 0; }
Status SsdHashTier::Sync() {
  MT_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->Sync();
}
Status SsdHashTier::Compact() {
  MT_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->Compact();
}
SealedFiles SsdHashTier::TakeSealedFiles() { return impl_->CheckProcess().ok() ? impl_->TakeSealedFiles() : SealedFiles(); }
Status SsdHashTier::LinkSealedFile(const SealedFile& file, const std::string& to) {
  MT_RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->LinkSealedFile(file, to);
}
bool SsdHashTier::PrepareLinks(const std::string& to) { return impl_->CheckProcess().ok() && impl_->PrepareLinks(to); }
TierStats SsdHashTier::stats() const { return impl_->CheckProcess().ok() ? impl_->stats() : TierStats(); }

}  // namespace multitier
