#include "cc/tier/pmem/pmem_row_memory.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "cc/env/env.h"
#include "cc/env/posix_error.h"
#include "cc/tier/pmem/libpmem.h"

namespace multitier {
namespace {

constexpr size_t kMostSlabBytes = size_t{1} << 30;

}  // namespace

PmemRowMemory::PmemRowMemory(const Libpmem* libpmem, const std::string& directory)
    : libpmem_(libpmem), directory_(directory), pid_(::getpid()) {}

Result<std::unique_ptr<PmemRowMemory>> PmemRowMemory::Open(const std::string& directory) {
  MT_ASSIGN_OR_RETURN(const Libpmem* libpmem, Libpmem::Load());
  Env* env = Env::Posix();
  MT_ASSIGN_OR_RETURN(const std::vector<std::string> names, env->ListDir(directory));
  for (const std::string& name : names) {
    const bool ours = name.rfind("slab-", 0) == 0 && name.size() > 5 && name.substr(name.size() - 5) == ".pmem";
    if (ours) MT_RETURN_IF_ERROR(env->DeleteFile(StrCat(directory, "/", name)));
  }
  return std::unique_ptr<PmemRowMemory>(new PmemRowMemory(libpmem, directory));
}

PmemRowMemory::~PmemRowMemory() {
  if (::getpid() != pid_) return;
  for (const File& file : files_) {
    libpmem_->unmap(file.base, file.bytes);
    ::unlink(file.path.c_str());
  }
}

Status PmemRowMemory::AddFile(size_t bytes) {
  File file;
  int is_pmem = 0;
  void* base = nullptr;
  do {  // skips names of existing files
    file.path = StrCat(directory_, "/slab-", ++named_, ".pmem");
    // Without PMEM_FILE_SPARSE it allocates the whole file.
    base = libpmem_->map_file(file.path.c_str(), bytes, PMEM_FILE_CREATE | PMEM_FILE_EXCL, 0644, &file.bytes, &is_pmem);
  } while (base == nullptr && errno == EEXIST);
  if (base == nullptr) {
    const int error = errno;
    ::unlink(file.path.c_str());
    const Status status = PosixError(StrCat("allocation of ", bytes, " bytes").c_str(), file.path, error);
    return Status(status.code(), StrCat("pmem tier: ", status.message()));
  }
  is_pmem_ = is_pmem != 0;
  file.base = static_cast<uint8_t*>(base);
  file_bytes_ += file.bytes;
  files_.push_back(std::move(file));
  return OkStatus();
}

void* PmemRowMemory::Cut(File* file, size_t bytes) {
  for (Piece& piece : file->freed) {
    if (piece.bytes != bytes) continue;
    uint8_t* const at = piece.at;
    piece = file->freed.back();
    file->freed.pop_back();
    file->used += bytes;
    return at;
  }
  if (file->bytes - file->cut < bytes) return nullptr;
  uint8_t* const at = file->base + file->cut;
  file->cut += bytes;
  file->used += bytes;
  return at;
}

Result<void*> PmemRowMemory::Allocate(size_t bytes) {
  if (::getpid() != pid_) {
    return FailedPreconditionError("pmem tier '", directory_, "': it belongs to process ", pid_,
                                   ", and this is a forked child");
  }
  MutexLock lock(mutex_);
  for (size_t i = files_.size(); i-- > 0;) {  // the newest are the ones with room
    if (void* at = Cut(&files_[i], bytes); at != nullptr) return at;
  }
  const size_t wanted = std::max(bytes, std::min(file_bytes_, kMostSlabBytes));
  Status added = AddFile(wanted);
  if (!added.ok() && wanted > bytes) added = AddFile(bytes);  // a smaller one may still fit
  MT_RETURN_IF_ERROR(added);
  return Cut(&files_.back(), bytes);
}

void PmemRowMemory::Free(void* memory, size_t bytes) {
  if (::getpid() != pid_) return;
  MutexLock lock(mutex_);
  uint8_t* const at = static_cast<uint8_t*>(memory);
  for (size_t i = 0; i < files_.size(); ++i) {
    File& file = files_[i];
    if (at < file.base || at >= file.base + file.bytes) continue;
    file.used -= bytes;
    file.freed.push_back(Piece{at, bytes});
    if (file.used > 0) return;
    libpmem_->unmap(file.base, file.bytes);
    ::unlink(file.path.c_str());
    file_bytes_ -= file.bytes;
    files_.erase(files_.begin() + static_cast<long>(i));
    return;
  }
}

size_t PmemRowMemory::bytes() const {
  MutexLock lock(mutex_);
  return file_bytes_;
}

bool PmemRowMemory::in_files() const {
  MutexLock lock(mutex_);
  return !is_pmem_;
}

}  // namespace multitier
