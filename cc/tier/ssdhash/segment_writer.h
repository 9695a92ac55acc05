// SegmentWriter: one append head of the log: an open segment, and full segments that are being written.
//
//   Append --> open draft --full--> queue --> IoWorker, or a thread that needs the result --> sealed
//
// The tier has two heads: the hot head for Write and Remove, and the cold head for records that compaction keeps. Records of
// similar age and use are therefore in the same segments and become dead at about the same time.
//
//   1. Reserve   Creates the segments for a batch and preallocates their files. A full disk is an error here, before any
//                change.
//   2. Append    Encodes records into the open draft. Its full buffers are written in the background, one at a time. A full
//                draft is queued; its rest, footer and size are written in the background too. Records that are not yet in the
//                file are read from memory. A record is held and readable after the caller has published it in the SegmentSet.
//   3. Flush     Writes all appended records to files and seals the full ones (FlushFull: only these). Syncs nothing, except
//                files without direct I/O, which are synced at each write.
//
// A draft that could not be finished stays readable. The head then accepts no records until the next Reserve or Flush has
// repaired it. The queue holds at most kMaxQueuedBytes of buffers and entries; beyond that, Append finishes drafts itself.
//
// Not thread-safe: its owner's lock guards it (ssdhash_impl.h). The queue has its own mutex; under it only SegmentSet's lock is
// taken.

#ifndef CC_TIER_SSDHASH_SEGMENT_WRITER_H_
#define CC_TIER_SSDHASH_SEGMENT_WRITER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/row/row_layout.h"
#include "cc/tier/ssdhash/segment_draft.h"
#include "cc/tier/ssdhash/segment_set.h"

namespace multitier {

// The place of an appended record.
struct Placement {
  Segment* segment = nullptr;
  uint32_t slot = 0;
};

class SegmentWriter {
 public:
  static constexpr uint64_t kMaxQueuedBytes = 8 << 20;
  // Memory of finished drafts that the next drafts reuse: touching new memory costs as much as filling it.
  static constexpr size_t kMaxSpareMemory = 2;

  // `sealed` is called, on any thread, after segments were finished in the background.
  SegmentWriter(SegmentWriterOptions options, SegmentSet* set, std::function<void()> sealed);
  ~SegmentWriter();

  // Reserves room for n records of the layout. After an error only segments for the next call may have been created.
  Status Reserve(const std::shared_ptr<const RowLayout>& layout, size_t n);
  // Ensures that a segment is in reserve behind the open one, not much smaller than a new one, so that the head can continue
  // when the disk is full; two if none is open. A new file is larger than a sealed one. When records of a victim fill the open
  // segment, sealing it and deleting the victim together free enough for the next one in reserve.
  Status KeepSpare(const std::shared_ptr<const RowLayout>& layout);
  // Appends reserved records, all at once or in pieces. Adds to *placements; their segments are in use until Published. After
  // an error the slots taken so far are dead, and the caller must publish none of them.
  Status Append(const std::vector<LogRecord>& records, std::vector<Placement>* placements);
  // Releases the segments of the records appended since the last call. REQUIRES: SegmentSet::mutex held. (Not checked: the
  // analysis cannot see that the caller's SegmentSet is this one.)
  void Published() MT_NO_THREAD_SAFETY_ANALYSIS;
  Status Flush();
  Status FlushFull();
  // Seals the open segment, if any, and all earlier ones, and deletes the segments in reserve.
  Status Close();

  // The number of slots that are free without a new segment.
  uint64_t free_slots() const;

 private:
  // The size of a new segment.
  uint64_t SegmentBytes() const;
  Result<std::shared_ptr<Segment>> CreateSegment(const RowLayout& layout, uint64_t bytes);
  Status OpenNext();
  // Queues the open draft.
  void QueueOpen();
  // Finishes queued drafts on this thread until at most `bytes` of buffers are queued.
  void HelpUntil(uint64_t bytes);
  // Finishes the oldest queued draft; false: none is queued.
  bool FinishOne();
  // Repeats failed writes and unfinished drafts.
  Status Repair();
  void DropSpares(size_t keep);

  const SegmentWriterOptions options_;
  SegmentSet* const set_;
  const std::function<void()> sealed_;
  std::unique_ptr<SegmentDraft> open_;            // null at first and after a seal
  std::vector<std::shared_ptr<Segment>> spares_;  // in reserve; the last is used next
  std::vector<Segment*> in_use_;                  // their `users` are counted until Published

  Mutex queue_mutex_;
  std::condition_variable finished_;
  std::deque<std::unique_ptr<SegmentDraft>> queue_ MT_GUARDED_BY(queue_mutex_);
  std::vector<std::unique_ptr<SegmentDraft>> failed_ MT_GUARDED_BY(queue_mutex_);
  uint64_t queued_bytes_ MT_GUARDED_BY(queue_mutex_) = 0;
  int busy_ MT_GUARDED_BY(queue_mutex_) = 0;  // drafts being finished
  std::vector<DraftMemory> spare_memory_ MT_GUARDED_BY(queue_mutex_);

  IoWorker* const worker_;
  IoWorker::Job job_;
};

}  // namespace multitier

#endif  // CC_TIER_SSDHASH_SEGMENT_WRITER_H_
