// An entry of the database: a row under its key. docs/formats/leveldb.md has the layout.

#ifndef CC_TIER_LEVELDB_LEVELDB_ENTRY_H_
#define CC_TIER_LEVELDB_LEVELDB_ENTRY_H_

#include <cstdint>
#include <string>

#include "cc/row/row_layout.h"
#include "cc/tier/tier.h"
#include "leveldb/slice.h"

namespace multitier {

constexpr size_t kEntryKeyBytes = 8;
constexpr size_t kEntryHeaderBytes = 24;  // of the value, before the row data
// About what an entry takes in a table file in addition to its row data: key, LevelDB's own fields, header, index and filter.
constexpr size_t kEntryFileBytes = 48;

// The 8 bytes of a key. They sort in the order of the keys.
class EntryKey {
 public:
  explicit EntryKey(int64_t key);
  leveldb::Slice slice() const { return leveldb::Slice(bytes_, sizeof(bytes_)); }
  static int64_t Decode(const leveldb::Slice& slice);  // REQUIRES: 8 bytes

 private:
  char bytes_[kEntryKeyBytes];
};

// Bytes of the first num_columns columns. REQUIRES: 1 <= num_columns <= the layout's
size_t BytesOfColumns(const RowLayout& layout, uint32_t num_columns);

void EncodeEntry(const EntryKey& key, const WriteRecord& record, uint32_t generation, size_t row_bytes, std::string* value);
// Decodes everything except the row data. Returns a description of the error, or nullptr.
const char* DecodeEntry(const leveldb::Slice& key, const leveldb::Slice& value, RecordHeader* header, uint32_t* generation);

}  // namespace multitier

#endif  // CC_TIER_LEVELDB_LEVELDB_ENTRY_H_
