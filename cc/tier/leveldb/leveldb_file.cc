#include "cc/tier/leveldb/leveldb_file.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "cc/base/crc32c.h"
#include "cc/env/posix_error.h"

namespace multitier {
namespace {

constexpr size_t kBufferBytes = 64 << 10;

bool HasSuffix(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

bool IsManifest(const std::string& path) { return path.compare(path.rfind('/') + 1, 8, "MANIFEST") == 0; }

}  // namespace

LevelDbRandomAccessFile::LevelDbRandomAccessFile(LevelDbEnv* env, std::string path, int fd)
    : env_(env), path_(std::move(path)), fd_(fd) {}

LevelDbRandomAccessFile::~LevelDbRandomAccessFile() { ::close(fd_); }

leveldb::Status LevelDbRandomAccessFile::Read(uint64_t offset, size_t bytes, leveldb::Slice* result, char* scratch) const {
  LevelDbEnv::last_read() = {path_, offset};
  size_t done = 0;
  int error = env_->disk()->Inject("read", path_);
  while (error == 0 && done < bytes) {
    const ssize_t n =
        RetryIfInterrupted([&] { return ::pread(fd_, scratch + done, bytes - done, static_cast<off_t>(offset + done)); });
    if (n < 0) error = errno;
    if (n <= 0) break;  // 0: the end; LevelDB sees that the block is short
    done += static_cast<size_t>(n);
  }
  ++env_->disk()->reads;
  env_->disk()->read_bytes += static_cast<int64_t>(done);
  *result = leveldb::Slice(scratch, done);
  return error == 0 ? leveldb::Status::OK() : env_->disk()->Failed(path_, error);
}

LevelDbSequentialFile::LevelDbSequentialFile(LevelDbEnv* env, std::string path, int fd)
    : env_(env), path_(std::move(path)), fd_(fd) {}

LevelDbSequentialFile::~LevelDbSequentialFile() { ::close(fd_); }

leveldb::Status LevelDbSequentialFile::Read(size_t bytes, leveldb::Slice* result, char* scratch) {
  int error = env_->disk()->Inject("read", path_);
  const ssize_t n = error != 0 ? -1 : RetryIfInterrupted([&] { return ::read(fd_, scratch, bytes); });
  if (n < 0 && error == 0) error = errno;
  *result = leveldb::Slice(scratch, n < 0 ? 0 : static_cast<size_t>(n));
  return error == 0 ? leveldb::Status::OK() : env_->disk()->Failed(path_, error);
}

leveldb::Status LevelDbSequentialFile::Skip(uint64_t bytes) {
  if (::lseek(fd_, static_cast<off_t>(bytes), SEEK_CUR) >= 0) return leveldb::Status::OK();
  return env_->disk()->Failed(path_, errno);
}

LevelDbWritableFile::LevelDbWritableFile(LevelDbEnv* env, std::string path, int fd, int64_t has_bytes)
    : env_(env), path_(std::move(path)), checked_(has_bytes == 0 && (HasSuffix(path_, ".log") || IsManifest(path_))), fd_(fd) {
  written_.bytes = has_bytes;
}

LevelDbWritableFile::~LevelDbWritableFile() {
  if (fd_ >= 0) (void)Close();
}

leveldb::Status LevelDbWritableFile::Append(const leveldb::Slice& data) {
  if (buffer_.size() + data.size() > kBufferBytes) {
    leveldb::Status status = Flush();
    if (!status.ok()) return status;
    if (data.size() > kBufferBytes) return Write(data.data(), data.size());
  }
  buffer_.append(data.data(), data.size());
  return leveldb::Status::OK();
}

leveldb::Status LevelDbWritableFile::Flush() {
  leveldb::Status status = Write(buffer_.data(), buffer_.size());
  buffer_.clear();
  return status;
}

leveldb::Status LevelDbWritableFile::Sync() {
  leveldb::Status status = Flush();
  if (!status.ok()) return status;
  int error = env_->BeginChange("sync", path_);
  if (error == 0 && RetryIfInterrupted([&] { return ::fdatasync(fd_); }) != 0) error = errno;
  struct stat info;
  if (error == 0 && ::fstat(fd_, &info) == 0 && info.st_nlink == 0) error = ENOENT;
  return error == 0 ? status : env_->disk()->Failed(path_, error);
}

leveldb::Status LevelDbWritableFile::Close() {
  leveldb::Status status = Flush();
  if (::close(fd_) != 0 && errno != EINTR && status.ok()) status = env_->disk()->Failed(path_, errno);
  fd_ = -1;
  return status;
}

leveldb::Status LevelDbWritableFile::Write(const char* data, size_t bytes) {
  if (bytes == 0) return leveldb::Status::OK();
  const int fault = env_->BeginChange("write", path_);
  if (fault != 0) bytes = env_->frozen() ? 0 : bytes / 2;
  int error = 0;
  while (error == 0 && bytes > 0) {
    const ssize_t n = RetryIfInterrupted([&] { return ::write(fd_, data, bytes); });
    if (n < 0) {
      error = errno;
      break;
    }
    if (checked_) written_.crc = ExtendCrc32c(written_.crc, data, static_cast<size_t>(n));
    data += n;
    bytes -= static_cast<size_t>(n);
    written_.bytes += n;
    env_->disk()->written_bytes += n;
  }
  if (!env_->frozen()) env_->disk()->SetWritten(path_, written_);
  if (error == 0) error = fault;
  return error == 0 ? leveldb::Status::OK() : env_->disk()->Failed(path_, error);
}

}  // namespace multitier
