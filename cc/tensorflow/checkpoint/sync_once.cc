#include "cc/tensorflow/checkpoint/sync_once.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <set>
#include <tuple>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cc/env/env.h"
#include "cc/env/posix_error.h"

namespace multitier {
namespace {

constexpr size_t kMostFiles = 1 << 16;  // then all are forgotten

// Device, inode, bytes, seconds and nanoseconds of the last write.
using FileState = std::tuple<uint64_t, uint64_t, int64_t, int64_t, int64_t>;

struct Synced {
  absl::Mutex mutex;
  std::set<FileState> files ABSL_GUARDED_BY(mutex);
};

Synced* Known() {
  static Synced* const known = new Synced;
  return known;
}

}  // namespace

Result<int64_t> SyncOnce(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return PosixError("stat", path, errno);
  const FileState state(info.st_dev, info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
  {
    absl::MutexLock lock(&Known()->mutex);
    if (Known()->files.count(state) != 0) return int64_t{info.st_size};
  }
  MT_RETURN_IF_ERROR(Env::Posix()->SyncFile(path));
  absl::MutexLock lock(&Known()->mutex);
  if (Known()->files.size() >= kMostFiles) Known()->files.clear();
  Known()->files.insert(state);
  return int64_t{info.st_size};
}

}  // namespace multitier
