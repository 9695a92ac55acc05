#include "cc/checkpoint_files/part_file.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "cc/base/coding.h"
#include "cc/base/crc32c.h"
#include "cc/base/memory_reserve.h"
#include "cc/row/value_codec.h"

namespace multitier {
namespace {

constexpr size_t kMagicBytes = kPartFileMagic.size();
constexpr size_t kHeadBytes = 16;            // of a block
constexpr size_t kRowHeadBytes = 8 + 8 + 4;  // of a row: key, version, frequency
constexpr size_t kCountedBytes = 8 + 8 + 4;  // of a counted key: key, version, count
constexpr size_t kPayloadBytes = 16u << 20;  // about, of a payload
constexpr uint64_t kMaxPayloadBytes = 1u << 30;
// About, of a payload that is written at once: it is in the cache while it is encoded, summed and written.
constexpr size_t kPieceBytes = 128u << 10;

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

// Floats as elements of 16 bits, and back.
template <typename Half>
void PutHalves(char* out, const float* values, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    Half half;
    StoreValue(values[i], &half);
    out[2 * i] = static_cast<char>(half.bits & 0xffu);
    out[2 * i + 1] = static_cast<char>(half.bits >> 8);
  }
}

template <typename Half>
void GetHalves(const char* in, size_t n, float* values) {
  for (size_t i = 0; i < n; ++i) {
    const auto low = static_cast<uint8_t>(in[2 * i]), high = static_cast<uint8_t>(in[2 * i + 1]);
    values[i] = LoadValue(Half{static_cast<uint16_t>(low | high << 8)});
  }
}

// The loops below are for other machines: a copy is several times faster.
constexpr bool kIsLittleEndian = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;

void PutFloats(char* out, const float* values, size_t n) {
  if (kIsLittleEndian) {
    std::memcpy(out, values, n * sizeof(float));
    return;
  }
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i, sizeof(bits));
    EncodeFixed32(reinterpret_cast<uint8_t*>(out) + i * sizeof(bits), bits);
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

void PutValues(char* out, DType dtype, const float* values, size_t n) {
  if (dtype == DType::kFloat32) PutFloats(out, values, n);
  if (dtype == DType::kBFloat16) PutHalves<BFloat16>(out, values, n);
  if (dtype == DType::kFloat16) PutHalves<Float16>(out, values, n);
}

void GetValues(const char* in, DType dtype, size_t n, float* values) {
  if (dtype == DType::kFloat32) GetFloats(in, n, values);
  if (dtype == DType::kBFloat16) GetHalves<BFloat16>(in, n, values);
  if (dtype == DType::kFloat16) GetHalves<Float16>(in, n, values);
}

// Of a row that is not frozen: its head, the value in its dtype, the slots as float32.
size_t RowBytes(const std::vector<ColumnSpec>& columns) {
  size_t bytes = kRowHeadBytes;
  for (const ColumnSpec& column : columns) bytes += static_cast<size_t>(column.dim) * DTypeSize(column.dtype);
  return bytes;
}

// The checksum of a file, with one more block: crc32c of the checksums of its blocks.
uint32_t WithBlock(uint32_t file, uint32_t block) {
  uint8_t bytes[sizeof(block)];
  EncodeFixed32(bytes, block);
  return ExtendCrc32c(file, bytes, sizeof(bytes));
}

void Put64(char* out, int64_t value) { EncodeFixed64(reinterpret_cast<uint8_t*>(out), static_cast<uint64_t>(value)); }
void Put32(char* out, int64_t value) { EncodeFixed32(reinterpret_cast<uint8_t*>(out), static_cast<uint32_t>(value)); }
int64_t Get64(const char* in) { return static_cast<int64_t>(DecodeFixed64(reinterpret_cast<const uint8_t*>(in))); }
uint32_t Get32(const char* in) { return DecodeFixed32(reinterpret_cast<const uint8_t*>(in)); }

}  // namespace

Status PartFileWriter::BeginBlock(uint32_t kind, size_t entries, size_t payload_bytes) {
  char head[kHeadBytes];
  Put32(head, kind);
  Put32(head + 4, static_cast<int64_t>(entries));
  Put64(head + 8, static_cast<int64_t>(payload_bytes));
  block_checksum_ = 0;
  return Put(std::string_view(head, sizeof(head)));
}

Status PartFileWriter::Put(std::string_view bytes) {
  block_checksum_ = ExtendCrc32c(block_checksum_, bytes.data(), bytes.size());
  bytes_ += static_cast<int64_t>(bytes.size());
  return append_(bytes);
}

Status PartFileWriter::EndBlock() {
  char end[sizeof(uint32_t)];
  Put32(end, block_checksum_);
  checksum_ = WithBlock(checksum_, block_checksum_);
  bytes_ += static_cast<int64_t>(sizeof(end));
  return append_(std::string_view(end, sizeof(end)));
}

Status PartFileWriter::WriteBlock(uint32_t kind, size_t entries, std::string_view payload) {
  MT_RETURN_IF_ERROR(BeginBlock(kind, entries, payload.size()));
  MT_RETURN_IF_ERROR(Put(payload));
  return EndBlock();
}

template <typename Encode>
Status PartFileWriter::WriteEntries(uint32_t kind, size_t from, size_t to, size_t entry, const Encode& encode) {
  const size_t at_once = std::min(to - from, std::max<size_t>(1, kPieceBytes / entry));
  const ArrayPtr<char> piece = NewArray<char>(at_once * entry);
  if (piece == nullptr) return ResourceExhaustedError("checkpoint part: no memory for ", at_once * entry, " bytes");
  MT_RETURN_IF_ERROR(BeginBlock(kind, to - from, (to - from) * entry));
  for (size_t i = from; i < to;) {
    char* out = piece.get();
    for (const size_t end = std::min(to, i + at_once); i < end; ++i, out += entry) encode(i, out);
    MT_RETURN_IF_ERROR(Put(std::string_view(piece.get(), static_cast<size_t>(out - piece.get()))));
  }
  rows_ += static_cast<int64_t>(to - from);
  return EndBlock();
}

Status PartFileWriter::Begin(const InitializerSpec& initializer, int dim) {
  MT_RETURN_IF_ERROR(append_(kPartFileMagic));
  bytes_ = kMagicBytes;
  if (initializer.kind != InitializerKind::kMatrix) return OkStatus();
  const size_t row = static_cast<size_t>(dim), at_once = std::max<size_t>(1, kPayloadBytes / (row * sizeof(float)));
  const size_t rows = static_cast<size_t>(initializer.matrix_rows);
  for (size_t from = 0; from < rows; from += at_once) {
    const size_t n = std::min(at_once, rows - from);
    std::string payload(n * row * sizeof(float), '\0');
    PutFloats(payload.data(), initializer.matrix->data() + from * row, n * row);
    MT_RETURN_IF_ERROR(WriteBlock(kMatrix, n, payload));
  }
  return OkStatus();
}

Status PartFileWriter::AddRows(const Rows& rows, size_t from, size_t to) {
  const auto elements = static_cast<size_t>(rows.row_elements()), dim = static_cast<size_t>(rows.columns[0].dim);
  const DType dtype = rows.columns[0].dtype;
  const size_t value_bytes = dim * DTypeSize(dtype);
  return WriteEntries(kRows, from, to, RowBytes(rows.columns), [&](size_t i, char* out) {
    Put64(out, rows.keys[i]);
    Put64(out + 8, rows.versions[i]);
    Put32(out + 16, rows.frequencies[i]);
    const float* const data = rows.data.data() + i * elements;
    PutValues(out + kRowHeadBytes, dtype, data, dim);
    PutFloats(out + kRowHeadBytes + value_bytes, data + dim, elements - dim);
  });
}

Status PartFileWriter::AddFrozen(const Rows& rows, size_t from, size_t to) {
  const auto elements = static_cast<size_t>(rows.row_elements()), dim = static_cast<size_t>(rows.columns[0].dim);
  return WriteEntries(kFrozen, from, to, sizeof(int64_t) + dim * DTypeSize(dtype_), [&](size_t i, char* out) {
    Put64(out, rows.keys[i]);
    PutValues(out + sizeof(int64_t), dtype_, rows.data.data() + i * elements, dim);
  });
}

Status PartFileWriter::AddLinked(const LinkedRecords& records) {
  const int64_t count = records.count();
  rows_ += count;
  return WriteBlock(kLinked, static_cast<size_t>(count), records.Encode());
}

Status PartFileWriter::AddColumns(const ColumnList& list) {
  rows_ += list.rows;
  return WriteBlock(kColumns, list.items.size(), list.Encode());
}

Status PartFileWriter::Add(const Rows& rows) {
  const size_t row_bytes = kRowHeadBytes + static_cast<size_t>(rows.row_elements()) * sizeof(float);
  const size_t at_once = std::max<size_t>(1, kPayloadBytes / row_bytes);
  const MemoryLease lease(2 * std::min(std::max(kPayloadBytes, row_bytes), rows.keys.size() * row_bytes));
  if (!lease.ok()) return lease.Refusal("checkpoint part: writing rows");
  for (size_t from = 0; from < rows.keys.size(); from += at_once) {
    const size_t to = std::min(rows.keys.size(), from + at_once);
    MT_RETURN_IF_ERROR(frozen_ ? AddFrozen(rows, from, to) : AddRows(rows, from, to));
  }
  MT_RETURN_IF_ERROR(AddRemoved(rows));
  return frozen_ ? OkStatus() : AddFilter(rows);
}

Status PartFileWriter::AddRemoved(const Rows& rows) {
  for (size_t from = 0; from < rows.removed_keys.size(); from += kPayloadBytes / sizeof(int64_t)) {
    const size_t to = std::min(rows.removed_keys.size(), from + kPayloadBytes / sizeof(int64_t));
    std::string payload;
    for (size_t i = from; i < to; ++i) PutFixed64(&payload, static_cast<uint64_t>(rows.removed_keys[i]));
    removed_ += static_cast<int64_t>(to - from);
    MT_RETURN_IF_ERROR(WriteBlock(kRemoved, to - from, payload));
  }
  return OkStatus();
}

Status PartFileWriter::AddFilter(const Rows& rows) {
  for (size_t from = 0; from < rows.counted_keys.size(); from += kPayloadBytes / kCountedBytes) {
    const size_t to = std::min(rows.counted_keys.size(), from + kPayloadBytes / kCountedBytes);
    std::string payload;
    for (size_t i = from; i < to; ++i) {
      PutFixed64(&payload, static_cast<uint64_t>(rows.counted_keys[i]));
      PutFixed64(&payload, static_cast<uint64_t>(rows.counted_versions[i]));
      PutFixed32(&payload, static_cast<uint32_t>(rows.counted_frequencies[i]));
    }
    counted_ += static_cast<int64_t>(to - from);
    MT_RETURN_IF_ERROR(WriteBlock(kCounted, to - from, payload));
  }
  for (size_t from = 0; from < rows.filter_counters.size(); from += kPayloadBytes) {
    const size_t n = std::min(kPayloadBytes, rows.filter_counters.size() - from);
    const char* bytes = reinterpret_cast<const char*>(rows.filter_counters.data()) + from;
    MT_RETURN_IF_ERROR(WriteBlock(kFilter, n, std::string_view(bytes, n)));
  }
  return OkStatus();
}

Status PartFileWriter::End() {
  std::string payload;
  PutFixed64(&payload, static_cast<uint64_t>(rows_));
  PutFixed64(&payload, static_cast<uint64_t>(counted_));
  return WriteBlock(kEnd, 1, payload);
}

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
  const MemoryLease lease(4 * rows_at_once * row_bytes);
  if (!lease.ok()) return lease.Refusal(StrCat("checkpoint part ", name_, ": reading rows"));
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
