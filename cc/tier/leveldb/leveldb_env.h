// LevelDbEnv: the files and the background thread of one LevelDB, as a LevelDB Env.
//
// Differences from LevelDB's own Env:
//   - It reads files with pread and never maps them. A mapping is memory that no budget counts, and a failed read of a mapping
//     kills the process.
//   - Each database has its own background thread. A table with a hanging disk therefore does not stop other tables, and a
//     database created in a forked child has a thread.
//   - It knows the place of this thread's last read, which LevelDB does not report. LevelDbDisk has errors, faults and counts.
//   - It can be frozen: reads continue, and the background thread can no longer change files.
// LevelDB's own Env handles directories and names.
//
// Outlives the database. Thread-safe.

#ifndef CC_TIER_LEVELDB_LEVELDB_ENV_H_
#define CC_TIER_LEVELDB_LEVELDB_ENV_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "cc/base/mutex.h"
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

  explicit LevelDbEnv(LevelDbDisk* disk);  // keeps the pointer
  ~LevelDbEnv() override;

  // Starts the background thread. LevelDB schedules a job under its own lock and then waits for it, so the calling thread
  // cannot run the job: a database needs this thread. ResourceExhausted if the thread cannot be started.
  multitier::Status Start();
  LevelDbDisk* disk() const { return disk_; }
  // Makes every later call that changes a file fail. Returns when the background thread is idle. REQUIRES: no other thread
  // writes to the database
  void Freeze();
  bool frozen() const { return frozen_; }
  // Call it before a call that changes the file. Returns the errno with which the call must fail, or 0.
  int BeginChange(const char* call, const std::string& path);
  // The last read of this thread, over all databases.
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
  std::atomic<bool> frozen_{false};

  Mutex mutex_;  // no file calls under it
  std::condition_variable has_job_, idle_;
  std::deque<std::function<void()>> jobs_ MT_GUARDED_BY(mutex_);
  bool running_ MT_GUARDED_BY(mutex_) = false;  // a job runs
  bool stop_ MT_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace multitier

#endif  // CC_TIER_LEVELDB_LEVELDB_ENV_H_
