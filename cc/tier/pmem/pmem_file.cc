#include "cc/tier/pmem/pmem_file.h"

#include <errno.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>

#include "cc/base/coding.h"
#include "cc/base/crc32c.h"
#include "cc/env/posix_error.h"
#include "cc/row/schema.h"
#include "cc/tier/pmem/libpmem.h"

namespace multitier {
namespace {

constexpr char kMagic[] = "MTPMROWS";
constexpr uint32_t kFormatVersion = 1;
constexpr size_t kFixedHeaderBytes = 56;  // before the schema
constexpr size_t kPageBytes = 4096;

void EncodeSlotHeader(const RecordHeader& header, uint8_t* out) {
  EncodeFixed32(out + 4, header.num_columns);
  EncodeFixed64(out + 8, static_cast<uint64_t>(header.key));
  EncodeFixed64(out + 16, static_cast<uint64_t>(header.version));
  EncodeFixed32(out + 24, header.frequency);
  EncodeFixed32(out + 28, 0);
}

RecordHeader DecodeSlotHeader(const uint8_t* in) {
  RecordHeader header;
  header.num_columns = DecodeFixed32(in + 4);
  header.key = static_cast<int64_t>(DecodeFixed64(in + 8));
  header.version = static_cast<int64_t>(DecodeFixed64(in + 16));
  header.frequency = DecodeFixed32(in + 24);
  return header;
}

uint64_t RandomId() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace

uint32_t PmemFile::Checksum(uint32_t slot, const uint8_t* header, const uint8_t* row_data, size_t row_bytes) const {
  uint8_t place[12];
  EncodeFixed64(place, id_);
  EncodeFixed32(place + 8, first_location_ + slot);
  const uint32_t seed = Crc32c(place, sizeof(place));
  return ExtendCrc32c(ExtendCrc32c(seed, header + 4, kSlotHeaderBytes - 4), row_data, row_bytes);
}

Result<std::unique_ptr<PmemFile>> PmemFile::Create(const std::string& path, const RowLayout& layout, uint32_t first_location,
                                                   uint32_t slots) {
  MT_ASSIGN_OR_RETURN(const Libpmem* libpmem, Libpmem::Load());
  std::unique_ptr<PmemFile> file(new PmemFile(libpmem));
  const std::string schema = ColumnsToJson(layout).ToString();
  file->path_ = path;
  file->id_ = RandomId();
  file->stride_ = layout.stride();  // its row header and ours are of one size
  static_assert(sizeof(RowHeader) == kSlotHeaderBytes, "the stride counts on it");
  file->row_bytes_ = layout.row_bytes();
  file->header_bytes_ = (kFixedHeaderBytes + schema.size() + kPageBytes - 1) / kPageBytes * kPageBytes;
  file->first_location_ = first_location;
  file->slots_ = slots;
  file->num_columns_ = static_cast<uint32_t>(layout.columns().size());

  int is_pmem = 0;
  // Without PMEM_FILE_SPARSE it allocates the whole file.
  void* base = libpmem->map_file(path.c_str(), file->Offset(slots), PMEM_FILE_CREATE | PMEM_FILE_EXCL, 0644,
                                 &file->mapped_bytes_, &is_pmem);
  if (base == nullptr) {
    const int error = errno;
    if (error != EEXIST) ::unlink(path.c_str());
    return PosixError(StrCat("allocation of ", file->Offset(slots), " bytes").c_str(), path, error);
  }
  file->base_ = static_cast<uint8_t*>(base);
  file->is_pmem_ = is_pmem != 0;

  std::string header(kFixedHeaderBytes, '\0');
  uint8_t* p = reinterpret_cast<uint8_t*>(header.data());
  std::memcpy(p, kMagic, 8);
  EncodeFixed32(p + 12, kFormatVersion);
  EncodeFixed32(p + 16, static_cast<uint32_t>(file->header_bytes_));
  EncodeFixed32(p + 20, first_location);
  EncodeFixed32(p + 24, slots);
  EncodeFixed32(p + 28, static_cast<uint32_t>(schema.size()));
  EncodeFixed64(p + 32, file->stride_);
  EncodeFixed64(p + 40, file->row_bytes_);
  EncodeFixed64(p + 48, file->id_);
  header += schema;
  p = reinterpret_cast<uint8_t*>(header.data());
  EncodeFixed32(p + 8, Crc32c(p + 12, header.size() - 12));
  file->Copy(file->base_, header.data(), header.size());
  file->Drain();
  return file;
}

PmemFile::~PmemFile() {
  if (base_ != nullptr) libpmem_->unmap(base_, mapped_bytes_);
}

void PmemFile::Copy(uint8_t* to, const void* from, size_t bytes) const {
  if (is_pmem_) {
    libpmem_->memcpy_nodrain(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

void PmemFile::Drain() const {
  if (is_pmem_) libpmem_->drain();
}

Status PmemFile::Sync() {
  if (is_pmem_) return OkStatus();
  if (libpmem_->msync(base_, mapped_bytes_) == 0) return OkStatus();
  return PosixError("msync", path_, errno);
}

void PmemFile::WriteSlot(uint32_t slot, const WriteRecord& record, size_t row_bytes) {
  uint8_t header[kSlotHeaderBytes];
  EncodeSlotHeader(record.header, header);
  EncodeFixed32(header, Checksum(slot, header, record.row_data, row_bytes));
  uint8_t* to = SlotAddress(slot);
  Copy(to + kSlotHeaderBytes, record.row_data, row_bytes);
  Copy(to, header, kSlotHeaderBytes);
}

Status PmemFile::ReadSlot(uint32_t slot, const RowLayout& layout, ReadRecord* record) const {
  const uint8_t* from = SlotAddress(slot);
  const uint8_t* row = from + kSlotHeaderBytes;
  const RecordHeader header = DecodeSlotHeader(from);
  const char* bad = nullptr;
  size_t row_bytes = 0;
  if (header.num_columns < 1 || header.num_columns > num_columns_ || num_columns_ > layout.columns().size()) {
    bad = "its number of columns is impossible";
  } else {
    const Column& last = layout.columns()[header.num_columns - 1];
    row_bytes = last.offset + last.bytes;
    if (DecodeFixed32(from) != Checksum(slot, from, row, row_bytes)) bad = "its checksum is wrong";
  }
  if (bad != nullptr) {
    const std::string of_key = OfKey(*record);
    if (std::exchange(record->any_key, false)) record->key = header.key;
    return DataLossError("pmem tier: read", of_key, " at location ", record->location, ": '", path_, "' at offset ",
                         Offset(slot), ": ", bad);
  }
  record->header = header;
  if (record->row_data != nullptr) std::memcpy(record->row_data, row, row_bytes);
  return OkStatus();
}

RecordHeader PmemFile::ReadHeader(uint32_t slot) const { return DecodeSlotHeader(SlotAddress(slot)); }

}  // namespace multitier
