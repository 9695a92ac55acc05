#include "cc/env/instance_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "cc/env/posix_error.h"

namespace multitier {
namespace {

constexpr char kKeepFile[] = "/instance.keep";
constexpr size_t kMaxEncodedName = 200;

// Creates and checks the storage path, so that the error for a bad path states what is wrong. *made: it did not exist before.
Status PrepareStoragePath(const std::string& path, bool* made) {
  if (path.empty()) return InvalidArgumentError("storage path: expected a directory, found an empty path");
  *made = ::mkdir(path.c_str(), 0755) == 0;
  const int error = errno;
  // Looked at after mkdir: another thread may make the same path at any time before it.
  if (*made || IsDirectory(path)) return OkStatus();
  if (PathExists(path)) return InvalidArgumentError("storage path '", path, "': expected a directory, found something else");
  if (error == ENOENT || error == ENOTDIR) {
    return NotFoundError("storage path '", path,
                         "': expected a directory, or a new name in one, found neither: make the folders above",
                         path.find('~') != std::string::npos ? " (~ is not replaced)" : "");
  }
  return PosixError("create storage path", path, error);
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

InstanceDirectory::InstanceDirectory(std::string path, bool keep, std::optional<InstanceLock> lock)
    : path_(std::move(path)), keep_(keep), lock_(std::move(lock)) {}

Result<std::unique_ptr<InstanceDirectory>> InstanceDirectory::Create(const std::string& given_path, const std::string& name,
                                                                     bool keep) {
  MT_ASSIGN_OR_RETURN(const std::string storage_path, AbsolutePath(given_path));
  bool made = false;
  MT_RETURN_IF_ERROR(PrepareStoragePath(storage_path, &made));
  const std::string name_path = PathOfName(storage_path, name);
  Result<InstanceLock> lock = InstanceLock::New(name_path);
  Status status = lock.status();
  if (status.ok() && keep) {
    status = WriteKeepFile(lock->path());
    if (!status.ok()) (void)lock->Remove();
  }
  if (!status.ok()) {
    if (made) ::rmdir(storage_path.c_str());
    return status;
  }
  std::string path = lock->path();
  std::unique_ptr<InstanceDirectory> instance(new InstanceDirectory(std::move(path), keep, std::move(*lock)));
  instance->RemoveLeftovers(name_path);
  return instance;
}

Result<std::unique_ptr<InstanceDirectory>> InstanceDirectory::Open(const std::string& path, bool keep) {
  MT_ASSIGN_OR_RETURN(std::string plain, AbsolutePath(path));
  while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
  MT_ASSIGN_OR_RETURN(InstanceLock lock, InstanceLock::Existing(plain));
  return std::unique_ptr<InstanceDirectory>(new InstanceDirectory(plain, keep, std::move(lock)));
}

Result<std::unique_ptr<InstanceDirectory>> InstanceDirectory::OpenForReading(const std::string& path) {
  MT_ASSIGN_OR_RETURN(const std::string plain, AbsolutePath(path));
  MT_RETURN_IF_ERROR(CheckUnused(plain));
  return std::unique_ptr<InstanceDirectory>(new InstanceDirectory(plain, /*keep=*/true, std::nullopt));
}

Status InstanceDirectory::CheckUnused(const std::string& path) { return InstanceLock::CheckUnused(path); }

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
  if (lock_.has_value() && !keep_) (void)lock_->Remove();  // what stays is a leftover
}

void InstanceDirectory::RemoveLeftovers(const std::string& name_path) {
  const auto remember = [this](Status status) {
    if (leftovers_status_.ok()) leftovers_status_ = std::move(status);
  };
  Result<std::vector<std::string>> names = ListNames(name_path);
  if (!names.ok()) return remember(names.status());
  for (const std::string& name : *names) {
    const std::string path = StrCat(name_path, "/", name);
    if (path == path_ || name.rfind(InstanceLock::kPrefix, 0) != 0 || PathExists(path + kKeepFile)) continue;
    Result<InstanceLock> lock = InstanceLock::Existing(path);
    if (!lock.ok()) {
      // Held by a live owner, or without a lock file.
      if (lock.status().code() == StatusCode::kNotFound && InstanceLock::RemoveEmpty(path)) ++leftovers_removed_;
      if (lock.status().code() == StatusCode::kPermissionDenied) remember(lock.status());
      continue;
    }
    if (PathExists(path + kKeepFile)) continue;  // since we looked
    Status status = lock->Remove();
    status.ok() ? void(++leftovers_removed_) : remember(std::move(status));
  }
}

}  // namespace multitier
