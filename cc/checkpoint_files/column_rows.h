// ColumnRows: reads rows of a table part from arrays, as ColumnFiles writes them. A load of another system's files makes a
// checkpoint for itself that links them, in place of writing all rows again (tf_multitier/dynamicemb/load.py).
//
//   manifest    `linked`: the name and the size of each array
//   part file   one block: ColumnList
//
// A checkpoint that stays has none.

#ifndef CC_CHECKPOINT_FILES_COLUMN_ROWS_H_
#define CC_CHECKPOINT_FILES_COLUMN_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"
#include "cc/checkpoint_files/linked_rows.h"
#include "cc/row/row_layout.h"
#include "cc/table/api/rows.h"

namespace multitier {

// The arrays of some rows.
struct ColumnList {
  struct Item {
    std::string column;                // "keys", "frequencies", "versions", "values", "slots"
    std::string path;                  // for messages
    std::optional<uint32_t> checksum;  // CRC-32
  };

  int64_t rows = 0;
  std::vector<Item> items;  // as the next files in the manifest's list

  std::string Encode() const;
  static Result<ColumnList> Decode(std::string_view payload);
};

// Not thread-safe.
class ColumnRows {
 public:
  // files: of the list's items. columns: of the part. DataLoss, with the path, if a file has not the size of the rows.
  static Result<std::unique_ptr<ColumnRows>> Open(const ColumnList& list, std::vector<LinkedFile> files,
                                                  const std::vector<ColumnSpec>& columns);

  // The next rows: a few MiB, at least one row; without columns if `rows` has none. DataLoss, with the path, if a file that was
  // read to its end has another checksum. REQUIRES: !ended()
  Status Next(Rows* rows);
  bool ended() const { return next_ == num_rows_; }

 private:
  struct Array {
    ColumnList::Item item;
    LinkedFile file;
    size_t row_bytes = 0;
    uint32_t checksum = 0;  // of what was read
  };

  explicit ColumnRows(int64_t rows) : num_rows_(static_cast<uint64_t>(rows)) {}
  // Reads n rows.
  Status Read(Array* from, size_t n, void* out);
  // Reads elements `first` and following of n rows.
  Status ReadElements(Array* from, size_t n, size_t first, Rows* rows);

  const uint64_t num_rows_;
  std::vector<Array> arrays_;
  uint64_t next_ = 0;
  std::vector<float> buffer_;
};

}  // namespace multitier

#endif  // CC_CHECKPOINT_FILES_COLUMN_ROWS_H_
