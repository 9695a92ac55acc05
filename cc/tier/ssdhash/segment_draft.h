// SegmentDraft: a segment that is being written: its file, and the buffer of what is not in the file yet.
//
//   file     | header | records written ...                |  (preallocated)
//   buffer                                   | partial block, records not written yet | free |
//                                            ^ begin                                  ^ fill
//
// Life: made with its file preallocated, so that a full disk is met before anything changes; records are appended to the
// buffer; a full buffer is written in whole blocks (O_DIRECT); at last Finish writes rest and footer and cuts the file to its
// size. Nothing is synced on the way, but for a file without O_DIRECT: that is synced before its buffer is reused, so that
// what a failed sync may lose is always still in memory. A small segment's only write is that of Finish.
//
// The buffer begins small and grows as long as the process's bound on write buffers lets it (IoWorker).
//
// After a failed write or sync the file is not trusted any more: Repair reads back what it holds, checks every held record
// and writes them, with the buffer, to a new file at the same places; locations stay. Until that succeeds the draft takes
// nothing, and what it has is served from the old file and the buffer.
//
// Not thread-safe; what readers see of it is changed under SegmentSet::mutex.

#ifndef CC_TIER_SSDHASH_SEGMENT_DRAFT_H_
#define CC_TIER_SSDHASH_SEGMENT_DRAFT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/env/env.h"
#include "cc/tier/ssdhash/io_worker.h"
#include "cc/tier/ssdhash/segment_format.h"
#include "cc/tier/ssdhash/segment_set.h"

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

// Pages of an Env; those that count against the process's bound are given back to it.
class WriteBuffer {
 public:
  WriteBuffer() = default;
  ~WriteBuffer() { Reset(); }
  WriteBuffer(WriteBuffer&& other) noexcept { *this = std::move(other); }
  WriteBuffer& operator=(WriteBuffer&& other) noexcept;

  // `bytes` of pages, in place of what was there. `bounded`: only if the bound allows. False: no memory, or not allowed; what
  // was there stays.
  bool Allocate(Env* env, uint64_t bytes, bool bounded);
  void Reset();
  uint8_t* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  Env* env_ = nullptr;
  uint8_t* data_ = nullptr;
  uint64_t bytes_ = 0;
  bool bounded_ = false;
};

// The memory of a finished draft, for the next one.
struct DraftMemory {
  WriteBuffer buffer;
  std::vector<FooterEntry> entries;  // empty
};

class SegmentDraft {
 public:
  // A segment whose file was just made.
  SegmentDraft(const SegmentWriterOptions* options, SegmentSet* set, std::shared_ptr<Segment> segment);
  SegmentDraft(const SegmentDraft&) = delete;
  SegmentDraft& operator=(const SegmentDraft&) = delete;

  // A buffer, `recycled` if that is any good, with the header in it.
  Status Prepare(DraftMemory recycled);
  bool full() const { return next_slot_ == segment_->geometry.slots; }
  uint32_t next_slot() const { return next_slot_; }
  // Takes the next slot. REQUIRES: !full(). Readers see the record once it is published.
  Status Append(const LogRecord& record);
  // Writes whole blocks of the buffer; `all`: the last, partial one too. Repairs once where that fails.
  Status Flush(bool all);
  // Rest, footer, size: sealed. Repairs once where that fails. The buffer is free then.
  Status Finish();
  // Where the last write or sync failed: a new file. DataLoss where held records are gone: the rest is in the new file.
  Status RepairIfBroken();

  const std::shared_ptr<Segment>& segment() const { return segment_; }
  // Memory it holds while it waits to be finished. REQUIRES: nothing is appended any more
  uint64_t memory_bytes() const { return buffer_.bytes() + entries_bytes(); }
  // REQUIRES: finished
  DraftMemory TakeMemory() { return std::move(memory_); }

 private:
  // Room for `bytes` more at fill_, by growing or flushing.
  Status MakeRoom(uint64_t bytes);
  Status WriteBlocks(bool all);
  // The file holds everything up to `written`: keeps the last, partial block.
  void Advance(uint64_t written);
  Status WriteEnd();
  Status Write(PositionedFile* file, uint64_t offset, const uint8_t* data, uint64_t bytes);
  Status SyncIfBuffered(PositionedFile* file);
  bool Broken();
  Status Repair();
  uint64_t entries_bytes() const { return next_slot_ * sizeof(FooterEntry); }

  const SegmentWriterOptions& options_;
  SegmentSet* const set_;
  const std::shared_ptr<Segment> segment_;
  WriteBuffer buffer_;
  DraftMemory memory_;  // once finished
  uint64_t begin_ = 0, fill_ = 0;  // file offsets of the buffer's ends
  uint32_t next_slot_ = 0;
  bool broken_ = false;  // Repair before anything else
};

// "ssd-<id in 16 hex digits>-<attempt>.seg" in the directory.
std::string SegmentPath(const std::string& directory, uint64_t id, uint32_t attempt);

// Makes the preallocated file of a segment. On an error nothing is left.
Result<std::shared_ptr<CachedFile>> CreateSegmentFile(const SegmentWriterOptions& options, const SegmentHeader& header,
                                                      uint32_t attempt);
// Rewrites a sealed segment, whose sync failed, to a new, synced file. DataLoss where held records or the footer are gone: then
// the old file stays.
Status RewriteSealed(const SegmentWriterOptions& options, SegmentSet* set, const std::shared_ptr<Segment>& segment);

}  // namespace multitier

#endif  // CC_TIER_SSDHASH_SEGMENT_DRAFT_H_
