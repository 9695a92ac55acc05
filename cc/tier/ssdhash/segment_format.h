// The format of a segment file (docs/formats/ssdhash.md): encodes, decodes and checks bytes. Uses no files and has no state.
//
//   | header, 4 KiB blocks | records at fixed places, to a block | footer, to a block, its trailer last |
//
// The footer is written when the segment is sealed. Until then the file has its maximum length and is zero after the records.
// Every checksum is seeded with the instance and the segment id; that of a record also with its slot. A record copied to
// another place, another segment or another instance therefore fails its checksum.
//
// The header is written with the first records, and a loss of power may leave any subset of its sectors. Each sector therefore
// has a checksum, seeded with its place. A sector with a correct checksum is intact, a sector of zeros was lost, and any other
// sector is damaged.
//
// Thread-safe as values.

#ifndef CC_TIER_SSDHASH_SEGMENT_FORMAT_H_
#define CC_TIER_SSDHASH_SEGMENT_FORMAT_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/coding.h"
#include "cc/base/status.h"
#include "cc/row/row_layout.h"
#include "cc/tier/tier.h"

namespace multitier {

constexpr uint32_t kSegmentFormatVersion = 1;
constexpr size_t kBlockBytes = 4096;
constexpr size_t kSectorBytes = 512;  // a device writes it as a whole or not at all
constexpr size_t kRecordHeaderBytes = 36;
constexpr uint32_t kTombstoneFlag = 1;

inline uint64_t RoundUpToBlock(uint64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes; }
inline uint64_t RoundDownToBlock(uint64_t bytes) { return bytes / kBlockBytes * kBlockBytes; }

inline bool AllZero(const uint8_t* data, size_t bytes) {
  return std::all_of(data, data + bytes, [](uint8_t byte) { return byte == 0; });
}

using InstanceId = std::array<uint8_t, 16>;

// The header of a segment.
struct SegmentHeader {
  InstanceId instance = {};
  uint64_t id = 0;
  bool survivors = false;  // true: written by compaction; false: by Write and Remove
  uint32_t slots = 0;      // number of records that fit
  uint32_t row_bytes = 0;  // of the layout it was made for
  std::vector<ColumnSpec> columns;

  // A segment of about `bytes` bytes with its footer, for at least one record. REQUIRES: nothing of `layout` is over 1 GiB
  static SegmentHeader Make(const InstanceId& instance, uint64_t id, bool survivors, uint64_t bytes, const RowLayout& layout);

  // The places of records.
  uint32_t record_bytes() const { return static_cast<uint32_t>(kRecordHeaderBytes) + row_bytes; }
  uint64_t header_bytes() const;
  // If it wastes less than a tenth, no record straddles a block. Else 0: records are contiguous.
  uint32_t records_per_block() const;
  uint64_t RecordOffset(uint32_t slot) const;
  uint64_t EndOfRecords(uint32_t n) const { return n == 0 ? header_bytes() : RecordOffset(n - 1) + record_bytes(); }
  uint64_t MaxFileBytes() const;  // with all slots and the largest footer
  uint32_t Seed() const;
  // Row bytes of the first n columns. REQUIRES: n <= columns.size()
  uint64_t BytesOfColumns(uint32_t n) const;

  std::string Encode() const;  // header_bytes() bytes
  // Decodes the first `bytes` bytes of a file; `path` is for messages. DataLoss; Unimplemented (another format); OutOfRange if
  // more bytes are needed: *needed is their number.
  static Result<SegmentHeader> Decode(const uint8_t* data, size_t bytes, const std::string& path, size_t* needed);
};

// Whether `data` is the intact sector number `index` of this segment's header. *sectors: the number of sectors. An intact
// sector has several bits set, so a single bit flip cannot make it zero.
bool DecodeHeaderSector(const InstanceId& instance, uint64_t id, size_t index, const uint8_t* data, uint32_t* sectors);

// The geometry of a segment, computed once from its header.
struct SegmentGeometry {
  SegmentGeometry() = default;
  explicit SegmentGeometry(const SegmentHeader& header);
  // Of a file of that size, which may be too short for all slots of the header.
  SegmentGeometry(const SegmentHeader& header, uint64_t file_bytes);
  uint64_t RecordOffset(uint32_t slot) const {
    return per_block == 0 ? header_bytes + uint64_t{slot} * record_bytes
                          : header_bytes + uint64_t{slot / per_block} * kBlockBytes + slot % per_block * record_bytes;
  }
  // The number of records that end at or below `offset`. REQUIRES: offset >= header_bytes
  uint32_t RecordsBelow(uint64_t offset) const {
    const uint64_t bytes = offset - header_bytes;
    if (per_block == 0) return static_cast<uint32_t>(bytes / record_bytes);
    const uint64_t in_last_block = std::min<uint64_t>(bytes % kBlockBytes / record_bytes, per_block);
    return static_cast<uint32_t>(bytes / kBlockBytes * per_block + in_last_block);
  }
  uint64_t header_bytes = 0;
  uint32_t record_bytes = 0;
  uint32_t row_bytes = 0;
  uint32_t per_block = 0;
  uint32_t slots = 0;
  uint32_t seed = 0;
  uint32_t file_bytes_per_slot = 0;  // the bytes of the file, divided by the slots
};

// A decoded record.
struct RecordFields {
  RecordHeader header;
  uint64_t seq = 0;
  uint32_t flags = 0;
  const uint8_t* row_data = nullptr;  // [row_bytes]; bytes after the columns are zero
};

// Writes record_bytes bytes to `out`. row_data: [data_bytes], the rest of the row is zeroed; null: all bytes are zero.
void EncodeRecord(const SegmentGeometry& geometry, uint32_t slot, const RecordHeader& header, uint64_t seq, uint32_t flags,
                  const uint8_t* row_data, size_t data_bytes, uint8_t* out);
// False: the checksum does not match. `check` false: does not check it again.
bool DecodeRecord(const SegmentGeometry& geometry, uint32_t slot, const uint8_t* in, bool check, RecordFields* fields);

// The entry of a record in the footer.
struct FooterEntry {
  int64_t key = 0;
  uint64_t seq = 0;
  int64_t version = -1;
  uint32_t frequency = 0;
  uint16_t num_columns = 0;
  bool tombstone = false;
  bool damaged = false;  // not stored in the file. The entry was read from the record, whose checksum does not match
};

// The footer, its trailer and the padding between: whole blocks. `offset`: the place of the footer in the file.
std::string EncodeFooter(uint32_t seed, uint64_t offset, const std::vector<FooterEntry>& entries);
// The trailer in a file's last block.
struct SegmentTrailer {
  uint64_t offset = 0, bytes = 0;  // of the footer, up to the end of the file
  bool proven = false;             // the file and its directory entry were synced
  bool EndsAt(uint64_t file_bytes) const { return bytes <= file_bytes && offset == file_bytes - bytes; }
};
// Decodes the trailer in that block. False: no trailer.
bool DecodeTrailer(uint32_t seed, const uint8_t* last_block, SegmentTrailer* trailer);
// Marks the trailer in the block as proven. REQUIRES: the block has a trailer
void ProveTrailer(uint32_t seed, uint8_t* last_block);
// Decodes the `bytes` bytes of a footer. False: damaged.
bool DecodeFooter(uint32_t seed, const uint8_t* data, uint64_t bytes, std::vector<FooterEntry>* entries);

// "ssd-<id in 16 hex digits>-<attempt>.seg" in the directory.
std::string SegmentPath(const std::string& directory, uint64_t id, uint32_t attempt);
// Such a name: true, and the id and the attempt (each may be null).
bool ParseSegmentName(const std::string& name, uint64_t* id, uint32_t* attempt = nullptr);
// The id in a path, and the attempt (may be null). REQUIRES: it ends in such a name
uint64_t SegmentIdOf(const std::string& path, uint32_t* attempt = nullptr);

}  // namespace multitier

#endif  // CC_TIER_SSDHASH_SEGMENT_FORMAT_H_
