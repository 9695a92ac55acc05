// LevelDbEnv: the files and the background thread of one LevelDB, as a LevelDB Env.
//
// What it does other than LevelDB's own Env:
//   - files are read with pread, never mapped: a mapping is memory that no budget counts, and a failed read of one kills the
//     process
//   - each database has its own background thread, so that a table whose disk hangs stops no other, and a database made in a
//     forked child has one at all
//   - it knows the errno of the last failed write, the place of this thread's last read, and the bytes of all files, none of
//     which LevelDB tells
//   - a test can make any call fail
// Directories, names and locks are LevelDB's own Env's.
//
// Outlives the database. Thread-safe.

#ifndef CC_TIER_LEVELDB_LEVELDB_ENV_H_
#define CC_TIER_LEVELDB_LEVELDB_ENV_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "cc/base/status.h"
#include "cc/base/thread.h"
#include "leveldb/env.h"

namespace multitier {

class LevelDbEnv : public leveldb::EnvWrapper {
 public:
  // A place in a file.
  struct Place {
    std::string path;  // empty: nothing was read
    uint64_t offset = 0;
  };
  // Asked before every call that changes or reads a file ("open", "create", "write", "sync", "read", "rename"): 0, or the
  // errno with which the call fails. A failing write has written half.
  using Fault = std::function<int(const char* call, const std::string& path)>;

  // sync_logs: a log file that is closed is synced first, so that a later sync of the next one covers it.
  explicit LevelDbEnv(bool sync_logs);
  ~LevelDbEnv() override;

  // Starts the background thread. LevelDB schedules with a lock of its own held and then waits for the job, so that no other
  // thread could do its work: without this one no database can be open. ResourceExhausted.
  multitier::Status Start();
  void set_fault(Fault fault);
  // The errno of the last call that failed to change a file; 0: none has.
  int last_write_error() const { return last_write_error_; }
  void clear_last_write_error() { last_write_error_ = 0; }
  // Whether a file of that size can be made now: makes it, fully allocated, and removes it. 0, or the errno.
  int ProbeSpace(const std::string& path, size_t bytes);
  int64_t stored_bytes() const { return stored_bytes_; }
  // Of the logs among them: what opening the database again would write to table files.
  int64_t log_bytes();
  // Of calls to the device or the page cache.
  int64_t reads() const { return reads_; }
  int64_t read_bytes() const { return read_bytes_; }
  int64_t written_bytes() const { return written_bytes_; }
  // Of this thread, over all databases.
  static Place& last_read();
  static int& last_read_error();

  leveldb::Status NewRandomAccessFile(const std::string& path, leveldb::RandomAccessFile** file) override;
  leveldb::Status NewWritableFile(const std::string& path, leveldb::WritableFile** file) override;
  leveldb::Status NewAppendableFile(const std::string& path, leveldb::WritableFile** file) override;
  leveldb::Status RemoveFile(const std::string& path) override;
  leveldb::Status RenameFile(const std::string& from, const std::string& to) override;
  leveldb::Status NewLogger(const std::string& path, leveldb::Logger** logger) override;  // one that drops everything
  void Schedule(void (*function)(void* arg), void* arg) override;

 private:
  friend class LevelDbWritableFile;
  friend class LevelDbRandomAccessFile;

  // The errno a call is to fail with.
  int Inject(const char* call, const std::string& path);
  leveldb::Status WriteError(const std::string& path, int error);
  leveldb::Status Open(const std::string& path, int flags, leveldb::WritableFile** file);
  void SetFileBytes(const std::string& path, int64_t bytes);
  void RunJobs();

  const bool sync_logs_;
  std::atomic<int> last_write_error_{0};
  std::atomic<int64_t> stored_bytes_{0}, reads_{0}, read_bytes_{0}, written_bytes_{0};

  std::mutex mutex_;  // guards what follows; no call of a file inside
  std::map<std::string, int64_t> file_bytes_;
  Fault fault_;
  std::condition_variable has_job_;
  std::deque<std::function<void()>> jobs_;
  bool stop_ = false;
  Thread thread_;
};

}  // namespace multitier

#endif  // CC_TIER_LEVELDB_LEVELDB_ENV_H_
