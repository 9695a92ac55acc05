// LevelDbEnv: the files and the background thread of one LevelDB, as a LevelDB Env.
//
// What it does other than LevelDB's own Env:
//   - files are read with pread, never mapped: a mapping is memory that no budget counts, and a failed read of one kills the
//     process
//   - each database has its own background thread, so that a table whose disk hangs stops no other, and a database made in a
//     forked child has one at all
//   - it knows the place of this thread's last read, which LevelDB does not tell; errors, faults and counts are the disk's
//   - it can be frozen: the database goes on to be read, and changes no file any more, whatever its background thread wants
// Directories and names are LevelDB's own Env's.
//
// Outlives the database. Thread-safe.

#ifndef CC_TIER_LEVELDB_LEVELDB_ENV_H_
#define CC_TIER_LEVELDB_LEVELDB_ENV_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/base/thread.h"
#include "cc/tier/leveldb/leveldb_disk.h"
#include "leveldb/env.h"

namespace multitier {

class LevelDbEnv : public leveldb::EnvWrapper {
 public:
  // A place in a file.
  struct Place {
    std::string path;  // empty: nothing was read
    uint64_t offset = 0;
  };

  // sync_logs: a log file that is closed is synced first, so that a later sync of the next one covers it. Keeps `disk`.
  LevelDbEnv(LevelDbDisk* disk, bool sync_logs);
  ~LevelDbEnv() override;

  // Starts the background thread. LevelDB schedules with a lock of its own held and then waits for the job, so that no other
  // thread could do its work: without this one no database can be open. ResourceExhausted.
  multitier::Status Start();
  LevelDbDisk* disk() const { return disk_; }
  bool sync_logs() const { return sync_logs_; }
  // From now on every call that changes a file fails; returns once the background thread is idle. REQUIRES: no other thread
  // writes to the database
  void Freeze();
  bool frozen() const { return frozen_; }
  // The errno with which a call that is about to change the file fails; 0: it may go on.
  int BeginChange(const char* call, const std::string& path);
  // Of this thread, over all databases.
  static Place& last_read();

  leveldb::Status NewSequentialFile(const std::string& path, leveldb::SequentialFile** file) override;
  leveldb::Status NewRandomAccessFile(const std::string& path, leveldb::RandomAccessFile** file) override;
  leveldb::Status NewWritableFile(const std::string& path, leveldb::WritableFile** file) override;
  leveldb::Status NewAppendableFile(const std::string& path, leveldb::WritableFile** file) override;
  leveldb::Status GetChildren(const std::string& path, std::vector<std::string>* names) override;
  leveldb::Status RemoveFile(const std::string& path) override;
  leveldb::Status RenameFile(const std::string& from, const std::string& to) override;
  leveldb::Status LockFile(const std::string& path, leveldb::FileLock** lock) override { return disk_->Lock(path, lock); }
  leveldb::Status UnlockFile(leveldb::FileLock* lock) override { return disk_->Unlock(lock); }
  void Schedule(void (*function)(void* arg), void* arg) override;

 private:
  leveldb::Status OpenForWriting(const std::string& path, int flags, leveldb::WritableFile** file);
  void RunJobs();

  LevelDbDisk* const disk_;
  const bool sync_logs_;
  std::atomic<bool> frozen_{false};

  std::mutex mutex_;  // guards what follows; no call of a file inside
  std::condition_variable has_job_, idle_;
  std::deque<std::function<void()>> jobs_;
  bool running_ = false;  // a job
  bool stop_ = false;
  Thread thread_;
};

}  // namespace multitier

#endif  // CC_TIER_LEVELDB_LEVELDB_ENV_H_
