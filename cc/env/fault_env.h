// FaultEnv: a twin of another Env that fails when told to. Test only.
//
// Failing the n-th call. A test runs one operation again and again, failing its first, second, third ... call, until the
// operation makes fewer calls than that:
//
//   for (uint64_t n = 1;; ++n) {
//     env.FailNth(FaultKind::kAny, n, ResourceExhaustedError("no space left on device"));
//     Status status = Operation();
//     const bool fired = env.Disarm();
//     if (!fired) break;          // status must be OK here
//     ...                         // status must be the fault, nothing acknowledged may be lost
//   }
//
// A failing Append writes the first half of its bytes, as a full disk does, and a failing Read has filled half of its
// buffer; of everything else nothing happens. Calls without a Status answer nullptr (memory) or false (CommitPages).
// A failing Sync of a positioned file is told once, as by a kernel that could not write pages back and dropped them: unless the
// file is direct(), it reads as at its last Sync from then on, but for its length; and whatever later Syncs say, a loss of
// power leaves it as at the last one before.
//
// Losing power. DropUnsyncedData() leaves what a disk may keep of what was never synced: nothing.
//   - bytes appended after a file's last Sync() are gone; truncating an existing file is not undone
//   - a positioned file is as at its last Sync(): writes, allocation and truncation after it are undone
//   - an entry (file or directory) that was created, renamed, replaced or deleted is as at the last SyncDir() of its
//     directory
//   - handles open at that moment answer FailedPrecondition from then on
// Memory is the test's own to forget. Files that were there before this object count as synced. It must be the only way
// to change those files, and holds the bytes of every file that went through it in memory.
//
// Thread-safe; which call is the n-th one is then up to the schedule.

#ifndef CC_ENV_FAULT_ENV_H_
#define CC_ENV_FAULT_ENV_H_

#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "cc/base/mutex.h"
#include "cc/env/env.h"

namespace multitier {

enum class FaultKind : int {
  kAllocate,   // AllocatePages
  kReserve,    // ReserveAddressSpace
  kCommit,     // CommitPages
  kCreate,     // NewWritableFile, OpenPositionedFile
  kOpen,       // NewRandomAccessFile, OpenPositionedFile for reading
  kWrite,      // WritableFile::Append, PositionedFile::Write
  kSync,       // WritableFile::Sync, PositionedFile::Sync
  kClose,      // WritableFile::Close
  kRead,       // RandomAccessFile::Read, PositionedFile::Read
  kSize,       // RandomAccessFile::Size, PositionedFile::Size
  kRename,     // RenameFile
  kDelete,     // DeleteFile
  kExists,     // FileExists
  kCreateDir,  // CreateDir
  kDeleteDir,  // DeleteDir
  kListDir,    // ListDir
  kSyncDir,    // SyncDir
  kExtend,     // PositionedFile::Allocate
  kTruncate,   // PositionedFile::Truncate
  kAny,        // any of the above
};
constexpr size_t kNumFaultKinds = static_cast<size_t>(FaultKind::kAny) + 1;
const char* FaultKindName(FaultKind kind);

class FaultEnv : public Env {
 public:
  // `base` must outlive this object and all its files.
  explicit FaultEnv(Env* base) : base_(base) {}
  ~FaultEnv() override = default;

  // The n-th call of `kind` from now (1: the next) fails with `status`; the calls after it succeed again. Replaces what was
  // armed before. REQUIRES: n >= 1, !status.ok()
  void FailNth(FaultKind kind, uint64_t n, Status status);
  // The same for the n-th and every later call, until Disarm(): a disk that stays full.
  void FailFrom(FaultKind kind, uint64_t n, Status status);
  // Fails nothing any more. True where a fault fired since it was armed.
  bool Disarm();
  // Calls of this kind since construction, failed ones included.
  uint64_t calls(FaultKind kind) const;

  // A disk of `bytes`: PositionedFile::Allocate fails as a full disk's (ENOSPC) where the files together would be larger. 0: no
  // limit.
  void LimitSpace(uint64_t bytes);

  // Returns the first error of the base Env on the way, which leaves the files in between.
  Status DropUnsyncedData();

  Result<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) override;
  Result<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(const std::string& path) override;
  Result<std::unique_ptr<PositionedFile>> OpenPositionedFile(const std::string& path, OpenMode mode,
                                                             bool direct) override;
  Status RenameFile(const std::string& from, const std::string& to) override;
  Status DeleteFile(const std::string& path) override;
  Result<bool> FileExists(const std::string& path) override;
  Status CreateDir(const std::string& path) override;
  Status DeleteDir(const std::string& path) override;
  Result<std::vector<std::string>> ListDir(const std::string& path) override;
  Status SyncDir(const std::string& path) override;

  void* AllocatePages(size_t bytes, bool huge) override;
  void FreePages(void* pages, size_t bytes) override { base_->FreePages(pages, bytes); }
  void* ReserveAddressSpace(size_t bytes, bool huge) override;
  bool CommitPages(void* pages, size_t bytes) override;
  void CollapsePages(void* pages, size_t bytes) override { base_->CollapsePages(pages, bytes); }
  uint64_t NowMicros() override { return base_->NowMicros(); }
  void SleepMicros(uint64_t micros) override { base_->SleepMicros(micros); }

 private:
  friend class FaultWritableFile;
  friend class FaultRandomAccessFile;
  friend class FaultPositionedFile;

  // The bytes of a file, whatever its name is by now.
  struct Inode {
    std::string bytes;
    size_t synced_bytes = 0;
    bool positioned = false;  // then `synced` is what a power loss leaves
    std::string synced;
    bool sync_failed = false;  // nothing written is synced any more
  };
  // Names that exist. Only what went through this object.
  struct Namespace {
    std::map<std::string, std::shared_ptr<Inode>> files;
    std::set<std::string> dirs;
  };

  // Counts a call; the armed status where it is to fail.
  Status Fault(FaultKind kind) MT_EXCLUDES(mu_);
  Status Track(const std::string& name) MT_REQUIRES(mu_);
  Status WriteBack(const std::string& name, const Inode& inode) MT_REQUIRES(mu_);

  Env* const base_;
  mutable Mutex mu_;  // never held while calling code of the test
  std::array<uint64_t, kNumFaultKinds> calls_ MT_GUARDED_BY(mu_) = {};
  FaultKind armed_kind_ MT_GUARDED_BY(mu_) = FaultKind::kAny;
  Status armed_status_ MT_GUARDED_BY(mu_);       // OK: nothing armed
  uint64_t armed_at_ MT_GUARDED_BY(mu_) = 0;     // the count of calls at which it fires
  bool armed_lasting_ MT_GUARDED_BY(mu_) = false;
  bool fired_ MT_GUARDED_BY(mu_) = false;
  uint64_t space_bytes_ MT_GUARDED_BY(mu_) = 0;   // 0: no limit
  uint64_t power_losses_ MT_GUARDED_BY(mu_) = 0;  // a handle of an earlier life is dead
  Namespace live_ MT_GUARDED_BY(mu_);
  Namespace durable_ MT_GUARDED_BY(mu_);
};

}  // namespace multitier

#endif  // CC_ENV_FAULT_ENV_H_
