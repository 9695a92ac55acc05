// ColumnFiles: the rows of a snapshot as arrays, a file for each, for formats of other systems (tf_multitier.dynamicemb's
// dumps).
//
//   <path>.keys  .frequencies  .versions           int64 [n]
//   <path>.values                                  float32 [n, dim]
//   <path>.slots                                   float32 [n, sum of the slots' dims], in the layout's order
//   <path>.counted_keys  .counted_frequencies      int64 [m]: keys that a filter counts
//
// Without a header, in the machine's byte order. Entry i of each is of key i. Slots are optional. The files are synced, except
// frequencies and versions, from which the caller makes a file of its own. After an error the caller removes them.
//
// Not thread-safe.

#ifndef CC_CHECKPOINT_FILES_COLUMN_FILES_H_
#define CC_CHECKPOINT_FILES_COLUMN_FILES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/json.h"
#include "cc/base/status.h"
#include "cc/env/early_writeback.h"
#include "cc/env/env.h"
#include "cc/table/api/rows.h"

namespace multitier {

class ColumnFiles {
 public:
  ColumnFiles(std::string path, bool slots);

  // Makes the files, which must not exist. Call it first.
  Status Open();
  Status Add(const Rows& rows);
  // Completes and syncs the files.
  Status Finish();
  // {"path", "slots": [{"name", "dim"}], "files": {"keys": {"size", "crc32"}, ...}}, after Finish. crc32 is zlib's.
  Json Describe() const;

 private:
  struct File {
    const char* name;
    bool synced;
    std::unique_ptr<WritableFile> file = nullptr;
    std::unique_ptr<EarlyWriteback> writeback = nullptr;
    uint64_t bytes = 0;
    uint32_t checksum = 0;
  };

  Status Append(File* to, const void* data, size_t bytes);
  Status Append(File* to, const std::vector<int64_t>& numbers) {
    return Append(to, numbers.data(), numbers.size() * sizeof(int64_t));
  }
  // Elements `first` to `end` of each row.
  Status AppendElements(File* to, const Rows& rows, size_t first, size_t end);

  const std::string path_;
  const bool slots_;
  std::vector<ColumnSpec> columns_;
  File keys_{"keys", true}, values_{"values", true}, slot_values_{"slots", true};
  File counted_keys_{"counted_keys", true}, counted_frequencies_{"counted_frequencies", true};
  File frequencies_{"frequencies", false}, versions_{"versions", false};
  std::vector<File*> files_;  // all that are written
};

}  // namespace multitier

#endif  // CC_CHECKPOINT_FILES_COLUMN_FILES_H_
