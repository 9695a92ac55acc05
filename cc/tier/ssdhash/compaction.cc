// Compaction. A pass over a victim, in slices of a quarter MiB; compact_mutex_ is held over each:
//
//   1. gather    Under the set's mutex: collect the next held records and tombstones of the victim; drop tombstones that are
//                not needed any more.
//   2. read      Read their part of the file in one read. A record whose checksum does not match stays where it is.
//   3. reserve   Reserve room in the cold head. Its segments now have their ids.
//   4. check     Under the set's mutex: skip records that were freed or removed since step 1. A record is therefore copied only
//                into segments that were created before any tombstone of its key: the tombstone's horizon covers the copy.
//   5. append    Append the copies, with their old seq, and publish them as readable.
//   6. relocate  Call the relocator. Of our mutexes only compact_mutex_ is held.
//   7. release   Under the set's mutex: if moved, clear the old bit; if not moved, clear the new bit (tier.h).
//
// At the end of a pass, a victim without kept records is dead. A victim whose last records were in use is left over. It is
// tried once in each sweep (the work of one Write, or one wake-up of the thread), before other victims. With too many left-over
// victims no other pass begins, because copies of records that stay in use only take more space. Records that cannot be read
// stay in their segment.
//
// Deleting. A dead segment is condemned here. The next round of SyncAndDelete (sync_and_delete.cc) deletes its file, and then
// the units of its locations are reused. The segment, or an earlier one that is not deleted yet, may have been synced. Then the
// records that replace its records must be durable before it is deleted; else recovery could find neither. They may still be in
// memory: compaction writes them to files, and the round syncs these.
//
// Full disk. The cold head keeps a segment in reserve behind its open one. If no other segment can be created, only segments
// whose held records fit into the head's free slots are victims; each emptied one returns its space. If descriptors or memory
// run out, compaction does not run, because it would need more of them.
//
// On request (Compact) the thresholds do not apply. Each segment that is worth it is a victim once in a sweep, and sweeps
// continue while they gain space. Sweeps of other threads may run between slices; the total number of bytes read is bounded.
//
// Tombstones. A tombstone of key k with horizon h may be dropped when all of these hold: no other segment with id < h has dead
// records (only a dead record can be an older one of k, and compaction never copies dead ones); no deleted file may return (the
// directory is synced); no file is about to be deleted; no deletion has failed.
//
// Last copies (segment_set.h) are moved like held records, without the relocator: only the set refers to them.

#include <errno.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "cc/env/posix_error.h"
#include "cc/tier/ssdhash/ssdhash_impl.h"

namespace multitier {
namespace {

constexpr uint64_t kSliceBytes = 256 << 10;
constexpr int kMaxLeftOver = 2;                       // segments whose last records are in use, before no other is begun
constexpr uint64_t kPaidPerByte = 6;                  // bytes of victims worked through for each byte appended
constexpr uint64_t kPaidSegments = 16;                // at most, for a new segment
constexpr double kLeastGain = 1.0 / 16;               // of a victim, on a full disk or on request
constexpr std::chrono::microseconds kForWriters(50);  // between slices on request: lets waiting threads take compact_mutex_

}  // namespace

struct SsdHashTier::Impl::Slice {
  std::vector<uint32_t> slots;
  std::vector<LogRecord> records;  // of those that are good
  std::vector<Placement> placements;
  uint64_t bytes = 0;  // of the stretch
  bool tombstones_may_go = false;
};

uint64_t SsdHashTier::Impl::SegmentBytes() const {
  return std::clamp(static_cast<uint64_t>(set_.live_bytes) / 64, options_.min_segment_bytes, options_.max_segment_bytes);
}

uint64_t SsdHashTier::Impl::WantedBytes() const { return static_cast<uint64_t>(set_.live_bytes) * 3 / 2 + 3 * SegmentBytes(); }

uint64_t SsdHashTier::Impl::LimitBytes() const { return WantedBytes() + SegmentBytes(); }

void SsdHashTier::Impl::SetRelocator(Relocator relocator) {
  MutexLock compact(compact_mutex_);
  relocator_ = std::move(relocator);
}

void SsdHashTier::Impl::PayCompaction(uint64_t bytes) {
  worker_->Help(&files_job_);
  uint64_t budget = bytes * kPaidPerByte;
  bool behind = false;
  {
    MutexLock lock(set_.mutex);
    // The compactor in the background begins earlier, and may make a segment of its own any time.
    const uint64_t early = options_.async_compaction ? SegmentBytes() : 0;
    if (set_.file_bytes + 2 * early <= WantedBytes() && set_.maybe_dead == 0 && has_spare_) return;
    // A new segment may be about to be made: the debt is paid first, within reason.
    behind = set_.file_bytes + early + std::max(bytes, SegmentBytes()) > LimitBytes();
    if (behind) budget = std::max(budget, kPaidSegments * SegmentBytes());
  }
  if (options_.async_compaction) {
    const bool served = worker_->Schedule(&compact_job_);
    if (served && !behind && has_spare_) return;
  }
  MutexLock compact(compact_mutex_);
  // An error leaves things as they were, and shows as compaction debt; what matters of it (a full disk) Write will meet.
  if (!has_spare_) (void)KeepSpare();
  (void)CompactUpTo(budget);
  {
    MutexLock lock(set_.mutex);
    behind = set_.file_bytes + std::max(bytes, SegmentBytes()) > LimitBytes() && set_.condemned_bytes > 0;
  }
  if (behind) (void)SyncAndDelete(false);
  {
    MutexLock lock(set_.mutex);
    // Where records in use are in the way, another sweep would only copy them once more.
    behind = set_.file_bytes - set_.condemned_bytes > WantedBytes() &&
             std::none_of(set_.segments.begin(), set_.segments.end(), [](const auto& s) { return s.first->left_over; });
  }
  if (!behind) return;
  // Full segments that wait for the worker are no victims yet.
  (void)FlushFullSegments();
  (void)CompactUpTo(budget);
  (void)SyncAndDelete(false);
}

Status SsdHashTier::Impl::KeepSpare() {
  const std::shared_ptr<const RowLayout> layout = this->layout();
  const Status kept = layout == nullptr ? OkStatus() : cold_->KeepSpare(layout);
  has_spare_ = kept.ok() && layout != nullptr;
  disk_full_ = IsOutOfSpace(kept);
  return kept;
}

bool SsdHashTier::Impl::ReclaimOnFullDisk(bool sealing_counts) {
  MutexLock compact(compact_mutex_);
  const auto file_bytes = [this] {
    MutexLock lock(set_.mutex);
    return set_.file_bytes;
  };
  uint64_t before = file_bytes();
  (void)FlushFullSegments();  // victims from now on
  if (!sealing_counts) before = file_bytes();
  ++sweep_;
  for (;;) {
    if (!Reap().ok()) return false;
    // Not left to the background: the room that sealing and deleting give is needed now, and the reserve has the first claim.
    (void)FlushFullSegments();
    (void)SyncAndDelete(false);
    (void)KeepSpare();
    if (file_bytes() < before) return true;
    disk_full_ = true;
    const Result<uint64_t> step = CompactStep();
    if (!step.ok() || *step == 0) return false;
  }
}

Status SsdHashTier::Impl::CompactUpTo(uint64_t budget) {
  MT_RETURN_IF_ERROR(Reap());
  ++sweep_;
  for (uint64_t done = 0; done < budget;) {
    {
      MutexLock lock(set_.mutex);
      if (set_.file_bytes - set_.condemned_bytes <= WantedBytes()) break;
    }
    MT_ASSIGN_OR_RETURN(const uint64_t step, CompactStep());
    if (step == 0) break;
    done += step;
  }
  FreeCompactBuffer();
  return OkStatus();
}

void SsdHashTier::Impl::FreeCompactBuffer() {
  if (victim_ != nullptr) return;  // more to come
  options_.env->FreePages(compact_buffer_, compact_buffer_bytes_);
  compact_buffer_ = nullptr;
  compact_buffer_bytes_ = 0;
}

Status SsdHashTier::Impl::BeginSweepOnRequest() {
  MutexLock compact(compact_mutex_);
  (void)FlushFullSegments();  // victims from now on; what cannot be written the next Write or Sync meets
  MT_RETURN_IF_ERROR(Reap());
  (void)KeepSpare();  // there may be room again
  ++sweep_;
  return OkStatus();
}

Status SsdHashTier::Impl::Compact() {
  if (options_.read_only) return RefuseChange("compact");
  uint64_t left = 0;  // to be read
  {
    MutexLock lock(set_.mutex);
    left = set_.file_bytes;
  }
  // Sweeps for as long as they help.
  for (uint64_t before = ~uint64_t{0}; left > 0;) {
    MT_RETURN_IF_ERROR(BeginSweepOnRequest());
    for (uint64_t step = 1; step > 0 && left > 0; left -= std::min(left, step)) {
      {
        MutexLock compact(compact_mutex_);
        MT_ASSIGN_OR_RETURN(step, CompactStep(kLeastGain));
      }
      std::this_thread::sleep_for(kForWriters);
    }
    MT_RETURN_IF_ERROR(SyncAndDelete(false));
    MutexLock lock(set_.mutex);
    if (set_.file_bytes >= before) break;
    before = set_.file_bytes;
  }
  MutexLock compact(compact_mutex_);
  FreeCompactBuffer();
  if (!disk_full_) return OkStatus();
  return ResourceExhaustedError("ssdhash tier: compaction in '", options_.directory,
                                "': expected room on the disk for the records to be moved first, found none");
}

void SsdHashTier::Impl::CompactInBackground() {
  MutexLock compact(compact_mutex_);
  if (!std::exchange(between_slices_, true)) ++sweep_;
  if (Reap().ok()) {
    MutexLock set(set_.mutex);
    const bool due = set_.file_bytes - set_.condemned_bytes + 2 * SegmentBytes() > WantedBytes();
    set.Unlock();
    if (due) {
      const Result<uint64_t> step = CompactStep();
      if (step.ok() && *step > 0) {
        worker_->Schedule(&compact_job_);
        return;
      }
    }
  }
  between_slices_ = false;
  FreeCompactBuffer();
}

Segment* SsdHashTier::Impl::ChooseVictim(double least_gain) const {
  Segment* best = nullptr;
  double best_score = 0;
  Segment* oldest = nullptr;     // with dead records: what keeps tombstones
  Segment* left_over = nullptr;  // to be tried again
  int num_left_over = 0;
  const uint64_t room = cold_->free_slots();
  int64_t tombstone_bytes = 0;
  const auto now = static_cast<uint64_t>(set_.appended_bytes);
  // The two smallest ids of segments with dead records, to know what tombstones may go: as TombstonesMayGo.
  uint64_t first = ~uint64_t{0}, second = first;
  for (const auto& [segment, owner] : set_.segments) {
    if (segment->dead_records() == 0) continue;
    second = std::min(second, std::max(first, segment->header.id));
    first = std::min(first, segment->header.id);
  }
  for (const auto& [segment, owner] : set_.segments) {
    tombstone_bytes += int64_t{segment->num_tombstones} * segment->geometry.file_bytes_per_slot;
    if (!segment->sealed || segment->condemned || segment->users > 0) continue;
    if (disk_full_ && segment->kept() > room) continue;
    const bool movable = segment->num_live == 0 || relocator_ != nullptr;
    const bool tried = segment->last_sweep == sweep_;
    if (segment->left_over) {
      ++num_left_over;
      if (movable && !tried) left_over = segment;
      continue;
    }
    const uint64_t oldest_other = segment->header.id == first ? second : first;
    const bool tombstones_may_go = segment->tombstone_horizon <= oldest_other && !set_.HasStrays();
    const uint32_t dead = segment->dead() + (tombstones_may_go ? segment->num_tombstones : 0);
    const uint32_t records = segment->num_live + segment->num_last;
    const bool readable = records > segment->unreadable || records == 0;
    if (dead == 0 || !movable || tried || !readable) continue;
    if (dead < segment->used * (disk_full_ ? kLeastGain : least_gain)) continue;
    const double held = 1.0 - static_cast<double>(dead) / segment->used;
    const double score = (1 - held) * static_cast<double>(now - segment->sealed_at + 1) / (1 + held);
    if (best == nullptr || score > best_score) {
      best = segment;
      best_score = score;
    }
    if (segment->dead_records() == 0) continue;
    if (oldest == nullptr || segment->header.id < oldest->header.id) oldest = segment;
  }
  if (left_over != nullptr) return left_over;
  if (num_left_over > kMaxLeftOver) return nullptr;
  // Tombstones are dropped only after the dead records that they cover. If they pile up, clean the oldest dead records first.
  const int64_t many = set_.live_bytes / 8 + static_cast<int64_t>(SegmentBytes());
  return tombstone_bytes > many && oldest != nullptr ? oldest : best;
}

Result<uint64_t> SsdHashTier::Impl::CompactStep(double least_gain) {
  if (victim_ == nullptr) {
    MutexLock lock(set_.mutex);
    Segment* chosen = ChooseVictim(least_gain);
    if (chosen == nullptr) return uint64_t{0};
    victim_ = set_.Pin(chosen);
    ++victim_->users;
    cursor_ = 0;
    unreadable_ = 0;
  }
  Slice slice;
  Status status = GatherSlice(&slice);
  if (status.ok() && !slice.records.empty()) status = CopySlice(&slice);
  if (!status.ok()) {
    FinishPass(false);
    if (!IsOutOfSpace(status) || std::exchange(disk_full_, true)) return status;
    return uint64_t{kBlockBytes};  // another victim may fit
  }
  if (!slice.records.empty()) RelocateSlice(&slice);
  bool done = false;
  {
    MutexLock lock(set_.mutex);
    done = cursor_ >= victim_->used;
  }
  if (done) {
    FinishPass(true);
    MT_RETURN_IF_ERROR(Reap());
    (void)KeepSpare();
  }
  return std::max<uint64_t>(slice.bytes, kBlockBytes);
}

void SsdHashTier::Impl::FinishPass(bool whole) {
  MutexLock lock(set_.mutex);
  victim_->last_sweep = sweep_;
  if (whole) {
    victim_->unreadable = unreadable_;
    victim_->left_over = victim_->num_live + victim_->num_last > unreadable_;
  }
  --victim_->users;
  set_.NoteIfDead(*victim_);
  victim_.reset();
}

Status SsdHashTier::Impl::GatherSlice(Slice* slice) {
  const SegmentGeometry& geometry = victim_->geometry;
  bool has_tombstones = false;
  {
    MutexLock lock(set_.mutex);
    has_tombstones = victim_->num_tombstones > 0;
  }
  slice->tombstones_may_go = has_tombstones && TombstonesMayGo(*victim_);
  uint64_t begin = 0, end = 0;
  {
    MutexLock lock(set_.mutex);
    for (; cursor_ < victim_->used; ++cursor_) {
      const bool tombstone = victim_->is_tombstone(cursor_);
      if (tombstone && slice->tombstones_may_go) {
        victim_->ClearTombstone(cursor_);
        continue;
      }
      if (!tombstone && !victim_->is_last(cursor_) && !(victim_->is_live(cursor_) && relocator_ != nullptr)) continue;
      const uint64_t offset = geometry.RecordOffset(cursor_);
      if (!slice->slots.empty() && offset + geometry.record_bytes - begin > kSliceBytes) break;
      if (slice->slots.empty()) begin = RoundDownToBlock(offset);
      end = RoundUpToBlock(offset + geometry.record_bytes);
      slice->slots.push_back(cursor_);
    }
  }
  slice->bytes = end - begin;
  if (slice->slots.empty()) return OkStatus();
  if (compact_buffer_bytes_ < slice->bytes) {
    options_.env->FreePages(compact_buffer_, compact_buffer_bytes_);
    compact_buffer_ = nullptr;
    compact_buffer_bytes_ = std::max(slice->bytes, kSliceBytes + 2 * kBlockBytes);
    compact_buffer_ = static_cast<uint8_t*>(options_.env->AllocatePages(compact_buffer_bytes_, false));
    if (compact_buffer_ == nullptr) {
      compact_buffer_bytes_ = 0;
      return Status(StatusCode::kResourceExhausted, "ssdhash tier: no memory for compaction", ENOMEM);
    }
  }
  MT_ASSIGN_OR_RETURN(const std::shared_ptr<PositionedFile> file, FileOf(*victim_)->Open());
  MT_RETURN_IF_ERROR(file->Read(begin, slice->bytes, compact_buffer_));
  size_t good = 0;
  for (const uint32_t slot : slice->slots) {
    RecordFields fields;
    if (!DecodeRecord(geometry, slot, compact_buffer_ + (geometry.RecordOffset(slot) - begin), true, &fields)) {
      MutexLock lock(set_.mutex);
      ++set_.corrupt;
      unreadable_ += victim_->is_live(slot) || victim_->is_last(slot) ? 1 : 0;
      continue;
    }
    // What the slot had room for, zeros past the record's columns included.
    slice->records.push_back(LogRecord{fields.header, fields.seq, fields.flags, fields.row_data, geometry.row_bytes});
    slice->slots[good++] = slot;
  }
  slice->slots.resize(good);
  return OkStatus();
}

Status SsdHashTier::Impl::CopySlice(Slice* slice) {
  const std::shared_ptr<const RowLayout> layout = this->layout();
  if (layout == nullptr) return FailedPreconditionError("ssdhash tier: compaction before SetLayout");
  MT_RETURN_IF_ERROR(cold_->Reserve(layout, slice->records.size()));
  {
    MutexLock lock(set_.mutex);
    size_t kept = 0;
    for (size_t i = 0; i < slice->slots.size(); ++i) {
      const uint32_t slot = slice->slots[i];
      if (!victim_->is_live(slot) && !victim_->is_tombstone(slot) && !victim_->is_last(slot)) continue;
      slice->slots[kept] = slice->slots[i];
      slice->records[kept++] = slice->records[i];
    }
    slice->slots.resize(kept);
    slice->records.resize(kept);
  }
  slice->placements.clear();
  return cold_->Append(slice->records, &slice->placements);
}

void SsdHashTier::Impl::RelocateSlice(Slice* slice) {
  std::vector<Relocation> batch;
  std::vector<size_t> of;  // the slice's record of each relocation
  {
    MutexLock lock(set_.mutex);
    for (size_t i = 0; i < slice->placements.size(); ++i) {
      Segment* to = slice->placements[i].segment;
      const uint32_t slot = slice->placements[i].slot;
      if ((slice->records[i].flags & kTombstoneFlag) != 0) {
        to->SetTombstone(slot);
        to->tombstone_horizon = std::max(to->tombstone_horizon, victim_->tombstone_horizon);
        victim_->ClearTombstone(slice->slots[i]);
        continue;
      }
      if (!victim_->is_live(slice->slots[i])) {  // a last copy, unless it has been superseded: only the segments know of it
        const int64_t key = slice->records[i].header.key;
        if (victim_->is_last(slice->slots[i])) set_.MoveLast(key, victim_.get(), slice->slots[i], to, slot);
        continue;
      }
      to->SetLive(slot);  // readable; counted as held only once it has moved
      batch.push_back(Relocation{slice->records[i].header.key, set_.LocationOf(*victim_, slice->slots[i]),
                                 set_.LocationOf(*to, slot), false});
      of.push_back(i);
    }
  }
  if (!batch.empty()) relocator_(Span<Relocation>(batch));
  MutexLock lock(set_.mutex);
  for (size_t r = 0; r < batch.size(); ++r) {
    Segment* to = slice->placements[of[r]].segment;
    if (batch[r].moved) {
      set_.Hold(*to, 1);
      set_.Release(victim_.get(), slice->slots[of[r]]);
      ++set_.relocated;
    } else {
      to->ClearLive(slice->placements[of[r]].slot);
    }
  }
  cold_->Published();
}

bool SsdHashTier::Impl::TombstonesMayGo(const Segment& segment) {
  bool sync = false;
  {
    MutexLock lock(set_.mutex);
    if (set_.HasStrays()) return false;
    for (const auto& [other, owner] : set_.segments) {
      if (other != &segment && other->header.id < segment.tombstone_horizon && other->dead_records() > 0) return false;
    }
    sync = std::exchange(set_.unlinked, false);
  }
  if (!sync || CachedFile::SyncDir(options_.env, options_.directory).ok()) return true;
  MutexLock lock(set_.mutex);
  set_.unlinked = true;
  return false;
}

Status SsdHashTier::Impl::Reap() {
  std::vector<std::shared_ptr<Segment>> dead;
  bool synced = false;
  {
    MutexLock lock(set_.mutex);
    if (set_.maybe_dead == 0) return OkStatus();
    for (const auto& [segment, owner] : set_.segments) {
      // What replaced records of a synced segment may be dead by now, too, and was never synced itself: as long as the synced
      // one is not deleted, what came after it must not be in memory alone.
      const bool leaving = segment->condemned;
      if (!leaving && (!segment->sealed || segment->users > 0 || segment->kept() > 0)) continue;
      synced = synced || segment->synced_writes > 0;
      if (!leaving) dead.push_back(owner);
    }
    set_.maybe_dead = 0;
  }
  if (dead.empty()) return OkStatus();
  const Status flushed = synced ? FlushHeads() : OkStatus();
  MutexLock lock(set_.mutex);
  if (!flushed.ok()) {
    ++set_.maybe_dead;
    return flushed;
  }
  // Only now: until what replaces it is in files, a round of SyncAndDelete must still sync it.
  for (auto& segment : dead) {
    segment->condemned = true;
    set_.condemned_bytes += segment->file_bytes;
    set_.condemned.push_back(std::move(segment));
  }
  worker_->Schedule(&files_job_);
  return OkStatus();
}

}  // namespace multitier
