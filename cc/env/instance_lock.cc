#include "cc/env/instance_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/base/thread.h"
#include "cc/env/directories.h"
#include "cc/env/posix_error.h"

namespace multitier {
namespace {

constexpr char kLockFile[] = "/instance.lock";
constexpr char kClaimPrefix[] = "/instance.claim-";
constexpr int kAttempts = 100000;  // more than a process has instances

// The beginning of a small file of /proc; empty where there is none.
std::string ReadProcFile(const std::string& path) {
  std::string text(1024, '\0');
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t n = fd < 0 ? 0 : ::read(fd, text.data(), text.size());
  if (fd >= 0) ::close(fd);
  text.resize(n < 0 ? 0 : static_cast<size_t>(n));
  return text;
}

// When a process was started, in ticks since boot; "" where there is no such process.
std::string StartOfProcess(const std::string& pid) {
  const std::string stat = ReadProcFile(StrCat("/proc/", pid, "/stat"));
  size_t from = stat.rfind(')');  // after the command, field 2; field 22 is the start
  for (int field = 2; field < 22 && from != std::string::npos; ++field) from = stat.find(' ', from + 1);
  if (from == std::string::npos) return "";
  return stat.substr(from + 1, stat.find(' ', from + 1) - from - 1);
}

const std::string& BootId() {
  static const auto* const id = new std::string(ReadProcFile("/proc/sys/kernel/random/boot_id").substr(0, 8));
  return *id;
}

// What no other process ever is: <pid>-<start>-<boot id>. Read once in a process: a table looks at every instance of its name.
std::string ThisProcess() {
  struct Name {
    const std::string text = StrCat(::getpid(), "-", StartOfProcess("self"), "-", BootId());
  };
  return OfThisProcess<Name>()->text;
}

bool ProcessLives(const std::string& process) {
  const std::string pid = process.substr(0, process.find('-'));
  const std::string start = StartOfProcess(pid);
  return !start.empty() && process == StrCat(pid, "-", start, "-", BootId());
}

// 0, or the errno.
int LockWholeFile(int fd, int command, struct flock* lock) {
  *lock = {};
  lock->l_type = F_WRLCK;
  lock->l_whence = SEEK_SET;
  while (::fcntl(fd, command, lock) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

// Makes this process's claim to an instance: the descriptor that holds it, AlreadyExists where the process has one.
Result<int> Claim(const std::string& path, const std::string& process) {
  const std::string file = path + kClaimPrefix + process;
  for (;;) {
    const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return PosixError("claim of instance", file, errno);
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      ::close(fd);
      if (error == EWOULDBLOCK) return AlreadyExistsError("claim of instance '", file, "': this process has one");
      return PosixError("claim of instance", file, error);
    }
    struct stat info, named;
    if (::fstat(fd, &info) == 0 && ::stat(file.c_str(), &named) == 0 && info.st_ino == named.st_ino) return fd;
    ::close(fd);  // given back between the two calls
  }
}

void Unclaim(const std::string& path, const std::string& process, int claim_fd) {
  ::unlink((path + kClaimPrefix + process).c_str());
  ::flock(claim_fd, LOCK_UN);  // a forked child may have the descriptor, too
  ::close(claim_fd);
}

// Removes the claims of processes that no longer exist.
void RemoveDeadClaims(const std::string& path) {
  const Result<std::vector<std::string>> names = ListNames(path);
  if (!names.ok()) return;
  const std::string prefix = &kClaimPrefix[1];
  for (const std::string& name : *names) {
    if (name.rfind(prefix, 0) == 0 && !ProcessLives(name.substr(prefix.size()))) ::unlink(StrCat(path, "/", name).c_str());
  }
}

Status InUse(const std::string& path, pid_t pid, const char* which) {
  return FailedPreconditionError("open of instance '", path, "': it is in use by process ", pid, which);
}

// The lock of an instance that exists and that this process has claimed.
Result<int> LockClaimed(const std::string& path) {
  const std::string file = path + kLockFile;
  const int fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return PosixError("open of instance", path, errno);
  struct flock lock;
  struct stat info, named;
  Status status;
  if (const int error = LockWholeFile(fd, F_SETLK, &lock); error == EACCES || error == EAGAIN) {
    pid_t holder = 0;  // 0: unknown; the process runs on another machine, or has ended
    if (LockWholeFile(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK) holder = lock.l_pid;
    status = InUse(path, holder, "");
  } else if (error != 0) {
    status = PosixError("lock of instance", path, error);
  } else if (::fstat(fd, &info) != 0 || ::stat(file.c_str(), &named) != 0 || info.st_ino != named.st_ino) {
    status = PosixError("open of instance", path, ENOENT);  // removed while we looked
  }
  if (status.ok()) return fd;
  ::close(fd);
  return status;
}

// Descriptors of lock files that this process has looked at. Closed when their files are deleted: see `look` in the header.
class LookedAt {
 public:
  // F_GETLK of the lock file: 0 and *lock, or an errno.
  int Look(const std::string& file, struct flock* lock) {
    MutexLock using_descriptors(mutex_);
    CloseDeleted();
    struct stat info;
    if (::stat(file.c_str(), &info) != 0) return errno;
    const auto found = descriptors_.find({info.st_dev, info.st_ino});
    if (found != descriptors_.end()) return LockWholeFile(found->second, F_GETLK, lock);
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || ::fstat(fd, &info) != 0) return errno;
    descriptors_[{info.st_dev, info.st_ino}] = fd;
    return LockWholeFile(fd, F_GETLK, lock);
  }

 private:
  void CloseDeleted() MT_REQUIRES(mutex_) {
    for (auto it = descriptors_.begin(); it != descriptors_.end();) {
      struct stat info;
      const bool deleted = ::fstat(it->second, &info) == 0 && info.st_nlink == 0;
      if (deleted) ::close(it->second);
      it = deleted ? descriptors_.erase(it) : std::next(it);
    }
  }

  Mutex mutex_;
  std::map<std::pair<dev_t, ino_t>, int> descriptors_ MT_GUARDED_BY(mutex_);
};

}  // namespace

bool InstanceLock::RemoveEmpty(const std::string& path) {
  RemoveDeadClaims(path);
  const bool removed = ::rmdir(path.c_str()) == 0;
  ::rmdir(path.substr(0, path.rfind('/')).c_str());  // fails if other instances of the name exist
  return removed;
}

Result<InstanceLock> InstanceLock::Existing(const std::string& path) {
  if (!PathExists(path + kLockFile)) return PosixError("open of instance", path, ENOENT);
  const std::string process = ThisProcess();
  const Result<int> claim = Claim(path, process);
  if (claim.status().code() == StatusCode::kAlreadyExists) return InUse(path, ::getpid(), " (this one)");
  MT_RETURN_IF_ERROR(claim.status());
  const Result<int> lock = LockClaimed(path);
  if (lock.ok()) {
    RemoveDeadClaims(path);
    return InstanceLock(path, process, *lock, *claim);
  }
  Unclaim(path, process, *claim);
  if (!PathExists(path + kLockFile)) RemoveEmpty(path);  // our claim kept the owner from removing it
  return lock.status();
}

Result<InstanceLock> InstanceLock::New(const std::string& name_path) {
  static std::atomic<uint64_t> next_number{1};
  const std::string process = ThisProcess();
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (::mkdir(name_path.c_str(), 0755) != 0 && errno != EEXIST) return PosixError("create directory", name_path, errno);
    const std::string path = StrCat(name_path, "/", kPrefix, ::getpid(), "-", next_number++);
    if (::mkdir(path.c_str(), 0755) != 0) {
      // EEXIST: made by a dead process with our pid, or by this process. ENOENT: the last instance of this name was just
      // removed.
      if (errno == EEXIST || errno == ENOENT) continue;
      const int error = errno;
      ::rmdir(name_path.c_str());
      return PosixError("create directory", path, error);
    }
    const Result<int> claim = Claim(path, process);
    Status status = claim.status();
    const std::string file = path + kLockFile;
    const int fd = status.ok() ? ::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644) : -1;
    if (status.ok() && fd < 0) status = PosixError("create", file, errno);
    if (status.ok()) {
      struct flock lock;
      struct stat info;
      const int error = LockWholeFile(fd, F_SETLK, &lock);
      if (error == 0 && ::fstat(fd, &info) == 0 && info.st_nlink > 0) return InstanceLock(path, process, fd, *claim);
      ::close(fd);
      if (error == 0 || error == EACCES || error == EAGAIN) {  // another process considers it a leftover and removes it
        Unclaim(path, process, *claim);
        ::rmdir(path.c_str());
        continue;
      }
      ::unlink(file.c_str());
      status = PosixError("lock of instance", path, error);
    }
    if (claim.ok()) Unclaim(path, process, *claim);
    ::rmdir(path.c_str());
    if (status.code() == StatusCode::kNotFound) continue;  // another process removed it
    ::rmdir(name_path.c_str());
    return status;
  }
  return UnavailableError("create instance in '", name_path, "': ", kAttempts, " attempts failed");
}

InstanceLock::InstanceLock(std::string path, std::string process, int lock_fd, int claim_fd)
    : path_(std::move(path)), process_(std::move(process)), lock_fd_(lock_fd), claim_fd_(claim_fd), pid_(::getpid()) {}

InstanceLock::InstanceLock(InstanceLock&& other) noexcept
    : path_(other.path_), process_(other.process_), lock_fd_(other.lock_fd_), claim_fd_(other.claim_fd_), pid_(other.pid_) {
  other.lock_fd_ = other.claim_fd_ = -1;
}

void InstanceLock::Release() {
  if (lock_fd_ < 0) return;
  ::close(lock_fd_);
  if (::getpid() == pid_) {
    Unclaim(path_, process_, claim_fd_);
  } else {
    ::close(claim_fd_);  // the parent's claim stays locked
  }
  lock_fd_ = claim_fd_ = -1;
}

Status InstanceLock::Remove() {
  if (lock_fd_ < 0 || ::getpid() != pid_) return OkStatus();
  const std::string claim = &kClaimPrefix[1];
  Status status =
      RemoveContents(path_, [&](const std::string& name) { return name == &kLockFile[1] || name.rfind(claim, 0) == 0; });
  if (status.ok() && ::unlink((path_ + kLockFile).c_str()) != 0 && errno != ENOENT) {
    status = PosixError("delete", path_ + kLockFile, errno);
  }
  Release();
  if (status.ok()) RemoveEmpty(path_);  // if another process's claim prevents this, that process removes it
  return status;
}

Status InstanceLock::CheckUnused(const std::string& path) {
  static auto* const looked_at = new LookedAt;
  struct flock lock;
  if (const int error = looked_at->Look(path + kLockFile, &lock); error != 0)
    return PosixError("look at instance", path, error);
  if (PathExists(path + kClaimPrefix + ThisProcess())) return InUse(path, ::getpid(), " (this one)");
  return lock.l_type == F_UNLCK ? OkStatus() : InUse(path, lock.l_pid, "");
}

}  // namespace multitier
