// Sealed segments in checkpoints: a save gives a segment's file a second name, in place of writing its rows again
// (checkpoint_files/linked_rows.h).
//
//   0. seal   Full segments whose end is not written yet are sealed first, on the thread that asks. Sealed files are synced, so
//             that step 2 rarely has to: operations that change rows may have to wait until all files are linked.
//   1. take   Under the set's mutex: the bits of the held records are copied. Until the taker lets go of the file, the segment
//             counts as used: it is neither compacted nor deleted.
//   2. link   After a sync. Under files_mutex_, so that no proof is being written to the file, and a file that is rewritten
//             has a name.
// Nothing else is needed afterwards: the only write to a sealed file is that of its proof, which a linked file does not get.
// Compaction copies records into other files, and deleting a segment removes the tier's name alone.

#include <memory>
#include <utility>
#include <vector>

#include "cc/tier/ssdhash/ssdhash_impl.h"

namespace multitier {

static_assert(SealedFile::kRun == SegmentSet::kUnitSlots, "a unit is a run of locations");

SealedFiles SsdHashTier::Impl::TakeSealedFiles() {
  SealedFiles taken;
  MutexLock lock(set_.mutex);
  taken.rows = set_.rows;
  if (options_.read_only) return taken;  // another process may delete the names of its files
  for (const auto& [segment, owner] : set_.segments) {
    const uint64_t held_bytes = uint64_t{segment->num_live} * segment->geometry.record_bytes;
    const bool pays = 2 * uint64_t{segment->num_live} >= segment->used && held_bytes >= kLeastLinkedBytes;
    const bool whole =
        segment->sealed && !segment->condemned && !segment->sync_failed && !segment->header_lost && !segment->found_damaged;
    if (!whole || !pays || segment->users > 0 || segment->unreadable > 0) continue;
    SealedFile file;
    file.path = segment->file->path();
    file.bytes = segment->file_bytes;
    file.slots = segment->used;
    file.rows = segment->num_live;
    file.held.assign(segment->live.begin(), segment->live.begin() + (segment->used + 63) / 64);
    for (const uint32_t unit : segment->units) file.locations.push_back(unit * SegmentSet::kUnitSlots);
    file.locations.resize((segment->used + SegmentSet::kUnitSlots - 1) / SegmentSet::kUnitSlots);
    ++segment->users;
    file.hold = std::shared_ptr<const Segment>(owner.get(), [this, owner = owner](const Segment*) {
      MutexLock set(set_.mutex);
      --owner->users;
      set_.NoteIfDead(*owner);
    });
    taken.files.push_back(std::move(file));
  }
  lock.Unlock();
  for (SealedFile& file : taken.files) file.header = static_cast<const Segment*>(file.hold.get())->header.Encode();
  return taken;
}

Status SsdHashTier::Impl::LinkSealedFile(const SealedFile& file, const std::string& to) {
  auto* const segment = const_cast<Segment*>(static_cast<const Segment*>(file.hold.get()));  // the set's own
  bool synced;
  {
    MutexLock lock(set_.mutex);
    synced = segment->synced_writes == segment->writes;
  }
  // Linux reports a failed write to one sync. The tier must see it, so that it rewrites the file and no save links it.
  if (!synced) MT_RETURN_IF_ERROR(set_.Sync(segment));
  MutexLock round(files_mutex_);
  return options_.env->LinkFile(FileOf(*segment)->path(), to);
}

bool SsdHashTier::Impl::PrepareLinks(const std::string& to) {
  if (options_.read_only || !options_.env->LinkFile(options_.directory + "/ssd.id", to).ok()) return false;
  if (!options_.env->DeleteFile(to).ok()) return false;
  {
    MutexLock compact(compact_mutex_);
    (void)FlushFullSegments();  // what cannot be written is not sealed, and the next Write or Sync meets the error
  }
  std::vector<std::shared_ptr<Segment>> unsynced;
  {
    MutexLock lock(set_.mutex);
    for (const auto& [segment, owner] : set_.segments) {
      const bool wanted = segment->sealed && !segment->condemned && !segment->sync_failed;
      if (wanted && segment->synced_writes != segment->writes) unsynced.push_back(owner);
    }
  }
  for (const std::shared_ptr<Segment>& segment : unsynced) (void)set_.Sync(segment.get());  // one that fails is not taken
  return true;
}

bool SsdHashTier::Impl::IsLinked(const Segment& segment) const {
  const Result<uint64_t> names = options_.env->CountNames(FileOf(segment)->path());
  return names.ok() && *names > 1;
}

}  // namespace multitier
