#include "cc/env/directories.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "cc/env/posix_error.h"

namespace multitier {

bool IsDirectory(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool PathExists(const std::string& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0;
}

Result<std::string> AbsolutePath(const std::string& path) {
  if (path.empty() || path[0] == '/') return path;
  char* const here = ::getcwd(nullptr, 0);
  if (here == nullptr) return PosixError("current directory, for the relative path", path, errno);
  std::string absolute = StrCat(here, "/", path);
  std::free(here);
  return absolute;
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

Status SyncDirectory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return PosixError("open directory", path, errno);
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (error != 0 && error != EINVAL) return PosixError("sync directory", path, error);  // EINVAL: has no such thing
  return OkStatus();
}

Status RemoveContents(const std::string& path, const std::function<bool(const std::string&)>& keeps) {
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

Status RemoveDirectoryTree(const std::string& path) {
  if (!PathExists(path)) return OkStatus();
  MT_RETURN_IF_ERROR(RemoveContents(path, [](const std::string&) { return false; }));
  if (::rmdir(path.c_str()) != 0 && errno != ENOENT) return PosixError("delete directory", path, errno);
  return OkStatus();
}

}  // namespace multitier
