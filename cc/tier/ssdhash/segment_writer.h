// SegmentWriter: one append head of the log: an open segment, and full ones on their way to the disk.
//
//   Append --> open draft --full--> queue --> IoWorker, or whoever cannot wait for it --> sealed
//
// The tier has two heads: what Write and Remove append, and what compaction keeps (cold), so that records of one age and
// temperature die together.
//
//   1. Reserve   makes the segments a batch needs, their files preallocated: a full disk is met here, before anything changes
//   2. Append    encodes records into the open draft, whose full buffers are written behind the caller's back, one at a time. A
//                full draft is queued: its rest, its footer and its size are written there, too; what is not yet in the file is
//                read from memory. Records become held, and readable, when the caller publishes them in the SegmentSet
//   3. Flush     everything appended is in files, of which the full ones are sealed (FlushFull: these alone). Nothing is synced
//                here, but that files without direct I/O are at each write
//
// A draft that could not be finished stays readable, and the head takes nothing until the next Reserve or Flush has repaired
// it. The queue holds at most kMaxQueuedBytes of buffers and entries: beyond that Append finishes drafts itself.
//
// Not thread-safe: its owner's lock guards it (ssdhash_impl.h), but for the queue, which has its own mutex (no other lock but
// SegmentSet's is taken under it).

#ifndef CC_TIER_SSDHASH_SEGMENT_WRITER_H_
#define CC_TIER_SSDHASH_SEGMENT_WRITER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/row/row_layout.h"
#include "cc/tier/ssdhash/segment_draft.h"
#include "cc/tier/ssdhash/segment_set.h"

namespace multitier {

// Where a record was put.
struct Placement {
  Segment* segment = nullptr;
  uint32_t slot = 0;
};

class SegmentWriter {
 public:
  static constexpr uint64_t kMaxQueuedBytes = 8 << 20;
  // Of finished drafts, for the next ones: to touch new memory costs as much as to fill it.
  static constexpr size_t kMaxSpareMemory = 2;

  // `sealed` is called, on any thread, after segments were finished in the background.
  SegmentWriter(SegmentWriterOptions options, SegmentSet* set, std::function<void()> sealed);
  ~SegmentWriter();

  // Room for n records of the layout, or an error; nothing has changed then but for segments kept for the next call.
  Status Reserve(const std::shared_ptr<const RowLayout>& layout, size_t n);
  // Has at least one segment in reserve that is not much smaller than those made now, so that the head can go on when the disk
  // is full.
  Status KeepSpare(const std::shared_ptr<const RowLayout>& layout);
  // Appends what was reserved, all at once or in pieces. Adds to *placements; their segments are in use until Published. On an
  // error the slots taken so far are dead, and nothing is to be published.
  Status Append(const std::vector<LogRecord>& records, std::vector<Placement>* placements);
  // REQUIRES: SegmentSet::mutex held. Lets go of the segments of what was appended since the last time.
  void Published();
  Status Flush();
  Status FlushFull();
  // Seals the open segment, if any, and all before it, and deletes what is in reserve.
  Status Close();

  // Slots that take no new segment.
  uint64_t free_slots() const;

 private:
  Result<std::shared_ptr<Segment>> CreateSegment(const RowLayout& layout);
  Status OpenNext();
  // Queues the open draft.
  void HandOver();
  // Finishes queued drafts on this thread until at most `bytes` of buffers are queued.
  void HelpUntil(uint64_t bytes);
  // Finishes the oldest queued draft; false: none is queued.
  bool FinishOne();
  // What could not be finished, or written, is tried again.
  Status Repair();
  void DropSpares(size_t keep);

  const SegmentWriterOptions options_;
  SegmentSet* const set_;
  const std::function<void()> sealed_;
  std::unique_ptr<SegmentDraft> open_;            // null at first and after a seal
  std::vector<std::shared_ptr<Segment>> spares_;  // reserved, the next last
  std::vector<Segment*> in_use_;                  // users counted, until Published

  std::mutex queue_mutex_;
  std::condition_variable finished_;
  // Guarded by queue_mutex_.
  std::deque<std::unique_ptr<SegmentDraft>> queue_;
  std::vector<std::unique_ptr<SegmentDraft>> failed_;
  uint64_t queued_bytes_ = 0;
  int busy_ = 0;              // drafts being finished
  std::vector<DraftMemory> spare_memory_;

  IoWorker* const worker_;
  IoWorker::Job job_;
};

}  // namespace multitier

#endif  // CC_TIER_SSDHASH_SEGMENT_WRITER_H_
