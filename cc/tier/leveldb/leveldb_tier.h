// LevelDbTier: rows in a LevelDB database, one entry per key.
//
//   key    the key as 8 bytes, big endian, sign bit flipped: LevelDB's order is that of the numbers
//   value  | crc32c 4 | generation 4 | version 8 | frequency 4 | columns 4 | row data |      docs/formats/leveldb.md
//
// Life of a row. Write stores a whole batch in one WriteBatch and gives each record the next number of a counter: its
// generation. The generation is stored in the value and, with the key, at the record's location (entry_slots.h). A later Write
// of the key replaces the entry. A Read of the older location then finds another generation and returns NotFound; its caller
// looks up the key's present location. Free only returns the location. The entry stays, unreadable, until the key is written
// again. Remove deletes entries.
//
// Owns the database in its directory, not the directory. Bounds its memory (write buffer, block cache, open files with
// their index and filter: about 2.5 bytes a row; 12 bytes a row for locations). Compacts in the background when the files have
// more than twice the bytes of the entries and two write buffers and a table file on top. Writes and removals wait for a
// compaction that is much slower than they are. leveldb_compactor.h has the bound of the files that follows. Does not bound its
// rows unless max_rows is given.
//
// A failed write does not end it: leveldb_database.h.
//
// A held record that cannot be found is DataLoss: its block is damaged, its file is missing, or its entry is missing or an
// older one. Other rows stay readable. After compaction has met such a file, all writes are DataLoss for the rest of the tier's
// life: opening the database again would not help.
//
// Thread-safe. In a forked child every call is FailedPrecondition and the destructor does nothing.

#ifndef CC_TIER_LEVELDB_LEVELDB_TIER_H_
#define CC_TIER_LEVELDB_LEVELDB_TIER_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/row/row_layout.h"
#include "cc/tier/leveldb/entry_slots.h"
#include "cc/tier/leveldb/leveldb_compactor.h"
#include "cc/tier/leveldb/leveldb_database.h"
#include "cc/tier/tier.h"
#include "leveldb/db.h"

namespace multitier {

class LevelDbTier : public Tier {
 public:
  // Creates the database in the directory, where none is.
  static Result<std::unique_ptr<LevelDbTier>> Open(const LevelDbOptions& options);
  ~LevelDbTier() override;

  const char* name() const override { return "leveldb"; }
  TierCapabilities capabilities() const override;
  Status SetLayout(std::shared_ptr<const RowLayout> layout) override;
  Status Write(Span<const WriteRecord> records, uint32_t* locations) override;
  Status Read(Span<ReadRecord> records) override;
  // Stops the process if a location does not hold a record of the key.
  void Free(Span<const KeyLocation> records) override;
  // Deletes the keys' entries, of any generation. After an error no record was freed.
  Status Remove(Span<const KeyLocation> records) override;
  // Holds no lock while visiting; a record that is written or freed meanwhile may or may not be visited. Uses 16 bytes of
  // memory per row.
  Status Scan(const std::function<Status(const RecordHeader&, uint32_t location)>& visit) override;
  uint64_t location_end() const override;
  Status Sync() override { return CheckProcess(); }
  // Compacts everything now: takes as long as rewriting the database.
  Status Compact() override;
  // row_bytes counts every row at the layout's full width.
  TierStats stats() const override;

  // Test only.
  LevelDbDisk* disk() { return database_->disk(); }
  leveldb::DB* database() { return database_->database(); }
  LevelDbCompactor* compactor() { return compactor_.get(); }

 private:
  // The record at a location.
  struct Held {
    int64_t key;
    uint32_t generation;
    uint32_t index;  // the location, or the record of the batch that asks for it
  };
  static bool ByKey(const Held& a, const Held& b) { return a.key < b.key; }

  explicit LevelDbTier(const LevelDbOptions& options);

  Status CheckProcess() const;
  // The next entries from that key on, live or not. Skips damaged entries and stores the first error in *damage.
  Status ReadSlice(const std::string& from, std::vector<std::pair<RecordHeader, uint32_t>>* slice, Status* damage);
  Status ReadSliceOf(leveldb::DB* db, const std::string& from, std::vector<std::pair<RecordHeader, uint32_t>>* slice,
                     Status* damage);
  // DataLoss if one of these records, whose entries a scan did not find, is still held.
  Status CheckGone(const std::vector<Held>& unmet);
  void ReadOne(const RowLayout& layout, const Held& held, ReadRecord* record, std::string* value) const;
  Status ReadError(const ReadRecord& record, const leveldb::Status& status) const;
  // The status of a record whose entry is missing or has another generation.
  Status MissingEntry(const Held& held, const ReadRecord& record, const uint32_t* found) const;
  std::shared_ptr<const RowLayout> layout() const;
  // For the compactor.
  std::unique_ptr<LevelDbCompactor> MakeCompactor();
  int64_t live_bytes() const;
  std::vector<int64_t> SampleKeys(size_t n) const;
  bool CompactRange(const int64_t* first, const int64_t* last, int64_t bytes);
  // Merges all entries of the keys from `from` to `to`. False: it failed.
  bool CompactBetween(const std::string& from, const std::string& to);
  Status PutFences(const std::string& from, const std::string& to) MT_REQUIRES(database_->write_mutex);
  Status RemoveFences(bool at_once) MT_REQUIRES(database_->write_mutex);

  const LevelDbOptions options_;
  const pid_t pid_;
  std::unique_ptr<LevelDbDatabase> database_;  // its write_mutex is outermost, mutex_ innermost
  std::atomic<int64_t> appended_bytes_{0};

  uint32_t next_generation_ MT_GUARDED_BY(database_->write_mutex) = 0;
  std::set<std::string> fences_ MT_GUARDED_BY(database_->write_mutex);  // those that were written and not removed

  mutable Mutex mutex_;
  std::shared_ptr<const RowLayout> layout_ MT_GUARDED_BY(mutex_);
  EntrySlots slots_ MT_GUARDED_BY(mutex_);

  std::unique_ptr<LevelDbCompactor> compactor_;  // last: its destructor waits for a thread that uses the members above
};

}  // namespace multitier

#endif  // CC_TIER_LEVELDB_LEVELDB_TIER_H_
