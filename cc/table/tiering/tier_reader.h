// TierReader: the read of cold rows, for lookups and all other operations. It looks for keys that a first look in memory did
// not find. A key may be in a lower tier, may have come into memory in the meantime, or may be nowhere. With several lower
// tiers, steps 2 and 3 are done for one tier after the other.
//
//   1. mark     under the shard's lock: a key that memory can answer goes to OnMemory at once. For any other key, the reader
//               looks for a word of the shard's index that may be the key's: a word is a location and some bits of a hash. It
//               sets the word's mark "being read" (ShardRecords::BeginRead). Until step 3, no other thread moves or frees the
//               record of that word, and no other TierReader reads it.
//   2. read     all records of the batch in one call of each tier, no lock held.
//   3. answer   under the shard's lock, a group at a time, while the tier reads further records: compares the record's key. If
//               it is another key, the record is excluded and the search goes on. If it is the key that was asked for,
//               OnRecord decides, and the reader does it: keep the record where it is, install its row in DRAM, or erase the
//               key. After a row is installed, a last tier without a size keeps the record; all other tiers free it. A kept
//               record is the clean copy of its row until the row changes. In a table with one lower tier, a row with a clean
//               copy leaves DRAM without a write.
//   4. wait     for records that other operations are reading. By then this call has answered all records that it marked, so no
//               two operations wait for each other. The keys that are left start again at step 1.
//
// An operation passes keys and a visitor. The visitor is a subclass of RecordVisitor in the operation's own source file. Keys
// come in the order of their shards. Step 1 locks a shard once for a run of up to 1,024 keys. If the tier reports records while
// it reads (Tier::ReadAndTell), step 3 locks a shard once for up to 128 records. Otherwise it locks a shard once for a run.
// Under a lock, the index buckets of the next keys are prefetched into the processor's cache.
//
// A damaged record (DataLoss) is an error, or its key starts anew, or its key is dropped: on_corruption and
// RecordVisitor::OnDamage decide. If the tier does not know the key of a damaged record, the record counts as that of the key
// that was asked for.
//
// Owns nothing between two calls. A caller has entered the table's gate (operation_scope.h) and holds no shard's lock.
// Thread-safe.

#ifndef CC_TABLE_TIERING_TIER_READER_H_
#define CC_TABLE_TIERING_TIER_READER_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/base/new_array.h"
#include "cc/table/tiering/demoter.h"

namespace multitier {

// A key to be found.
struct TierKey {
  int64_t key = 0;
  uint64_t hash = 0;
  int shard = 0;
  uint32_t entry = 0;     // for the caller
  uint64_t touched = 0;   // number of the access that reads the key; 0: does not count as a use
  Span<uint8_t> row;      // data of the row, if the visitor needs rows: [row_bytes], in memory of the TierKeys
  int level = 0;          // of the record being read
  uint32_t location = 0;  // of the record being read
  bool has_row = false;   // for the visitor
  bool answered = false;  // the visitor was called

 private:
  friend class TierReader;
  std::vector<uint64_t> excluded;  // places (PlaceOf) that hold another key
  uint32_t id = 0;                 // of ShardRecords::BeginRead
  uint32_t record = 0;             // its place among the records of the read
  // The shard's count of finished reads at a time when another operation was reading this key's record. Step 4 waits until it
  // changes.
  uint64_t seen_resolutions = 0;
};

// Keys of one call, in the order of their shards, and the memory that their rows are read into.
class TierKeys {
 public:
  void reserve(size_t n) { keys_.reserve(n); }
  TierKey& Add(const KeyBatch& batch, uint32_t entry, int shard) {
    TierKey& key = keys_.emplace_back();
    key.key = batch.key(entry);
    key.hash = batch.hash(entry);
    key.shard = shard;
    key.entry = entry;
    return key;
  }
  size_t size() const { return keys_.size(); }
  bool empty() const { return keys_.empty(); }
  TierKey& operator[](size_t i) { return keys_[i]; }
  auto begin() const { return keys_.begin(); }
  auto end() const { return keys_.end(); }
  // Allocates memory for the rows of all keys. False: there is not enough.
  bool TakeMemory(size_t row_bytes) {
    if (rows_ == nullptr) rows_ = NewArray<uint8_t>(keys_.size() * row_bytes);
    return rows_ != nullptr;
  }
  // Gives the key memory for its row. REQUIRES: TakeMemory, after the last Add
  void MakeRow(TierKey* key, size_t row_bytes) {
    key->row = Span<uint8_t>(rows_.get() + static_cast<size_t>(key - keys_.data()) * row_bytes, row_bytes);
  }

 private:
  std::vector<TierKey> keys_;
  ArrayPtr<uint8_t> rows_;
};

// What an operation does with the keys. All calls are under the lock of the key's shard.
class RecordVisitor {
 public:
  enum class Answer {
    kKeep,     // the record stays where it is
    kInstall,  // its row comes into DRAM
    kErase,    // the key leaves the table
  };
  enum class Damage {
    kAsOption,  // what on_corruption says
    kErase,     // the key leaves the table
    kError,     // an error, unless on_corruption drops the key
  };

  virtual ~RecordVisitor() = default;
  // Whether row data are read.
  virtual bool NeedsRow() const = 0;
  // Called if the key can be answered without reading a record. `found` is a row in memory, or a key that a filter counts and
  // has not admitted. If it is empty, the table does not have the key.
  virtual Status OnMemory(Shard::Locked& lock, TierKey* key, const Found& found) = 0;
  // The key's record. If NeedsRow() is true, key->row has all columns.
  virtual Answer OnRecord(Shard::Locked& lock, TierKey* key, const RecordHeader& header) = 0;
  // The row is in DRAM now, unpinned.
  virtual void OnInstalled(Shard::Locked& lock, TierKey* key, RowHeader* row) { (void)lock, (void)key, (void)row; }
  // True: it is an error if there is no memory to install a row.
  virtual bool MustInstall() const { return false; }
  virtual Damage OnDamage() const { return Damage::kAsOption; }
  // Receives the records of erased keys, for TierStack::Remove. If it is not null, an error of one key does not end the call:
  // all keys are tried, then the first error is returned.
  virtual FreedRecords* removed() { return nullptr; }
};

class TierReader {
 public:
  TierReader(TableBase* base, Demoter* demoter) : base_(*base), demoter_(*demoter) {}

  // Answers every key. After an error, all marks are removed. Answers that were given are not undone: a visitor that needs that
  // does it itself. REQUIRES: if the visitor erases, the caller has the ShardWriters of the keys' shards
  Status Read(TierKeys* keys, RecordVisitor* visitor);

 private:
  class Run;

  TableBase& base_;
  Demoter& demoter_;
};

}  // namespace multitier

#endif  // CC_TABLE_TIERING_TIER_READER_H_
