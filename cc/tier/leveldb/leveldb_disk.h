// LevelDbDisk: the common state of the databases in one directory, which LevelDbTier opens one after another.
//
//   errors   LevelDB passes on the error of a file call as text. The disk creates these texts and knows the errno of each
//   lock     LevelDB's lock file. A database is opened while the previous one is still open, so the lock is counted
//   faults   a test can make any call fail
//   files    the lengths of files, and checksums of logs and manifests, as written. If one is cut or zeroed later, LevelDB
//            assumes that its writer died, and continues without the rest
//   counts   calls of all databases
//
// Outlives the databases. Thread-safe.

#ifndef CC_TIER_LEVELDB_LEVELDB_DISK_H_
#define CC_TIER_LEVELDB_LEVELDB_DISK_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>

#include "cc/base/mutex.h"
#include "leveldb/env.h"
#include "leveldb/status.h"

namespace multitier {

class LevelDbDisk {
 public:
  // Called before every call that changes or reads a file ("open", "create", "write", "sync", "read", "rename", "delete").
  // Returns 0, or the errno with which the call fails. A failing write writes half of its data.
  using Fault = std::function<int(const char* call, const std::string& path)>;

  void set_fault(Fault fault);
  // The errno with which the call must fail; 0: none.
  int Inject(const char* call, const std::string& path);

  // The Status of a file call that failed with `error`. ErrnoOf recognises it after LevelDB has passed it on.
  leveldb::Status Failed(const std::string& path, int error);
  // 0: the status is not from a file call, or from one a very long time ago.
  int ErrnoOf(const leveldb::Status& status);

  leveldb::Status Lock(const std::string& path, leveldb::FileLock** lock);
  leveldb::Status Unlock(leveldb::FileLock* lock);

  // Whether a file of that size fits now: creates it, fully allocated, and removes it. Returns 0 or the errno.
  int ProbeSpace(const std::string& path, size_t bytes);
  // The data written to a file so far.
  struct Written {
    int64_t bytes = 0;
    uint32_t crc = 0;  // of logs and manifests; else 0
  };
  void SetWritten(const std::string& path, const Written& written);  // 0 bytes: it was removed
  void RenameWritten(const std::string& from, const std::string& to);
  // Corruption with the name of a file that is shorter than written, or of a log or manifest with different bytes. Also returns
  // the error of a file that cannot be read or does not exist. REQUIRES: no thread writes
  leveldb::Status CheckFiles();
  int64_t stored_bytes() const { return stored_bytes_; }
  // The bytes of the logs, which opening the database again would write to table files.
  int64_t log_bytes();
  // Counts of calls to the device or the page cache.
  std::atomic<int64_t> reads{0}, read_bytes{0}, written_bytes{0};
  std::atomic<int64_t> errors{0};  // calls of a file that failed

 private:
  std::map<std::string, Written> files();

  std::atomic<int64_t> stored_bytes_{0};

  Mutex mutex_;  // no file calls under it, except for the lock file
  Fault fault_ MT_GUARDED_BY(mutex_);
  std::map<std::string, int> errors_ MT_GUARDED_BY(mutex_);     // by the text of the status
  std::deque<std::string> texts_ MT_GUARDED_BY(mutex_);         // the oldest first
  std::map<std::string, Written> files_ MT_GUARDED_BY(mutex_);  // by path
  leveldb::FileLock* lock_ MT_GUARDED_BY(mutex_) = nullptr;
  int lock_holders_ MT_GUARDED_BY(mutex_) = 0;
};

}  // namespace multitier

#endif  // CC_TIER_LEVELDB_LEVELDB_DISK_H_
