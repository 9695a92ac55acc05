// SsdHashTier::Impl: the tier's state and its steps. Its files:
//
//   ssdhash_tier.cc   Open, Write, Free, Remove, Sync, stats
//   read.cc           Read, Scan
//   compaction.cc     choosing, copying, relocating, deleting; tombstones
//   listed.cc         the directory's id, and its list of synced segments
//   recovery.cc       Open of existing files
//   linked_files.cc   sealed segments that get a second name
//   sync_and_delete.cc         syncing, listing synced segments, and deleting condemned ones
//
// Locks, outermost first:
//   compact_mutex_     a step of compaction from choice to release, the cold head, the relocator; held during I/O and while
//                      the relocator runs (which takes the owner's locks)
//   append_mutex_      the hot head: Write and Remove; held while its buffer is written
//   files_mutex_      one round of syncing and deleting
//   (a writer's queue; a segment's sync_mutex: one sync of its file)
//   set_.mutex         the state that readers use; short, no I/O; the only lock of Read's look-up, Free and stats
// A caller that holds a lock of the owner may therefore call Free, Read and stats; other calls may wait for the relocator.

#ifndef CC_TIER_SSDHASH_SSDHASH_IMPL_H_
#define CC_TIER_SSDHASH_SSDHASH_IMPL_H_

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/tier/ssdhash/io_worker.h"
#include "cc/tier/ssdhash/segment_list.h"
#include "cc/tier/ssdhash/segment_set.h"
#include "cc/tier/ssdhash/segment_writer.h"
#include "cc/tier/ssdhash/ssdhash_tier.h"

namespace multitier {

// Memory that direct reads can fill.
class PageBuffer {
 public:
  // data() is null if there is no memory.
  PageBuffer(Env* env, uint64_t bytes)
      : env_(env), bytes_(bytes), data_(static_cast<uint8_t*>(env->AllocatePages(bytes, false))) {}
  ~PageBuffer() { env_->FreePages(data_, bytes_); }
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;
  uint8_t* data() const { return data_; }

 private:
  Env* const env_;
  const uint64_t bytes_;
  uint8_t* const data_;
};

class SsdHashTier::Impl {
 public:
  explicit Impl(SsdHashOptions options);
  ~Impl();

  Status Init();
  Status CheckProcess() const;
  pid_t pid() const { return pid_; }
  const SsdHashOptions& options() const { return options_; }
  const TierRecovery& recovery() const { return recovery_; }
  const std::vector<ColumnSpec>& recovered_columns() const { return recovered_columns_; }

  Status SetLayout(std::shared_ptr<const RowLayout> layout);
  void SetRelocator(Relocator relocator);
  Status Write(Span<const WriteRecord> records, uint32_t* locations);
  Status Read(Span<ReadRecord> records, const Tier::Answered* answered);
  bool MayReach(uint32_t location, int64_t min_version, int64_t min_frequency) const;
  void Free(Span<const KeyLocation> records);
  Status Remove(Span<const KeyLocation> records);
  Status Scan(const std::function<Status(const RecordHeader&, uint32_t location)>& visit);
  uint64_t location_end() const;
  Status Sync();
  Status Compact();
  SealedFiles TakeSealedFiles();
  Status LinkSealedFile(const SealedFile& file, const std::string& to) MT_EXCLUDES(files_mutex_);
  bool PrepareLinks(const std::string& to) MT_EXCLUDES(compact_mutex_);
  TierStats stats() const;

 private:
  // --- ssdhash_tier.cc
  std::shared_ptr<const RowLayout> layout() const;
  Status CheckRecords(const RowLayout& layout, Span<const WriteRecord> records) const;
  // Write all records of both heads to files, or seal their full segments.
  Status FlushHeads() MT_REQUIRES(compact_mutex_);
  Status FlushFullSegments() MT_REQUIRES(compact_mutex_);
  // Reserves room for n records in the hot head; compacts if the disk is full. May release append_mutex_ and take it again.
  Status ReserveHot(const std::shared_ptr<const RowLayout>& layout, size_t n) MT_REQUIRES(append_mutex_);
  void DeleteOwnFiles();
  Status RefuseChange(const char* operation) const;  // of a reader

  // --- read.cc
  struct FileRead;
  // Opens files as far as descriptors go, and reads what is in them.
  // `deleted` receives those whose file was deleted.
  void ReadFromFiles(Span<ReadRecord> records, std::vector<FileRead>* files, std::vector<FileRead>* deleted,
                     const Tier::Answered* answered);
  void ReadOpenFiles(Span<ReadRecord> records, Span<const FileRead> files, const Tier::Answered* answered);
  // Finds the keys of damaged records that were read by location alone, in the footers.
  void FindKeysOfDamaged(Span<ReadRecord> records);
  // Whether the segment still belongs to the tier.
  bool IsHeld(const Segment* segment) const;
  std::shared_ptr<CachedFile> FileOf(const Segment& segment) const;
  // Returns row data and header of an intact record, or NotFound.
  void Answer(const Segment& segment, const RecordFields& fields, ReadRecord* out) const;
  // The footer entries of a sealed segment, from its footer or, without one, from its records.
  // *from_footer may be null.
  Status LoadEntries(const Segment& segment, std::vector<FooterEntry>* entries, bool* from_footer) const;
  // Reads records one by one up to the last intact one, and marks the damaged ones before it.
  Status ScanRecords(const Segment& segment, std::vector<FooterEntry>* entries) const;

  // --- compaction.cc
  uint64_t SegmentBytes() const MT_REQUIRES(set_.mutex);
  uint64_t WantedBytes() const MT_REQUIRES(set_.mutex);  // compaction is due above this size
  uint64_t LimitBytes() const MT_REQUIRES(set_.mutex);   // Write keeps the files below this size
  // The best segment to compact whose share of dead records is at least `least_gain`; null: none.
  Segment* ChooseVictim(double least_gain) const MT_REQUIRES(compact_mutex_, set_.mutex);
  // Does the compaction that is due for `bytes`, before they are appended.
  void PayCompaction(uint64_t bytes);
  // For a full disk: compacts, at any cost, until a segment is free. False: compaction frees nothing. Sealing a segment also
  // frees the unused part of its file; that counts as success if `sealing_counts`.
  bool ReclaimOnFullDisk(bool sealing_counts);
  // The cold head's segment in reserve.
  Status KeepSpare() MT_REQUIRES(compact_mutex_);
  // One slice of work; the bytes of it, 0 where nothing is to be done. least_gain: see ChooseVictim.
  Result<uint64_t> CompactStep(double least_gain = 0) MT_REQUIRES(compact_mutex_);
  Status CompactUpTo(uint64_t budget) MT_REQUIRES(compact_mutex_);
  Status BeginSweepOnRequest() MT_EXCLUDES(compact_mutex_);
  struct Slice;
  Status GatherSlice(Slice* slice) MT_REQUIRES(compact_mutex_);
  Status CopySlice(Slice* slice) MT_REQUIRES(compact_mutex_);
  void RelocateSlice(Slice* slice) MT_REQUIRES(compact_mutex_);
  void FinishPass(bool whole) MT_REQUIRES(compact_mutex_);
  void FreeCompactBuffer() MT_REQUIRES(compact_mutex_);
  // Condemns sealed segments that have nothing to keep.
  Status Reap() MT_REQUIRES(compact_mutex_);
  // Whether tombstones of the segment may be dropped: no other segment that may hold older records has dead records.
  bool TombstonesMayGo(const Segment& segment) MT_REQUIRES(compact_mutex_);
  // Runs a slice of compaction in the background.
  void CompactInBackground();

  // --- sync_and_delete.cc
  // Runs a round of syncing and deleting. `everything`: after OK, all records in files at the call survive a loss of power.
  Status SyncAndDelete(bool everything) MT_EXCLUDES(files_mutex_);
  Status SyncSegments(bool everything) MT_REQUIRES(files_mutex_);
  // Writes a segment's proof. False: it could not. REQUIRES: the segment is sealed and synced, also its directory entry
  bool Prove(const std::shared_ptr<Segment>& segment) MT_REQUIRES(files_mutex_);
  // --- linked_files.cc
  // Whether the segment's file has another name, which belongs to a checkpoint: then nothing is written to it any more.
  bool IsLinked(const Segment& segment) const MT_REQUIRES(files_mutex_);

  // --- recovery.cc
  Status Recover() MT_REQUIRES(append_mutex_, files_mutex_);
  struct Loaded {
    Status status;
    std::shared_ptr<CachedFile> file;  // null: its making was interrupted, or headless
    SegmentHeader header;              // of that file
    uint64_t size = 0;                 // likewise
    bool headless = false;             // its header is lost, and there is something else
    std::shared_ptr<Segment> segment;  // null: not loaded
    std::vector<FooterEntry> entries;
  };
  // The steps of Recover, in order.
  struct Recovering;
  Status FindFiles(Recovering* found) const MT_REQUIRES(files_mutex_);
  // Loads n files from `begin` on, and takes what is in them.
  Status TakeGroup(size_t begin, size_t n, Recovering* found) MT_REQUIRES(files_mutex_);
  void Take(const std::string& path, const Loaded& loaded, Recovering* found) MT_REQUIRES(files_mutex_);
  // Adds the segments to the set. Holds the newest record of each key.
  Status HoldNewest(Recovering* found) MT_REQUIRES(append_mutex_);
  // A segment is loaded in two steps. Between them a lease is taken on the memory of the second.
  Status LoadHeader(const std::string& path, Loaded* loaded) const;
  // An existing segment's file.
  Result<std::shared_ptr<CachedFile>> FileToRead(const std::string& path) const;
  // REQUIRES: LoadHeader found a file
  Status LoadSegment(Loaded* loaded) const MT_REQUIRES(files_mutex_);
  // As LoadSegment, with the header of another segment that fits. If none fits: no segment, or DataLoss if the file has a proof
  Status LoadHeadless(const std::string& path, uint64_t id, Span<const SegmentHeader> layouts, Loaded* loaded) const
      MT_REQUIRES(files_mutex_);
  // Whether the file's trailer proves that it was synced.
  Result<bool> HasProof(const std::string& path, uint64_t id) const;
  // What changes in the directory after all files were checked. `empty`: files without records.
  Status CleanUp(Span<const std::string> empty, bool lost_headers) MT_REQUIRES(files_mutex_);
  // Loads the records after the header.
  Status LoadRecords(SegmentHeader header, const SegmentGeometry& geometry, std::shared_ptr<CachedFile> file, uint64_t size,
                     Loaded* out) const MT_REQUIRES(files_mutex_);
  void NoteDamage(const std::string& path, uint64_t offset);
  void LoadHeaders(Span<const std::string> paths, std::vector<Loaded>* out) const;
  void LoadSegments(std::vector<Loaded>* loaded) const MT_REQUIRES(files_mutex_);

  // --- listed.cc
  // Initialises an empty directory, or recovers the files in it.
  Status InitFiles() MT_REQUIRES(append_mutex_, files_mutex_);
  // What "ssd.id" says; DataLoss where it is missing or damaged.
  Result<InstanceId> ReadId() const;
  Status WriteId();
  // Makes the list what is synced by now, less `leaving`.
  Status ListSegments(Span<const std::shared_ptr<Segment>> leaving) MT_REQUIRES(files_mutex_);
  // The entry of a segment in the list; no records: it is not to be in it. REQUIRES: set_.mutex held
  static ListedSegment EntryOf(const Segment& segment);
  // Whether recovery would find what was synced: DataLoss naming the first file that was deleted, cut, or replaced by another
  // file under its name. `list`: the list, too, which is to be up to date.
  Status CheckNames(bool list) const MT_REQUIRES(files_mutex_);
  Status CheckName(const std::shared_ptr<Segment>& segment) const;
  // What the list says of the segment of a file; null: nothing, or of a later file of it.
  const ListedSegment* ListedAt(const std::string& path) const MT_REQUIRES(files_mutex_);
  // DataLoss where a file that the list names, or a later one of its segment, is missing.
  Status CheckListedFiles(Span<const std::string> paths) const MT_REQUIRES(files_mutex_);
  // DataLoss where what was read of a file is not what the list says of its segment.
  Status CheckListed(const std::string& path, const ListedSegment& listed, const Loaded& loaded) const
      MT_REQUIRES(files_mutex_);

  SsdHashOptions options_;
  const pid_t pid_;
  bool ready_ = false;  // Init succeeded: the files are ours
  InstanceId instance_ = {};
  std::unique_ptr<SegmentList> list_ MT_PT_GUARDED_BY(files_mutex_);  // null: the tier is not kept
  TierRecovery recovery_;
  std::vector<ColumnSpec> recovered_columns_;
  std::unique_ptr<BatchReader> reader_;
  SegmentSet set_;
  SegmentWriterOptions writer_options_;

  mutable Mutex layout_mutex_;
  std::shared_ptr<const RowLayout> layout_ MT_GUARDED_BY(layout_mutex_);

  Mutex append_mutex_;
  std::unique_ptr<SegmentWriter> hot_ MT_PT_GUARDED_BY(append_mutex_);
  uint64_t next_seq_ MT_GUARDED_BY(append_mutex_) = 1;

  Mutex compact_mutex_;
  std::unique_ptr<SegmentWriter> cold_ MT_PT_GUARDED_BY(compact_mutex_);
  Relocator relocator_ MT_GUARDED_BY(compact_mutex_);
  uint64_t sweep_ MT_GUARDED_BY(compact_mutex_) =
      0;  // number of the call of CompactUpTo: one call processes a segment at most once
  std::shared_ptr<Segment> victim_ MT_GUARDED_BY(compact_mutex_);  // being compacted
  uint32_t unreadable_ MT_GUARDED_BY(compact_mutex_) = 0;          // unreadable records of victim_
  uint32_t cursor_ MT_GUARDED_BY(compact_mutex_) = 0;              // next slot of victim_
  uint8_t* compact_buffer_ MT_GUARDED_BY(compact_mutex_) = nullptr;
  uint64_t compact_buffer_bytes_ MT_GUARDED_BY(compact_mutex_) = 0;
  bool disk_full_ MT_GUARDED_BY(compact_mutex_) = false;       // when the cold head asked last
  bool between_slices_ MT_GUARDED_BY(compact_mutex_) = false;  // of a sweep in the background

  std::atomic<bool> has_spare_{false};

  Mutex files_mutex_;
  IoWorker* const worker_;
  IoWorker::Job files_job_, compact_job_;
};

}  // namespace multitier

#endif  // CC_TIER_SSDHASH_SSDHASH_IMPL_H_
