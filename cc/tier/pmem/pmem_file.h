// PmemFile: a file of row slots that is mapped by libpmem, on persistent memory (a DAX mount) or on any other file system.
//
//   | header page(s): magic, version, geometry, file id, schema | slot | slot | ... |        docs/formats/pmem.md
//   slot: | crc32c 4 | columns 4 | key 8 | version 8 | frequency 4 | zero 4 | row data | padding |
//
// The checksum of a slot is seeded with the file's random id and the slot's location. An intact record of another slot or
// another file therefore fails the check.
//
// The file is fully allocated when it is created: a store to a mapped sparse file on a full disk would kill the process.
// On persistent memory, CPU instructions flush a written slot; on other file systems, Sync calls msync.
// PMEM_IS_PMEM_FORCE=1 makes libpmem use CPU instructions everywhere; libpmem reads it when the process starts.
//
// Thread-safe, except that two threads must not use one slot at the same time.

#ifndef CC_TIER_PMEM_PMEM_FILE_H_
#define CC_TIER_PMEM_PMEM_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cc/base/status.h"
#include "cc/row/row_layout.h"
#include "cc/tier/tier.h"

namespace multitier {

struct Libpmem;

class PmemFile {
 public:
  static constexpr size_t kSlotHeaderBytes = 32;

  // Creates a file for `slots` rows of that layout; its first slot is `first_location`. ResourceExhausted if the disk is
  // full, else the error of the failed call. After an error no file remains.
  static Result<std::unique_ptr<PmemFile>> Create(const std::string& path, const RowLayout& layout, uint32_t first_location,
                                                  uint32_t slots);
  ~PmemFile();  // unmaps; the file stays

  // Copies a record into a slot and computes its checksum. On persistent memory it is durable after Drain().
  void WriteSlot(uint32_t slot, const WriteRecord& record, size_t row_bytes);
  // Copies a slot out. DataLoss with key, file and offset if the slot is damaged or its columns differ from those of `layout`.
  Status ReadSlot(uint32_t slot, const RowLayout& layout, ReadRecord* record) const;
  // Returns the header without checking it.
  RecordHeader ReadHeader(uint32_t slot) const;
  // Waits until this thread's writes are durable. A no-op without persistent memory.
  void Drain() const;
  // Makes all writes durable without persistent memory.
  Status Sync();

  const std::string& path() const { return path_; }
  uint32_t first_location() const { return first_location_; }
  uint32_t slots() const { return slots_; }
  uint32_t num_columns() const { return num_columns_; }
  bool is_pmem() const { return is_pmem_; }
  size_t bytes() const { return mapped_bytes_; }

 private:
  explicit PmemFile(const Libpmem* libpmem) : libpmem_(libpmem) {}

  uint64_t Offset(uint32_t slot) const { return header_bytes_ + static_cast<uint64_t>(slot) * stride_; }
  uint8_t* SlotAddress(uint32_t slot) const { return base_ + Offset(slot); }
  // The checksum of a slot: its header from the second word on, and the row data.
  uint32_t Checksum(uint32_t slot, const uint8_t* header, const uint8_t* row_data, size_t row_bytes) const;
  void Copy(uint8_t* to, const void* from, size_t bytes) const;

  const Libpmem* const libpmem_;
  std::string path_;
  uint8_t* base_ = nullptr;
  size_t mapped_bytes_ = 0;
  bool is_pmem_ = false;
  uint64_t id_ = 0;
  size_t header_bytes_ = 0;
  size_t stride_ = 0;
  size_t row_bytes_ = 0;
  uint32_t first_location_ = 0;
  uint32_t slots_ = 0;
  uint32_t num_columns_ = 0;
};

}  // namespace multitier

#endif  // CC_TIER_PMEM_PMEM_FILE_H_
