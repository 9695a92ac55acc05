// The machine's own files, memory and clock.

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "cc/env/env.h"
#include "cc/env/posix_error.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace multitier {
namespace {

constexpr size_t kWriteBufferBytes = 64 << 10;
constexpr size_t kHugePageBytes = 2 << 20;

// Reads from a file, which is open for direct I/O or not. DataLoss if it ends before.
Status ReadWhole(int fd, const std::string& path, bool direct, uint64_t offset, size_t bytes, void* out) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = RetryIfInterrupted(
        [&] { return ::pread(fd, static_cast<char*>(out) + done, bytes - done, static_cast<off_t>(offset + done)); });
    if (n < 0) return PosixError("read", path, errno);
    done += static_cast<size_t>(n);
    // A direct read that ends within a block ended with the file, and the next one may not begin there.
    const bool at_end = n == 0 || (direct && done % PositionedFile::kDirectAlignment != 0);
    if (at_end && done < bytes) {
      return DataLossError("read of '", path, "' at offset ", offset, ": expected ", bytes, " bytes, found ", done);
    }
  }
  return OkStatus();
}

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~PosixWritableFile() override { (void)Close(); }

  Status Append(const void* data, size_t bytes) override {
    MT_RETURN_IF_ERROR(CheckOpen("append"));
    if (buffer_.size() + bytes <= kWriteBufferBytes) {
      buffer_.append(static_cast<const char*>(data), bytes);
      return OkStatus();
    }
    MT_RETURN_IF_ERROR(Flush());
    if (bytes < kWriteBufferBytes) {
      buffer_.append(static_cast<const char*>(data), bytes);
      return OkStatus();
    }
    return Write(static_cast<const char*>(data), bytes);
  }

  Status Sync() override {
    MT_RETURN_IF_ERROR(CheckOpen("sync"));
    MT_RETURN_IF_ERROR(Flush());
    if (RetryIfInterrupted([&] { return ::fdatasync(fd_); }) != 0) return Failed(PosixError("fdatasync", path_, errno));
    return OkStatus();
  }

  Status Close() override {
    if (fd_ < 0) return OkStatus();
    Status status = failed_ ? OkStatus() : Flush();
    // Not retried: the descriptor is closed even if close() is interrupted.
    if (::close(fd_) != 0 && errno != EINTR && status.ok()) status = PosixError("close", path_, errno);
    fd_ = -1;
    return status;
  }

 private:
  Status CheckOpen(const char* call) const {
    if (fd_ < 0) return FailedPreconditionError(call, " of '", path_, "': the file is closed");
    if (failed_) return FailedPreconditionError(call, " of '", path_, "': an earlier write or sync failed");
    return OkStatus();
  }

  // After a failed write it is unknown how much of the buffer the file contains, and after a failed sync whether the kernel
  // still has the data. Therefore the file refuses further writes.
  Status Failed(Status status) {
    failed_ = true;
    buffer_.clear();
    return status;
  }

  Status Flush() {
    Status status = Write(buffer_.data(), buffer_.size());
    buffer_.clear();
    return status;
  }

  Status Write(const char* data, size_t bytes) {
    while (bytes > 0) {
      const ssize_t n = RetryIfInterrupted([&] { return ::write(fd_, data, bytes); });
      if (n < 0) return Failed(PosixError("write", path_, errno));
      data += n;
      bytes -= static_cast<size_t>(n);
    }
    return OkStatus();
  }

  const std::string path_;
  int fd_;
  bool failed_ = false;
  std::string buffer_;
};

class PosixRandomAccessFile : public RandomAccessFile {
 public:
  PosixRandomAccessFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~PosixRandomAccessFile() override { ::close(fd_); }

  Status Read(uint64_t offset, size_t bytes, void* out) const override {
    return ReadWhole(fd_, path_, /*direct=*/false, offset, bytes, out);
  }

  Result<uint64_t> Size() const override {
    struct stat info;
    if (::fstat(fd_, &info) != 0) return PosixError("stat", path_, errno);
    return static_cast<uint64_t>(info.st_size);
  }

 private:
  const std::string path_;
  const int fd_;
};

class PosixPositionedFile : public PositionedFile {
 public:
  PosixPositionedFile(std::string path, int fd, bool direct) : path_(std::move(path)), fd_(fd), direct_(direct) {}
  ~PosixPositionedFile() override { ::close(fd_); }

  Status Write(uint64_t offset, const void* data, size_t bytes) override {
    size_t done = 0;
    while (done < bytes) {
      const ssize_t n = RetryIfInterrupted([&] {
        return ::pwrite(fd_, static_cast<const char*>(data) + done, bytes - done, static_cast<off_t>(offset + done));
      });
      if (n < 0) return PosixError("write", path_, errno);
      if (n == 0) return UnavailableError("write of '", path_, "' at offset ", offset + done, ": nothing was written");
      done += static_cast<size_t>(n);
    }
    return OkStatus();
  }

  Status Read(uint64_t offset, size_t bytes, void* out) const override {
    return ReadWhole(fd_, path_, direct_, offset, bytes, out);
  }

  Status Sync() override {
    if (RetryIfInterrupted([&] { return ::fdatasync(fd_); }) != 0) return PosixError("fdatasync", path_, errno);
    return OkStatus();
  }

  Status Allocate(uint64_t bytes) override {
    if (RetryIfInterrupted([&] { return ::fallocate(fd_, 0, 0, static_cast<off_t>(bytes)); }) == 0) return OkStatus();
    if (errno != EOPNOTSUPP) return PosixError("allocate", path_, errno);
    const int error = ::posix_fallocate(fd_, 0, static_cast<off_t>(bytes));
    return error == 0 ? OkStatus() : PosixError("allocate", path_, error);
  }

  Status Truncate(uint64_t bytes) override {
    if (RetryIfInterrupted([&] { return ::ftruncate(fd_, static_cast<off_t>(bytes)); }) == 0) return OkStatus();
    return PosixError("truncate", path_, errno);
  }

  Result<uint64_t> Size() const override {
    struct stat info;
    if (::fstat(fd_, &info) != 0) return PosixError("stat", path_, errno);
    return static_cast<uint64_t>(info.st_size);
  }

  bool direct() const override { return direct_; }
  int descriptor() const override { return fd_; }

 private:
  const std::string path_;
  const int fd_;
  const bool direct_;
};

bool IsDirectory(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

class PosixEnv : public Env {
 public:
  Result<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) override {
    const int fd = RetryIfInterrupted([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644); });
    if (fd < 0) return PosixError("open for writing", path, errno);
    return std::unique_ptr<WritableFile>(new PosixWritableFile(path, fd));
  }

  Result<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(const std::string& path) override {
    const int fd = RetryIfInterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
    if (fd < 0) return PosixError("open for reading", path, errno);
    return std::unique_ptr<RandomAccessFile>(new PosixRandomAccessFile(path, fd));
  }

  Result<std::unique_ptr<PositionedFile>> OpenPositionedFile(const std::string& path, OpenMode mode, bool direct) override {
    const int access = mode == OpenMode::kRead ? O_RDONLY : mode == OpenMode::kWrite ? O_RDWR : O_RDWR | O_CREAT | O_EXCL;
    const int flags = O_CLOEXEC | access;
    const char* call = mode == OpenMode::kCreate  ? "create"
                       : mode == OpenMode::kWrite ? "open for writing"
                                                  : "open for reading";
    int fd = -1;
    if (direct) {
      fd = RetryIfInterrupted([&] { return ::open(path.c_str(), flags | O_DIRECT, 0644); });
      if (fd < 0 && errno != EINVAL) return PosixError(call, path, errno);
      // A file system that refuses O_DIRECT may have created the file all the same.
      if (fd < 0 && mode == OpenMode::kCreate) ::unlink(path.c_str());
    }
    const bool is_direct = fd >= 0;
    if (!is_direct) fd = RetryIfInterrupted([&] { return ::open(path.c_str(), flags, 0644); });
    if (fd < 0) return PosixError(call, path, errno);
    return std::unique_ptr<PositionedFile>(new PosixPositionedFile(path, fd, is_direct));
  }

  Status RenameFile(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) == 0) return OkStatus();
    return PosixError("rename", StrCat(from, "' to '", to), errno);
  }

  Status LinkFile(const std::string& from, const std::string& to) override {
    if (::link(from.c_str(), to.c_str()) == 0) return OkStatus();
    return PosixError("link", StrCat(from, "' to '", to), errno);
  }

  Result<uint64_t> CountNames(const std::string& path) override {
    struct stat info;
    if (::stat(path.c_str(), &info) == 0) return static_cast<uint64_t>(info.st_nlink);
    return PosixError("stat", path, errno);
  }

  Status DeleteFile(const std::string& path) override {
    if (::unlink(path.c_str()) == 0) return OkStatus();
    return PosixError("delete", path, errno);
  }

  Result<bool> FileExists(const std::string& path) override {
    struct stat info;
    if (::stat(path.c_str(), &info) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    return PosixError("stat", path, errno);
  }

  Status CreateDir(const std::string& path) override {
    for (size_t end = 1; end <= path.size(); ++end) {
      if (end != path.size() && path[end] != '/') continue;
      const std::string prefix = path.substr(0, end);
      if (::mkdir(prefix.c_str(), 0755) == 0 || IsDirectory(prefix)) continue;
      // errno of mkdir may have been overwritten by stat; ask once more.
      if (::mkdir(prefix.c_str(), 0755) != 0) return PosixError("create directory", prefix, errno);
    }
    return path.empty() ? InvalidArgumentError("create directory: the path is empty") : OkStatus();
  }

  Status DeleteDir(const std::string& path) override {
    if (::rmdir(path.c_str()) == 0) return OkStatus();
    return PosixError("delete directory", path, errno);
  }

  Result<std::vector<std::string>> ListDir(const std::string& path) override {
    DIR* dir = ::opendir(path.c_str());
    if (dir == nullptr) return PosixError("list directory", path, errno);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(dir)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    const int error = errno;
    ::closedir(dir);
    if (error != 0) return PosixError("list directory", path, error);
    std::sort(names.begin(), names.end());
    return names;
  }

  Status SyncDir(const std::string& path) override {
    const int fd = RetryIfInterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (fd < 0) return PosixError("open directory", path, errno);
    Status status;
    if (RetryIfInterrupted([&] { return ::fsync(fd); }) != 0) status = PosixError("sync directory", path, errno);
    ::close(fd);
    return status;
  }

  void* AllocatePages(size_t bytes, bool huge) override {
    huge = huge && bytes >= kHugePageBytes;
    return Map(bytes, huge ? kHugePageBytes : 0, huge, 0);
  }

  void FreePages(void* pages, size_t bytes) override {
    if (pages != nullptr && bytes > 0) ::munmap(pages, bytes);
  }

  void* ReserveAddressSpace(size_t bytes, bool huge) override { return Map(bytes, kHugePageBytes, huge, MAP_NORESERVE); }

  bool CommitPages(void*, size_t) override { return true; }

  void CollapsePages(void* pages, size_t bytes) override {
    // Both refuse addresses within a page, and collapsing concerns whole huge pages only.
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(pages) + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
    const uintptr_t end = (reinterpret_cast<uintptr_t>(pages) + bytes) & ~(kHugePageBytes - 1);
    if (begin >= end) return;
    ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
    ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_COLLAPSE);
  }

  uint64_t NowMicros() override {
    struct timespec now;
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
  }

  void SleepMicros(uint64_t micros) override {
    struct timespec left;
    left.tv_sec = static_cast<time_t>(micros / 1000000);
    left.tv_nsec = static_cast<long>(micros % 1000000) * 1000;
    while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
  }

 private:
  // Maps zero pages, aligned to `alignment` (0: a page). A stricter alignment maps that much more and gives back the ends.
  static void* Map(size_t bytes, size_t alignment, bool huge, int flags) {
    if (bytes == 0 || bytes > SIZE_MAX - 2 * kHugePageBytes) return nullptr;
    const size_t page_bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const size_t whole = (bytes + page_bytes - 1) / page_bytes * page_bytes;  // munmap rounds likewise
    void* mapped = ::mmap(nullptr, whole + alignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    char* begin = static_cast<char*>(mapped);
    if (alignment > 0) {
      const size_t skip = (alignment - reinterpret_cast<uintptr_t>(begin) % alignment) % alignment;
      if (skip > 0) ::munmap(begin, skip);
      if (skip < alignment) ::munmap(begin + skip + whole, alignment - skip);
      begin += skip;
    }
    if (huge) ::madvise(begin, whole, MADV_HUGEPAGE);
    return begin;
  }
};

}  // namespace

Status Env::SyncFile(const std::string& path) {
  MT_ASSIGN_OR_RETURN(const std::unique_ptr<PositionedFile> file, OpenPositionedFile(path, OpenMode::kRead, /*direct=*/false));
  return file->Sync();
}

Env* Env::Posix() {
  static Env* const env = new PosixEnv;  // never destroyed: background threads may outlive main()
  return env;
}

}  // namespace multitier
