// SsdHashTier::Impl: the tier's state, and its steps, which live in
//
//   ssdhash_tier.cc   Open, Write, Free, Remove, Sync, stats
//   read.cc           Read, Scan
//   compaction.cc     choosing, copying, relocating, deleting; tombstones
//   recovery.cc       Open of what is there
//
// Locks, outermost first:
//   compact_mutex_     a step of compaction from choice to settlement, the cold head, the relocator; held over I/O and while
//                      the relocator runs (which takes the owner's locks)
//   append_mutex_      the hot head: Write and Remove; held over the writing of its buffer
//   set_.mutex         what readers see; short, no I/O; all that Read's look-up, Free and stats take
// So whoever holds a lock of the owner may call Free, Read and stats; everything else may wait for the relocator.

#ifndef CC_TIER_SSDHASH_SSDHASH_IMPL_H_
#define CC_TIER_SSDHASH_SSDHASH_IMPL_H_

#include <sys/types.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cc/tier/ssdhash/segment_set.h"
#include "cc/tier/ssdhash/segment_writer.h"
#include "cc/tier/ssdhash/ssdhash_tier.h"

namespace multitier {

class SsdHashTier::Impl {
 public:
  explicit Impl(SsdHashOptions options);
  ~Impl();

  Status Init();
  Status CheckProcess() const;
  pid_t pid() const { return pid_; }
  const SsdHashOptions& options() const { return options_; }
  const SsdHashRecovery& recovery() const { return recovery_; }
  const std::vector<ColumnSpec>& recovered_columns() const { return recovered_columns_; }

  Status SetLayout(std::shared_ptr<const RowLayout> layout);
  void SetRelocator(Relocator relocator);
  Status Write(Span<const WriteRecord> records, uint32_t* locations);
  Status Read(Span<ReadRecord> records);
  void Free(Span<const KeyLocation> records);
  Status Remove(Span<const KeyLocation> records);
  Status Scan(const std::function<Status(const RecordHeader&, uint32_t location)>& visit);
  Status Sync();
  Status Compact();
  TierStats stats() const;

 private:
  // --- ssdhash_tier.cc
  std::shared_ptr<const RowLayout> layout() const;
  Status CheckRecords(const RowLayout& layout, Span<const WriteRecord> records) const;
  // REQUIRES: compact_mutex_ held. Both heads.
  Status SyncHeads();
  void DeleteOwnFiles();

  // --- read.cc
  struct FileRead;
  void ReadFromFiles(Span<ReadRecord> records, std::vector<FileRead>* files);
  // Row data and header of a good record, or NotFound.
  void Answer(const Segment& segment, const RecordFields& fields, ReadRecord* out) const;
  // The footer entries of a sealed segment: its footer, or, where it has none, its records.
  Status LoadEntries(const Segment& segment, std::vector<FooterEntry>* entries) const;
  // Reads records one by one up to the first bad one. *end: offset of what is bad, or of the end.
  Status ScanRecords(const Segment& segment, uint32_t max_slots, std::vector<FooterEntry>* entries, uint64_t* end) const;

  // --- compaction.cc
  // REQUIRES of these: set_.mutex held.
  uint64_t SegmentBytes() const;
  uint64_t WantedBytes() const;  // compaction is due beyond it
  Segment* ChooseVictim() const;
  // Pays for `bytes` about to be appended, before they are.
  void PayCompaction(uint64_t bytes);
  // REQUIRES of these: compact_mutex_ held.
  // One slice of work; the bytes of it, 0 where nothing is to be done.
  Result<uint64_t> CompactStep();
  Status CompactUpTo(uint64_t budget);
  struct Slice;
  Status GatherSlice(Slice* slice);
  Status CopySlice(Slice* slice);
  void RelocateSlice(Slice* slice);
  void FinishPass(bool whole);
  // Deletes sealed segments that have nothing to keep.
  Status Reap();
  // Whether tombstones of the segment may go: no other segment that may hold older records has dead ones.
  bool TombstonesMayGo(const Segment& segment);
  void CompactorThread();

  // --- recovery.cc
  Status Recover();
  Status LoadSegment(const std::string& path, std::shared_ptr<Segment>* segment, std::vector<FooterEntry>* entries);
  Status ReadInstanceId(bool* found);
  Status WriteInstanceId();

  SsdHashOptions options_;
  const pid_t pid_;
  bool ready_ = false;  // Init succeeded: the files are ours
  InstanceId instance_ = {};
  SsdHashRecovery recovery_;
  std::vector<ColumnSpec> recovered_columns_;
  std::unique_ptr<BatchReader> reader_;
  SegmentSet set_;

  mutable std::mutex layout_mutex_;
  std::shared_ptr<const RowLayout> layout_;  // guarded by layout_mutex_

  std::mutex append_mutex_;
  std::unique_ptr<SegmentWriter> hot_;  // guarded by append_mutex_
  uint64_t next_seq_ = 1;               // guarded by append_mutex_

  std::mutex compact_mutex_;  // guards all below
  std::unique_ptr<SegmentWriter> cold_;
  Relocator relocator_;
  uint64_t sweep_ = 0;               // numbers calls of CompactUpTo: nothing is passed over twice in one
  std::shared_ptr<Segment> victim_;  // being compacted
  uint32_t unreadable_ = 0;          // records of it
  uint32_t cursor_ = 0;              // next slot of it
  uint8_t* compact_buffer_ = nullptr;
  uint64_t compact_buffer_bytes_ = 0;

  std::mutex thread_mutex_;
  std::condition_variable thread_wake_;
  bool thread_stop_ = false;   // guarded by thread_mutex_
  bool thread_due_ = false;    // guarded by thread_mutex_
  std::thread thread_;
};

}  // namespace multitier

#endif  // CC_TIER_SSDHASH_SSDHASH_IMPL_H_
