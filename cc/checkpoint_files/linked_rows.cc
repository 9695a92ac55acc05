#include "cc/checkpoint_files/linked_rows.h"

#include <algorithm>
#include <utility>

#include "cc/base/coding.h"
#include "cc/row/schema.h"
#include "cc/row/value_column.h"

namespace multitier {
namespace {

constexpr size_t kHeadBytes = 12;               // of the encoded form: file, slots, bytes of the segment's header
constexpr size_t kReadBytes = size_t{8} << 20;  // about, of the file at once

size_t BitBytes(uint32_t slots) { return (size_t{slots} + 7) / 8; }
const uint8_t* Bytes(const char* data) { return reinterpret_cast<const uint8_t*>(data); }

}  // namespace

int64_t LinkedRecords::count() const {
  int64_t n = 0;
  for (const uint64_t word : rows) n += __builtin_popcountll(word);
  return n;
}

std::string LinkedRecords::Encode() const {
  std::string out;
  PutFixed32(&out, file);
  PutFixed32(&out, slots);
  PutFixed32(&out, static_cast<uint32_t>(header.size()));
  out += header;
  const size_t at = out.size();
  for (const uint64_t word : rows) PutFixed64(&out, word);
  out.resize(at + BitBytes(slots));
  return out;
}

bool LinkedRecords::Decode(std::string_view payload, LinkedRecords* out) {
  if (payload.size() < kHeadBytes) return false;
  out->file = DecodeFixed32(Bytes(payload.data()));
  out->slots = DecodeFixed32(Bytes(payload.data()) + 4);
  const size_t header_bytes = DecodeFixed32(Bytes(payload.data()) + 8), bits = BitBytes(out->slots);
  if (payload.size() != kHeadBytes + header_bytes + bits) return false;
  out->header = payload.substr(kHeadBytes, header_bytes);
  out->rows.assign((size_t{out->slots} + 63) / 64, 0);
  const uint8_t* in = Bytes(payload.data()) + kHeadBytes + header_bytes;
  for (uint32_t byte = 0; byte < bits; ++byte) out->rows[byte / 8] |= uint64_t{in[byte]} << byte % 8 * 8;
  return out->slots % 64 == 0 || out->rows.back() >> out->slots % 64 == 0;
}

LinkedRows::LinkedRows(LinkedFile file, LinkedRecords records, SegmentHeader header)
    : file_(std::move(file)), records_(std::move(records)), header_(std::move(header)), geometry_(header_) {
  next_ = Seek(0);
}

Result<std::unique_ptr<LinkedRows>> LinkedRows::Open(LinkedFile file, LinkedRecords records,
                                                     const std::vector<ColumnSpec>& columns) {
  size_t needed = 0;
  MT_ASSIGN_OR_RETURN(SegmentHeader header,
                      SegmentHeader::Decode(Bytes(records.header.data()), records.header.size(), file.path, &needed));
  if (needed != records.header.size() || records.slots > header.slots || header.columns.size() > columns.size() ||
      !AreOfOneTable(header.columns, columns)) {
    return DataLossError("linked file '", file.path, "': expected the columns of its part, found a segment of ",
                         header.columns.size(), " others, or of ", header.slots, " records");
  }
  if (file.bytes < header.EndOfRecords(records.slots)) {
    return DataLossError("linked file '", file.path, "': expected at least ", header.EndOfRecords(records.slots),
                         " bytes, found ", file.bytes);
  }
  std::string found(needed, '\0');
  MT_RETURN_IF_ERROR(file.read_at(0, needed, found.data()));
  if (found != records.header) {
    return DataLossError("linked file '", file.path, "': damaged at offset 0: expected the header of segment ", header.id,
                         ", found another one");
  }
  return std::unique_ptr<LinkedRows>(new LinkedRows(std::move(file), std::move(records), std::move(header)));
}

uint32_t LinkedRows::Seek(uint32_t slot) const {
  while (slot < records_.slots && !has(slot)) slot = records_.rows[slot / 64] >> slot % 64 == 0 ? (slot | 63) + 1 : slot + 1;
  return std::min(slot, records_.slots);
}

Status LinkedRows::Take(uint32_t slot, const char* record, size_t i, Rows* rows) const {
  RecordFields fields;
  const bool good = DecodeRecord(geometry_, slot, Bytes(record), /*check=*/true, &fields);
  const uint32_t columns = good ? fields.header.num_columns : 0;
  if (columns == 0 || columns > header_.columns.size() || (fields.flags & kTombstoneFlag) != 0) {
    return DataLossError("linked file '", file_.path, "': damaged at offset ", geometry_.RecordOffset(slot),
                         ": expected the record of a row, found a wrong checksum");
  }
  rows->keys[i] = fields.header.key;
  rows->versions[i] = fields.header.version;
  rows->frequencies[i] = fields.header.frequency;
  float* to = rows->data.data() + i * static_cast<size_t>(rows->row_elements());
  const uint8_t* from = fields.row_data;
  for (size_t c = 0; c < rows->columns.size(); ++c) {
    const auto dim = static_cast<size_t>(rows->columns[c].dim);
    if (c < columns) {
      const DType dtype = header_.columns[c].dtype;
      ReadColumn(dtype, from, dim, to);
      from += (dim * DTypeSize(dtype) + 15) / 16 * 16;
    } else {
      std::fill_n(to, dim, rows->columns[c].initial_value);
    }
    to += dim;
  }
  return OkStatus();
}

Status LinkedRows::Next(Rows* rows) {
  const uint64_t begin = geometry_.RecordOffset(next_);
  const size_t row_bytes = static_cast<size_t>(rows->row_elements()) * sizeof(float);  // it may have slots that records lack
  const size_t most = std::max<size_t>(1, kReadBytes / std::max<size_t>(1, row_bytes));
  uint32_t end = next_;
  std::vector<uint32_t> slots;
  for (uint32_t slot = next_; slot < records_.slots; slot = Seek(slot + 1)) {
    if (slots.size() == most) break;
    if (!slots.empty() && geometry_.RecordOffset(slot) + geometry_.record_bytes - begin > kReadBytes) break;
    slots.push_back(slot);
    end = slot;
  }
  const size_t bytes = static_cast<size_t>(geometry_.RecordOffset(end) + geometry_.record_bytes - begin);
  if (bytes > buffer_bytes_) {
    buffer_bytes_ = 0;
    buffer_ = NewArray<char>(bytes);
    if (buffer_ == nullptr) return ResourceExhaustedError("linked file '", file_.path, "': no memory for ", bytes, " bytes");
    buffer_bytes_ = bytes;
  }
  MT_RETURN_IF_ERROR(file_.read_at(begin, bytes, buffer_.get()));
  rows->Resize(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    MT_RETURN_IF_ERROR(Take(slots[i], buffer_.get() + (geometry_.RecordOffset(slots[i]) - begin), i, rows));
  }
  next_ = Seek(end + 1);
  return OkStatus();
}

}  // namespace multitier
