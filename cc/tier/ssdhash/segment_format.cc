#include "cc/tier/ssdhash/segment_format.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cc/base/crc32c.h"
#include "cc/row/schema.h"

namespace multitier {
namespace {

constexpr char kHeaderMagic[] = "MTSSDSEG";
constexpr char kFooterMagic[] = "MTSSDFTR";
constexpr char kTrailerMagic[] = "MTSSDEND";
constexpr char kProvenMagic[] = "MTSSDSYN";
constexpr size_t kMagicBytes = 8;
constexpr size_t kFixedHeaderBytes = 56;
constexpr size_t kSectorTrailerBytes = 8;
constexpr size_t kSectorContents = kSectorBytes - kSectorTrailerBytes;
constexpr uint32_t kMaxHeaderSectors = (64u << 20) / kSectorBytes;
constexpr size_t kFixedFooterBytes = 48;
constexpr size_t kTrailerBytes = 32;
constexpr uint64_t kMaxSlots = 1u << 30;
constexpr size_t kMaxFooterBytesPerSlot = 31;  // key, seq, version 8 each, frequency 4, columns 2, tombstone bit

bool HasMagic(const uint8_t* data, const char* magic) { return std::memcmp(data, magic, kMagicBytes) == 0; }

uint64_t MaxFooterBytes(uint64_t slots) {
  return RoundUpToBlock(kFixedFooterBytes + slots * kMaxFooterBytesPerSlot + 16 + kTrailerBytes);
}

uint32_t HeaderSectors(const std::vector<ColumnSpec>& columns) {
  size_t bytes = kFixedHeaderBytes;
  for (const ColumnSpec& column : columns) bytes += 16 + column.name.size();
  return static_cast<uint32_t>((bytes + kSectorContents - 1) / kSectorContents);
}

uint32_t SegmentSeed(const InstanceId& instance, uint64_t id) {
  uint8_t bytes[24];
  std::copy(instance.begin(), instance.end(), bytes);
  EncodeFixed64(bytes + 16, id);
  return Crc32c(bytes, sizeof(bytes));
}

// Of all of a sector but the checksum at its end.
uint32_t HeaderSectorChecksum(uint32_t seed, size_t index, const uint8_t* data) {
  uint8_t bytes[4];
  EncodeFixed32(bytes, static_cast<uint32_t>(index));
  return ExtendCrc32c(ExtendCrc32c(seed, bytes, sizeof(bytes)), data, kSectorBytes - 4);
}

// Bytes that hold any value up to max: 0, 4 or 8.
uint32_t WidthOf(uint64_t max) { return max == 0 ? 0 : max <= 0xffffffffu ? 4 : 8; }

bool IsWidth(uint32_t width) { return width == 0 || width == 4 || width == 8; }

// Moves *at behind what it wrote.
void PutWidth(uint8_t** at, uint32_t width, uint64_t value) {
  if (width == 4) EncodeFixed32(*at, static_cast<uint32_t>(value));
  if (width == 8) EncodeFixed64(*at, value);
  *at += width;
}

uint64_t GetWidth(const uint8_t* in, uint32_t width, size_t i) {
  if (width == 0) return 0;
  return width == 4 ? DecodeFixed32(in + i * 4) : DecodeFixed64(in + i * 8);
}

uint32_t RecordSeed(const SegmentGeometry& geometry, uint32_t slot) {
  uint8_t bytes[4];
  EncodeFixed32(bytes, slot);
  return ExtendCrc32c(geometry.seed, bytes, sizeof(bytes));
}

}  // namespace

SegmentHeader SegmentHeader::Make(const InstanceId& instance, uint64_t id, bool survivors, uint64_t bytes,
                                  const RowLayout& layout) {
  SegmentHeader header;
  header.instance = instance;
  header.id = id;
  header.survivors = survivors;
  header.row_bytes = static_cast<uint32_t>(layout.row_bytes());
  header.columns.assign(layout.columns().begin(), layout.columns().end());
  const uint64_t fixed = header.header_bytes() + MaxFooterBytes(0) + kBlockBytes;
  const uint64_t per_slot = header.record_bytes() + kMaxFooterBytesPerSlot;
  uint64_t slots = bytes > fixed ? (bytes - fixed) / per_slot : 1;
  slots = std::clamp<uint64_t>(slots, 1, kMaxSlots);
  const uint32_t per_block = header.records_per_block();
  if (per_block > 0 && slots > per_block) slots -= slots % per_block;  // whole blocks
  header.slots = static_cast<uint32_t>(slots);
  while (header.slots > 1 && header.MaxFileBytes() > bytes) header.slots -= std::min(header.slots - 1, std::max(1u, per_block));
  return header;
}

uint64_t SegmentHeader::header_bytes() const { return RoundUpToBlock(uint64_t{HeaderSectors(columns)} * kSectorBytes); }

uint32_t SegmentHeader::records_per_block() const {
  const uint32_t n = static_cast<uint32_t>(kBlockBytes) / record_bytes();
  const bool wasteful = n == 0 || (kBlockBytes - n * record_bytes()) * 10 >= kBlockBytes;
  return wasteful ? 0 : n;
}

uint64_t SegmentHeader::RecordOffset(uint32_t slot) const {
  const uint32_t n = records_per_block();
  if (n == 0) return header_bytes() + uint64_t{slot} * record_bytes();
  return header_bytes() + uint64_t{slot / n} * kBlockBytes + slot % n * record_bytes();
}

uint64_t SegmentHeader::MaxFileBytes() const { return RoundUpToBlock(EndOfRecords(slots)) + MaxFooterBytes(slots); }

uint32_t SegmentHeader::Seed() const { return SegmentSeed(instance, id); }

uint64_t SegmentHeader::BytesOfColumns(uint32_t n) const {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const uint64_t raw = static_cast<uint64_t>(columns[i].dim) * DTypeSize(columns[i].dtype);
    bytes += (raw + 15) / 16 * 16;
  }
  return bytes;
}

std::string SegmentHeader::Encode() const {
  std::string contents(kHeaderMagic, kMagicBytes);
  PutFixed32(&contents, kSegmentFormatVersion);
  PutFixed32(&contents, static_cast<uint32_t>(columns.size()));
  contents.append(reinterpret_cast<const char*>(instance.data()), instance.size());
  PutFixed64(&contents, id);
  PutFixed32(&contents, survivors ? 1 : 0);
  PutFixed32(&contents, slots);
  PutFixed32(&contents, row_bytes);
  PutFixed32(&contents, records_per_block());
  for (const ColumnSpec& column : columns) {
    uint32_t initial = 0;
    std::memcpy(&initial, &column.initial_value, sizeof(initial));
    PutFixed32(&contents, static_cast<uint32_t>(column.dtype));
    PutFixed32(&contents, static_cast<uint32_t>(column.dim));
    PutFixed32(&contents, initial);
    PutFixed32(&contents, static_cast<uint32_t>(column.name.size()));
    contents.append(column.name);
  }
  const uint32_t sectors = HeaderSectors(columns);
  contents.resize(sectors * kSectorContents);
  std::string out;
  for (uint32_t i = 0; i < sectors; ++i) {
    out.append(contents, i * kSectorContents, kSectorContents);
    PutFixed32(&out, sectors);
    const auto* sector = reinterpret_cast<const uint8_t*>(out.data()) + i * kSectorBytes;
    PutFixed32(&out, HeaderSectorChecksum(Seed(), i, sector));
  }
  out.resize(header_bytes());
  return out;
}

bool DecodeHeaderSector(const InstanceId& instance, uint64_t id, size_t index, const uint8_t* data, uint32_t* sectors) {
  const uint8_t* trailer = data + kSectorContents;
  if (HeaderSectorChecksum(SegmentSeed(instance, id), index, data) != DecodeFixed32(trailer + 4)) return false;
  *sectors = DecodeFixed32(trailer);
  return index < *sectors && *sectors <= kMaxHeaderSectors;
}

Result<SegmentHeader> SegmentHeader::Decode(const uint8_t* data, size_t bytes, const std::string& path, size_t* needed) {
  const auto damaged = [&path](const char* what, size_t sector = 0) {
    return DataLossError("header of segment '", path, "' at offset ", sector * kSectorBytes, ": ", what);
  };
  *needed = kBlockBytes;
  if (bytes < kBlockBytes) return OutOfRangeError("header of segment '", path, "': ", bytes, " bytes");
  if (!HasMagic(data, kHeaderMagic)) return damaged("no segment");
  SegmentHeader header;
  std::copy(data + 16, data + 32, header.instance.begin());
  header.id = DecodeFixed64(data + 32);
  uint32_t sectors = 0, same = 0;
  if (!DecodeHeaderSector(header.instance, header.id, 0, data, &sectors)) return damaged("checksum does not match");
  if (const uint32_t version = DecodeFixed32(data + 8); version != kSegmentFormatVersion) {
    return UnimplementedError("segment '", path, "': expected format version ", kSegmentFormatVersion, ", found ", version,
                              ": use the release that wrote it");
  }
  const size_t header_bytes = RoundUpToBlock(uint64_t{sectors} * kSectorBytes);
  *needed = header_bytes;
  if (bytes < header_bytes) return OutOfRangeError("header of segment '", path, "': ", bytes, " bytes");
  std::string contents;
  for (size_t i = 0; i < header_bytes / kSectorBytes; ++i) {
    const uint8_t* sector = data + i * kSectorBytes;
    if (i >= sectors) {
      if (!AllZero(sector, kSectorBytes)) return damaged("expected zeros", i);
      continue;
    }
    if (!DecodeHeaderSector(header.instance, header.id, i, sector, &same) || same != sectors) {
      return damaged("checksum does not match", i);
    }
    contents.append(reinterpret_cast<const char*>(sector), kSectorContents);
  }
  header.survivors = DecodeFixed32(data + 40) != 0;
  header.slots = DecodeFixed32(data + 44);
  header.row_bytes = DecodeFixed32(data + 48);
  const uint32_t num_columns = DecodeFixed32(data + 12);
  const auto* in = reinterpret_cast<const uint8_t*>(contents.data());
  size_t at = kFixedHeaderBytes;
  for (uint32_t i = 0; i < num_columns; ++i) {
    if (at + 16 > contents.size()) return damaged("columns do not fit");
    ColumnSpec column;
    const uint32_t dtype = DecodeFixed32(in + at);
    column.dtype = static_cast<DType>(dtype);
    column.dim = static_cast<int>(DecodeFixed32(in + at + 4));
    const uint32_t initial = DecodeFixed32(in + at + 8);
    std::memcpy(&column.initial_value, &initial, sizeof(initial));
    const uint32_t name_bytes = DecodeFixed32(in + at + 12);
    at += 16;
    if (dtype > static_cast<uint32_t>(DType::kFloat16) || name_bytes > contents.size() - at)
      return damaged("impossible column");
    column.name.assign(contents, at, name_bytes);
    at += name_bytes;
    header.columns.push_back(std::move(column));
  }
  if (const Status columns = CheckColumns(header.columns); !columns.ok()) return damaged(columns.message().c_str());
  if (header.slots == 0 || header.slots > kMaxSlots || header.row_bytes != header.BytesOfColumns(num_columns) ||
      HeaderSectors(header.columns) != sectors || header.records_per_block() != DecodeFixed32(data + 52)) {
    return damaged("impossible geometry");
  }
  return header;
}

SegmentGeometry::SegmentGeometry(const SegmentHeader& header)
    : header_bytes(header.header_bytes()),
      record_bytes(header.record_bytes()),
      row_bytes(header.row_bytes),
      per_block(header.records_per_block()),
      slots(header.slots),
      seed(header.Seed()) {
  // Of a full, sealed segment; of the footer: key, frequency, version.
  const uint64_t bytes = RoundUpToBlock(header.EndOfRecords(slots)) + RoundUpToBlock(uint64_t{slots} * 17);
  file_bytes_per_slot = static_cast<uint32_t>(std::min<uint64_t>(bytes / slots, ~0u));
}

SegmentGeometry::SegmentGeometry(const SegmentHeader& header, uint64_t file_bytes) : SegmentGeometry(header) {
  slots = file_bytes < header_bytes ? 0 : std::min(slots, RecordsBelow(file_bytes));
}

void EncodeRecord(const SegmentGeometry& geometry, uint32_t slot, const RecordHeader& header, uint64_t seq, uint32_t flags,
                  const uint8_t* row_data, size_t data_bytes, uint8_t* out) {
  EncodeFixed64(out, static_cast<uint64_t>(header.key));
  EncodeFixed64(out + 8, seq);
  EncodeFixed64(out + 16, static_cast<uint64_t>(header.version));
  EncodeFixed32(out + 24, header.frequency);
  EncodeFixed32(out + 28, header.num_columns | flags << 16);
  uint8_t* data = out + kRecordHeaderBytes;
  if (row_data != nullptr) std::memcpy(data, row_data, data_bytes);
  if (row_data == nullptr) data_bytes = 0;
  std::memset(data + data_bytes, 0, geometry.row_bytes - data_bytes);
  const uint32_t crc = ExtendCrc32c(RecordSeed(geometry, slot), out, 32);
  EncodeFixed32(out + 32, ExtendCrc32c(crc, data, geometry.row_bytes));
}

bool DecodeRecord(const SegmentGeometry& geometry, uint32_t slot, const uint8_t* in, bool check, RecordFields* fields) {
  if (check) {
    const uint32_t crc = ExtendCrc32c(RecordSeed(geometry, slot), in, 32);
    if (ExtendCrc32c(crc, in + kRecordHeaderBytes, geometry.row_bytes) != DecodeFixed32(in + 32)) return false;
  }
  fields->header.key = static_cast<int64_t>(DecodeFixed64(in));
  fields->seq = DecodeFixed64(in + 8);
  fields->header.version = static_cast<int64_t>(DecodeFixed64(in + 16));
  fields->header.frequency = DecodeFixed32(in + 24);
  const uint32_t columns_and_flags = DecodeFixed32(in + 28);
  fields->header.num_columns = columns_and_flags & 0xffff;
  fields->flags = columns_and_flags >> 16;
  fields->row_data = in + kRecordHeaderBytes;
  return true;
}

std::string EncodeFooter(uint32_t seed, uint64_t offset, const std::vector<FooterEntry>& entries) {
  uint64_t min_seq = ~uint64_t{0}, max_seq = 0;
  int64_t min_version = 0, max_version = 0;
  bool consecutive = true, same_columns = true;
  for (size_t i = 0; i < entries.size(); ++i) {
    const FooterEntry& entry = entries[i];
    min_seq = std::min(min_seq, entry.seq);
    max_seq = std::max(max_seq, entry.seq);
    min_version = i == 0 ? entry.version : std::min(min_version, entry.version);
    max_version = i == 0 ? entry.version : std::max(max_version, entry.version);
    consecutive = consecutive && entry.seq == entries[0].seq + i;
    same_columns = same_columns && entry.num_columns == entries[0].num_columns;
  }
  if (entries.empty()) min_seq = 0;
  const uint32_t seq_width = consecutive ? 0 : std::max(4u, WidthOf(max_seq - min_seq));
  const uint32_t version_width = WidthOf(static_cast<uint64_t>(max_version) - static_cast<uint64_t>(min_version));
  const uint32_t columns_width = same_columns ? 0 : 2;

  std::string out(kFooterMagic, kMagicBytes);
  PutFixed32(&out, static_cast<uint32_t>(entries.size()));
  PutFixed32(&out, seq_width);
  PutFixed32(&out, version_width);
  PutFixed32(&out, columns_width);
  PutFixed64(&out, min_seq);
  PutFixed64(&out, static_cast<uint64_t>(min_version));
  PutFixed32(&out, entries.empty() ? 0 : entries[0].num_columns);
  PutFixed32(&out, 0);
  const size_t n = entries.size(), fixed = out.size();
  out.reserve(MaxFooterBytes(n));
  out.resize(fixed + n * (12 + seq_width + version_width + columns_width) + (n + 7) / 8);
  uint8_t* at = reinterpret_cast<uint8_t*>(out.data()) + fixed;
  for (const FooterEntry& entry : entries) PutWidth(&at, 8, static_cast<uint64_t>(entry.key));
  for (const FooterEntry& entry : entries) PutWidth(&at, seq_width, entry.seq - min_seq);
  for (const FooterEntry& entry : entries) {
    PutWidth(&at, version_width, static_cast<uint64_t>(entry.version) - static_cast<uint64_t>(min_version));
  }
  for (const FooterEntry& entry : entries) PutWidth(&at, 4, entry.frequency);
  for (size_t i = 0; columns_width > 0 && i < n; ++i) {
    *at++ = static_cast<uint8_t>(entries[i].num_columns & 0xff);
    *at++ = static_cast<uint8_t>(entries[i].num_columns >> 8);
  }
  for (size_t i = 0; i < n; ++i) {
    if (entries[i].tombstone) at[i / 8] = static_cast<uint8_t>(at[i / 8] | 1 << i % 8);
  }

  const uint64_t footer_bytes = out.size();
  const uint32_t footer_crc = ExtendCrc32c(seed, out.data(), out.size());
  out.resize(RoundUpToBlock(out.size() + kTrailerBytes) - kTrailerBytes);
  std::string trailer(kTrailerMagic, kMagicBytes);
  PutFixed64(&trailer, offset);
  PutFixed64(&trailer, footer_bytes);
  PutFixed32(&trailer, footer_crc);
  PutFixed32(&trailer, ExtendCrc32c(seed, trailer.data(), trailer.size()));
  out += trailer;
  return out;
}

bool DecodeTrailer(uint32_t seed, const uint8_t* last_block, SegmentTrailer* trailer) {
  const uint8_t* at = last_block + kBlockBytes - kTrailerBytes;
  trailer->proven = HasMagic(at, kProvenMagic);
  if (!trailer->proven && !HasMagic(at, kTrailerMagic)) return false;
  if (ExtendCrc32c(seed, at, kTrailerBytes - 4) != DecodeFixed32(at + kTrailerBytes - 4)) return false;
  trailer->offset = DecodeFixed64(at + 8);
  // To the end of the file: the checksum of the footer stands in the trailer.
  const uint64_t footer_bytes = DecodeFixed64(at + 16);
  trailer->bytes = RoundUpToBlock(footer_bytes + kTrailerBytes);
  return trailer->offset % kBlockBytes == 0 && footer_bytes < trailer->bytes;
}

void ProveTrailer(uint32_t seed, uint8_t* last_block) {
  uint8_t* at = last_block + kBlockBytes - kTrailerBytes;
  std::memcpy(at, kProvenMagic, kMagicBytes);
  EncodeFixed32(at + kTrailerBytes - 4, ExtendCrc32c(seed, at, kTrailerBytes - 4));
}

bool DecodeFooter(uint32_t seed, const uint8_t* data, uint64_t bytes, std::vector<FooterEntry>* entries) {
  if (bytes < kFixedFooterBytes + kTrailerBytes) return false;
  const uint8_t* trailer = data + bytes - kTrailerBytes;
  const uint64_t footer_bytes = DecodeFixed64(trailer + 16);
  if (footer_bytes > bytes - kTrailerBytes || footer_bytes < kFixedFooterBytes || !HasMagic(data, kFooterMagic)) return false;
  if (ExtendCrc32c(seed, data, footer_bytes) != DecodeFixed32(trailer + 24)) return false;
  const uint64_t n = DecodeFixed32(data + 8);
  const uint32_t seq_width = DecodeFixed32(data + 12);
  const uint32_t version_width = DecodeFixed32(data + 16);
  const uint32_t columns_width = DecodeFixed32(data + 20);
  const uint64_t min_seq = DecodeFixed64(data + 24);
  const uint64_t min_version = DecodeFixed64(data + 32);
  const auto same_columns = static_cast<uint16_t>(DecodeFixed32(data + 40));
  if (!IsWidth(seq_width) || !IsWidth(version_width) || (columns_width != 0 && columns_width != 2)) return false;
  const uint64_t need = kFixedFooterBytes + n * (12 + uint64_t{seq_width} + version_width + columns_width) + (n + 7) / 8;
  if (footer_bytes != need) return false;
  const uint8_t* keys = data + kFixedFooterBytes;
  const uint8_t* seqs = keys + n * 8;
  const uint8_t* versions = seqs + n * seq_width;
  const uint8_t* frequencies = versions + n * version_width;
  const uint8_t* columns = frequencies + n * 4;
  const uint8_t* tombstones = columns + n * columns_width;
  entries->resize(n);
  for (size_t i = 0; i < n; ++i) {
    FooterEntry& entry = (*entries)[i];
    entry.key = static_cast<int64_t>(DecodeFixed64(keys + i * 8));
    entry.seq = min_seq + (seq_width == 0 ? i : GetWidth(seqs, seq_width, i));
    entry.version = static_cast<int64_t>(min_version + GetWidth(versions, version_width, i));
    entry.frequency = DecodeFixed32(frequencies + i * 4);
    entry.num_columns = columns_width == 0 ? same_columns : static_cast<uint16_t>(columns[2 * i] | columns[2 * i + 1] << 8);
    entry.tombstone = (tombstones[i / 8] >> i % 8 & 1) != 0;
  }
  return true;
}

std::string SegmentPath(const std::string& directory, uint64_t id, uint32_t attempt) {
  char name[48];
  std::snprintf(name, sizeof(name), "/ssd-%016llx-%u.seg", static_cast<unsigned long long>(id), attempt);
  return directory + name;
}

bool ParseSegmentName(const std::string& name, uint64_t* id, uint32_t* attempt) {
  if (name.size() < 26 || name.rfind("ssd-", 0) != 0 || name[20] != '-' || name.compare(name.size() - 4, 4, ".seg") != 0) {
    return false;
  }
  const std::string digits = name.substr(4, 16);
  char* end = nullptr;
  const uint64_t parsed = std::strtoull(digits.c_str(), &end, 16);
  if (*end != '\0') return false;
  if (id != nullptr) *id = parsed;
  if (attempt != nullptr) *attempt = static_cast<uint32_t>(std::strtoul(name.c_str() + 21, nullptr, 10));
  return true;
}

uint64_t SegmentIdOf(const std::string& path, uint32_t* attempt) {
  uint64_t id = 0;
  MT_CHECK(ParseSegmentName(path.substr(path.rfind('/') + 1), &id, attempt));
  return id;
}

}  // namespace multitier
