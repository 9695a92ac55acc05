#include <algorithm>
#include <cstring>

#include "cc/base/coding.h"
#include "cc/base/crc32c.h"
#include "cc/checkpoint_files/part_blocks.h"
#include "cc/checkpoint_files/part_file.h"
#include "cc/row/value_codec.h"

namespace multitier {

using namespace part_file_internal;  // NOLINT: of this file alone

namespace {

// About, of a payload that is written at once: it is in the cache while it is encoded, summed and written.
constexpr size_t kPieceBytes = 128u << 10;

// Floats as elements of 16 bits.
template <typename Half>
void PutHalves(char* out, const float* values, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    Half half;
    StoreValue(values[i], &half);
    out[2 * i] = static_cast<char>(half.bits & 0xffu);
    out[2 * i + 1] = static_cast<char>(half.bits >> 8);
  }
}

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

void PutValues(char* out, DType dtype, const float* values, size_t n) {
  if (dtype == DType::kFloat32) PutFloats(out, values, n);
  if (dtype == DType::kBFloat16) PutHalves<BFloat16>(out, values, n);
  if (dtype == DType::kFloat16) PutHalves<Float16>(out, values, n);
}

void Put64(char* out, int64_t value) { EncodeFixed64(reinterpret_cast<uint8_t*>(out), static_cast<uint64_t>(value)); }
void Put32(char* out, int64_t value) { EncodeFixed32(reinterpret_cast<uint8_t*>(out), static_cast<uint32_t>(value)); }

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
Status PartFileWriter::WriteEntries(uint32_t kind, size_t n, size_t of_block, size_t entry, const Encode& encode) {
  const size_t at_once = std::min(n, std::max<size_t>(1, kPieceBytes / entry));
  const ArrayPtr<char> piece = NewArray<char>(at_once * entry);
  if (piece == nullptr) return ResourceExhaustedError("checkpoint part: no memory for ", at_once * entry, " bytes");
  for (size_t i = 0; i < n;) {
    const size_t to = std::min(n, i + of_block);
    MT_RETURN_IF_ERROR(BeginBlock(kind, to - i, (to - i) * entry));
    while (i < to) {
      char* out = piece.get();
      for (const size_t end = std::min(to, i + at_once); i < end; ++i, out += entry) encode(i, out);
      MT_RETURN_IF_ERROR(Put(std::string_view(piece.get(), static_cast<size_t>(out - piece.get()))));
    }
    MT_RETURN_IF_ERROR(EndBlock());
  }
  return OkStatus();
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

Status PartFileWriter::AddRows(const Rows& rows, size_t of_block) {
  const auto elements = static_cast<size_t>(rows.row_elements()), dim = static_cast<size_t>(rows.columns[0].dim);
  const DType dtype = rows.columns[0].dtype;
  const size_t value_bytes = dim * DTypeSize(dtype);
  return WriteEntries(kRows, rows.keys.size(), of_block, RowBytes(rows.columns), [&](size_t i, char* out) {
    Put64(out, rows.keys[i]);
    Put64(out + 8, rows.versions[i]);
    Put32(out + 16, rows.frequencies[i]);
    const float* const data = rows.data.data() + i * elements;
    PutValues(out + kRowHeadBytes, dtype, data, dim);
    PutFloats(out + kRowHeadBytes + value_bytes, data + dim, elements - dim);
  });
}

Status PartFileWriter::AddFrozen(const Rows& rows, size_t of_block) {
  const auto elements = static_cast<size_t>(rows.row_elements()), dim = static_cast<size_t>(rows.columns[0].dim);
  return WriteEntries(kFrozen, rows.keys.size(), of_block, sizeof(int64_t) + dim * DTypeSize(dtype_), [&](size_t i, char* out) {
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
  const size_t of_block = std::max<size_t>(1, kPayloadBytes / row_bytes);
  rows_ += static_cast<int64_t>(rows.keys.size());
  MT_RETURN_IF_ERROR(frozen_ ? AddFrozen(rows, of_block) : AddRows(rows, of_block));
  removed_ += static_cast<int64_t>(rows.removed_keys.size());
  MT_RETURN_IF_ERROR(WriteEntries(kRemoved, rows.removed_keys.size(), kPayloadBytes / sizeof(int64_t), sizeof(int64_t),
                                  [&](size_t i, char* out) { Put64(out, rows.removed_keys[i]); }));
  return frozen_ ? OkStatus() : AddFilter(rows);
}

Status PartFileWriter::AddFilter(const Rows& rows) {
  counted_ += static_cast<int64_t>(rows.counted_keys.size());
  MT_RETURN_IF_ERROR(
      WriteEntries(kCounted, rows.counted_keys.size(), kPayloadBytes / kCountedBytes, kCountedBytes, [&](size_t i, char* out) {
        Put64(out, rows.counted_keys[i]);
        Put64(out + 8, rows.counted_versions[i]);
        Put32(out + 16, rows.counted_frequencies[i]);
      }));
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

}  // namespace multitier
