#include "cc/tier/leveldb/leveldb_env.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdarg>
#include <cstring>
#include <utility>

#if defined(__SANITIZE_THREAD__)
// libleveldb is not built with ThreadSanitizer, which therefore does not see how its skip list is published.
extern "C" __attribute__((visibility("default"), used)) const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "race:libleveldb.so\n"; }
#endif

namespace multitier {
namespace {

constexpr size_t kBufferBytes = 64 << 10;

leveldb::Status ErrorOf(const std::string& path, int error) {
  return error == ENOENT ? leveldb::Status::NotFound(path, std::strerror(error))
                         : leveldb::Status::IOError(path, std::strerror(error));
}

template <typename Call>
auto Retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

bool HasSuffix(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

class NullLogger : public leveldb::Logger {
 public:
  void Logv(const char*, std::va_list) override {}
};

}  // namespace

class LevelDbRandomAccessFile : public leveldb::RandomAccessFile {
 public:
  LevelDbRandomAccessFile(LevelDbEnv* env, std::string path, int fd) : env_(env), path_(std::move(path)), fd_(fd) {}
  ~LevelDbRandomAccessFile() override { ::close(fd_); }

  leveldb::Status Read(uint64_t offset, size_t bytes, leveldb::Slice* result, char* scratch) const override {
    LevelDbEnv::last_read() = {path_, offset};
    size_t done = 0;
    int error = env_->Inject("read", path_);
    while (error == 0 && done < bytes) {
      const ssize_t n =
          Retry([&] { return ::pread(fd_, scratch + done, bytes - done, static_cast<off_t>(offset + done)); });
      if (n < 0) error = errno;
      if (n <= 0) break;  // 0: the end; LevelDB sees that the block is short
      done += static_cast<size_t>(n);
    }
    ++env_->reads_;
    env_->read_bytes_ += static_cast<int64_t>(done);
    *result = leveldb::Slice(scratch, done);
    if (error == 0) return leveldb::Status::OK();
    LevelDbEnv::last_read_error() = error;
    return ErrorOf(path_, error);
  }

 private:
  LevelDbEnv* const env_;
  const std::string path_;
  const int fd_;
};

class LevelDbWritableFile : public leveldb::WritableFile {
 public:
  LevelDbWritableFile(LevelDbEnv* env, std::string path, int fd, int64_t bytes)
      : env_(env), path_(std::move(path)), fd_(fd), bytes_(bytes) {}
  ~LevelDbWritableFile() override {
    if (fd_ < 0) return;
    // LevelDB closes a full log by destroying it.
    if (env_->sync_logs_ && HasSuffix(path_, ".log")) (void)Sync();
    (void)Close();
  }

  leveldb::Status Append(const leveldb::Slice& data) override {
    if (buffer_.size() + data.size() > kBufferBytes) {
      leveldb::Status status = Flush();
      if (!status.ok()) return status;
      if (data.size() > kBufferBytes) return Write(data.data(), data.size());
    }
    buffer_.append(data.data(), data.size());
    return leveldb::Status::OK();
  }

  leveldb::Status Flush() override {
    leveldb::Status status = Write(buffer_.data(), buffer_.size());
    buffer_.clear();
    return status;
  }

  leveldb::Status Sync() override {
    leveldb::Status status = Flush();
    if (!status.ok()) return status;
    int error = env_->Inject("sync", path_);
    if (error == 0 && Retry([&] { return ::fdatasync(fd_); }) != 0) error = errno;
    const size_t slash = path_.rfind('/');
    // A manifest names new files: their entries are to be on the disk before it is.
    if (error == 0 && path_.compare(slash + 1, 8, "MANIFEST") == 0) {
      const int dir = Retry([&] { return ::open(path_.substr(0, slash).c_str(), O_RDONLY | O_CLOEXEC); });
      if (dir < 0 || Retry([&] { return ::fsync(dir); }) != 0) error = errno;
      if (dir >= 0) ::close(dir);
    }
    return error == 0 ? status : env_->WriteError(path_, error);
  }

  leveldb::Status Close() override {
    leveldb::Status status = Flush();
    if (::close(fd_) != 0 && errno != EINTR && status.ok()) status = env_->WriteError(path_, errno);
    fd_ = -1;
    return status;
  }

 private:
  leveldb::Status Write(const char* data, size_t bytes) {
    if (bytes == 0) return leveldb::Status::OK();
    const int fault = env_->Inject("write", path_);
    if (fault != 0) bytes /= 2;
    int error = 0;
    while (error == 0 && bytes > 0) {
      const ssize_t n = Retry([&] { return ::write(fd_, data, bytes); });
      if (n < 0) {
        error = errno;
        break;
      }
      data += n;
      bytes -= static_cast<size_t>(n);
      bytes_ += n;
      env_->written_bytes_ += n;
    }
    env_->SetFileBytes(path_, bytes_);
    if (error == 0) error = fault;
    return error == 0 ? leveldb::Status::OK() : env_->WriteError(path_, error);
  }

  LevelDbEnv* const env_;
  const std::string path_;
  int fd_;
  int64_t bytes_;
  std::string buffer_;
};

LevelDbEnv::LevelDbEnv(bool sync_logs) : leveldb::EnvWrapper(leveldb::Env::Default()), sync_logs_(sync_logs) {}

LevelDbEnv::~LevelDbEnv() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  has_job_.notify_all();
  thread_.Join();
}

multitier::Status LevelDbEnv::Start() {
  return thread_.Start("mt-leveldb", [this] { RunJobs(); });
}

LevelDbEnv::Place& LevelDbEnv::last_read() {
  thread_local Place place;
  return place;
}

int& LevelDbEnv::last_read_error() {
  thread_local int error = 0;
  return error;
}

void LevelDbEnv::set_fault(Fault fault) {
  std::lock_guard<std::mutex> lock(mutex_);
  fault_ = std::move(fault);
}

int LevelDbEnv::Inject(const char* call, const std::string& path) {
  Fault fault;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (fault_ == nullptr) return 0;
    fault = fault_;
  }
  return fault(call, path);
}

leveldb::Status LevelDbEnv::WriteError(const std::string& path, int error) {
  last_write_error_ = error;
  return ErrorOf(path, error);
}

int LevelDbEnv::ProbeSpace(const std::string& path, size_t bytes) {
  if (const int fault = Inject("write", path)) return fault;
  const int fd = Retry([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644); });
  if (fd < 0) return errno;
  const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  ::close(fd);
  ::unlink(path.c_str());
  return error;
}

leveldb::Status LevelDbEnv::NewRandomAccessFile(const std::string& path, leveldb::RandomAccessFile** file) {
  *file = nullptr;
  int error = Inject("open", path);
  const int fd = error != 0 ? -1 : Retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
  if (fd < 0) {
    last_read() = {path, 0};
    last_read_error() = error != 0 ? error : errno;
    return ErrorOf(path, last_read_error());
  }
  *file = new LevelDbRandomAccessFile(this, path, fd);
  return leveldb::Status::OK();
}

leveldb::Status LevelDbEnv::Open(const std::string& path, int flags, leveldb::WritableFile** file) {
  *file = nullptr;
  const int fault = Inject("create", path);
  if (fault != 0) return WriteError(path, fault);
  const int fd = Retry([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644); });
  if (fd < 0) return WriteError(path, errno);
  struct stat info;
  const int64_t bytes = ::fstat(fd, &info) == 0 ? info.st_size : 0;
  SetFileBytes(path, bytes);
  *file = new LevelDbWritableFile(this, path, fd, bytes);
  return leveldb::Status::OK();
}

leveldb::Status LevelDbEnv::NewWritableFile(const std::string& path, leveldb::WritableFile** file) {
  return Open(path, O_TRUNC, file);
}

leveldb::Status LevelDbEnv::NewAppendableFile(const std::string& path, leveldb::WritableFile** file) {
  return Open(path, O_APPEND, file);
}

leveldb::Status LevelDbEnv::RemoveFile(const std::string& path) {
  const leveldb::Status status = EnvWrapper::RemoveFile(path);
  if (status.ok()) SetFileBytes(path, 0);
  return status;
}

leveldb::Status LevelDbEnv::RenameFile(const std::string& from, const std::string& to) {
  int error = Inject("rename", from);
  if (error == 0 && ::rename(from.c_str(), to.c_str()) != 0) error = errno;
  if (error != 0) return WriteError(from, error);
  int64_t bytes = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const auto it = file_bytes_.find(from); it != file_bytes_.end()) bytes = it->second;
  }
  SetFileBytes(from, 0);
  SetFileBytes(to, bytes);
  return leveldb::Status::OK();
}

leveldb::Status LevelDbEnv::NewLogger(const std::string&, leveldb::Logger** logger) {
  *logger = new NullLogger;
  return leveldb::Status::OK();
}

int64_t LevelDbEnv::log_bytes() {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t total = 0;
  for (const auto& [path, bytes] : file_bytes_) {
    if (path.size() > 4 && path.compare(path.size() - 4, 4, ".log") == 0) total += bytes;
  }
  return total;
}

void LevelDbEnv::SetFileBytes(const std::string& path, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t& known = file_bytes_[path];
  stored_bytes_ += bytes - known;
  known = bytes;
  if (bytes == 0) file_bytes_.erase(path);
}

void LevelDbEnv::Schedule(void (*function)(void* arg), void* arg) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back([function, arg] { function(arg); });
  }
  has_job_.notify_one();
}

void LevelDbEnv::RunJobs() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    has_job_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
  }
}

}  // namespace multitier
