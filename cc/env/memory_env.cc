#include "cc/env/memory_env.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace multitier {
namespace {

class MemoryWritableFile : public WritableFile {
 public:
  MemoryWritableFile(std::string path, std::shared_ptr<InMemoryEnv::FileData> file)
      : path_(std::move(path)), file_(std::move(file)) {}

  Status Append(const void* data, size_t bytes) override {
    if (file_ == nullptr) return FailedPreconditionError("append of '", path_, "': the file is closed");
    MutexLock lock(file_->mu);
    file_->bytes.append(static_cast<const char*>(data), bytes);
    return OkStatus();
  }
  Status Sync() override {
    if (file_ == nullptr) return FailedPreconditionError("sync of '", path_, "': the file is closed");
    return OkStatus();
  }
  Status Close() override {
    file_ = nullptr;
    return OkStatus();
  }

 private:
  const std::string path_;
  std::shared_ptr<InMemoryEnv::FileData> file_;
};

class MemoryRandomAccessFile : public RandomAccessFile {
 public:
  MemoryRandomAccessFile(std::string path, std::shared_ptr<InMemoryEnv::FileData> file)
      : path_(std::move(path)), file_(std::move(file)) {}

  Status Read(uint64_t offset, size_t bytes, void* out) const override {
    MutexLock lock(file_->mu);
    const uint64_t size = file_->bytes.size();
    const size_t found = offset >= size ? 0 : static_cast<size_t>(std::min<uint64_t>(bytes, size - offset));
    if (found > 0) std::memcpy(out, file_->bytes.data() + offset, found);
    if (found == bytes) return OkStatus();
    return DataLossError("read of '", path_, "' at offset ", offset, ": expected ", bytes, " bytes, found ", found);
  }

  Result<uint64_t> Size() const override {
    MutexLock lock(file_->mu);
    return static_cast<uint64_t>(file_->bytes.size());
  }

 private:
  const std::string path_;
  const std::shared_ptr<InMemoryEnv::FileData> file_;
};

class MemoryPositionedFile : public PositionedFile {
 public:
  MemoryPositionedFile(std::string path, std::shared_ptr<InMemoryEnv::FileData> file, bool direct)
      : file_(std::move(file)), reader_(std::move(path), file_), direct_(direct) {}

  Status Write(uint64_t offset, const void* data, size_t bytes) override {
    MutexLock lock(file_->mu);
    if (file_->bytes.size() < offset + bytes) file_->bytes.resize(offset + bytes);
    std::memcpy(file_->bytes.data() + offset, data, bytes);
    return OkStatus();
  }
  Status Read(uint64_t offset, size_t bytes, void* out) const override {
    // As a kernel that is asked for O_DIRECT. Writes are not checked: a fault or a crash leaves any part of one.
    if (direct_ && (offset | bytes | reinterpret_cast<uintptr_t>(out)) % kDirectAlignment != 0) {
      return InvalidArgumentError("direct read of ", bytes, " bytes at offset ", offset, ": expected multiples of ",
                                  kDirectAlignment, ", the address included");
    }
    return reader_.Read(offset, bytes, out);
  }
  Status Sync() override { return OkStatus(); }
  Status Allocate(uint64_t bytes) override {
    MutexLock lock(file_->mu);
    if (file_->bytes.size() < bytes) file_->bytes.resize(bytes);
    return OkStatus();
  }
  Status Truncate(uint64_t bytes) override {
    MutexLock lock(file_->mu);
    file_->bytes.resize(bytes);
    return OkStatus();
  }
  Result<uint64_t> Size() const override { return reader_.Size(); }
  bool direct() const override { return direct_; }

 private:
  const std::shared_ptr<InMemoryEnv::FileData> file_;
  const MemoryRandomAccessFile reader_;
  const bool direct_;
};

}  // namespace

std::string NormalizePath(const std::string& path) {
  std::string out = !path.empty() && path[0] == '/' ? "/" : "";
  size_t begin = 0;
  while (begin < path.size()) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (!part.empty() && part != ".") {
      if (!out.empty() && out.back() != '/') out += '/';
      out += part;
    }
    begin = end + 1;
  }
  return out;
}

std::string ParentPath(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return "";
  return slash == 0 ? "/" : path.substr(0, slash);
}

bool InMemoryEnv::DirExists(const std::string& path) const { return path.empty() || path == "/" || dirs_.count(path) > 0; }

Status InMemoryEnv::CheckParent(const char* call, const std::string& path) const {
  if (DirExists(ParentPath(NormalizePath(path)))) return OkStatus();
  return NotFoundError(call, " of '", path, "': its directory does not exist");
}

Result<std::shared_ptr<InMemoryEnv::FileData>> InMemoryEnv::Find(const char* call, const std::string& path) {
  const auto it = files_.find(NormalizePath(path));
  if (it == files_.end()) return NotFoundError(call, " of '", path, "': no such file");
  return it->second;
}

Result<std::unique_ptr<WritableFile>> InMemoryEnv::NewWritableFile(const std::string& path) {
  MutexLock lock(mu_);
  const std::string name = NormalizePath(path);
  MT_RETURN_IF_ERROR(CheckParent("open for writing", path));
  if (DirExists(name)) return UnavailableError("open for writing of '", path, "': it is a directory");
  std::shared_ptr<FileData>& file = files_[name];
  if (file == nullptr) file = std::make_shared<FileData>();
  {
    MutexLock file_lock(file->mu);
    file->bytes.clear();
  }
  return std::unique_ptr<WritableFile>(new MemoryWritableFile(path, file));
}

Result<std::unique_ptr<RandomAccessFile>> InMemoryEnv::NewRandomAccessFile(const std::string& path) {
  MutexLock lock(mu_);
  MT_ASSIGN_OR_RETURN(std::shared_ptr<FileData> file, Find("open for reading", path));
  return std::unique_ptr<RandomAccessFile>(new MemoryRandomAccessFile(path, std::move(file)));
}

Result<std::unique_ptr<PositionedFile>> InMemoryEnv::OpenPositionedFile(const std::string& path, OpenMode mode, bool direct) {
  MutexLock lock(mu_);
  if (mode != OpenMode::kCreate) {
    MT_ASSIGN_OR_RETURN(std::shared_ptr<FileData> found, Find("open for reading", path));
    return std::unique_ptr<PositionedFile>(new MemoryPositionedFile(path, std::move(found), direct));
  }
  const std::string name = NormalizePath(path);
  MT_RETURN_IF_ERROR(CheckParent("create", path));
  if (DirExists(name) || files_.count(name) > 0) return AlreadyExistsError("create of '", path, "': it exists");
  std::shared_ptr<FileData>& file = files_[name];
  file = std::make_shared<FileData>();
  return std::unique_ptr<PositionedFile>(new MemoryPositionedFile(path, file, direct));
}

Status InMemoryEnv::RenameFile(const std::string& from, const std::string& to) {
  MutexLock lock(mu_);
  MT_ASSIGN_OR_RETURN(std::shared_ptr<FileData> file, Find("rename", from));
  const std::string name = NormalizePath(to);
  MT_RETURN_IF_ERROR(CheckParent("rename", to));
  if (DirExists(name)) return UnavailableError("rename of '", from, "' to '", to, "': the target is a directory");
  files_.erase(NormalizePath(from));
  files_[name] = std::move(file);
  return OkStatus();
}

Status InMemoryEnv::LinkFile(const std::string& from, const std::string& to) {
  MutexLock lock(mu_);
  MT_ASSIGN_OR_RETURN(std::shared_ptr<FileData> file, Find("link", from));
  MT_RETURN_IF_ERROR(CheckParent("link", to));
  const std::string name = NormalizePath(to);
  if (DirExists(name) || !files_.emplace(name, std::move(file)).second) {
    return AlreadyExistsError("link of '", from, "' to '", to, "': it exists");
  }
  return OkStatus();
}

Result<uint64_t> InMemoryEnv::CountNames(const std::string& path) {
  MutexLock lock(mu_);
  MT_ASSIGN_OR_RETURN(const std::shared_ptr<FileData> file, Find("stat", path));
  uint64_t names = 0;
  for (const auto& [name, data] : files_) names += data == file;
  return names;
}

Status InMemoryEnv::DeleteFile(const std::string& path) {
  MutexLock lock(mu_);
  if (files_.erase(NormalizePath(path)) == 0) return NotFoundError("delete of '", path, "': no such file");
  return OkStatus();
}

Result<bool> InMemoryEnv::FileExists(const std::string& path) {
  MutexLock lock(mu_);
  const std::string name = NormalizePath(path);
  return files_.count(name) > 0 || DirExists(name);
}

Status InMemoryEnv::CreateDir(const std::string& path) {
  MutexLock lock(mu_);
  if (path.empty()) return InvalidArgumentError("create directory: the path is empty");
  for (std::string dir = NormalizePath(path); !DirExists(dir); dir = ParentPath(dir)) {
    if (files_.count(dir) > 0) return AlreadyExistsError("create directory of '", path, "': '", dir, "' is a file");
  }
  for (std::string dir = NormalizePath(path); !DirExists(dir); dir = ParentPath(dir)) dirs_.insert(dir);
  return OkStatus();
}

Status InMemoryEnv::DeleteDir(const std::string& path) {
  MutexLock lock(mu_);
  const std::string name = NormalizePath(path);
  if (dirs_.count(name) == 0) return NotFoundError("delete directory of '", path, "': no such directory");
  const auto inside = [&name](const std::string& entry) { return ParentPath(entry) == name; };
  const bool used = std::any_of(files_.begin(), files_.end(), [&](const auto& f) { return inside(f.first); }) ||
                    std::any_of(dirs_.begin(), dirs_.end(), inside);
  if (used) return AlreadyExistsError("delete directory of '", path, "': it is not empty");
  dirs_.erase(name);
  return OkStatus();
}

Result<std::vector<std::string>> InMemoryEnv::ListDir(const std::string& path) {
  MutexLock lock(mu_);
  const std::string name = NormalizePath(path);
  if (!DirExists(name)) return NotFoundError("list directory of '", path, "': no such directory");
  std::vector<std::string> names;
  const size_t skip = name.empty() || name == "/" ? name.size() : name.size() + 1;
  const auto add = [&](const std::string& entry) {
    if (ParentPath(entry) == name) names.push_back(entry.substr(skip));
  };
  for (const auto& file : files_) add(file.first);
  for (const std::string& dir : dirs_) add(dir);
  std::sort(names.begin(), names.end());
  return names;
}

Status InMemoryEnv::SyncDir(const std::string& path) {
  MutexLock lock(mu_);
  if (DirExists(NormalizePath(path))) return OkStatus();
  return NotFoundError("sync directory of '", path, "': no such directory");
}

Status InMemoryEnv::FlipBit(const std::string& path, uint64_t offset, int bit) {
  MutexLock lock(mu_);
  MT_ASSIGN_OR_RETURN(std::shared_ptr<FileData> file, Find("flip a bit", path));
  MutexLock file_lock(file->mu);
  if (offset >= file->bytes.size() || bit < 0 || bit > 7) {
    return OutOfRangeError("flip a bit of '", path, "': no bit ", bit, " of byte ", offset, " in ", file->bytes.size());
  }
  file->bytes[offset] = static_cast<char>(file->bytes[offset] ^ (1 << bit));
  return OkStatus();
}

Status InMemoryEnv::Truncate(const std::string& path, uint64_t bytes) {
  MutexLock lock(mu_);
  MT_ASSIGN_OR_RETURN(std::shared_ptr<FileData> file, Find("truncate", path));
  MutexLock file_lock(file->mu);
  if (bytes > file->bytes.size()) {
    return OutOfRangeError("truncate of '", path, "' to ", bytes, " bytes: it has ", file->bytes.size());
  }
  file->bytes.resize(bytes);
  return OkStatus();
}

}  // namespace multitier
