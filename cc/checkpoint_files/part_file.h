// A part file: the rows of one table part (table_part.h). It consists of blocks, so that writers and readers keep only one
// block in memory. docs/formats/table_part.md describes the bytes.
//
//   "MTPART1\n" | block | block | ... | end block
//   block:  kind fixed32 | entries fixed32 | payload bytes fixed64 | payload | crc32c of the block before it fixed32
//
// The caller passes functions that write and read bytes, so the file may be in any file system.
//
// Not thread-safe.

#ifndef CC_CHECKPOINT_FILES_PART_FILE_H_
#define CC_CHECKPOINT_FILES_PART_FILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/new_array.h"
#include "cc/base/status.h"
#include "cc/checkpoint_files/column_rows.h"
#include "cc/checkpoint_files/linked_rows.h"
#include "cc/checkpoint_files/table_part.h"
#include "cc/row/initializer.h"
#include "cc/table/api/embedding_table.h"

namespace multitier {

// A part file begins with it, and no linked file does.
constexpr std::string_view kPartFileMagic = "MTPART1\n";

class PartFileWriter {
 public:
  using Append = std::function<Status(std::string_view bytes)>;

  explicit PartFileWriter(Append append) : append_(std::move(append)) {}
  // For a frozen part (Manifest::frozen): Add writes keys, values in this dtype, and removed keys. Call it before Begin.
  void Freeze(DType dtype) {
    frozen_ = true;
    dtype_ = dtype;
  }

  // Writes the magic, and the matrix of the initializer if it has one. Call it first.
  Status Begin(const InitializerSpec& initializer, int dim);
  // Writes which records of a linked file are rows of the part: the manifest's files, in their order.
  Status AddLinked(const LinkedRecords& records);
  // Writes where rows are as arrays: the next files of the manifest's list.
  Status AddColumns(const ColumnList& list);
  // Writes rows, counted keys, removed keys and filter counters of a snapshot.
  Status Add(const Rows& rows);
  // Call it last. Without it the file is incomplete.
  Status End();

  int64_t rows() const { return rows_; }
  int64_t removed() const { return removed_; }
  int64_t bytes() const { return bytes_; }
  uint32_t checksum() const { return checksum_; }  // for the manifest, after End

 private:
  // A block: BeginBlock, its payload by calls of Put, EndBlock.
  Status BeginBlock(uint32_t kind, size_t entries, size_t payload_bytes);
  Status Put(std::string_view bytes);
  Status EndBlock();
  Status WriteBlock(uint32_t kind, size_t entries, std::string_view payload);
  // n entries in blocks of `of_block`. encode(i, out) puts the `entry` bytes of entry i.
  template <typename Encode>
  Status WriteEntries(uint32_t kind, size_t n, size_t of_block, size_t entry, const Encode& encode);
  Status AddRows(const Rows& rows, size_t of_block);
  Status AddFrozen(const Rows& rows, size_t of_block);
  // Counted keys and filter counters.
  Status AddFilter(const Rows& rows);

  const Append append_;
  bool frozen_ = false;
  DType dtype_ = DType::kFloat32;
  int64_t rows_ = 0;
  int64_t counted_ = 0;
  int64_t removed_ = 0;
  int64_t bytes_ = 0;
  uint32_t block_checksum_ = 0;  // of the block that is being written
  uint32_t checksum_ = 0;
};

// What a reader gives of each row.
enum class RowFields {
  kAll,
  kHeads,  // no columns: key, frequency and version
};

class PartFileReader {
 public:
  // Opens a linked file, by its name in the manifest.
  using OpenLinked = std::function<Result<LinkedFile>(const std::string& file)>;

  // name: the file's name, for error messages. bytes: its size. The content must match the manifest. REQUIRES: open_linked, if
  // the manifest has linked files
  PartFileReader(std::string name, uint64_t bytes, const Manifest& manifest, ReadAt read_at, OpenLinked open_linked = nullptr)
      : name_(std::move(name)),
        bytes_(bytes),
        manifest_(manifest),
        read_at_(std::move(read_at)),
        open_linked_(std::move(open_linked)) {}

  // What Next gives from now on. At first: all.
  void SetFields(RowFields fields) { fields_ = fields; }
  // Reads the manifest's initializer, with its matrix, into `initializer`, which stays as it is if the manifest has none. Call
  // it first. All methods return DataLoss, with file and offset, if the file is damaged.
  Status Begin(InitializerSpec* initializer);
  // Reads the next block of rows or counted keys, in the manifest's columns, in place of what `rows` had. Memory
  // that `rows` has is used again. Rows of a linked file come where the part file has its block. Rows of a frozen part have
  // frequency 0 and version -1. The last one has no rows, but the applies and the filter's counters; ended() is true after it.
  // REQUIRES: !ended()
  Status Next(Rows* rows);
  bool ended() const { return ended_; }
  // Whether the rows are more than fit into one block.
  bool has_many_blocks() const;

 private:
  struct Block {
    uint32_t kind = 0;
    uint32_t entries = 0;
    uint64_t offset = 0;
    std::string_view payload;  // in payload_
  };
  Status ReadBlock(Block* block);
  Status TakeNext(Rows* rows);
  // DataLoss if a key is not one of the manifest's key_dtype.
  Status CheckKeys(const Rows& rows) const;
  Status TakeRows(const Block& block, Rows* rows);
  Status TakeFrozen(const Block& block, Rows* rows);
  Status TakeCounted(const Block& block, Rows* rows);
  Status TakeRemoved(const Block& block, Rows* rows);
  Status TakeEnd(const Block& block, Rows* rows);
  // Opens the linked file of the block.
  Status BeginLinked(const Block& block);
  Status TakeLinked(Rows* rows);
  // Opens the arrays of the block.
  Status BeginColumns(const Block& block);
  Status TakeColumns(Rows* rows);
  Status Damaged(uint64_t offset, const std::string& what) const;
  // DataLoss unless the payload has that many bytes per entry.
  Status CheckPayload(const Block& block, size_t entry_bytes) const;

  const std::string name_;
  const uint64_t bytes_;
  const Manifest& manifest_;
  const ReadAt read_at_;
  const OpenLinked open_linked_;
  std::unique_ptr<LinkedRows> linked_;  // the file that is being read; null: none
  std::unique_ptr<ColumnRows> arrays_;  // that are being read; null: none
  size_t linked_files_ = 0;             // that were begun
  ArrayPtr<char> payload_;              // of the block that was read last
  size_t payload_capacity_ = 0;
  uint64_t offset_ = 0;
  uint32_t checksum_ = 0;  // of the blocks that were read
  int64_t rows_read_ = 0;
  int64_t counted_read_ = 0;
  int64_t removed_read_ = 0;
  std::vector<uint8_t> filter_counters_;
  bool ended_ = false;
  RowFields fields_ = RowFields::kAll;
};

}  // namespace multitier

#endif  // CC_CHECKPOINT_FILES_PART_FILE_H_
