// SegmentWriter: one append head of the log: an open segment and the buffer of its newest records.
//
//   file     | header | records written ...                |  (preallocated)
//   buffer                                   | partial block, records not written yet | free |
//                                            ^ begin                                  ^ fill
//
// The tier has two: what Write and Remove append, and what compaction keeps (cold), so that records of one age and
// temperature die together.
//
// Life of a segment:
//   1. Reserve   makes the segments a batch needs, their files preallocated, their headers synced: a full disk is met here,
//                before anything changes
//   2. Append    encodes records into the buffer; a full buffer is written in whole blocks (O_DIRECT). A file without
//                O_DIRECT is synced before its buffer is reused, so that what a failed sync may lose is always still in memory.
//                Records become held, and readable, when the caller publishes them in the SegmentSet
//   3. seal      when the last slot is taken, or the row layout has changed: rest, footer, cut to size, sync
//
// After a failed write or sync the file is not trusted any more: Repair reads back what it holds, checks every held record
// and writes them, with the buffer, to a new file at the same places; locations stay. Until that succeeds the head takes
// nothing, and what it has is served from the old file and the buffer.
//
// Not thread-safe: its owner's lock guards it (ssdhash_impl.h); what readers see of it is changed under SegmentSet::mutex.

#ifndef CC_TIER_SSDHASH_SEGMENT_WRITER_H_
#define CC_TIER_SSDHASH_SEGMENT_WRITER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/env/env.h"
#include "cc/row/row_layout.h"
#include "cc/tier/ssdhash/segment_format.h"
#include "cc/tier/ssdhash/segment_set.h"

namespace multitier {

// Where a record was put.
struct Placement {
  Segment* segment = nullptr;
  uint32_t slot = 0;
};

// A record to append.
struct LogRecord {
  RecordHeader header;
  uint64_t seq = 0;
  uint32_t flags = 0;
  const uint8_t* row_data = nullptr;
  uint32_t data_bytes = 0;
};

struct SegmentWriterOptions {
  Env* env = nullptr;
  std::string directory;
  InstanceId instance = {};
  bool survivors = false;
  bool direct_io = true;
  uint64_t min_segment_bytes = 0, max_segment_bytes = 0;
};

class SegmentWriter {
 public:
  SegmentWriter(SegmentWriterOptions options, SegmentSet* set);
  ~SegmentWriter();

  // Room for n records of the layout, or an error; nothing has changed then but for segments kept for the next call.
  Status Reserve(const std::shared_ptr<const RowLayout>& layout, size_t n);
  // Appends what was reserved. placements: [records.size()]; their segments are in use until Published. On an error the
  // slots taken so far are dead, and nothing is to be published.
  Status Append(const std::vector<LogRecord>& records, std::vector<Placement>* placements);
  // REQUIRES: SegmentSet::mutex held. Lets go of the segments of the last Append.
  void Published();
  // Everything appended survives a crash once this returns OK.
  Status Sync();
  // Seals the open segment, if any.
  Status Seal();

  const Segment* segment() const { return segment_.get(); }
  // Slots that take no new segment.
  uint64_t free_slots() const;
  // What stands in the footer-to-be of the open segment.
  const std::vector<FooterEntry>& entries() const { return entries_; }
  uint64_t resident_bytes() const { return buffer_bytes_; }

 private:
  Result<std::shared_ptr<Segment>> CreateSegment(const RowLayout& layout);
  // Makes the file of a segment: preallocated, header written and synced. On an error nothing is left.
  Result<std::shared_ptr<PositionedFile>> CreateFile(const SegmentHeader& header, const std::string& path);
  Status OpenNext();
  // Writes whole blocks of the buffer; `all`: the last, partial one too. Repairs once where that fails.
  Status Flush(bool all);
  Status WriteBuffer(bool all);
  // The file holds everything up to `written`: keeps the last, partial block.
  void Advance(uint64_t written);
  Status WriteFooter();
  Status Repair();
  Status CopyTo(PositionedFile* to);
  void DropSpares();
  Status CountWrite(PositionedFile* file, uint64_t offset, const void* data, size_t bytes);

  const SegmentWriterOptions options_;
  SegmentSet* const set_;
  std::shared_ptr<Segment> segment_;             // open; null at first and after a seal
  std::vector<std::shared_ptr<Segment>> spares_; // reserved, the next last
  std::vector<Segment*> in_use_;                 // users counted, of the last Append
  std::vector<FooterEntry> entries_;             // of segment_
  uint8_t* buffer_ = nullptr;
  uint64_t buffer_bytes_ = 0;
  uint64_t begin_ = 0, fill_ = 0;  // file offsets of the buffer's ends
  uint32_t next_slot_ = 0;
  bool broken_ = false;  // Repair before anything else
  bool dirty_ = false;   // something is not synced
  uint32_t attempts_ = 0;
};

// "ssd-<id in 16 hex digits>-<attempt>.seg" in the directory.
std::string SegmentPath(const std::string& directory, uint64_t id, uint32_t attempt);
// Whether a file name is of that form.
bool IsSegmentName(const std::string& name);

}  // namespace multitier

#endif  // CC_TIER_SSDHASH_SEGMENT_WRITER_H_
