// InMemoryEnv: keeps files in this process's memory. Pages, clock and sleep are the machine's own.
//
// For tests: it is fast, the files are deleted with the object, and it can damage a file as a disk would (FlipBit, Truncate).
// Directories behave as on a disk: a file needs its parent directory ("", ".", and "/" always exist), and DeleteDir needs an
// empty directory. A file that is deleted or replaced stays readable through open handles. Sync succeeds and does nothing: see
// FaultEnv.
//
// Thread-safe.

#ifndef CC_ENV_MEMORY_ENV_H_
#define CC_ENV_MEMORY_ENV_H_

#include <map>
#include <set>
#include <string>

#include "cc/base/mutex.h"
#include "cc/env/env.h"

namespace multitier {

class InMemoryEnv : public Env {
 public:
  InMemoryEnv() = default;

  Result<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) override;
  Result<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(const std::string& path) override;
  Result<std::unique_ptr<PositionedFile>> OpenPositionedFile(const std::string& path, OpenMode mode,
                                                             bool direct) override;  // direct() is `direct`
  Status RenameFile(const std::string& from, const std::string& to) override;
  Status LinkFile(const std::string& from, const std::string& to) override;
  Result<uint64_t> CountNames(const std::string& path) override;
  Status DeleteFile(const std::string& path) override;
  Result<bool> FileExists(const std::string& path) override;
  Status CreateDir(const std::string& path) override;
  Status DeleteDir(const std::string& path) override;
  Result<std::vector<std::string>> ListDir(const std::string& path) override;
  Status SyncDir(const std::string& path) override;

  void* AllocatePages(size_t bytes, bool huge) override { return Env::Posix()->AllocatePages(bytes, huge); }
  void FreePages(void* pages, size_t bytes) override { Env::Posix()->FreePages(pages, bytes); }
  void* ReserveAddressSpace(size_t bytes, bool huge) override { return Env::Posix()->ReserveAddressSpace(bytes, huge); }
  bool CommitPages(void* pages, size_t bytes) override { return Env::Posix()->CommitPages(pages, bytes); }
  void CollapsePages(void* pages, size_t bytes) override { Env::Posix()->CollapsePages(pages, bytes); }
  uint64_t NowMicros() override { return Env::Posix()->NowMicros(); }
  void SleepMicros(uint64_t micros) override { Env::Posix()->SleepMicros(micros); }

  // Inverts bit `bit` (0 is the lowest) of byte `offset`. NotFound, or OutOfRange beyond the end.
  Status FlipBit(const std::string& path, uint64_t offset, int bit);
  // Cuts the file to `bytes`. NotFound, or OutOfRange if it is shorter.
  Status Truncate(const std::string& path, uint64_t bytes);

  // The bytes of one file. The directory entry and the open handles share it.
  struct FileData {
    mutable Mutex mu;
    std::string bytes MT_GUARDED_BY(mu);
  };

 private:
  bool DirExists(const std::string& path) const MT_REQUIRES(mu_);
  Status CheckParent(const char* call, const std::string& path) const MT_REQUIRES(mu_);
  Result<std::shared_ptr<FileData>> Find(const char* call, const std::string& path) MT_REQUIRES(mu_);

  Mutex mu_;
  std::map<std::string, std::shared_ptr<FileData>> files_ MT_GUARDED_BY(mu_);  // by normalized path
  std::set<std::string> dirs_ MT_GUARDED_BY(mu_);  // normalized, without the three that always exist
};

// "a//b/./c/" -> "a/b/c". Public because FaultEnv must name files in the same way.
std::string NormalizePath(const std::string& path);
// "a/b" -> "a", "/a" -> "/", "a" -> "". REQUIRES: normalized
std::string ParentPath(const std::string& path);

}  // namespace multitier

#endif  // CC_ENV_MEMORY_ENV_H_
