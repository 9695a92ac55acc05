#include "cc/env/file_cache.h"

#include <errno.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/env/posix_error.h"

namespace multitier {
namespace {

constexpr size_t kMaxOpenFiles = 1000;
constexpr size_t kMinOpenFiles = 16;

size_t DefaultCapacity() {
  struct rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kMaxOpenFiles;
  return std::clamp<size_t>(static_cast<size_t>(limit.rlim_cur) / 4, kMinOpenFiles, kMaxOpenFiles);
}

const Status& StatusOf(const Status& status) { return status; }
template <typename T>
Status StatusOf(const Result<T>& result) {
  return result.status();
}

}  // namespace

struct CachedFile::Shared {
  const pid_t pid = ::getpid();
  Mutex mutex;  // never held over I/O
  size_t capacity MT_GUARDED_BY(mutex) = DefaultCapacity();
  std::list<CachedFile*> open MT_GUARDED_BY(mutex);  // newest first

  // Removes the oldest until `keep` are left. Their files are closed when the result is destroyed, outside the mutex.
  std::vector<std::shared_ptr<PositionedFile>> Shrink(size_t keep) MT_REQUIRES(mutex) {
    std::vector<std::shared_ptr<PositionedFile>> closed;
    while (open.size() > keep) {
      closed.push_back(std::move(open.back()->file_));
      open.back()->file_ = nullptr;
      open.pop_back();
    }
    return closed;
  }
};

// Never destroyed: tiers of static duration may outlive any order of destruction. A forked child makes its own: another
// thread of its parent may have held the mutex.
CachedFile::Shared* CachedFile::GetShared() {
  static std::atomic<Shared*> current{nullptr};
  Shared* shared = current.load();
  if (shared != nullptr && shared->pid == ::getpid()) return shared;
  auto* made = new Shared;
  if (current.compare_exchange_strong(shared, made)) return made;
  delete made;
  return shared;
}

CachedFile::CachedFile(Env* env, std::string path, bool direct, bool writable)
    : env_(env), path_(std::move(path)), direct_(direct), writable_(writable) {}

CachedFile::~CachedFile() {
  std::shared_ptr<PositionedFile> closed;
  Shared* shared = GetShared();
  MutexLock lock(shared->mutex);
  if (file_ != nullptr) shared->open.erase(position_);
  closed = std::move(file_);
}

template <typename Operation>
auto CachedFile::WithDescriptors(const Operation& operation) {
  auto result = operation();
  if (!IsOutOfDescriptors(StatusOf(result))) return result;
  {
    std::vector<std::shared_ptr<PositionedFile>> closed;  // after the lock is given back
    Shared* shared = GetShared();
    MutexLock lock(shared->mutex);
    closed = shared->Shrink(shared->open.size() / 2);
  }
  return operation();
}

Result<std::shared_ptr<CachedFile>> CachedFile::Create(Env* env, const std::string& path, bool direct) {
  std::shared_ptr<CachedFile> cached(new CachedFile(env, path, direct, true));
  Result<std::unique_ptr<PositionedFile>> file =
      WithDescriptors([&] { return env->OpenPositionedFile(path, Env::OpenMode::kCreate, direct); });
  if (!file.ok()) return file.status();
  std::vector<std::shared_ptr<PositionedFile>> closed;
  Shared* shared = GetShared();
  MutexLock lock(shared->mutex);
  cached->file_ = *std::move(file);
  shared->open.push_front(cached.get());
  cached->position_ = shared->open.begin();
  closed = shared->Shrink(shared->capacity);
  return cached;
}

std::shared_ptr<CachedFile> CachedFile::ForReading(Env* env, const std::string& path, bool direct) {
  return std::shared_ptr<CachedFile>(new CachedFile(env, path, direct, false));
}

Result<std::shared_ptr<CachedFile>> CachedFile::HeldOpen(Env* env, const std::string& path, bool direct) {
  Result<std::unique_ptr<PositionedFile>> file =
      WithDescriptors([&] { return env->OpenPositionedFile(path, Env::OpenMode::kRead, direct); });
  if (!file.ok()) return file.status();
  std::shared_ptr<CachedFile> cached = ForReading(env, path, direct);
  cached->held_ = *std::move(file);
  return cached;
}

Result<std::shared_ptr<PositionedFile>> CachedFile::Open() {
  if (held_ != nullptr) return held_;
  Shared* shared = GetShared();
  Env::OpenMode mode = Env::OpenMode::kRead;
  {
    MutexLock lock(shared->mutex);
    if (file_ != nullptr) {
      shared->open.splice(shared->open.begin(), shared->open, position_);
      return file_;
    }
    if (writable_) mode = Env::OpenMode::kWrite;
  }
  Result<std::unique_ptr<PositionedFile>> file =
      WithDescriptors([&] { return env_->OpenPositionedFile(path_, mode, direct_); });
  if (!file.ok()) return file.status();
  std::vector<std::shared_ptr<PositionedFile>> closed;  // after the lock is given back
  MutexLock lock(shared->mutex);
  if (file_ == nullptr) {
    file_ = *std::move(file);
    shared->open.push_front(this);
    position_ = shared->open.begin();
  }
  std::shared_ptr<PositionedFile> result = file_;
  closed = shared->Shrink(shared->capacity);
  return result;
}

Result<uint64_t> CachedFile::CheckName() const {
  std::shared_ptr<PositionedFile> open;
  {
    MutexLock lock(GetShared()->mutex);
    open = file_;
  }
  if (open == nullptr || open->descriptor() < 0) {
    const auto named = WithDescriptors([&] { return env_->NewRandomAccessFile(path_); });
    MT_RETURN_IF_ERROR(named.status());
    return (*named)->Size();
  }
  struct stat mine, named;
  if (::fstat(open->descriptor(), &mine) != 0) return PosixError("fstat", path_, errno);
  if (::stat(path_.c_str(), &named) != 0) return PosixError("stat", path_, errno);
  if (mine.st_dev == named.st_dev && mine.st_ino == named.st_ino) return static_cast<uint64_t>(named.st_size);
  return DataLossError("'", path_, "' is another file than the one that was written under this name");
}

Status CachedFile::SyncDir(Env* env, const std::string& path) {
  return WithDescriptors([&] { return env->SyncDir(path); });
}

Result<std::vector<std::string>> CachedFile::ListDir(Env* env, const std::string& path) {
  return WithDescriptors([&] { return env->ListDir(path); });
}

void CachedFile::SetReadOnly() {
  MutexLock lock(GetShared()->mutex);
  writable_ = false;
}

size_t CachedFile::capacity() {
  Shared* shared = GetShared();
  MutexLock lock(shared->mutex);
  return shared->capacity;
}

void CachedFile::SetCapacity(size_t files) {
  MT_CHECK(files > 0);
  std::vector<std::shared_ptr<PositionedFile>> closed;
  Shared* shared = GetShared();
  MutexLock lock(shared->mutex);
  shared->capacity = files;
  closed = shared->Shrink(files);
}

size_t CachedFile::open_files() {
  Shared* shared = GetShared();
  MutexLock lock(shared->mutex);
  return shared->open.size();
}

}  // namespace multitier
