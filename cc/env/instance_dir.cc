// The locking protocol. Each process has one claim file in an instance, locked with flock. A flock lock belongs to a
// descriptor, so only one owner within a process gets the claim, even if the process has loaded this code in two shared
// objects. The lock file excludes other processes. A claim file that could not be deleted is not locked; it only prevents the
// removal of its directory.
//
//   create   mkdir the instance, claim it, create and lock its lock file. Another process may meanwhile have removed the
//            directory, or hold the lock in order to remove it: then try another number.
//   open     claim the instance; fail if this process has a claim already, without opening anything. Open and lock the lock
//            file; check that it still has its name. From now on no process removes it. Delete claims of dead processes.
//   look     see whether a process holds an instance, without a lock: its own claim tells of this process, F_GETLK of others.
//            The lock file stays open until it is deleted: closing it would release a lock that this process took in the
//            meantime.
//   remove   open the instance (if it is a leftover); remove everything except the lock file and the claim; then remove the
//            lock file, close it, and remove the claim, the directory, and the name's directory if it is empty.
//
// Therefore an instance directory without a lock file contains at most claims, and any process may remove it. A claim of a
// live process prevents this; a later process then removes the directory.

#include "cc/env/instance_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/env/posix_error.h"

namespace multitier {
namespace {

constexpr char kLockFile[] = "/instance.lock";
constexpr char kKeepFile[] = "/instance.keep";
constexpr char kClaimPrefix[] = "/instance.claim-";
constexpr char kPrefix[] = "instance-";
constexpr size_t kMaxEncodedName = 200;
constexpr int kAttempts = 100000;  // more than a process has instances

bool IsDirectory(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool Exists(const std::string& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0;
}

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

// What no other process ever is: <pid>-<start>-<boot id>.
std::string ThisProcess() {
  const std::string pid = StrCat(::getpid());
  return StrCat(pid, "-", StartOfProcess("self"), "-", BootId());
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

Result<std::vector<std::string>> ListNames(const std::string& path) {
  DIR* dir = ::opendir(path.c_str());
  if (dir == nullptr) return PosixError("list directory", path, errno);
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  ::closedir(dir);
  return names;
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

// The descriptors of an instance that this process holds.
struct Descriptors {
  int lock;
  int claim;
};

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

// Descriptors of lock files that this process has looked at. Closed when their files are deleted: see `look` above.
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

// Removes an instance without a lock file, and the directory of its name if it was the last. Returns whether it existed.
bool RemoveEmpty(const std::string& path) {
  RemoveDeadClaims(path);
  const bool removed = ::rmdir(path.c_str()) == 0;
  ::rmdir(path.substr(0, path.rfind('/')).c_str());  // fails if other instances of the name exist
  return removed;
}

// Claims and locks an instance that exists.
Result<Descriptors> LockExisting(const std::string& path, const std::string& process) {
  if (!Exists(path + kLockFile)) return PosixError("open of instance", path, ENOENT);
  const Result<int> claim = Claim(path, process);
  if (claim.status().code() == StatusCode::kAlreadyExists) return InUse(path, ::getpid(), " (this one)");
  MT_RETURN_IF_ERROR(claim.status());
  const Result<int> lock = LockClaimed(path);
  if (lock.ok()) {
    RemoveDeadClaims(path);
    return Descriptors{*lock, *claim};
  }
  Unclaim(path, process, *claim);
  if (!Exists(path + kLockFile)) RemoveEmpty(path);  // our claim kept the owner from removing it
  return lock.status();
}

// Makes a new instance of the name, claims and locks it; its path goes to `path`.
Result<Descriptors> LockNew(const std::string& name_path, const std::string& process, std::string* path) {
  static std::atomic<uint64_t> next_number{1};
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (::mkdir(name_path.c_str(), 0755) != 0 && errno != EEXIST) return PosixError("create directory", name_path, errno);
    *path = StrCat(name_path, "/", kPrefix, ::getpid(), "-", next_number++);
    if (::mkdir(path->c_str(), 0755) != 0) {
      // EEXIST: made by a dead process with our pid, or by this process. ENOENT: the last instance of this name was just
      // removed.
      if (errno == EEXIST || errno == ENOENT) continue;
      const int error = errno;
      ::rmdir(name_path.c_str());
      return PosixError("create directory", *path, error);
    }
    const Result<int> claim = Claim(*path, process);
    Status status = claim.status();
    const std::string file = *path + kLockFile;
    const int fd = status.ok() ? ::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644) : -1;
    if (status.ok() && fd < 0) status = PosixError("create", file, errno);
    if (status.ok()) {
      struct flock lock;
      struct stat info;
      const int error = LockWholeFile(fd, F_SETLK, &lock);
      if (error == 0 && ::fstat(fd, &info) == 0 && info.st_nlink > 0) return Descriptors{fd, *claim};
      ::close(fd);
      if (error == 0 || error == EACCES || error == EAGAIN) {  // another process considers it a leftover and removes it
        Unclaim(*path, process, *claim);
        ::rmdir(path->c_str());
        continue;
      }
      ::unlink(file.c_str());
      status = PosixError("lock of instance", *path, error);
    }
    if (claim.ok()) Unclaim(*path, process, *claim);
    ::rmdir(path->c_str());
    if (status.code() == StatusCode::kNotFound) continue;  // another process removed it
    ::rmdir(name_path.c_str());
    return status;
  }
  return UnavailableError("create instance in '", name_path, "': ", kAttempts, " attempts failed");
}

// Releases the lock. The directory and its contents stay.
void Unlock(const std::string& path, const std::string& process, const Descriptors& held) {
  ::close(held.lock);
  Unclaim(path, process, held.claim);
}

// Removes the contents of a directory, except the names for which `keeps` returns true.
template <typename Keeps>
Status RemoveContents(const std::string& path, const Keeps& keeps) {
  MT_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListNames(path));
  for (const std::string& name : names) {
    if (keeps(name)) continue;
    const std::string child = StrCat(path, "/", name);
    struct stat info;
    if (::lstat(child.c_str(), &info) != 0) {
      if (errno == ENOENT) continue;
      return PosixError("stat", child, errno);
    }
    if (S_ISDIR(info.st_mode)) {
      MT_RETURN_IF_ERROR(RemoveDirectoryTree(child));
    } else if (::unlink(child.c_str()) != 0 && errno != ENOENT) {
      return PosixError("delete", child, errno);
    }
  }
  return OkStatus();
}

// Removes a whole instance whose lock this process holds. On an error it releases the lock, and the lock file stays.
Status RemoveLocked(const std::string& path, const std::string& process, const Descriptors& held) {
  const std::string claim = &kClaimPrefix[1];
  Status status =
      RemoveContents(path, [&](const std::string& name) { return name == &kLockFile[1] || name.rfind(claim, 0) == 0; });
  if (status.ok() && ::unlink((path + kLockFile).c_str()) != 0 && errno != ENOENT) {
    status = PosixError("delete", path + kLockFile, errno);
  }
  Unlock(path, process, held);
  if (status.ok()) RemoveEmpty(path);  // if another process's claim prevents this, that process removes it
  return status;
}

// The absolute path: the process may change its working directory later.
Result<std::string> AbsolutePath(const std::string& path) {
  if (path.empty() || path[0] == '/') return path;
  char* const here = ::getcwd(nullptr, 0);
  if (here == nullptr) return PosixError("current directory, for the relative path", path, errno);
  std::string absolute = StrCat(here, "/", path);
  std::free(here);
  return absolute;
}

// Creates and checks the storage path, so that the error for a bad path states what is wrong. *made: it did not exist before.
Status PrepareStoragePath(const std::string& path, bool* made) {
  if (path.empty()) return InvalidArgumentError("storage path: expected a directory, found an empty path");
  *made = ::mkdir(path.c_str(), 0755) == 0;
  const int error = errno;
  // Looked at after mkdir: another thread may make the same path at any time before it.
  if (*made || IsDirectory(path)) return OkStatus();
  if (Exists(path)) return InvalidArgumentError("storage path '", path, "': expected a directory, found something else");
  return PosixError("create storage path", path, error);
}

Status SyncDirectory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return PosixError("open directory", path, errno);
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (error != 0 && error != EINVAL) return PosixError("sync directory", path, error);  // EINVAL: has no such thing
  return OkStatus();
}

// Marks an instance as kept. The mark survives a power loss.
Status WriteKeepFile(const std::string& path) {
  const int fd = ::open((path + kKeepFile).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return PosixError("create", path + kKeepFile, errno);
  ::close(fd);
  std::string directory = path;
  for (int level = 0; level < 3; ++level) {  // the instance, its name, the storage path
    MT_RETURN_IF_ERROR(SyncDirectory(directory));
    directory += "/..";
  }
  return OkStatus();
}

uint64_t Fnv1a(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

void AppendHex(uint64_t value, int digits, std::string* out) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out->push_back("0123456789ABCDEF"[value >> shift & 15]);
}

}  // namespace

std::string EncodeInstanceName(const std::string& name) {
  if (name.empty()) return "%";
  std::string out;
  for (const char c : name) {
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-') {
      out.push_back(c);
    } else {
      out.push_back('%');
      AppendHex(static_cast<unsigned char>(c), 2, &out);
    }
  }
  if (out.size() <= kMaxEncodedName) return out;
  out.resize(kMaxEncodedName - 17);
  out.push_back('~');
  AppendHex(Fnv1a(name), 16, &out);
  return out;
}

Status RemoveDirectoryTree(const std::string& path) {
  if (!Exists(path)) return OkStatus();
  MT_RETURN_IF_ERROR(RemoveContents(path, [](const std::string&) { return false; }));
  if (::rmdir(path.c_str()) != 0 && errno != ENOENT) return PosixError("delete directory", path, errno);
  return OkStatus();
}

InstanceDirectory::InstanceDirectory(std::string path, std::string process, bool keep, int lock_fd, int claim_fd)
    : path_(std::move(path)),
      process_(std::move(process)),
      keep_(keep),
      lock_fd_(lock_fd),
      claim_fd_(claim_fd),
      pid_(::getpid()) {}

Result<std::unique_ptr<InstanceDirectory>> InstanceDirectory::Create(const std::string& given_path, const std::string& name,
                                                                     bool keep) {
  MT_ASSIGN_OR_RETURN(const std::string storage_path, AbsolutePath(given_path));
  bool made = false;
  MT_RETURN_IF_ERROR(PrepareStoragePath(storage_path, &made));
  const std::string name_path = PathOfName(storage_path, name), process = ThisProcess();
  std::string path;
  const Result<Descriptors> held = LockNew(name_path, process, &path);
  if (!held.ok()) {
    if (made) ::rmdir(storage_path.c_str());
    return held.status();
  }
  if (keep) {
    if (Status status = WriteKeepFile(path); !status.ok()) {
      (void)RemoveLocked(path, process, *held);
      if (made) ::rmdir(storage_path.c_str());
      return status;
    }
  }
  std::unique_ptr<InstanceDirectory> instance(new InstanceDirectory(path, process, keep, held->lock, held->claim));
  instance->RemoveLeftovers(name_path);
  return instance;
}

Result<std::unique_ptr<InstanceDirectory>> InstanceDirectory::Open(const std::string& path, bool keep) {
  MT_ASSIGN_OR_RETURN(std::string plain, AbsolutePath(path));
  while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
  const std::string process = ThisProcess();
  MT_ASSIGN_OR_RETURN(const Descriptors held, LockExisting(plain, process));
  return std::unique_ptr<InstanceDirectory>(new InstanceDirectory(plain, process, keep, held.lock, held.claim));
}

Result<std::unique_ptr<InstanceDirectory>> InstanceDirectory::OpenForReading(const std::string& path) {
  MT_ASSIGN_OR_RETURN(const std::string plain, AbsolutePath(path));
  MT_RETURN_IF_ERROR(CheckUnused(plain));
  return std::unique_ptr<InstanceDirectory>(new InstanceDirectory(plain, "", /*keep=*/true, -1, -1));
}

Status InstanceDirectory::CheckUnused(const std::string& path) {
  static auto* const looked_at = new LookedAt;
  struct flock lock;
  if (const int error = looked_at->Look(path + kLockFile, &lock); error != 0)
    return PosixError("look at instance", path, error);
  if (Exists(path + kClaimPrefix + ThisProcess())) return InUse(path, ::getpid(), " (this one)");
  return lock.l_type == F_UNLCK ? OkStatus() : InUse(path, lock.l_pid, "");
}

std::string InstanceDirectory::PathOfName(const std::string& storage_path, const std::string& name) {
  return StrCat(storage_path, "/", EncodeInstanceName(name));
}

Status InstanceDirectory::SetKeep(bool keep) {
  if (keep) {
    MT_RETURN_IF_ERROR(WriteKeepFile(path_));
  } else if (::unlink((path_ + kKeepFile).c_str()) != 0 && errno != ENOENT) {
    return PosixError("delete", path_ + kKeepFile, errno);
  }
  keep_ = keep;
  return OkStatus();
}

InstanceDirectory::~InstanceDirectory() {
  if (lock_fd_ < 0) return;
  if (::getpid() != pid_) {
    ::close(lock_fd_);  // the parent's locks are not touched by it
    ::close(claim_fd_);
  } else if (keep_) {
    Unlock(path_, process_, {lock_fd_, claim_fd_});
  } else {
    (void)RemoveLocked(path_, process_, {lock_fd_, claim_fd_});  // what stays is a leftover
  }
}

void InstanceDirectory::RemoveLeftovers(const std::string& name_path) {
  const auto remember = [this](Status status) {
    if (leftovers_status_.ok()) leftovers_status_ = std::move(status);
  };
  Result<std::vector<std::string>> names = ListNames(name_path);
  if (!names.ok()) return remember(names.status());
  for (const std::string& name : *names) {
    const std::string path = StrCat(name_path, "/", name);
    if (path == path_ || name.rfind(kPrefix, 0) != 0 || Exists(path + kKeepFile)) continue;
    const Result<Descriptors> held = LockExisting(path, process_);
    if (!held.ok()) {
      // Held by a live owner, or without a lock file.
      if (held.status().code() == StatusCode::kNotFound && RemoveEmpty(path)) ++leftovers_removed_;
      if (held.status().code() == StatusCode::kPermissionDenied) remember(held.status());
      continue;
    }
    if (Exists(path + kKeepFile)) {  // since we looked
      Unlock(path, process_, *held);
      continue;
    }
    Status status = RemoveLocked(path, process_, *held);
    status.ok() ? void(++leftovers_removed_) : remember(std::move(status));
  }
}

}  // namespace multitier
