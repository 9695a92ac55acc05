// The locking protocol. M is the mutex of this process's registry; it is held over a few system calls, never while files
// are removed.
//
//   create   under M: mkdir the instance, make and lock its lock file, register its inode. Somebody who looked in between
//            may have removed the directory (empty) or hold the lock in order to: then another number is tried.
//   open     under M: refuse a registered inode without opening it; else open and lock the file, and check that it still has
//            its name. From here on nobody removes it.
//   remove   open (for a leftover), remove everything but the lock file, then under M: unlink it, close it, unregister;
//            rmdir the instance, and the name's directory where it is empty.
//
// So an instance directory without a lock file is empty, and may be removed by whoever sees it.

#include "cc/env/instance_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "cc/env/posix_error.h"

namespace multitier {
namespace {

constexpr char kLockFile[] = "/instance.lock";
constexpr char kKeepFile[] = "/instance.keep";
constexpr char kPrefix[] = "instance-";
constexpr size_t kMaxEncodedName = 200;

using Inode = std::pair<dev_t, ino_t>;

// Lock files that this process holds.
struct Registry {
  const pid_t pid = ::getpid();
  std::mutex mutex;
  std::set<Inode> held;
  uint64_t next_number = 1;
};

// The registry of this process. A forked child begins anew: its parent's locks are not its own, and its parent's mutex may
// be held by a thread that the child does not have.
Registry* GetRegistry() {
  static std::atomic<Registry*> current{nullptr};
  Registry* registry = current.load();
  while (registry == nullptr || registry->pid != ::getpid()) {
    Registry* made = new Registry;  // never destroyed
    if (current.compare_exchange_strong(registry, made)) return made;
    delete made;
  }
  return registry;
}

bool IsDirectory(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool Exists(const std::string& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0;
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

Status InUse(const std::string& path, pid_t pid, const char* which) {
  return FailedPreconditionError("open of instance '", path, "': it is in use by process ", pid, which);
}

// Takes the lock of an instance that exists and registers it.
Result<int> LockExisting(const std::string& path) {
  const std::string file = path + kLockFile;
  Registry* registry = GetRegistry();
  std::lock_guard<std::mutex> guard(registry->mutex);
  struct stat info;
  if (::stat(file.c_str(), &info) != 0) return PosixError("open of instance", path, errno);
  const Inode inode(info.st_dev, info.st_ino);
  if (registry->held.count(inode) != 0) return InUse(path, registry->pid, " (this one)");
  const int fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return PosixError("open of instance", path, errno);
  struct flock lock;
  Status status;
  if (const int error = LockWholeFile(fd, F_SETLK, &lock); error == EACCES || error == EAGAIN) {
    pid_t holder = 0;  // unknown: of another machine, or gone by now
    if (LockWholeFile(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK) holder = lock.l_pid;
    status = InUse(path, holder, "");
  } else if (error != 0) {
    status = PosixError("lock of instance", path, error);
  } else if (::fstat(fd, &info) != 0 || info.st_nlink == 0 || Inode(info.st_dev, info.st_ino) != inode) {
    status = PosixError("open of instance", path, ENOENT);  // removed while we looked
  }
  if (!status.ok()) {
    ::close(fd);
    return status;
  }
  registry->held.insert(inode);
  return fd;
}

// Makes a new instance of the name, locks and registers it; its path goes to `path`.
Result<int> LockNew(const std::string& name_path, std::string* path) {
  Registry* registry = GetRegistry();
  std::lock_guard<std::mutex> guard(registry->mutex);
  for (int attempt = 0; attempt < 1000; ++attempt) {
    if (::mkdir(name_path.c_str(), 0755) != 0 && errno != EEXIST) return PosixError("create directory", name_path, errno);
    *path = StrCat(name_path, "/", kPrefix, registry->pid, "-", registry->next_number++);
    if (::mkdir(path->c_str(), 0755) != 0) {
      // EEXIST: of a dead process with our pid. ENOENT: the last instance of this name has just gone.
      if (errno == EEXIST || errno == ENOENT) continue;
      return PosixError("create directory", *path, errno);
    }
    const std::string file = *path + kLockFile;
    const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) {
      const int error = errno;
      ::rmdir(path->c_str());
      if (error == ENOENT) continue;
      return PosixError("create", file, error);
    }
    struct flock lock;
    struct stat info;
    const int error = LockWholeFile(fd, F_SETLK, &lock);
    if (error == 0 && ::fstat(fd, &info) == 0 && info.st_nlink > 0) {
      registry->held.emplace(info.st_dev, info.st_ino);
      return fd;
    }
    ::close(fd);
    if (error != 0 && error != EACCES && error != EAGAIN) {
      ::unlink(file.c_str());
      ::rmdir(path->c_str());
      return PosixError("lock of instance", *path, error);
    }
  }
  return UnavailableError("create instance in '", name_path, "': 1000 attempts failed");
}

// Removes the lock file of an instance that has nothing else, and the directories that are empty then.
Status UnlockAndRemove(const std::string& path, int fd) {
  Status status;
  {
    Registry* registry = GetRegistry();
    std::lock_guard<std::mutex> guard(registry->mutex);
    struct stat info;
    if (::fstat(fd, &info) == 0) registry->held.erase(Inode(info.st_dev, info.st_ino));
    if (::unlink((path + kLockFile).c_str()) != 0) status = PosixError("delete", path + kLockFile, errno);
    ::close(fd);
  }
  if (status.ok() && ::rmdir(path.c_str()) != 0 && errno != ENOENT) status = PosixError("delete directory", path, errno);
  ::rmdir(path.substr(0, path.rfind('/')).c_str());  // fails where other instances of the name exist
  return status;
}

void Unlock(int fd) {
  Registry* registry = GetRegistry();
  std::lock_guard<std::mutex> guard(registry->mutex);
  struct stat info;
  if (::fstat(fd, &info) == 0) registry->held.erase(Inode(info.st_dev, info.st_ino));
  ::close(fd);
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

// Removes what is in a directory, but for the one name.
Status RemoveContents(const std::string& path, const std::string& except) {
  MT_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListNames(path));
  for (const std::string& name : names) {
    if (name == except) continue;
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

// Removes a whole instance whose lock we hold. On an error the lock is given back, and the lock file stays.
Status RemoveLocked(const std::string& path, int fd) {
  Status status = RemoveContents(path, &kLockFile[1]);
  if (status.ok()) return UnlockAndRemove(path, fd);
  Unlock(fd);
  return status;
}

// So that the one error of a bad storage path says what is wrong with it.
Status PrepareStoragePath(const std::string& path) {
  if (path.empty()) return InvalidArgumentError("storage path: expected a directory, found an empty path");
  if (IsDirectory(path)) return OkStatus();
  if (Exists(path)) return InvalidArgumentError("storage path '", path, "': expected a directory, found something else");
  if (::mkdir(path.c_str(), 0755) == 0 || IsDirectory(path)) return OkStatus();
  return PosixError("create storage path", path, errno);
}

// Marks an instance as one that stays.
Status WriteKeepFile(const std::string& path) {
  const int fd = ::open((path + kKeepFile).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return PosixError("create", path + kKeepFile, errno);
  ::close(fd);
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
  MT_RETURN_IF_ERROR(RemoveContents(path, ""));
  if (::rmdir(path.c_str()) != 0 && errno != ENOENT) return PosixError("delete directory", path, errno);
  return OkStatus();
}

InstanceDirectory::InstanceDirectory(std::string path, bool keep, int lock_fd)
    : path_(std::move(path)), keep_(keep), lock_fd_(lock_fd), pid_(::getpid()) {}

Result<std::unique_ptr<InstanceDirectory>> InstanceDirectory::Create(const std::string& storage_path,
                                                                     const std::string& name, bool keep) {
  MT_RETURN_IF_ERROR(PrepareStoragePath(storage_path));
  const std::string name_path = StrCat(storage_path, "/", EncodeInstanceName(name));
  std::string path;
  MT_ASSIGN_OR_RETURN(const int fd, LockNew(name_path, &path));
  if (keep) {
    if (Status status = WriteKeepFile(path); !status.ok()) {
      (void)RemoveLocked(path, fd);
      return status;
    }
  }
  std::unique_ptr<InstanceDirectory> instance(new InstanceDirectory(path, keep, fd));
  instance->RemoveLeftovers(name_path);
  return instance;
}

Result<std::unique_ptr<InstanceDirectory>> InstanceDirectory::Open(const std::string& path, bool keep) {
  MT_ASSIGN_OR_RETURN(const int fd, LockExisting(path));
  if (keep) {
    if (Status status = WriteKeepFile(path); !status.ok()) {
      Unlock(fd);
      return status;
    }
  }
  return std::unique_ptr<InstanceDirectory>(new InstanceDirectory(path, keep, fd));
}

InstanceDirectory::~InstanceDirectory() {
  if (::getpid() != pid_) {
    ::close(lock_fd_);  // the parent's lock is not touched by it
  } else if (keep_) {
    Unlock(lock_fd_);
  } else {
    (void)RemoveLocked(path_, lock_fd_);  // what stays is a leftover
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
    if (path == path_ || name.rfind(kPrefix, 0) != 0) continue;
    Result<int> fd = LockExisting(path);
    if (!fd.ok()) {
      // Held by a live owner, or an empty directory without a lock file.
      if (fd.status().code() == StatusCode::kNotFound && ::rmdir(path.c_str()) == 0) ++leftovers_removed_;
      if (fd.status().code() == StatusCode::kPermissionDenied) remember(fd.status());
      continue;
    }
    if (Exists(path + kKeepFile)) {
      Unlock(*fd);
      continue;
    }
    Status status = RemoveLocked(path, *fd);
    status.ok() ? void(++leftovers_removed_) : remember(std::move(status));
  }
}

}  // namespace multitier
