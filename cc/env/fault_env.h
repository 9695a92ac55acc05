// FaultEnv: wraps another Env and makes chosen calls fail. Test only.
//
// Failing the n-th call. A test repeats one operation and fails its first, second, third ... call, until the operation makes
// fewer calls than that:
//
//   for (uint64_t n = 1;; ++n) {
//     env.FailNth(FaultKind::kAny, n, ResourceExhaustedError("no space left on device"));
//     Status status = Operation();
//     const bool fired = env.Disarm();
//     if (!fired) break;          // status must be OK here
//     ...                         // status must be the fault, nothing acknowledged may be lost
//   }
//
// A failing Append writes the first half of its bytes, as on a full disk. A failing Read fills half of its buffer. Other
// failing calls do nothing. Calls without a Status return nullptr (memory) or false (CommitPages).
//
// A failing Sync of a positioned file is reported once, as by a kernel that could not write pages back and dropped them. Unless
// the file is direct(), it then has the bytes of its last successful Sync, but keeps its length. A loss of power leaves the
// state of that Sync, even if later Syncs return OK.
//
// Losing power. DropUnsyncedData() undoes everything that was not synced:
//   - bytes that were appended after a file's last Sync() are lost; truncating an existing file is not undone
//   - a positioned file is as at its last Sync(): later writes, allocations and truncations are undone
//   - an entry (file or directory) that was created, renamed, replaced or deleted is as at the last SyncDir() of its directory
//   - handles that are open at that moment return FailedPrecondition afterwards
// The test must discard its own objects in memory. Files that existed before this object count as synced. All changes of files
// must go through this object. It keeps the bytes of all files that it opened in memory.
//
// Thread-safe. With several threads, the schedule decides which call is the n-th.

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
  kLink,       // LinkFile
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

  // Makes the n-th call of `kind` from now (1: the next) fail with `status`. Later calls succeed. Replaces an earlier fault.
  // REQUIRES: n >= 1, !status.ok()
  void FailNth(FaultKind kind, uint64_t n, Status status);
  // Makes the n-th and every later call fail, until Disarm(). Simulates a disk that stays full.
  void FailFrom(FaultKind kind, uint64_t n, Status status);
  // Removes the fault. True if it has fired.
  bool Disarm();
  // Number of calls of this kind since construction, including failed ones.
  uint64_t calls(FaultKind kind) const;

  // Simulates a disk of `bytes`: PositionedFile::Allocate fails with ENOSPC if all files together would be larger. 0: no limit.
  void LimitSpace(uint64_t bytes);

  // Returns the first error of the base Env. The files are then in an intermediate state.
  Status DropUnsyncedData();

  Result<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) override;
  Result<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(const std::string& path) override;
  Result<std::unique_ptr<PositionedFile>> OpenPositionedFile(const std::string& path, OpenMode mode, bool direct) override;
  Status RenameFile(const std::string& from, const std::string& to) override;
  Status LinkFile(const std::string& from, const std::string& to) override;
  Result<uint64_t> CountNames(const std::string& path) override { return base_->CountNames(path); }
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

  // The bytes of a file, independent of its current name.
  struct Inode {
    std::string bytes;
    size_t synced_bytes = 0;
    bool positioned = false;  // then `synced` is what a power loss leaves
    std::string synced;
    bool sync_failed = false;  // later Syncs have no effect
  };
  // The names of files and directories that were used through this object.
  struct Namespace {
    std::map<std::string, std::shared_ptr<Inode>> files;
    std::set<std::string> dirs;
  };

  // Counts a call. Returns the armed status if the call must fail.
  Status Fault(FaultKind kind) MT_EXCLUDES(mu_);
  Status Track(const std::string& name) MT_REQUIRES(mu_);
  Status WriteBack(const std::string& name, const Inode& inode) MT_REQUIRES(mu_);

  Env* const base_;
  mutable Mutex mu_;  // never held while calling code of the test
  std::array<uint64_t, kNumFaultKinds> calls_ MT_GUARDED_BY(mu_) = {};
  FaultKind armed_kind_ MT_GUARDED_BY(mu_) = FaultKind::kAny;
  Status armed_status_ MT_GUARDED_BY(mu_);    // OK: nothing armed
  uint64_t armed_at_ MT_GUARDED_BY(mu_) = 0;  // the count of calls at which it fires
  bool armed_lasting_ MT_GUARDED_BY(mu_) = false;
  bool fired_ MT_GUARDED_BY(mu_) = false;
  uint64_t space_bytes_ MT_GUARDED_BY(mu_) = 0;   // 0: no limit
  uint64_t power_losses_ MT_GUARDED_BY(mu_) = 0;  // handles that were opened before a power loss fail
  Namespace live_ MT_GUARDED_BY(mu_);
  Namespace durable_ MT_GUARDED_BY(mu_);
};

}  // namespace multitier

#endif  // CC_ENV_FAULT_ENV_H_
