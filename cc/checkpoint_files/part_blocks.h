// The blocks of a part file, for part_writer.cc and part_reader.cc alone: their kinds, and the sizes of what is in them.

#ifndef CC_CHECKPOINT_FILES_PART_BLOCKS_H_
#define CC_CHECKPOINT_FILES_PART_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/coding.h"
#include "cc/base/crc32c.h"
#include "cc/checkpoint_files/part_file.h"

namespace multitier::part_file_internal {

constexpr size_t kMagicBytes = kPartFileMagic.size();
constexpr size_t kHeadBytes = 16;            // of a block
constexpr size_t kRowHeadBytes = 8 + 8 + 4;  // of a row: key, version, frequency
constexpr size_t kCountedBytes = 8 + 8 + 4;  // of a counted key: key, version, count
constexpr size_t kPayloadBytes = 16u << 20;  // about, of a payload

enum Kind : uint32_t {
  kMatrix = 1,
  kRows = 2,
  kCounted = 3,
  kFilter = 4,
  kEnd = 5,
  kFrozen = 6,
  kRemoved = 7,
  kLinked = 8,
  kColumns = 9
};

// Other machines than these convert floats in a loop: a copy is several times faster.
constexpr bool kIsLittleEndian = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;

// Of a row that is not frozen: its head, the value in its dtype, the slots as float32.
inline size_t RowBytes(const std::vector<ColumnSpec>& columns) {
  size_t bytes = kRowHeadBytes;
  for (const ColumnSpec& column : columns) bytes += static_cast<size_t>(column.dim) * DTypeSize(column.dtype);
  return bytes;
}

// The checksum of a file, with one more block: crc32c of the checksums of its blocks.
inline uint32_t WithBlock(uint32_t file, uint32_t block) {
  uint8_t bytes[sizeof(block)];
  EncodeFixed32(bytes, block);
  return ExtendCrc32c(file, bytes, sizeof(bytes));
}

}  // namespace multitier::part_file_internal

#endif  // CC_CHECKPOINT_FILES_PART_BLOCKS_H_
