// Compaction. A pass over a victim, in slices of a quarter MiB; compact_mutex_ is held over each:
//
//   1. gather    under the set's mutex: the next held records and tombstones of the victim; tombstones that may go are dropped
//   2. read      their stretch of the file, in one read; a record whose checksum does not match stays where it is
//   3. reserve   room in the cold head. Its segments have their ids now
//   4. check     under the set's mutex: what was freed or removed since 1 is left out. So a record is copied only into
//                segments that were made before any tombstone of its key: the tombstone's horizon covers the copy
//   5. append    copies, with their old seq, and publish them as readable
//   6. relocate  ask the relocator, no mutex of ours but compact_mutex_ held
//   7. settle    under the set's mutex: moved, the old bit is cleared; not moved, the new one (tier.h)
//
// At the end of a pass a victim with nothing left is dead. One whose last records were in use is left over: it is tried once
// in each sweep (what one Write pays for, one wake-up of the thread), before others, and with too many of them no other pass
// begins: copying what cannot be given up would only take more space. Records that cannot be read stay, for good.
//
// Deleting: before a dead segment's file goes, both heads are synced: what made its records dead may be newer records that
// are only in memory, and recovery must not find neither. Units of its locations are reused after that.
//
// Tombstones: one of key k with horizon h may go once no other segment with id < h has dead records (only a dead record can
// be an older one of k; compaction never copies dead ones), no deleted file may come back (directory synced) and none
// refused to be deleted.

#include <algorithm>
#include <cstring>
#include <utility>

#include "cc/tier/ssdhash/ssdhash_impl.h"

namespace multitier {
namespace {

constexpr uint64_t kSliceBytes = 256 << 10;
constexpr int kMaxLeftOver = 2;                // segments whose last records are in use, before no other is begun
constexpr uint64_t kPaidPerByte = 6;           // bytes of victims worked through for each byte appended
constexpr uint64_t kPaidSegments = 16;         // at most, for a new segment

}  // namespace

struct SsdHashTier::Impl::Slice {
  std::vector<uint32_t> slots;
  std::vector<LogRecord> records;        // of those that are good
  std::vector<Placement> placements;
  uint64_t bytes = 0;                    // of the stretch
  bool tombstones_may_go = false;
};

uint64_t SsdHashTier::Impl::SegmentBytes() const {
  return std::clamp(static_cast<uint64_t>(set_.live_bytes) / 64, options_.min_segment_bytes, options_.max_segment_bytes);
}

uint64_t SsdHashTier::Impl::WantedBytes() const {
  return static_cast<uint64_t>(set_.live_bytes) * 3 / 2 + 2 * SegmentBytes();
}

void SsdHashTier::Impl::SetRelocator(Relocator relocator) {
  std::lock_guard<std::mutex> compact(compact_mutex_);
  relocator_ = std::move(relocator);
}

void SsdHashTier::Impl::PayCompaction(uint64_t bytes) {
  uint64_t budget = bytes * kPaidPerByte;
  {
    std::lock_guard<std::mutex> lock(set_.mutex);
    const bool due = set_.file_bytes > WantedBytes() || set_.maybe_dead > 0;
    if (!due) return;
    // A new segment is about to be made: the debt is paid first, within reason.
    if (set_.file_bytes > WantedBytes() + SegmentBytes()) budget = std::max(budget, kPaidSegments * SegmentBytes());
    const bool behind = set_.file_bytes > WantedBytes() + 2 * SegmentBytes();
    if (options_.async_compaction && !behind) budget = 0;
  }
  if (options_.async_compaction) {
    {
      std::lock_guard<std::mutex> lock(thread_mutex_);
      thread_due_ = true;
    }
    thread_wake_.notify_one();
  }
  if (budget == 0) return;
  std::lock_guard<std::mutex> compact(compact_mutex_);
  // An error leaves things as they were, and shows as compaction debt; what matters of it (a full disk) Write will meet.
  (void)CompactUpTo(budget);
}

Status SsdHashTier::Impl::CompactUpTo(uint64_t budget) {
  MT_RETURN_IF_ERROR(Reap());
  ++sweep_;
  for (uint64_t done = 0; done < budget;) {
    {
      std::lock_guard<std::mutex> lock(set_.mutex);
      if (set_.file_bytes <= WantedBytes()) break;
    }
    MT_ASSIGN_OR_RETURN(const uint64_t step, CompactStep());
    if (step == 0) break;
    done += step;
  }
  return OkStatus();
}

Status SsdHashTier::Impl::Compact() {
  std::lock_guard<std::mutex> compact(compact_mutex_);
  // Sweeps for as long as they help.
  for (uint64_t before = ~uint64_t{0};;) {
    MT_RETURN_IF_ERROR(CompactUpTo(~uint64_t{0}));
    std::lock_guard<std::mutex> lock(set_.mutex);
    if (set_.file_bytes <= WantedBytes() || set_.file_bytes >= before) return OkStatus();
    before = set_.file_bytes;
  }
}

void SsdHashTier::Impl::CompactorThread() {
  std::unique_lock<std::mutex> lock(thread_mutex_);
  while (!thread_stop_) {
    thread_wake_.wait(lock, [this] { return thread_stop_ || thread_due_; });
    thread_due_ = false;
    lock.unlock();
    {
      std::lock_guard<std::mutex> compact(compact_mutex_);
      ++sweep_;
    }
    bool more = true;
    while (more) {
      {
        std::lock_guard<std::mutex> stop(thread_mutex_);
        if (thread_stop_) return;
      }
      std::lock_guard<std::mutex> compact(compact_mutex_);
      more = Reap().ok();
      if (more) {
        std::unique_lock<std::mutex> set(set_.mutex);
        more = set_.file_bytes > WantedBytes();
        set.unlock();
      }
      if (more) {
        const Result<uint64_t> step = CompactStep();
        more = step.ok() && *step > 0;
      }
    }
    lock.lock();
  }
}

Segment* SsdHashTier::Impl::ChooseVictim() const {
  Segment* best = nullptr;
  double best_score = 0;
  Segment* oldest = nullptr;     // with dead records: what keeps tombstones
  Segment* left_over = nullptr;  // to be tried again
  int num_left_over = 0;
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
    if (!segment->sealed || segment->users > 0) continue;
    const bool movable = segment->num_live == 0 || relocator_ != nullptr;
    const bool tried = segment->last_sweep == sweep_;
    if (segment->left_over) {
      ++num_left_over;
      if (movable && !tried) left_over = segment;
      continue;
    }
    const uint64_t oldest_other = segment->header.id == first ? second : first;
    const bool tombstones_may_go = segment->tombstone_horizon <= oldest_other && set_.undeleted.empty();
    const uint32_t dead = segment->dead() + (tombstones_may_go ? segment->num_tombstones : 0);
    const bool readable = segment->num_live > segment->unreadable || segment->num_live == 0;
    if (dead == 0 || !movable || tried || !readable) continue;
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
  // Tombstones go only once the dead records they cover are gone: where they pile up, the oldest dead are what to clean.
  const int64_t many = set_.live_bytes / 8 + static_cast<int64_t>(SegmentBytes());
  return tombstone_bytes > many && oldest != nullptr ? oldest : best;
}

Result<uint64_t> SsdHashTier::Impl::CompactStep() {
  if (victim_ == nullptr) {
    std::lock_guard<std::mutex> lock(set_.mutex);
    Segment* chosen = ChooseVictim();
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
    return status;
  }
  if (!slice.records.empty()) RelocateSlice(&slice);
  bool done = false;
  {
    std::lock_guard<std::mutex> lock(set_.mutex);
    done = cursor_ >= victim_->used;
  }
  if (done) {
    FinishPass(true);
    MT_RETURN_IF_ERROR(Reap());
  }
  return std::max<uint64_t>(slice.bytes, kBlockBytes);
}

void SsdHashTier::Impl::FinishPass(bool whole) {
  std::lock_guard<std::mutex> lock(set_.mutex);
  victim_->last_sweep = sweep_;
  if (whole) {
    victim_->unreadable = unreadable_;
    victim_->left_over = victim_->num_live > unreadable_;
  }
  --victim_->users;
  set_.NoteIfDead(*victim_);
  victim_.reset();
}

Status SsdHashTier::Impl::GatherSlice(Slice* slice) {
  const SegmentGeometry& geometry = victim_->geometry;
  bool has_tombstones = false;
  {
    std::lock_guard<std::mutex> lock(set_.mutex);
    has_tombstones = victim_->num_tombstones > 0;
  }
  slice->tombstones_may_go = has_tombstones && TombstonesMayGo(*victim_);
  uint64_t begin = 0, end = 0;
  {
    std::lock_guard<std::mutex> lock(set_.mutex);
    for (; cursor_ < victim_->used; ++cursor_) {
      const bool tombstone = victim_->is_tombstone(cursor_);
      if (tombstone && slice->tombstones_may_go) {
        victim_->ClearTombstone(cursor_);
        continue;
      }
      if (!tombstone && !(victim_->is_live(cursor_) && relocator_ != nullptr)) continue;
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
    compact_buffer_bytes_ = std::max(slice->bytes, kSliceBytes + 2 * kBlockBytes);
    compact_buffer_ = static_cast<uint8_t*>(options_.env->AllocatePages(compact_buffer_bytes_, false));
    if (compact_buffer_ == nullptr) {
      compact_buffer_bytes_ = 0;
      return ResourceExhaustedError("ssdhash tier: no memory for compaction");
    }
  }
  MT_RETURN_IF_ERROR(victim_->file->Read(begin, slice->bytes, compact_buffer_));
  size_t good = 0;
  for (const uint32_t slot : slice->slots) {
    RecordFields fields;
    if (!DecodeRecord(geometry, slot, compact_buffer_ + (geometry.RecordOffset(slot) - begin), true, &fields)) {
      std::lock_guard<std::mutex> lock(set_.mutex);
      ++set_.corrupt;
      unreadable_ += victim_->is_live(slot) ? 1 : 0;
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
    std::lock_guard<std::mutex> lock(set_.mutex);
    size_t kept = 0;
    for (size_t i = 0; i < slice->slots.size(); ++i) {
      if (!victim_->is_live(slice->slots[i]) && !victim_->is_tombstone(slice->slots[i])) continue;
      slice->slots[kept] = slice->slots[i];
      slice->records[kept++] = slice->records[i];
    }
    slice->slots.resize(kept);
    slice->records.resize(kept);
  }
  return cold_->Append(slice->records, &slice->placements);
}

void SsdHashTier::Impl::RelocateSlice(Slice* slice) {
  std::vector<Relocation> batch;
  std::vector<size_t> of;  // the slice's record of each relocation
  {
    std::lock_guard<std::mutex> lock(set_.mutex);
    for (size_t i = 0; i < slice->placements.size(); ++i) {
      Segment* to = slice->placements[i].segment;
      const uint32_t slot = slice->placements[i].slot;
      if ((slice->records[i].flags & kTombstoneFlag) != 0) {
        to->SetTombstone(slot);
        to->tombstone_horizon = std::max(to->tombstone_horizon, victim_->tombstone_horizon);
        victim_->ClearTombstone(slice->slots[i]);
        continue;
      }
      to->SetLive(slot);  // readable; counted as held only once it has moved
      batch.push_back(Relocation{slice->records[i].header.key, set_.LocationOf(*victim_, slice->slots[i]),
                                 set_.LocationOf(*to, slot), false});
      of.push_back(i);
    }
  }
  if (!batch.empty()) relocator_(Span<Relocation>(batch));
  std::lock_guard<std::mutex> lock(set_.mutex);
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
    std::lock_guard<std::mutex> lock(set_.mutex);
    if (!set_.undeleted.empty()) return false;
    for (const auto& [other, owner] : set_.segments) {
      if (other != &segment && other->header.id < segment.tombstone_horizon && other->dead() > 0) return false;
    }
    sync = std::exchange(set_.unlinked, false);
  }
  if (!sync || options_.env->SyncDir(options_.directory).ok()) return true;
  std::lock_guard<std::mutex> lock(set_.mutex);
  set_.unlinked = true;
  return false;
}

Status SsdHashTier::Impl::Reap() {
  std::vector<std::shared_ptr<Segment>> dead;
  std::vector<std::string> undeleted;
  {
    std::lock_guard<std::mutex> lock(set_.mutex);
    if (set_.maybe_dead == 0 && set_.undeleted.empty()) return OkStatus();
    for (const auto& [segment, owner] : set_.segments) {
      const bool keeps = segment->num_live > 0 || segment->num_tombstones > 0;
      if (segment->sealed && segment->users == 0 && !keeps) dead.push_back(owner);
    }
    undeleted.swap(set_.undeleted);
    set_.maybe_dead = 0;
  }
  for (const std::string& path : undeleted) set_.DeleteFile(options_.env, path);
  if (dead.empty()) return OkStatus();
  if (Status synced = SyncHeads(); !synced.ok()) {
    std::lock_guard<std::mutex> lock(set_.mutex);
    ++set_.maybe_dead;
    return synced;
  }
  for (const auto& segment : dead) {
    {
      std::lock_guard<std::mutex> lock(set_.mutex);
      set_.Erase(segment.get());
    }
    set_.DeleteFile(options_.env, segment->path);
  }
  return OkStatus();
}

}  // namespace multitier
