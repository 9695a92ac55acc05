#include "cc/env/unfinished_save.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "cc/base/crc32c.h"
#include "cc/base/mutex.h"

namespace multitier {
namespace {

constexpr const char* kMark = "user.tf_multitier.save";
constexpr size_t kLastLetters = 5;  // in which a linked file differs from its part file

std::string FolderOf(const std::string& prefix) {
  const size_t slash = prefix.rfind('/');
  return slash == std::string::npos ? "." : prefix.substr(0, slash + 1);
}

std::string NameOf(const std::string& prefix) { return prefix.substr(prefix.rfind('/') + 1); }

// The byte of the folder that the prefix locks.
struct flock ByteOf(const std::string& name, short type) {
  struct flock byte = {};
  byte.l_type = type;
  byte.l_whence = SEEK_SET;
  byte.l_start = Crc32c(name.data(), name.size());
  byte.l_len = 1;
  return byte;
}

bool Exists(const std::string& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0;
}

std::string InodeOf(const std::string& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) ? std::to_string(info.st_ino) : "";
}

bool IsMarked(const std::string& path) {
  char value[32];
  const ssize_t bytes = ::lgetxattr(path.c_str(), kMark, value, sizeof(value));
  return bytes > 0 && std::string_view(value, static_cast<size_t>(bytes)) == InodeOf(path);
}

// Whether a file has the name of a part file or linked file: <prefix>.data-?????-of-?????, where each ? is a letter. *name: of
// the prefix.
bool ParseName(const std::string& file, std::string* name) {
  constexpr std::string_view kForm = ".data-#####-of-#####";
  if (file.size() <= kForm.size()) return false;
  const size_t at = file.size() - kForm.size();
  for (size_t i = 0; i < kForm.size(); ++i) {
    const char c = file[at + i];
    if (kForm[i] == '#' ? c < 'a' || c > 'z' : c != kForm[i]) return false;
  }
  *name = file.substr(0, at);
  return true;
}

std::string SaveOf(const std::string& file) { return file.substr(0, file.size() - kLastLetters); }

std::vector<std::string> FilesIn(const std::string& folder) {
  std::vector<std::string> files;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), ::closedir);
  if (open == nullptr) return files;
  while (const dirent* entry = ::readdir(open.get())) files.emplace_back(entry->d_name);
  return files;
}

// Whether a save of the prefix runs, in this process or another one; or that is not known.
bool IsLocked(const std::string& folder, const std::string& name) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return true;
  struct flock byte = ByteOf(name, F_WRLCK);
  const bool unlocked = ::fcntl(fd, F_OFD_GETLK, &byte) == 0 && byte.l_type == F_UNLCK;
  ::close(fd);
  return !unlocked;
}

// The locks of this process.
class Locks {
 public:
  static Locks& OfProcess() {
    static Locks* const locks = new Locks;
    return *locks;
  }

  void Take(const std::string& prefix) MT_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ForgetThoseOfParent();
    GiveUpFinished();
    const std::string folder = FolderOf(prefix);
    const auto [at, is_new] = folders_.try_emplace(folder);
    if (is_new) at->second.fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct flock byte = ByteOf(NameOf(prefix), F_RDLCK);
    if (at->second.fd >= 0 && ::fcntl(at->second.fd, F_OFD_SETLK, &byte) == 0) ++at->second.saves[NameOf(prefix)];
    CloseIfUnused(at->first);
  }

  bool Has(const std::string& prefix) MT_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ForgetThoseOfParent();
    const auto at = folders_.find(FolderOf(prefix));
    return at != folders_.end() && at->second.saves.count(NameOf(prefix)) > 0;
  }

  void GiveUp(const std::string& prefix) MT_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ForgetThoseOfParent();
    const auto at = folders_.find(FolderOf(prefix));
    if (at == folders_.end()) return;
    const auto save = at->second.saves.find(NameOf(prefix));
    if (save == at->second.saves.end() || --save->second > 0) return;
    Unlock(&at->second, NameOf(prefix));
    CloseIfUnused(at->first);
  }

 private:
  struct Folder {
    int fd = -1;
    std::map<std::string, int> saves;  // the number of saves that run, by the name of their prefix
  };

  // A forked child has the descriptors, and so the locks, of its parent: it would hold them beyond the parent's end.
  void ForgetThoseOfParent() MT_REQUIRES(mutex_) {
    if (pid_ == ::getpid()) return;
    for (const auto& [folder, of_folder] : folders_) ::close(of_folder.fd);
    folders_.clear();
    pid_ = ::getpid();
  }

  // Of saves whose index was written, or whose folder was deleted.
  void GiveUpFinished() MT_REQUIRES(mutex_) {
    std::vector<std::string> folders;
    for (const auto& [folder, of_folder] : folders_) folders.push_back(folder);
    for (const std::string& folder : folders) {
      Folder& of_folder = folders_[folder];
      std::vector<std::string> finished;
      for (const auto& [name, saves] : of_folder.saves) {
        if (Exists(folder + "/" + name + ".index") || !Exists(folder)) finished.push_back(name);
      }
      for (const std::string& name : finished) Unlock(&of_folder, name);
      CloseIfUnused(folder);
    }
  }

  static void Unlock(Folder* folder, const std::string& name) {
    struct flock byte = ByteOf(name, F_UNLCK);
    ::fcntl(folder->fd, F_OFD_SETLK, &byte);
    folder->saves.erase(name);
  }

  void CloseIfUnused(const std::string& folder) MT_REQUIRES(mutex_) {
    const auto at = folders_.find(folder);
    if (!at->second.saves.empty()) return;
    if (at->second.fd >= 0) ::close(at->second.fd);
    folders_.erase(at);
  }

  Mutex mutex_;
  pid_t pid_ MT_GUARDED_BY(mutex_) = ::getpid();
  std::map<std::string, Folder> folders_ MT_GUARDED_BY(mutex_);
};

}  // namespace

void UnfinishedSave::Begin(const std::string& prefix) { Locks::OfProcess().Take(prefix); }

void UnfinishedSave::GiveUp(const std::string& prefix) { Locks::OfProcess().GiveUp(prefix); }

void UnfinishedSave::Mark(const std::string& prefix, const std::string& part_file) {
  if (!Locks::OfProcess().Has(prefix)) return;
  const std::string inode = InodeOf(part_file);
  ::lsetxattr(part_file.c_str(), kMark, inode.data(), inode.size(), 0);
}

void UnfinishedSave::RemoveAbandoned(const std::string& prefix) {
  const std::string folder = FolderOf(prefix);
  std::map<std::string, std::vector<std::string>> files;  // by the name of their prefix
  std::string name;
  for (const std::string& file : FilesIn(folder)) {
    if (ParseName(file, &name)) files[name].push_back(file);
  }
  for (const auto& [of, named] : files) {
    const std::string index = folder + "/" + of + ".index";
    if (Exists(index)) continue;
    std::set<std::string> parts, saves;
    for (const std::string& file : named) {
      if (!IsMarked(folder + "/" + file)) continue;
      parts.insert(file);
      saves.insert(SaveOf(file));
    }
    // A save gives up its lock after its index was written, so in this order.
    if (parts.empty() || IsLocked(folder, of) || Exists(index)) continue;
    // Part files last: where this is cut short, the next save still knows the others.
    for (const bool are_parts : {false, true}) {
      for (const std::string& file : named) {
        const bool is_part = parts.count(file) > 0;
        if (is_part == are_parts && (is_part || saves.count(SaveOf(file)) > 0)) ::unlink((folder + "/" + file).c_str());
      }
    }
  }
}

}  // namespace multitier
