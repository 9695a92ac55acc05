// SegmentDraft: a segment that is being written: its file, and the records that are not in the file yet.
//
//   file     | header | records written ... |  (preallocated)
//   in flight                               | being written |
//   buffer                                                  | partial block, records not written yet | free |
//                                                           ^ begin                                  ^ fill
//
// Life of a draft. Its file is preallocated, so that a full disk is an error before any change. Records are appended to the
// buffer. Whole blocks of a full buffer are written (O_DIRECT) while the next buffer fills. Finish writes the rest and the
// footer, and cuts the file to its size. A draft is not synced, except a file without O_DIRECT: it is synced before its buffer
// is reused. The data that a failed sync may lose is therefore always still in memory (SegmentSet::Sync). A small segment has
// only the write of Finish.
//
// At most one buffer is in flight: its write runs as an IoWorker job. If no thread has begun the job, the thread that needs the
// result runs it. Every other write, repair and finish first waits for the completion of the write in flight. The writes of a
// file are therefore in order, and the last write decides the contents of a block that two writes share. Records in flight are
// read from their buffer until the write has completed. If it fails, they stay in the buffer.
//
// Buffers begin small and grow within the process's limit on write buffers (IoWorker). A draft that gets no second buffer
// writes the first one itself.
//
// After a failed write or sync the file is no longer trusted. Repair (segment_repair.cc) reads the file, checks every held
// record, and writes these and the records in memory to a new file at the same places; locations do not change. Until that
// succeeds the draft accepts no records, and its records are served from the old file and from memory.
//
// Not thread-safe, except for the write in flight. The state that readers use changes under SegmentSet::mutex.

#ifndef CC_TIER_SSDHASH_SEGMENT_DRAFT_H_
#define CC_TIER_SSDHASH_SEGMENT_DRAFT_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/env/env.h"
#include "cc/tier/ssdhash/io_worker.h"
#include "cc/tier/ssdhash/segment_format.h"
#include "cc/tier/ssdhash/segment_set.h"
#include "cc/tier/ssdhash/write_buffer.h"

namespace multitier {

struct SegmentWriterOptions {
  Env* env = nullptr;
  std::string directory;
  InstanceId instance = {};
  bool survivors = false;
  bool direct_io = true;
  uint64_t min_segment_bytes = 0, max_segment_bytes = 0;
};

// A record to append.
struct LogRecord {
  RecordHeader header;
  uint64_t seq = 0;
  uint32_t flags = 0;
  const uint8_t* row_data = nullptr;
  uint32_t data_bytes = 0;
};

// The memory of a finished draft, which the next draft reuses.
struct DraftMemory {
  WriteBuffer buffer, second;
  std::vector<FooterEntry> entries;  // empty
};

class SegmentDraft {
 public:
  // REQUIRES: the file of `segment` was just created
  SegmentDraft(const SegmentWriterOptions* options, SegmentSet* set, std::shared_ptr<Segment> segment);
  SegmentDraft(const SegmentDraft&) = delete;
  SegmentDraft& operator=(const SegmentDraft&) = delete;
  ~SegmentDraft();  // waits for the write in flight

  // Prepares a buffer with the header, using `recycled` if it is large enough.
  Status Prepare(DraftMemory recycled);
  bool full() const { return next_slot_ == segment_->geometry.slots; }
  uint32_t next_slot() const { return next_slot_; }
  // Takes the next slot. REQUIRES: !full(). Readers see the record once it is published.
  Status Append(const LogRecord& record);
  // Writes all appended records to the file. If that fails, repairs once.
  Status Flush();
  // Seals the segment: writes the rest and the footer, and sets the size. If that fails, repairs once. Then the buffer is free.
  Status Finish();
  // If the last write or sync failed, writes a new file. DataLoss if held records are lost: the others are in the new file.
  Status RepairIfBroken();

  const std::shared_ptr<Segment>& segment() const { return segment_; }
  // The memory of a draft that waits to be finished. REQUIRES: no record is appended any more
  uint64_t memory_bytes() const { return buffer_bytes() + entries_bytes(); }
  // REQUIRES: finished
  DraftMemory TakeMemory() { return std::move(memory_); }

 private:
  // Makes room for `bytes` more at fill_, by growing or writing the buffer.
  Status MakeRoom(uint64_t bytes);
  // Starts the write of the buffer's blocks and continues with the other buffer. False: the previous write failed, or there is
  // no memory.
  bool StartWrite();
  // Runs the write in flight, if no thread has begun it.
  void RunWrite();
  // Waits until the write in flight has completed. False: it failed, and its buffer stays.
  bool AwaitWrite();
  // Writes the buffer's blocks; `all`: also the last, partial one.
  Status WriteBlocks(bool all);
  // The end of the bytes that WriteBlocks writes. Zeroes the bytes after the records.
  uint64_t EndOfBlocks(bool all);
  // The records that end at or below `offset`. REQUIRES: `offset` is not smaller than in an earlier call
  SegmentPrefix PrefixBelow(uint64_t offset);
  // Call it when the file has all bytes up to `written`. Keeps the last, partial block in the buffer.
  void Advance(uint64_t written);
  Status WriteEnd();
  Status Write(PositionedFile* file, uint64_t offset, const uint8_t* data, uint64_t bytes);
  Status SyncIfBuffered(const PositionedFile* file);
  bool Broken();
  Status Repair();
  uint64_t buffer_bytes() const { return buffer_.bytes() + second_.bytes() + in_flight_.bytes(); }
  uint64_t entries_bytes() const { return next_slot_ * sizeof(FooterEntry); }

  const SegmentWriterOptions& options_;
  SegmentSet* const set_;
  const std::shared_ptr<Segment> segment_;
  WriteBuffer buffer_;
  WriteBuffer second_;             // the next buffer, if there is one; during a write it is in_flight_
  DraftMemory memory_;             // once finished
  uint64_t begin_ = 0, fill_ = 0;  // file offsets of the buffer's ends
  uint32_t next_slot_ = 0;
  SegmentPrefix counted_;  // the last result of PrefixBelow
  bool broken_ = false;    // Repair before anything else

  WriteBuffer in_flight_;                             // empty: none
  uint64_t in_flight_begin_ = 0, in_flight_end_ = 0;  // file offsets, of blocks
  uint64_t in_flight_fill_ = 0;                       // where its records end
  SegmentPrefix in_flight_prefix_;                    // the records up to there
  enum class WriteState { kNone, kWaiting, kRunning, kDone, kFailed };
  Mutex write_mutex_;
  std::condition_variable write_done_;
  WriteState write_state_ MT_GUARDED_BY(write_mutex_) = WriteState::kNone;
  IoWorker::Job write_job_;
};

// Creates the preallocated file of a segment. After an error no file remains.
Result<std::shared_ptr<CachedFile>> CreateSegmentFile(const SegmentWriterOptions& options, const SegmentHeader& header,
                                                      uint32_t attempt);
// Rewrites a sealed segment whose sync failed to a new, synced file. If the segment has no footer, or it is lost, the new file
// has none. DataLoss if held records are lost: then the old file stays.
Status RewriteSealed(const SegmentWriterOptions& options, SegmentSet* set, const std::shared_ptr<Segment>& segment);

}  // namespace multitier

#endif  // CC_TIER_SSDHASH_SEGMENT_DRAFT_H_
