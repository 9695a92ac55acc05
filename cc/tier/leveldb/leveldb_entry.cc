#include "cc/tier/leveldb/leveldb_entry.h"

#include <cstring>

#include "cc/base/coding.h"
#include "cc/base/crc32c.h"

namespace multitier {
namespace {

uint64_t BigEndian(uint64_t word) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  return word;
#else
  return __builtin_bswap64(word);
#endif
}

uint32_t Checksum(const leveldb::Slice& key, const uint8_t* value, size_t bytes) {
  return ExtendCrc32c(Crc32c(key.data(), key.size()), value + 4, bytes - 4);
}

}  // namespace

EntryKey::EntryKey(int64_t key) {
  const uint64_t word = BigEndian(static_cast<uint64_t>(key) ^ uint64_t{1} << 63);
  std::memcpy(bytes_, &word, sizeof(word));
}

int64_t EntryKey::Decode(const leveldb::Slice& slice) {
  uint64_t word;
  std::memcpy(&word, slice.data(), sizeof(word));
  return static_cast<int64_t>(BigEndian(word) ^ uint64_t{1} << 63);
}

size_t BytesOfColumns(const RowLayout& layout, uint32_t num_columns) {
  const Column& last = layout.columns()[num_columns - 1];
  return last.offset + last.bytes;
}

void EncodeEntry(const EntryKey& key, const WriteRecord& record, uint32_t generation, size_t row_bytes, std::string* value) {
  value->resize(kEntryHeaderBytes + row_bytes);
  uint8_t* p = reinterpret_cast<uint8_t*>(value->data());
  EncodeFixed32(p + 4, generation);
  EncodeFixed64(p + 8, static_cast<uint64_t>(record.header.version));
  EncodeFixed32(p + 16, record.header.frequency);
  EncodeFixed32(p + 20, record.header.num_columns);
  std::memcpy(p + kEntryHeaderBytes, record.row_data, row_bytes);
  EncodeFixed32(p, Checksum(key.slice(), p, value->size()));
}

const char* DecodeEntry(const leveldb::Slice& key, const leveldb::Slice& value, RecordHeader* header, uint32_t* generation) {
  const uint8_t* p = reinterpret_cast<const uint8_t*>(value.data());
  if (value.size() <= kEntryHeaderBytes) return "its value is too short";
  if (DecodeFixed32(p) != Checksum(key, p, value.size())) return "its checksum is wrong";
  *generation = DecodeFixed32(p + 4);
  header->key = EntryKey::Decode(key);
  header->version = static_cast<int64_t>(DecodeFixed64(p + 8));
  header->frequency = DecodeFixed32(p + 16);
  header->num_columns = DecodeFixed32(p + 20);
  return nullptr;
}

}  // namespace multitier
