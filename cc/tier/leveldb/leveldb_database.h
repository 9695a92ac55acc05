// LevelDbDatabase: an open LevelDB that survives failed writes, with its Env and its caches.
//
// After a failed write (full disk) the earlier rows stay readable, and writes are refused with ResourceExhausted or
// Unavailable. LevelDB accepts no write after a failed one, so the database is opened again when there is room. The old one
// stays open until that has succeeded. Commit tries it at most every retry_us until a write succeeds, or at once. Only Create
// creates a database. After compaction has met a damaged or missing file, all writes are DataLoss: opening again would not
// help.
//
// Owns the database in the directory, not the directory. A forked child must not destroy it.
//
// Thread-safe. Lock order: write_mutex, then open_mutex_.

#ifndef CC_TIER_LEVELDB_LEVELDB_DATABASE_H_
#define CC_TIER_LEVELDB_LEVELDB_DATABASE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "cc/base/mutex.h"
#include "cc/base/shared_mutex.h"
#include "cc/base/status.h"
#include "cc/tier/leveldb/leveldb_disk.h"
#include "cc/tier/leveldb/leveldb_env.h"
#include "leveldb/cache.h"
#include "leveldb/db.h"
#include "leveldb/filter_policy.h"
#include "leveldb/write_batch.h"

namespace multitier {

struct LevelDbOptions {
  std::string directory;                 // exists, without a database in it
  size_t write_buffer_bytes = 16 << 20;  // memory for rows not yet in a table file; twice that while one is written
  size_t block_cache_bytes = 8 << 20;
  size_t table_file_bytes = 32 << 20;
  int max_open_files = 500;
  bool compress = false;  // Snappy; embeddings hardly shrink
  int64_t max_rows = 0;   // > 0: more are ResourceExhausted
  int read_helpers = 7;   // threads that help the calling one to read a large batch; 0: none
  // Writes are refused while less is free on the disk. Default: twice the write buffer, at most 5 % of the file system.
  int64_t reserve_bytes = -1;
  uint64_t retry_us = 1000000;
};

class LevelDbDatabase {
 public:
  explicit LevelDbDatabase(const LevelDbOptions& options);

  Status Create();

  // One writer at a time: a writer holds it while it changes what belongs to its entries, too.
  Mutex write_mutex;
  // Writes the batch. at_once: if a write has failed, opens the database again now, of calls that must not fail on a disk that
  // works again; else it may be too early.
  Status Commit(const char* operation, const leveldb::WriteOptions& options, bool at_once, leveldb::WriteBatch* batch)
      MT_REQUIRES(write_mutex);

  // Calls use(DB*), which is not replaced before the call returns. REQUIRES: the thread is not in another Use
  template <typename Call>
  auto Use(Call use) const -> decltype(use(std::declval<leveldb::DB*>())) {
    const Reading reading(open_mutex_);
    return use(open_.db.get());
  }

  // ResourceExhausted if the disk has less room than for `bytes` on top of its reserve.
  Status CheckSpace(size_t bytes) const;
  // After the database was created, a missing file or entry is DataLoss.
  Status ErrorOf(const std::string& what, const leveldb::Status& status) const;

  LevelDbDisk* disk() const { return disk_.get(); }
  leveldb::DB* database() const MT_NO_THREAD_SAFETY_ANALYSIS { return open_.db.get(); }  // test only

 private:
  // An open database and its Env, which outlives it.
  struct Opened {
    std::unique_ptr<LevelDbEnv> env;
    std::unique_ptr<leveldb::DB> db;
  };
  class MT_SCOPED_CAPABILITY Reading {
   public:
    explicit Reading(SharedMutex& mutex) MT_ACQUIRE_SHARED(mutex) : mutex_(mutex) { mutex_.lock_shared(); }
    ~Reading() MT_RELEASE() { mutex_.unlock_shared(); }

   private:
    SharedMutex& mutex_;
  };
  class MT_SCOPED_CAPABILITY Replacing {
   public:
    explicit Replacing(SharedMutex& mutex) MT_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
    ~Replacing() MT_RELEASE() { mutex_.unlock(); }

   private:
    SharedMutex& mutex_;
  };

  Result<Opened> OpenOne(bool create);
  // Opens the database again after a failed write. Returns the failure if it is too early or there is no room.
  Status RecoverFromFailure(size_t bytes, bool at_once) MT_REQUIRES(write_mutex);
  // The failure, until the database was opened again.
  Status OpenAgain() MT_REQUIRES(write_mutex);
  Status Refusal() const MT_REQUIRES(write_mutex);

  const LevelDbOptions options_;
  const std::unique_ptr<LevelDbDisk> disk_;
  const std::unique_ptr<const leveldb::FilterPolicy> filter_;
  const std::unique_ptr<leveldb::Cache> cache_;
  const std::unique_ptr<leveldb::Logger> logger_;  // discards all messages, so that LevelDB creates no log file of them
  bool was_there_ = false;                         // constant once created

  Status failure_ MT_GUARDED_BY(write_mutex);                // of the write since which LevelDB takes none
  uint64_t recovered_at_us_ MT_GUARDED_BY(write_mutex) = 0;  // the last attempt; 0: none since a write succeeded
  size_t room_needed_ MT_GUARDED_BY(write_mutex) = 0;        // what the last look for room did not find

  mutable SharedMutex open_mutex_;  // shared: using open_; exclusive: replacing it
  Opened open_ MT_GUARDED_BY(open_mutex_);
};

}  // namespace multitier

#endif  // CC_TIER_LEVELDB_LEVELDB_DATABASE_H_
