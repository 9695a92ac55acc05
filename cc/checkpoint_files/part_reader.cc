#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "cc/base/can_allocate.h"
#include "cc/base/coding.h"
#include "cc/base/crc32c.h"
#include "cc/checkpoint_files/part_blocks.h"
#include "cc/checkpoint_files/part_file.h"
#include "cc/row/value_codec.h"

namespace multitier {

using namespace part_file_internal;  // NOLINT: of this file alone

namespace {

constexpr uint64_t kMaxPayloadBytes = 1u << 30;

// Elements of 16 bits as floats.
template <typename Half>
void GetHalves(const char* in, size_t n, float* values) {
  for (size_t i = 0; i < n; ++i) {
    const auto low = static_cast<uint8_t>(in[2 * i]), high = static_cast<uint8_t>(in[2 * i + 1]);
    values[i] = LoadValue(Half{static_cast<uint16_t>(low | high << 8)});
  }
}

void GetFloats(const char* in, size_t n, float* values) {
  if (kIsLittleEndian) {
    std::memcpy(values, in, n * sizeof(float));
    return;
  }
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = DecodeFixed32(reinterpret_cast<const uint8_t*>(in) + i * sizeof(bits));
    std::memcpy(values + i, &bits, sizeof(bits));
  }
}

void GetValues(const char* in, DType dtype, size_t n, float* values) {
  if (dtype == DType::kFloat32) GetFloats(in, n, values);
  if (dtype == DType::kBFloat16) GetHalves<BFloat16>(in, n, values);
  if (dtype == DType::kFloat16) GetHalves<Float16>(in, n, values);
}

int64_t Get64(const char* in) { return static_cast<int64_t>(DecodeFixed64(reinterpret_cast<const uint8_t*>(in))); }
uint32_t Get32(const char* in) { return DecodeFixed32(reinterpret_cast<const uint8_t*>(in)); }

}  // namespace

Status PartFileReader::Damaged(uint64_t offset, const std::string& what) const {
  return DataLossError("checkpoint part ", name_, ": damaged at offset ", offset, ": ", what);
}

Status PartFileReader::ReadBlock(Block* block) {
  char head[kHeadBytes];
  const uint64_t left = bytes_ - offset_, around = kHeadBytes + sizeof(uint32_t);
  if (left < around) return Damaged(offset_, StrCat("expected a block, found the last ", left, " bytes"));
  MT_RETURN_IF_ERROR(read_at_(offset_, kHeadBytes, head));
  const uint64_t bytes = static_cast<uint64_t>(Get64(head + 8));
  const uint64_t most = std::min(left - around, kMaxPayloadBytes);
  if (bytes > most) return Damaged(offset_, StrCat("expected a block of at most ", most, " bytes, found one of ", bytes));
  const size_t with_checksum = bytes + sizeof(uint32_t);
  if (with_checksum > payload_capacity_) {
    payload_capacity_ = 0;
    payload_ = nullptr;
    payload_ = NewArray<char>(with_checksum);
    if (payload_ == nullptr) {
      return ResourceExhaustedError("checkpoint part ", name_, ": no memory for a block of ", with_checksum, " bytes");
    }
    payload_capacity_ = with_checksum;
  }
  MT_RETURN_IF_ERROR(read_at_(offset_ + kHeadBytes, with_checksum, payload_.get()));
  const uint32_t stored = Get32(payload_.get() + bytes);
  if (ExtendCrc32c(Crc32c(head, kHeadBytes), payload_.get(), bytes) != stored) return Damaged(offset_, "wrong checksum");
  checksum_ = WithBlock(checksum_, stored);
  block->kind = Get32(head);
  block->entries = Get32(head + 4);
  block->offset = offset_;
  block->payload = std::string_view(payload_.get(), bytes);
  offset_ += kHeadBytes + bytes + sizeof(uint32_t);
  return OkStatus();
}

Status PartFileReader::CheckPayload(const Block& block, size_t entry_bytes) const {
  if (block.payload.size() == block.entries * entry_bytes) return OkStatus();
  return Damaged(block.offset, StrCat("expected ", block.entries, " entries of ", entry_bytes, " bytes, found ",
                                      block.payload.size(), " bytes"));
}

Status PartFileReader::Begin(InitializerSpec* initializer) {
  char magic[kMagicBytes] = {};
  if (bytes_ >= kMagicBytes) MT_RETURN_IF_ERROR(read_at_(0, kMagicBytes, magic));
  if (std::string_view(magic, kMagicBytes) != kPartFileMagic) return Damaged(0, "not a part file");
  offset_ = kMagicBytes;
  if (!manifest_.has_initializer) return OkStatus();
  *initializer = manifest_.initializer;
  if (initializer->kind != InitializerKind::kMatrix) return OkStatus();
  const size_t dim = static_cast<size_t>(manifest_.dim()), rows = static_cast<size_t>(initializer->matrix_rows);
  auto matrix = std::make_shared<std::vector<float>>();
  while (matrix->size() < rows * dim) {
    Block block;
    MT_RETURN_IF_ERROR(ReadBlock(&block));
    MT_RETURN_IF_ERROR(CheckPayload(block, dim * sizeof(float)));
    if (block.kind != kMatrix || block.entries == 0 || block.entries > rows - matrix->size() / dim) {
      return Damaged(block.offset, StrCat("expected ", rows, " rows of the initial matrix"));
    }
    matrix->resize(matrix->size() + block.entries * dim);
    GetFloats(block.payload.data(), block.entries * dim, matrix->data() + matrix->size() - block.entries * dim);
  }
  initializer->matrix = std::move(matrix);
  return OkStatus();
}

Status PartFileReader::TakeRows(const Block& block, Rows* rows) {
  const auto elements = static_cast<size_t>(manifest_.row_elements()), dim = static_cast<size_t>(manifest_.dim());
  const DType dtype = manifest_.columns[0].dtype;
  const size_t entry = RowBytes(manifest_.columns);
  MT_RETURN_IF_ERROR(CheckPayload(block, entry));
  const char* in = block.payload.data();
  rows->Resize(block.entries);
  for (size_t i = 0; i < block.entries; ++i, in += entry) {
    rows->keys[i] = Get64(in);
    rows->versions[i] = Get64(in + 8);
    rows->frequencies[i] = Get32(in + 16);
    if (fields_ == RowFields::kHeads) continue;
    float* const data = rows->data.data() + i * elements;
    GetValues(in + kRowHeadBytes, dtype, dim, data);
    GetFloats(in + kRowHeadBytes + dim * DTypeSize(dtype), elements - dim, data + dim);
  }
  rows_read_ += block.entries;
  return OkStatus();
}

Status PartFileReader::TakeFrozen(const Block& block, Rows* rows) {
  const auto dim = static_cast<size_t>(manifest_.dim());
  const DType dtype = manifest_.columns[0].dtype;
  const size_t entry = sizeof(int64_t) + dim * DTypeSize(dtype);
  MT_RETURN_IF_ERROR(CheckPayload(block, entry));
  rows->Resize(block.entries);
  rows->versions.assign(block.entries, -1);
  rows->frequencies.assign(block.entries, 0);
  const char* in = block.payload.data();
  for (size_t i = 0; i < block.entries; ++i, in += entry) {
    rows->keys[i] = Get64(in);
    if (fields_ == RowFields::kHeads) continue;
    float* const value = rows->data.data() + i * dim;
    GetValues(in + sizeof(int64_t), dtype, dim, value);
  }
  rows_read_ += block.entries;
  return OkStatus();
}

Status PartFileReader::TakeCounted(const Block& block, Rows* rows) {
  MT_RETURN_IF_ERROR(CheckPayload(block, kCountedBytes));
  const char* in = block.payload.data();
  for (size_t i = 0; i < block.entries; ++i, in += kCountedBytes) {
    rows->counted_keys.push_back(Get64(in));
    rows->counted_versions.push_back(Get64(in + 8));
    rows->counted_frequencies.push_back(Get32(in + 16));
  }
  counted_read_ += block.entries;
  return OkStatus();
}

Status PartFileReader::TakeRemoved(const Block& block, Rows* rows) {
  MT_RETURN_IF_ERROR(CheckPayload(block, sizeof(int64_t)));
  for (size_t i = 0; i < block.entries; ++i) rows->removed_keys.push_back(Get64(block.payload.data() + i * sizeof(int64_t)));
  removed_read_ += block.entries;
  return OkStatus();
}

Status PartFileReader::BeginLinked(const Block& block) {
  LinkedRecords records;
  const bool whole = LinkedRecords::Decode(block.payload, &records) && records.count() == block.entries;
  if (!whole || records.file != linked_files_ || linked_files_ >= manifest_.linked.size() ||
      manifest_.linked[linked_files_].rows != block.entries) {
    return Damaged(block.offset, StrCat("expected the rows of linked file ", linked_files_, " of ", manifest_.linked.size(),
                                        ", found ", block.entries, " rows of file ", records.file));
  }
  const Manifest::Linked& expected = manifest_.linked[linked_files_++];
  MT_ASSIGN_OR_RETURN(LinkedFile file, open_linked_(expected.file));
  if (file.bytes != static_cast<uint64_t>(expected.bytes)) {
    return DataLossError("linked file '", file.path, "' of checkpoint part ", name_, ": expected ", expected.bytes,
                         " bytes, found ", file.bytes);
  }
  MT_ASSIGN_OR_RETURN(linked_, LinkedRows::Open(std::move(file), std::move(records), manifest_.columns));
  return OkStatus();
}

Status PartFileReader::TakeLinked(Rows* rows) {
  MT_RETURN_IF_ERROR(linked_->Next(rows));
  rows_read_ += static_cast<int64_t>(rows->keys.size());
  if (linked_->ended()) linked_ = nullptr;
  return OkStatus();
}

Status PartFileReader::BeginColumns(const Block& block) {
  const Result<ColumnList> list = ColumnList::Decode(block.payload);
  if (!list.ok()) return Damaged(block.offset, list.status().message());
  if (list->rows < 1 || list->rows > manifest_.num_rows - rows_read_ ||
      list->items.size() > manifest_.linked.size() - linked_files_) {
    return Damaged(block.offset, StrCat("expected at most ", manifest_.num_rows, " rows in ", manifest_.linked.size(),
                                        " arrays, found more"));
  }
  std::vector<LinkedFile> files;
  for (size_t i = 0; i < list->items.size(); ++i) {
    MT_ASSIGN_OR_RETURN(LinkedFile file, open_linked_(manifest_.linked[linked_files_++].file));
    files.push_back(std::move(file));
  }
  MT_ASSIGN_OR_RETURN(arrays_, ColumnRows::Open(*list, std::move(files), manifest_.columns));
  return OkStatus();
}

Status PartFileReader::TakeColumns(Rows* rows) {
  MT_RETURN_IF_ERROR(arrays_->Next(rows));
  rows_read_ += static_cast<int64_t>(rows->keys.size());
  if (arrays_->ended()) arrays_ = nullptr;
  return OkStatus();
}

Status PartFileReader::TakeEnd(const Block& block, Rows* rows) {
  MT_RETURN_IF_ERROR(CheckPayload(block, 16));
  const int64_t stored_rows = Get64(block.payload.data()), stored_counted = Get64(block.payload.data() + 8);
  if (stored_rows != rows_read_ || stored_counted != counted_read_ || rows_read_ != manifest_.num_rows) {
    return Damaged(block.offset, StrCat("expected ", manifest_.num_rows, " rows, found ", rows_read_, " of ", stored_rows,
                                        " and ", counted_read_, " of ", stored_counted, " counted keys"));
  }
  if (linked_files_ != manifest_.linked.size()) {
    return Damaged(block.offset, StrCat("expected ", manifest_.linked.size(), " linked files, found ", linked_files_));
  }
  if (removed_read_ != manifest_.num_removed) {
    return Damaged(block.offset, StrCat("expected ", manifest_.num_removed, " removed keys, found ", removed_read_));
  }
  if (manifest_.checksum != checksum_) {
    return Damaged(0, StrCat("expected the part file that was saved, found another one: its checksum is ", checksum_, ", not ",
                             manifest_.checksum));
  }
  rows->applies = manifest_.applies;
  rows->filter_counters = std::move(filter_counters_);
  ended_ = true;
  return OkStatus();
}

bool PartFileReader::has_many_blocks() const {
  const size_t row_bytes = kRowHeadBytes + static_cast<size_t>(manifest_.row_elements()) * sizeof(float);
  return static_cast<size_t>(manifest_.num_rows) > kPayloadBytes / row_bytes;
}

Status PartFileReader::Next(Rows* rows) {
  MT_RETURN_IF_ERROR(TakeNext(rows));
  return CheckKeys(*rows);
}

Status PartFileReader::CheckKeys(const Rows& rows) const {
  if (manifest_.key_dtype != KeyType::kUint32) return OkStatus();
  for (const std::vector<int64_t>* keys : {&rows.keys, &rows.counted_keys, &rows.removed_keys}) {
    for (const int64_t key : *keys) {
      if (key >= 0 && key <= UINT32_MAX) continue;
      return DataLossError("checkpoint part ", name_, ": expected uint32 keys in it and in its linked files, found ", key);
    }
  }
  return OkStatus();
}

Status PartFileReader::TakeNext(Rows* rows) {
  rows->columns = manifest_.columns;
  if (manifest_.frozen) rows->columns[0].dtype = DType::kFloat32;
  if (fields_ == RowFields::kHeads) rows->columns.clear();
  const size_t row_bytes = kRowHeadBytes + static_cast<size_t>(manifest_.row_elements()) * sizeof(float);
  // A block, and the rows made of it, in vectors that grow.
  const size_t rows_at_once = std::min(std::max<size_t>(1, kPayloadBytes / row_bytes), static_cast<size_t>(manifest_.num_rows));
  const size_t bytes = 4 * rows_at_once * row_bytes;
  if (!CanAllocate(bytes)) return ResourceExhaustedError("checkpoint part ", name_, ": no memory for ", bytes, " bytes");
  for (;;) {
    if (linked_ != nullptr) return TakeLinked(rows);
    if (arrays_ != nullptr) return TakeColumns(rows);
    Block block;
    MT_RETURN_IF_ERROR(ReadBlock(&block));
    if (block.kind == kLinked) {
      MT_RETURN_IF_ERROR(BeginLinked(block));
      if (linked_->ended()) linked_ = nullptr;
      continue;
    }
    if (block.kind == kColumns && !manifest_.frozen) {
      MT_RETURN_IF_ERROR(BeginColumns(block));
      continue;
    }
    if (block.kind == kRows && !manifest_.frozen) return TakeRows(block, rows);
    if (block.kind == kFrozen && manifest_.frozen) return TakeFrozen(block, rows);
    rows->Resize(0);
    if (block.kind == kCounted) return TakeCounted(block, rows);
    if (block.kind == kRemoved) return TakeRemoved(block, rows);
    if (block.kind == kEnd) return TakeEnd(block, rows);
    if (block.kind != kFilter) return Damaged(block.offset, StrCat("block of unexpected kind ", block.kind));
    MT_RETURN_IF_ERROR(CheckPayload(block, 1));
    filter_counters_.insert(filter_counters_.end(), block.payload.begin(), block.payload.end());
  }
}

}  // namespace multitier
