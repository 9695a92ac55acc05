// A part file: the rows of one table part (table_part.h), in blocks, so that neither who writes nor who reads holds more than
// one of them. docs/formats/table_part.md describes the bytes.
//
//   "MTPART2\n" | block | block | ... | end block
//   block:  kind fixed32 | entries fixed32 | payload bytes fixed64 | payload | crc32c of the block before it fixed32
//
// Bytes go to, and come from, functions of the caller, so that a file of any file system will do.
//
// Not thread-safe.

#ifndef CC_CHECKPOINT_PART_FILE_H_
#define CC_CHECKPOINT_PART_FILE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/checkpoint/table_part.h"
#include "cc/row/initializer.h"
#include "cc/table/embedding_table.h"

namespace multitier {

class PartFileWriter {
 public:
  using Append = std::function<Status(const std::string& bytes)>;

  explicit PartFileWriter(Append append) : append_(std::move(append)) {}

  // Magic, and the matrix of an initializer that has one. Comes first.
  Status Begin(const InitializerSpec& initializer, int dim);
  // Rows, counted keys and filter counters, as a snapshot gives them.
  Status Add(const Rows& rows);
  // Comes last; without it the file is not complete.
  Status End();

  int64_t rows() const { return rows_; }
  int64_t bytes() const { return bytes_; }

 private:
  Status WriteBlock(uint32_t kind, size_t entries, std::string payload);
  Status AddRows(const Rows& rows, size_t from, size_t to);

  const Append append_;
  int64_t rows_ = 0;
  int64_t counted_ = 0;
  int64_t bytes_ = 0;
};

class PartFileReader {
 public:
  // Reads exactly n bytes at `offset` into out, or says why not.
  using ReadAt = std::function<Status(uint64_t offset, size_t n, char* out)>;

  // `name`: of the file, for messages. What is read must be what the manifest says.
  PartFileReader(std::string name, const Manifest& manifest, ReadAt read_at)
      : name_(std::move(name)), manifest_(manifest), read_at_(std::move(read_at)) {}

  // The matrix of the manifest's initializer, where it has one, is put into it. Comes first. DataLoss naming file and offset
  // where a byte is not what was written; so everywhere here.
  Status Begin(InitializerSpec* initializer);
  // Calls visit with every block as rows of the manifest's columns, the last time with applies and the filter's counters.
  Status ReadRows(const std::function<Status(Rows*)>& visit);

 private:
  struct Block {
    uint32_t kind = 0;
    uint32_t entries = 0;
    uint64_t offset = 0;
    std::string payload;
  };
  Status ReadBlock(Block* block);
  Status Damaged(uint64_t offset, const std::string& what) const;
  // DataLoss unless the payload has that many bytes an entry.
  Status CheckPayload(const Block& block, size_t entry_bytes) const;

  const std::string name_;
  const Manifest& manifest_;
  const ReadAt read_at_;
  uint64_t offset_ = 0;
};

}  // namespace multitier

#endif  // CC_CHECKPOINT_PART_FILE_H_
