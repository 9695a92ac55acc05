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
// After a failed write (full disk) the earlier rows stay readable, and writes are refused with ResourceExhausted or
// Unavailable. LevelDB accepts no write after a failed one, so the tier opens the database again when there is room. The old
// database stays open until that has succeeded. Writes try it at most every retry_us until one succeeds, Sync and Compact at
// once. Only Open creates a database.
//
// A held record that cannot be found is DataLoss: its block is damaged, its file is missing, or its entry is missing or an
// older one. Other rows stay readable. After compaction has met such a file, all writes are DataLoss for the rest of the tier's
// life: opening the database again would not help.
//
// A durable tier lists how much of its logs and its manifest was synced (synced_list.h). If one of them, or a table file, is
// missing, cut or replaced by another, recovery fails with DataLoss and the name of the file.
//
// Thread-safe. In a forked child every call is FailedPrecondition and the destructor does nothing.

#ifndef CC_TIER_LEVELDB_LEVELDB_TIER_H_
#define CC_TIER_LEVELDB_LEVELDB_TIER_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/row/row_layout.h"
#include "cc/tier/leveldb/entry_slots.h"
#include "cc/tier/leveldb/leveldb_compactor.h"
#include "cc/tier/leveldb/leveldb_disk.h"
#include "cc/tier/leveldb/leveldb_env.h"
#include "cc/tier/leveldb/synced_list.h"
#include "cc/tier/tier.h"
#include "leveldb/cache.h"
#include "leveldb/db.h"
#include "leveldb/filter_policy.h"

namespace multitier {

struct LevelDbOptions {
  std::string directory;                 // exists; with `recover` opens the database in it, else replaces it
  size_t write_buffer_bytes = 16 << 20;  // memory for rows not yet in a table file; twice that while one is written
  size_t block_cache_bytes = 8 << 20;
  size_t table_file_bytes = 32 << 20;
  int max_open_files = 500;
  bool compress = false;  // Snappy; embeddings hardly shrink
  bool durable = false;   // Sync() means something
  // Opens the database that is there: each key's newest entry is held, removed keys stay removed. Locations are new: Scan
  // tells them. O(rows) read, once: until the first Write Scan answers from what was read, which takes 16 bytes a row.
  bool recover = false;
  int64_t max_rows = 0;  // > 0: more are ResourceExhausted
  int read_helpers = 7;  // threads that help the calling one to read a large batch; 0: none
  // Writes are refused while less is free on the disk. Default: twice the write buffer, at most 5 % of the file system.
  int64_t reserve_bytes = -1;
  uint64_t retry_us = 1000000;
};

class LevelDbTier : public Tier {
 public:
  // Opens the database in the directory: recovers the existing one, or deletes it and creates a new one.
  static Result<std::unique_ptr<LevelDbTier>> Open(const LevelDbOptions& options);
  ~LevelDbTier() override;

  const char* name() const override { return "leveldb"; }
  TierCapabilities capabilities() const override;
  // Also stores the layout under the key "schema", for readers of the directory.
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
  Status Sync() override;
  // Compacts everything now: takes as long as rewriting the database.
  Status Compact() override;
  std::vector<ColumnSpec> recovered_columns() const override { return recovered_columns_; }
  TierRecovery recovery() const override { return recovery_; }
  // row_bytes counts every row at the layout's full width.
  TierStats stats() const override;

  // Test only.
  LevelDbDisk* disk() { return disk_.get(); }
  leveldb::DB* database() { return database_.db.get(); }
  LevelDbCompactor* compactor() { return compactor_.get(); }

 private:
  // The record at a location.
  struct Held {
    int64_t key;
    uint32_t generation;
    uint32_t index;  // the location, or the record of the batch that asks for it
  };
  // The fields of a record that Scan returns in addition to the key.
  struct Recovered {
    int64_t version;
    uint32_t frequency;
    uint32_t num_columns;
  };
  static bool ByKey(const Held& a, const Held& b) { return a.key < b.key; }

  explicit LevelDbTier(const LevelDbOptions& options);

  // An open database and its Env, which outlives it.
  struct Database {
    std::unique_ptr<LevelDbEnv> env;
    std::unique_ptr<leveldb::DB> db;
  };
  Result<Database> OpenDatabase(bool create);
  Status RecoverLocations();
  Status ScanRecovered(const std::vector<Recovered>& recovered,
                       const std::function<Status(const RecordHeader&, uint32_t location)>& visit);
  Status CheckProcess() const;
  Status CheckSpace(size_t bytes) const;
  // Opens the database again after a failed write. Returns the failure if it is too early or there is no room. at_once: it is
  // not too early.
  // REQUIRES: write_mutex_ held
  Status RecoverFromFailure(size_t bytes, bool at_once);
  // at_once: as above; of calls that must not fail on a disk that works again. REQUIRES: write_mutex_ held
  Status CommitBatch(const char* operation, const leveldb::WriteOptions& options, bool at_once, leveldb::WriteBatch* batch);
  // The next entries from that key on, live or not. Skips damaged entries and stores the first error in *damage.
  Status ReadSlice(const std::string& from, std::vector<std::pair<RecordHeader, uint32_t>>* slice, Status* damage);
  // DataLoss if one of these records, whose entries a scan did not find, is still held.
  Status CheckGone(const std::vector<Held>& unmet);
  void ReadOne(const RowLayout& layout, const Held& held, ReadRecord* record, std::string* value) const;
  // DataLoss naming a file that the database needs and that was deleted or cut: opening would fail without it.
  Status CheckNames() const;
  // After the database was created, a missing file or entry is DataLoss.
  Status ErrorOf(const std::string& what, const leveldb::Status& status) const;
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
  Status PutFences(const std::string& from, const std::string& to);  // REQUIRES: write_mutex_ held
  Status RemoveFences(bool at_once);                                 // REQUIRES: write_mutex_ held

  const LevelDbOptions options_;
  const pid_t pid_;
  std::unique_ptr<LevelDbDisk> disk_;
  SyncedList list_;  // guarded by write_mutex_ once it is open
  std::unique_ptr<const leveldb::FilterPolicy> filter_;
  std::unique_ptr<leveldb::Cache> cache_;
  std::unique_ptr<leveldb::Logger> logger_;  // discards all messages, so that LevelDB creates no log file of them

  std::atomic<int64_t> appended_bytes_{0};

  std::mutex write_mutex_;        // one writer at a time; outermost
  uint32_t next_generation_ = 0;  // guarded by write_mutex_
  Status failure_;                // guarded by write_mutex_: of the write since which LevelDB takes none
  uint64_t recovered_at_us_ = 0;  // guarded by write_mutex_: the last attempt; 0: none since a write succeeded
  size_t room_needed_ = 0;        // guarded by write_mutex_: what the last look for room did not find
  std::set<std::string> fences_;  // guarded by write_mutex_: those that were written and not removed

  mutable std::shared_mutex db_mutex_;  // shared: using database_; exclusive: replacing it
  Database database_;

  mutable std::mutex mutex_;  // guards the members below; innermost
  std::shared_ptr<const RowLayout> layout_;
  EntrySlots slots_;
  std::shared_ptr<const std::vector<Recovered>> recovered_;  // by location; null: nothing was recovered, or a Write has run
  std::vector<ColumnSpec> recovered_columns_;                // constant once open
  TierRecovery recovery_;                                    // likewise

  std::unique_ptr<LevelDbCompactor> compactor_;  // last: its destructor waits for a thread that uses the members above
};

}  // namespace multitier

#endif  // CC_TIER_LEVELDB_LEVELDB_TIER_H_
