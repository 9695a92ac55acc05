// The model behind DropUnsyncedData: two namespaces over shared inodes. `live_` is the state that the process sees; `durable_`
// is the state after a power loss. A file operation changes live_; Sync() moves an inode's synced_bytes; SyncDir(d) copies the
// entries directly in d from live_ to durable_. A power loss makes the base Env equal to durable_, with each inode cut to its
// synced_bytes. A name is tracked from the first operation that changes it; until then the base Env holds its state.

#include "cc/env/fault_env.h"

#include <errno.h>

#include <algorithm>
#include <utility>

#include "cc/env/memory_env.h"  // NormalizePath, ParentPath
#include "cc/env/posix_error.h"

namespace multitier {

const char* FaultKindName(FaultKind kind) {
  static const char* const kNames[] = {"allocate",
                                       "reserve",
                                       "commit",
                                       "create",
                                       "open",
                                       "write",
                                       "sync",
                                       "close",
                                       "read",
                                       "size",
                                       "rename",
                                       "link",
                                       "delete",
                                       "exists",
                                       "create directory",
                                       "delete directory",
                                       "list directory",
                                       "sync directory",
                                       "extend",
                                       "truncate",
                                       "any"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == kNumFaultKinds, "a name for each kind");
  return kNames[static_cast<size_t>(kind)];
}

void FaultEnv::FailNth(FaultKind kind, uint64_t n, Status status) {
  MT_CHECK(n >= 1 && !status.ok());
  MutexLock lock(mu_);
  armed_kind_ = kind;
  armed_at_ = calls_[static_cast<size_t>(kind)] + n;
  armed_status_ = std::move(status);
  armed_lasting_ = false;
  fired_ = false;
}

void FaultEnv::FailFrom(FaultKind kind, uint64_t n, Status status) {
  FailNth(kind, n, std::move(status));
  MutexLock lock(mu_);
  armed_lasting_ = true;
}

void FaultEnv::LimitSpace(uint64_t bytes) {
  MutexLock lock(mu_);
  space_bytes_ = bytes;
}

bool FaultEnv::Disarm() {
  MutexLock lock(mu_);
  armed_status_ = OkStatus();
  return std::exchange(fired_, false);
}

uint64_t FaultEnv::calls(FaultKind kind) const {
  MutexLock lock(mu_);
  return calls_[static_cast<size_t>(kind)];
}

Status FaultEnv::Fault(FaultKind kind) {
  MutexLock lock(mu_);
  ++calls_[static_cast<size_t>(kind)];
  ++calls_[static_cast<size_t>(FaultKind::kAny)];
  if (armed_status_.ok() || (armed_kind_ != kind && armed_kind_ != FaultKind::kAny)) return OkStatus();
  const uint64_t count = calls_[static_cast<size_t>(armed_kind_)];
  if (armed_lasting_ ? count < armed_at_ : count != armed_at_) return OkStatus();
  fired_ = true;
  return armed_status_;
}

// Its members take the Env's mutex around the file as well: an inode and its file change together.
class FaultWritableFile : public WritableFile {
 public:
  FaultWritableFile(FaultEnv* env, std::string path, std::unique_ptr<WritableFile> file, std::shared_ptr<FaultEnv::Inode> inode)
      : env_(env), path_(std::move(path)), file_(std::move(file)), inode_(std::move(inode)), life_(env->power_losses_) {}

  Status Append(const void* data, size_t bytes) override {
    const Status fault = env_->Fault(FaultKind::kWrite);
    if (!fault.ok()) bytes /= 2;
    MutexLock lock(env_->mu_);
    MT_RETURN_IF_ERROR(CheckAlive("append"));
    MT_RETURN_IF_ERROR(file_->Append(data, bytes));
    inode_->bytes.append(static_cast<const char*>(data), bytes);
    return fault;
  }

  Status Sync() override {
    MT_RETURN_IF_ERROR(env_->Fault(FaultKind::kSync));
    MutexLock lock(env_->mu_);
    MT_RETURN_IF_ERROR(CheckAlive("sync"));
    MT_RETURN_IF_ERROR(file_->Sync());
    inode_->synced_bytes = inode_->bytes.size();
    return OkStatus();
  }

  Status Close() override {
    const Status fault = env_->Fault(FaultKind::kClose);
    MutexLock lock(env_->mu_);
    const Status closed = file_->Close();  // a failed close closes, too
    return fault.ok() ? closed : fault;
  }

 private:
  Status CheckAlive(const char* call) const MT_REQUIRES(env_->mu_) {
    if (life_ == env_->power_losses_) return OkStatus();
    return FailedPreconditionError(call, " of '", path_, "': the file was open when the power was lost");
  }

  FaultEnv* const env_;
  const std::string path_;
  const std::unique_ptr<WritableFile> file_;
  const std::shared_ptr<FaultEnv::Inode> inode_;
  const uint64_t life_;
};

class FaultRandomAccessFile : public RandomAccessFile {
 public:
  FaultRandomAccessFile(FaultEnv* env, std::string path, std::unique_ptr<RandomAccessFile> file)
      : env_(env), path_(std::move(path)), file_(std::move(file)), life_(env->power_losses_) {}

  Status Read(uint64_t offset, size_t bytes, void* out) const override {
    MT_RETURN_IF_ERROR(CheckAlive("read"));
    const Status fault = env_->Fault(FaultKind::kRead);
    const Status read = file_->Read(offset, fault.ok() ? bytes : bytes / 2, out);
    return fault.ok() ? read : fault;
  }

  Result<uint64_t> Size() const override {
    MT_RETURN_IF_ERROR(CheckAlive("size"));
    MT_RETURN_IF_ERROR(env_->Fault(FaultKind::kSize));
    return file_->Size();
  }

 private:
  Status CheckAlive(const char* call) const {
    MutexLock lock(env_->mu_);
    if (life_ == env_->power_losses_) return OkStatus();
    return FailedPreconditionError(call, " of '", path_, "': the file was open when the power was lost");
  }

  FaultEnv* const env_;
  const std::string path_;
  const std::unique_ptr<RandomAccessFile> file_;
  const uint64_t life_;
};

// Writes go to the base file and to the inode; a failing one has written its first half.
class FaultPositionedFile : public PositionedFile {
 public:
  FaultPositionedFile(FaultEnv* env, std::string path, std::unique_ptr<PositionedFile> file,
                      std::shared_ptr<FaultEnv::Inode> inode)
      : env_(env), path_(std::move(path)), file_(std::move(file)), inode_(std::move(inode)), life_(env->power_losses_) {}

  Status Write(uint64_t offset, const void* data, size_t bytes) override {
    const Status fault = env_->Fault(FaultKind::kWrite);
    if (!fault.ok()) bytes /= 2;
    MutexLock lock(env_->mu_);
    MT_RETURN_IF_ERROR(CheckAlive("write"));
    MT_RETURN_IF_ERROR(file_->Write(offset, data, bytes));
    std::string& kept = inode_->bytes;
    if (kept.size() < offset + bytes) kept.resize(offset + bytes);
    kept.replace(offset, bytes, static_cast<const char*>(data), bytes);
    return fault;
  }

  Status Read(uint64_t offset, size_t bytes, void* out) const override {
    const Status fault = env_->Fault(FaultKind::kRead);
    {
      MutexLock lock(env_->mu_);
      MT_RETURN_IF_ERROR(CheckAlive("read"));
    }
    const Status read = file_->Read(offset, fault.ok() ? bytes : bytes / 2, out);
    return fault.ok() ? read : fault;
  }

  Status Sync() override {
    const Status fault = env_->Fault(FaultKind::kSync);
    MutexLock lock(env_->mu_);
    MT_RETURN_IF_ERROR(CheckAlive("sync"));
    if (!fault.ok()) {
      inode_->sync_failed = true;
      if (file_->direct() || inode_->bytes.empty()) return fault;
      std::string before = inode_->synced;
      before.resize(inode_->bytes.size());
      MT_RETURN_IF_ERROR(file_->Write(0, before.data(), before.size()));
      inode_->bytes = std::move(before);
      return fault;
    }
    MT_RETURN_IF_ERROR(file_->Sync());
    if (!inode_->sync_failed) inode_->synced = inode_->bytes;
    return OkStatus();
  }

  bool direct() const override { return file_->direct(); }
  Status Allocate(uint64_t bytes) override { return Resize(FaultKind::kExtend, bytes); }
  Status Truncate(uint64_t bytes) override { return Resize(FaultKind::kTruncate, bytes); }

  Result<uint64_t> Size() const override {
    MT_RETURN_IF_ERROR(env_->Fault(FaultKind::kSize));
    return file_->Size();
  }

 private:
  Status CheckAlive(const char* call) const MT_REQUIRES(env_->mu_) {
    if (life_ == env_->power_losses_) return OkStatus();
    return FailedPreconditionError(call, " of '", path_, "': the file was open when the power was lost");
  }

  Status Resize(FaultKind kind, uint64_t bytes) {
    MT_RETURN_IF_ERROR(env_->Fault(kind));
    MutexLock lock(env_->mu_);
    MT_RETURN_IF_ERROR(CheckAlive(FaultKindName(kind)));
    const bool extend = kind == FaultKind::kExtend;
    if (extend && bytes > inode_->bytes.size() && env_->space_bytes_ > 0) {
      uint64_t used = bytes - inode_->bytes.size();
      std::set<const FaultEnv::Inode*> counted;  // a file may have several names
      for (const auto& [name, inode] : env_->live_.files) {
        if (counted.insert(inode.get()).second) used += inode->bytes.size();
      }
      if (used > env_->space_bytes_) return PosixError("allocate", path_, ENOSPC);
    }
    MT_RETURN_IF_ERROR(extend ? file_->Allocate(bytes) : file_->Truncate(bytes));
    if (!extend || inode_->bytes.size() < bytes) inode_->bytes.resize(bytes);
    return OkStatus();
  }

  FaultEnv* const env_;
  const std::string path_;
  const std::unique_ptr<PositionedFile> file_;
  const std::shared_ptr<FaultEnv::Inode> inode_;
  const uint64_t life_;
};

// Adds a file that existed before to both namespaces, as synced. A no-op if the name is tracked or the file does not exist.
Status FaultEnv::Track(const std::string& name) {
  if (live_.files.count(name) > 0 || durable_.files.count(name) > 0) return OkStatus();
  Result<std::unique_ptr<RandomAccessFile>> file = base_->NewRandomAccessFile(name);
  if (!file.ok()) return file.status().code() == StatusCode::kNotFound ? OkStatus() : file.status();
  MT_ASSIGN_OR_RETURN(const uint64_t size, (*file)->Size());
  auto inode = std::make_shared<Inode>();
  inode->bytes.resize(size);
  MT_RETURN_IF_ERROR((*file)->Read(0, size, inode->bytes.data()));
  inode->synced_bytes = size;
  live_.files[name] = inode;
  durable_.files[name] = std::move(inode);
  return OkStatus();
}

Result<std::unique_ptr<WritableFile>> FaultEnv::NewWritableFile(const std::string& path) {
  MT_RETURN_IF_ERROR(Fault(FaultKind::kCreate));
  MutexLock lock(mu_);
  const std::string name = NormalizePath(path);
  MT_ASSIGN_OR_RETURN(const bool existed, base_->FileExists(name));
  if (existed) MT_RETURN_IF_ERROR(Track(name));
  MT_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, base_->NewWritableFile(path));
  std::shared_ptr<Inode>& inode = live_.files[name];
  if (inode == nullptr) inode = std::make_shared<Inode>();
  inode->bytes.clear();
  inode->synced_bytes = 0;
  return std::unique_ptr<WritableFile>(new FaultWritableFile(this, path, std::move(file), inode));
}

Result<std::unique_ptr<RandomAccessFile>> FaultEnv::NewRandomAccessFile(const std::string& path) {
  MT_RETURN_IF_ERROR(Fault(FaultKind::kOpen));
  MutexLock lock(mu_);
  MT_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, base_->NewRandomAccessFile(path));
  return std::unique_ptr<RandomAccessFile>(new FaultRandomAccessFile(this, path, std::move(file)));
}

Result<std::unique_ptr<PositionedFile>> FaultEnv::OpenPositionedFile(const std::string& path, OpenMode mode, bool direct) {
  const bool create = mode == OpenMode::kCreate;
  MT_RETURN_IF_ERROR(Fault(create ? FaultKind::kCreate : FaultKind::kOpen));
  MutexLock lock(mu_);
  MT_ASSIGN_OR_RETURN(std::unique_ptr<PositionedFile> file, base_->OpenPositionedFile(path, mode, direct));
  std::shared_ptr<Inode> inode;
  if (mode == OpenMode::kWrite) {
    MT_RETURN_IF_ERROR(Track(NormalizePath(path)));
    inode = live_.files[NormalizePath(path)];
    if (!inode->positioned) inode->synced = inode->bytes.substr(0, inode->synced_bytes);
    inode->positioned = true;
  } else {
    inode = std::make_shared<Inode>();
    inode->positioned = true;
    if (create) live_.files[NormalizePath(path)] = inode;
  }
  return std::unique_ptr<PositionedFile>(new FaultPositionedFile(this, path, std::move(file), inode));
}

Status FaultEnv::RenameFile(const std::string& from, const std::string& to) {
  MT_RETURN_IF_ERROR(Fault(FaultKind::kRename));
  MutexLock lock(mu_);
  const std::string old_name = NormalizePath(from);
  const std::string new_name = NormalizePath(to);
  MT_RETURN_IF_ERROR(Track(old_name));
  MT_RETURN_IF_ERROR(Track(new_name));
  MT_RETURN_IF_ERROR(base_->RenameFile(from, to));
  if (old_name == new_name) return OkStatus();
  live_.files[new_name] = live_.files[old_name];
  live_.files.erase(old_name);
  return OkStatus();
}

Status FaultEnv::LinkFile(const std::string& from, const std::string& to) {
  MT_RETURN_IF_ERROR(Fault(FaultKind::kLink));
  MutexLock lock(mu_);
  const std::string old_name = NormalizePath(from);
  MT_RETURN_IF_ERROR(Track(old_name));
  MT_RETURN_IF_ERROR(base_->LinkFile(from, to));
  live_.files[NormalizePath(to)] = live_.files[old_name];
  return OkStatus();
}

Status FaultEnv::DeleteFile(const std::string& path) {
  MT_RETURN_IF_ERROR(Fault(FaultKind::kDelete));
  MutexLock lock(mu_);
  const std::string name = NormalizePath(path);
  MT_RETURN_IF_ERROR(Track(name));
  MT_RETURN_IF_ERROR(base_->DeleteFile(path));
  live_.files.erase(name);
  return OkStatus();
}

Result<bool> FaultEnv::FileExists(const std::string& path) {
  MT_RETURN_IF_ERROR(Fault(FaultKind::kExists));
  return base_->FileExists(path);
}

Status FaultEnv::CreateDir(const std::string& path) {
  MT_RETURN_IF_ERROR(Fault(FaultKind::kCreateDir));
  MutexLock lock(mu_);
  std::vector<std::string> missing;
  for (std::string dir = NormalizePath(path); !dir.empty() && dir != "/"; dir = ParentPath(dir)) {
    MT_ASSIGN_OR_RETURN(const bool exists, base_->FileExists(dir));
    if (exists) break;
    missing.push_back(dir);
  }
  MT_RETURN_IF_ERROR(base_->CreateDir(path));
  live_.dirs.insert(missing.begin(), missing.end());
  return OkStatus();
}

Status FaultEnv::DeleteDir(const std::string& path) {
  MT_RETURN_IF_ERROR(Fault(FaultKind::kDeleteDir));
  MutexLock lock(mu_);
  const std::string name = NormalizePath(path);
  MT_RETURN_IF_ERROR(base_->DeleteDir(path));
  if (live_.dirs.erase(name) == 0) durable_.dirs.insert(name);  // was there before this object
  return OkStatus();
}

Result<std::vector<std::string>> FaultEnv::ListDir(const std::string& path) {
  MT_RETURN_IF_ERROR(Fault(FaultKind::kListDir));
  return base_->ListDir(path);
}

Status FaultEnv::SyncDir(const std::string& path) {
  MT_RETURN_IF_ERROR(Fault(FaultKind::kSyncDir));
  MutexLock lock(mu_);
  MT_RETURN_IF_ERROR(base_->SyncDir(path));
  const std::string dir = NormalizePath(path);
  const auto inside = [&dir](const std::string& name) { return ParentPath(name) == dir; };
  for (auto it = durable_.files.begin(); it != durable_.files.end();) {
    it = inside(it->first) ? durable_.files.erase(it) : std::next(it);
  }
  for (auto it = durable_.dirs.begin(); it != durable_.dirs.end();) {
    it = inside(*it) ? durable_.dirs.erase(it) : std::next(it);
  }
  for (const auto& file : live_.files) {
    if (inside(file.first)) durable_.files.insert(file);
  }
  for (const std::string& name : live_.dirs) {
    if (inside(name)) durable_.dirs.insert(name);
  }
  return OkStatus();
}

Status FaultEnv::WriteBack(const std::string& name, const Inode& inode) {
  MT_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, base_->NewWritableFile(name));
  MT_RETURN_IF_ERROR(file->Append(inode.bytes.data(), inode.bytes.size()));
  return file->Close();
}

Status FaultEnv::DropUnsyncedData() {
  MutexLock lock(mu_);
  ++power_losses_;
  // A durable entry is lost if its directory is not durable. In sorted order a directory comes before its entries.
  const auto lost = [this](const std::string& name) MT_REQUIRES(mu_) {
    for (std::string dir = ParentPath(name); !dir.empty() && dir != "/"; dir = ParentPath(dir)) {
      if (live_.dirs.count(dir) > 0 && durable_.dirs.count(dir) == 0) return true;
    }
    return false;
  };
  Namespace kept;
  for (const std::string& dir : durable_.dirs) {
    if (!lost(dir)) kept.dirs.insert(dir);
  }
  for (const auto& file : durable_.files) {
    if (!lost(file.first)) kept.files.insert(file);
  }
  // Files that stay are deleted and written again too: data that an old handle still buffers then goes to an unlinked file.
  for (const auto& file : live_.files) MT_RETURN_IF_ERROR(base_->DeleteFile(file.first));
  for (auto dir = live_.dirs.rbegin(); dir != live_.dirs.rend(); ++dir) {
    if (kept.dirs.count(*dir) == 0) MT_RETURN_IF_ERROR(base_->DeleteDir(*dir));
  }
  for (const std::string& dir : kept.dirs) MT_RETURN_IF_ERROR(base_->CreateDir(dir));
  for (const auto& file : kept.files) {
    Inode& inode = *file.second;
    if (inode.positioned) {
      inode.bytes = inode.synced;
      inode.sync_failed = false;
    } else {
      inode.bytes.resize(inode.synced_bytes);
    }
    MT_RETURN_IF_ERROR(WriteBack(file.first, inode));
  }
  live_ = kept;
  durable_ = std::move(kept);
  return OkStatus();
}

void* FaultEnv::AllocatePages(size_t bytes, bool huge) {
  return Fault(FaultKind::kAllocate).ok() ? base_->AllocatePages(bytes, huge) : nullptr;
}

void* FaultEnv::ReserveAddressSpace(size_t bytes, bool huge) {
  return Fault(FaultKind::kReserve).ok() ? base_->ReserveAddressSpace(bytes, huge) : nullptr;
}

bool FaultEnv::CommitPages(void* pages, size_t bytes) {
  return Fault(FaultKind::kCommit).ok() && base_->CommitPages(pages, bytes);
}

}  // namespace multitier
