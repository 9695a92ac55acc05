#include "cc/tier/leveldb/leveldb_env.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "cc/tier/leveldb/leveldb_file.h"

#if defined(__SANITIZE_THREAD__)
// LevelDB's archive is not built with ThreadSanitizer, which therefore does not see the synchronization of its skip list. Its
// functions have names that begin with leveldb::, and no others have.
extern "C" __attribute__((visibility("default"), used)) const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "race:^leveldb::\n"; }
#endif

namespace multitier {
namespace {

// A descriptor, or -1 and errno.
int OpenFile(const std::string& path, int flags) {
  for (;;) {
    const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
    if (fd >= 0 || errno != EINTR) return fd;
  }
}

}  // namespace

LevelDbEnv::LevelDbEnv(LevelDbDisk* disk) : leveldb::EnvWrapper(leveldb::Env::Default()), disk_(disk) {}

LevelDbEnv::~LevelDbEnv() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  has_job_.notify_all();
  thread_.Join();
}

multitier::Status LevelDbEnv::Start() {
  return thread_.Start("mt-leveldb", [this] { RunJobs(); });
}

void LevelDbEnv::Freeze() {
  MutexLock lock(mutex_);
  frozen_ = true;
  lock.Wait(idle_, [this]() MT_REQUIRES(mutex_) { return jobs_.empty() && !running_; });
}

int LevelDbEnv::BeginChange(const char* call, const std::string& path) {
  return frozen_ ? ECANCELED : disk_->Inject(call, path);
}

LevelDbEnv::Place& LevelDbEnv::last_read() {
  thread_local Place place;
  return place;
}

leveldb::Status LevelDbEnv::NewSequentialFile(const std::string& path, leveldb::SequentialFile** file) {
  *file = nullptr;
  const int fault = disk_->Inject("open", path);
  const int fd = fault != 0 ? -1 : OpenFile(path, O_RDONLY);
  if (fd < 0) return disk_->Failed(path, fault != 0 ? fault : errno);
  *file = new LevelDbSequentialFile(this, path, fd);
  return leveldb::Status::OK();
}

leveldb::Status LevelDbEnv::NewRandomAccessFile(const std::string& path, leveldb::RandomAccessFile** file) {
  *file = nullptr;
  const int fault = disk_->Inject("open", path);
  const int fd = fault != 0 ? -1 : OpenFile(path, O_RDONLY);
  if (fd < 0) {
    const int error = fault != 0 ? fault : errno;
    // LevelDB then asks for the name that such files had once, which says nothing.
    if (path.size() < 4 || path.compare(path.size() - 4, 4, ".sst") != 0) last_read() = {path, 0};
    return disk_->Failed(path, error);
  }
  *file = new LevelDbRandomAccessFile(this, path, fd);
  return leveldb::Status::OK();
}

leveldb::Status LevelDbEnv::OpenForWriting(const std::string& path, int flags, leveldb::WritableFile** file) {
  *file = nullptr;
  const int fault = BeginChange("create", path);
  const int fd = fault != 0 ? -1 : OpenFile(path, O_WRONLY | O_CREAT | flags);
  if (fd < 0) return disk_->Failed(path, fault != 0 ? fault : errno);
  struct stat info;
  const int64_t bytes = ::fstat(fd, &info) == 0 ? info.st_size : 0;
  disk_->SetWritten(path, {bytes, 0});
  *file = new LevelDbWritableFile(this, path, fd, bytes);
  return leveldb::Status::OK();
}

leveldb::Status LevelDbEnv::NewWritableFile(const std::string& path, leveldb::WritableFile** file) {
  return OpenForWriting(path, O_TRUNC, file);
}

leveldb::Status LevelDbEnv::NewAppendableFile(const std::string& path, leveldb::WritableFile** file) {
  return OpenForWriting(path, O_APPEND, file);
}

leveldb::Status LevelDbEnv::GetChildren(const std::string& path, std::vector<std::string>* names) {
  names->clear();
  DIR* dir = ::opendir(path.c_str());
  if (dir == nullptr) return disk_->Failed(path, errno);
  while (const dirent* entry = ::readdir(dir)) names->push_back(entry->d_name);
  ::closedir(dir);
  return leveldb::Status::OK();
}

leveldb::Status LevelDbEnv::RemoveFile(const std::string& path) {
  int error = BeginChange("delete", path);
  if (error == 0 && ::unlink(path.c_str()) != 0) error = errno;
  if (error == 0 || error == ENOENT) disk_->SetWritten(path, {});
  return error == 0 ? leveldb::Status::OK() : disk_->Failed(path, error);
}

leveldb::Status LevelDbEnv::RenameFile(const std::string& from, const std::string& to) {
  int error = BeginChange("rename", from);
  if (error == 0 && ::rename(from.c_str(), to.c_str()) != 0) error = errno;
  if (error != 0) return disk_->Failed(from, error);
  disk_->RenameWritten(from, to);
  return leveldb::Status::OK();
}

void LevelDbEnv::Schedule(void (*function)(void* arg), void* arg) {
  {
    MutexLock lock(mutex_);
    jobs_.push_back([function, arg] { function(arg); });
  }
  has_job_.notify_one();
}

void LevelDbEnv::RunJobs() {
  MutexLock lock(mutex_);
  for (;;) {
    lock.Wait(has_job_, [this]() MT_REQUIRES(mutex_) { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    running_ = true;
    lock.Unlock();
    job();
    lock.Lock();
    running_ = false;
    idle_.notify_all();
  }
}

}  // namespace multitier
