// SyncAndDelete: syncs the files of segments, lists what is synced, and deletes condemned segments. It runs in rounds, one at a
// time (files_mutex_), in the background or on the thread that needs the result:
//
//   1. take     the condemned segments, and the segments whose files have unsynced writes: all of them where the caller wants
//               everything synced, or where a condemned one was ever synced; else the sealed ones, of a tier that is kept
//   2. rewrite  sealed ones whose last sync failed (an open one is rewritten by its head)
//   3. sync     each file, then the directory once. A file whose sync failed, here or its writer's (SegmentSet::Sync), is not
//               trusted, and never synced again
//   4. prove    in the trailers of sealed ones that they were synced, entry and all, but not of those that a checkpoint has
//               linked. A proof is never synced itself: where it is lost, or was not written, recovery reads all records, not
//               the footer alone
//   5. list     of a tier that is kept: what is synced (segment_list.h), where everything was to be synced, or a condemned
//               segment is in the list
//   6. delete   the condemned, if all that was to be synced is, and the list does not name them
//   7. check    of a tier that is kept, where everything was to be synced: that names still stand for the files that were
//               synced (listed.cc)
//
// A tier that is not kept syncs nothing until Sync asks for it: after that only what replaces synced records.

#include <algorithm>
#include <utility>

#include "cc/tier/ssdhash/ssdhash_impl.h"

namespace multitier {

Status SsdHashTier::Impl::SyncAndDelete(bool everything) {
  MutexLock round(files_mutex_);
  std::vector<std::shared_ptr<Segment>> condemned;
  std::vector<std::string> undeleted;
  bool was_synced = false;
  {
    MutexLock lock(set_.mutex);
    condemned.swap(set_.condemned);
    undeleted.swap(set_.undeleted);
    set_.deleting += static_cast<int>(undeleted.size());
    for (const auto& segment : condemned) was_synced = was_synced || segment->synced_writes > 0;
  }
  for (const std::string& path : undeleted) {
    set_.DeleteFile(options_.env, path);
    MutexLock lock(set_.mutex);
    --set_.deleting;
  }
  const Status synced = SyncSegments(everything || was_synced);
  std::vector<std::shared_ptr<Segment>> deletable;
  {
    MutexLock lock(set_.mutex);
    for (auto& segment : condemned) {
      const bool may_go = synced.ok() || segment->synced_writes == 0;
      (may_go ? deletable : set_.condemned).push_back(std::move(segment));
    }
  }
  Status listed;
  const auto named = [this](const auto& segment)
                         MT_REQUIRES(files_mutex_) { return list_ != nullptr && list_->Named(segment->header.id); };
  bool leave = false;  // the list on the disk names no segment of `deletable`
  if (list_ != nullptr && synced.ok() && (everything || std::any_of(deletable.begin(), deletable.end(), named))) {
    listed = ListSegments(deletable);
    leave = listed.ok();
  }
  for (const auto& segment : deletable) {
    if (!leave && named(segment)) {
      MutexLock lock(set_.mutex);
      set_.condemned.push_back(segment);
      continue;
    }
    {
      MutexLock lock(set_.mutex);
      set_.Erase(segment.get());
      ++set_.deleting;
    }
    set_.DeleteFile(options_.env, segment->file->path());
    MutexLock lock(set_.mutex);
    --set_.deleting;
  }
  if (list_ != nullptr) list_->KeepRoom();
  const Status status = synced.ok() ? listed : synced;
  return status.ok() && list_ != nullptr && everything ? CheckNames(/*list=*/true) : status;
}

Status SsdHashTier::Impl::SyncSegments(bool everything) {
  std::vector<std::shared_ptr<Segment>> failed, targets;
  Status status;
  const auto note = [&status](const Status& s) {
    if (status.ok() && !s.ok()) status = s;
  };
  {
    MutexLock lock(set_.mutex);
    for (const auto& [segment, owner] : set_.segments) {
      if (segment->sync_failed && segment->sealed && !segment->condemned) failed.push_back(owner);
    }
  }
  for (const auto& segment : failed) note(RewriteSealed(writer_options_, &set_, segment));
  bool new_entries = false;
  {
    MutexLock lock(set_.mutex);
    for (const auto& [segment, owner] : set_.segments) {
      const bool due = everything || (options_.keep && segment->sealed);
      if (!due || segment->condemned || segment->writes == 0 || !segment->dirty()) continue;
      targets.push_back(owner);
      new_entries = new_entries || !segment->entry_synced;
    }
  }
  for (std::shared_ptr<Segment>& target : targets) {
    const Status synced = set_.Sync(target.get());
    if (synced.ok()) continue;
    note(synced);
    target = nullptr;
  }
  if (new_entries) {
    if (Status synced = CachedFile::SyncDir(options_.env, options_.directory); !synced.ok()) {
      note(synced);
      return status;
    }
  }
  std::vector<std::shared_ptr<Segment>> provable;
  {
    MutexLock lock(set_.mutex);
    for (const std::shared_ptr<Segment>& target : targets) {
      if (target != nullptr) target->entry_synced = true;
    }
    for (const auto& [segment, owner] : set_.segments) {
      const bool synced = segment->sealed && segment->footer_bytes > 0 && !segment->dirty() && !segment->sync_failed;
      if (synced && !segment->condemned && !segment->proven) provable.push_back(owner);
    }
  }
  for (const std::shared_ptr<Segment>& segment : provable) {
    if (IsLinked(*segment)) continue;
    if (!Prove(segment)) break;  // the others will not fare better; the next round tries again
  }
  return status;
}

bool SsdHashTier::Impl::Prove(const std::shared_ptr<Segment>& segment) {
  const PageBuffer block(options_.env, kBlockBytes);
  const std::shared_ptr<CachedFile> read = FileOf(*segment);
  const uint64_t offset = segment->footer_offset + segment->footer_bytes - kBlockBytes;
  const auto prove = [&]() -> Status {
    if (block.data() == nullptr) return ResourceExhaustedError("no memory for ", kBlockBytes, " bytes");
    MT_ASSIGN_OR_RETURN(const std::shared_ptr<PositionedFile> from, read->Open());
    MT_RETURN_IF_ERROR(from->Read(offset, kBlockBytes, block.data()));
    SegmentTrailer trailer;
    if (!DecodeTrailer(segment->geometry.seed, block.data(), &trailer)) return DataLossError("the trailer is missing");
    ProveTrailer(segment->geometry.seed, block.data());
    MT_ASSIGN_OR_RETURN(const std::unique_ptr<PositionedFile> to,
                        options_.env->OpenPositionedFile(read->path(), Env::OpenMode::kWrite, options_.direct_io));
    return to->Write(offset, block.data(), kBlockBytes);
  };
  const bool proven = prove().ok();
  MutexLock lock(set_.mutex);
  segment->proven = proven;
  if (proven) set_.written_bytes += static_cast<int64_t>(kBlockBytes);
  return proven;
}

}  // namespace multitier
