#include "cc/tier/leveldb/leveldb_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "cc/base/crc32c.h"

namespace multitier {
namespace {

// An error is queried soon after it occurred. While a disk fails, each attempt to open adds a few texts.
constexpr size_t kTexts = 1024;
constexpr size_t kCheckBytes = 1 << 20;  // read at a time

// The checksum of the file's first bytes; 0, or the errno.
int ChecksumOf(const std::string& path, int64_t bytes, uint32_t* crc) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  std::vector<char> buffer(kCheckBytes);
  *crc = 0;
  int error = 0;
  for (int64_t at = 0; at < bytes;) {
    const ssize_t n = ::pread(fd, buffer.data(), std::min(buffer.size(), static_cast<size_t>(bytes - at)), at);
    if (n < 0) error = errno;
    if (n <= 0) break;
    *crc = ExtendCrc32c(*crc, buffer.data(), static_cast<size_t>(n));
    at += n;
  }
  ::close(fd);
  return error;
}

}  // namespace

void LevelDbDisk::set_fault(Fault fault) {
  MutexLock lock(mutex_);
  fault_ = std::move(fault);
}

int LevelDbDisk::Inject(const char* call, const std::string& path) {
  Fault fault;
  {
    MutexLock lock(mutex_);
    if (fault_ == nullptr) return 0;
    fault = fault_;
  }
  return fault(call, path);
}

leveldb::Status LevelDbDisk::Failed(const std::string& path, int error) {
  ++errors;
  // Never NotFound: of a key's Get that would say that the key is not there.
  const leveldb::Status status = leveldb::Status::IOError(path, std::strerror(error));
  std::string text = status.ToString();
  MutexLock lock(mutex_);
  if (!errors_.insert_or_assign(text, error).second) return status;
  texts_.push_back(std::move(text));
  if (texts_.size() > kTexts) {
    errors_.erase(texts_.front());
    texts_.pop_front();
  }
  return status;
}

int LevelDbDisk::ErrnoOf(const leveldb::Status& status) {
  MutexLock lock(mutex_);
  const auto found = errors_.find(status.ToString());
  return found == errors_.end() ? 0 : found->second;
}

leveldb::Status LevelDbDisk::Lock(const std::string& path, leveldb::FileLock** lock) {
  MutexLock guard(mutex_);
  if (lock_holders_ == 0) {
    const leveldb::Status status = leveldb::Env::Default()->LockFile(path, &lock_);
    if (!status.ok()) return status;
  }
  ++lock_holders_;
  *lock = lock_;
  return leveldb::Status::OK();
}

leveldb::Status LevelDbDisk::Unlock(leveldb::FileLock* lock) {
  MutexLock guard(mutex_);
  return --lock_holders_ > 0 ? leveldb::Status::OK() : leveldb::Env::Default()->UnlockFile(lock);
}

int LevelDbDisk::ProbeSpace(const std::string& path, size_t bytes) {
  if (const int fault = Inject("write", path)) return fault;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return errno;
  const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  ::close(fd);
  ::unlink(path.c_str());
  return error;
}

void LevelDbDisk::SetWritten(const std::string& path, const Written& written) {
  MutexLock lock(mutex_);
  Written& known = files_[path];
  stored_bytes_ += written.bytes - known.bytes;
  known = written;
  if (written.bytes == 0) files_.erase(path);
}

void LevelDbDisk::RenameWritten(const std::string& from, const std::string& to) {
  Written written;
  {
    MutexLock lock(mutex_);
    if (const auto it = files_.find(from); it != files_.end()) written = it->second;
  }
  SetWritten(from, Written());
  SetWritten(to, written);
}

std::map<std::string, LevelDbDisk::Written> LevelDbDisk::files() {
  MutexLock lock(mutex_);
  return files_;
}

leveldb::Status LevelDbDisk::CheckFiles() {
  for (const auto& [path, written] : files()) {
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) return Failed(path, errno);
    if (info.st_size < written.bytes) {
      return leveldb::Status::Corruption(
          path, "expected " + std::to_string(written.bytes) + " bytes, found " + std::to_string(info.st_size));
    }
    uint32_t crc = 0;
    const int error = written.crc == 0 ? 0 : ChecksumOf(path, written.bytes, &crc);
    if (error != 0) return Failed(path, error);
    if (crc != written.crc) return leveldb::Status::Corruption(path, "its bytes are not those that were written");
  }
  return leveldb::Status::OK();
}

int64_t LevelDbDisk::log_bytes() {
  MutexLock lock(mutex_);
  int64_t total = 0;
  for (const auto& [path, written] : files_) {
    if (path.size() > 4 && path.compare(path.size() - 4, 4, ".log") == 0) total += written.bytes;
  }
  return total;
}

}  // namespace multitier
