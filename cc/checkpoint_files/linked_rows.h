// LinkedRows: reads the rows of a table part that are in a linked file. Where a table's last tier is on the file system of the
// checkpoint, a save does not write all rows again. It gives sealed segments of the tier (docs/formats/ssdhash.md) a second
// name, a hard link, that belongs to the checkpoint:
//
//   tier         ssd-0000000000000007-0.seg --+
//                                             +--> the segment's file, whose records never change
//   checkpoint   model-1.data-kqzva-of-bwnte -+
//                model-1.data-itsia-of-zrpqq       the part file: which of the segment's records are rows of the part
//
// The two names are independent of each other: the tier may move the records elsewhere and delete its name, and the checkpoint
// still has the file. Each record's checksum starts from the instance and the segment, so a record of another file is never
// taken for a row.
//
//   manifest    `linked`: the name of each linked file, its size, and how many rows of the part it has
//   part file   one block for each: LinkedRecords. It holds the segment's header, which the file must begin with
//
// Not thread-safe.

#ifndef CC_CHECKPOINT_FILES_LINKED_ROWS_H_
#define CC_CHECKPOINT_FILES_LINKED_ROWS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/new_array.h"
#include "cc/base/status.h"
#include "cc/row/row_layout.h"
#include "cc/table/api/rows.h"
#include "cc/tier/ssdhash/segment_format.h"

namespace multitier {

// Reads exactly n bytes at `offset` into out, or returns an error.
using ReadAt = std::function<Status(uint64_t offset, size_t n, char* out)>;

struct LinkedFile {
  std::string path;  // for messages
  uint64_t bytes = 0;
  ReadAt read_at;
};

// Which records of a linked file are rows of the part.
struct LinkedRecords {
  uint32_t file = 0;           // in the manifest's list
  std::string header;          // of the segment: its first blocks
  uint32_t slots = 0;          // that may have rows, from the first on
  std::vector<uint64_t> rows;  // [slots] bits

  int64_t count() const;
  std::string Encode() const;
  // False: the payload has another size than it says.
  static bool Decode(std::string_view payload, LinkedRecords* out);
};

class LinkedRows {
 public:
  // columns: of the part, as its readers get them. The segment has the first of them, or all. DataLoss, with the file, if it is
  // not the segment, or was cut.
  static Result<std::unique_ptr<LinkedRows>> Open(LinkedFile file, LinkedRecords records,
                                                  const std::vector<ColumnSpec>& columns);

  // The next rows: a few MiB, at least one row. Columns that a record lacks get their initial values. DataLoss, with file and
  // offset, if one of the records is damaged. REQUIRES: !ended()
  Status Next(Rows* rows);
  bool ended() const { return next_ == records_.slots; }

 private:
  LinkedRows(LinkedFile file, LinkedRecords records, SegmentHeader header);
  bool has(uint32_t slot) const { return (records_.rows[slot / 64] >> slot % 64 & 1) != 0; }
  // The first slot from `slot` on that has a row, or the end.
  uint32_t Seek(uint32_t slot) const;
  Status Take(uint32_t slot, const char* record, size_t i, Rows* rows) const;

  const LinkedFile file_;
  const LinkedRecords records_;
  const SegmentHeader header_;
  const SegmentGeometry geometry_;
  uint32_t next_ = 0;  // the first slot whose row was not given
  ArrayPtr<char> buffer_;
  size_t buffer_bytes_ = 0;
};

}  // namespace multitier

#endif  // CC_CHECKPOINT_FILES_LINKED_ROWS_H_
