// PmemRowMemory: files mapped by libpmem as the memory of a slab. Rows are read and updated in place. Storage type PMEM uses
// it.
//
// Allocate takes pieces from files slab-*.pmem. A file is at most as large as all earlier files together, and at most 1 GiB.
// It is fully allocated, so that a full disk is an error of Allocate and never of a store. A file without used pieces is
// removed. Nothing is flushed and nothing has a checksum: the rows are memory of the process, as in DRAM, and the index is in
// DRAM. Another process that writes to the files changes the rows.
//
// Owns the files, not the directory. A device error under a mapped page is a signal, which cannot become a Status.
//
// Thread-safe. In a forked child Allocate is FailedPrecondition and the destructor does nothing.

#ifndef CC_TIER_PMEM_PMEM_ROW_MEMORY_H_
#define CC_TIER_PMEM_PMEM_ROW_MEMORY_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/base/status.h"
#include "cc/row/row_memory.h"

namespace multitier {

struct Libpmem;

class PmemRowMemory : public RowMemory {
 public:
  // The directory exists; slab-*.pmem files in it are removed.
  static Result<std::unique_ptr<PmemRowMemory>> Open(const std::string& directory);
  ~PmemRowMemory() override;

  const char* name() const override { return "pmem"; }
  Result<void*> Allocate(size_t bytes) override;
  void Free(void* memory, size_t bytes) override;
  size_t bytes() const override;   // of all files
  bool in_files() const override;  // false on a DAX mount

 private:
  struct Piece {
    uint8_t* at;
    size_t bytes;
  };
  struct File {
    std::string path;
    uint8_t* base = nullptr;
    size_t bytes = 0;
    size_t cut = 0;            // bytes ever allocated as pieces
    size_t used = 0;           // of these, bytes in use
    std::vector<Piece> freed;  // the pieces not in use; an Allocate of the same size uses one again
  };

  PmemRowMemory(const Libpmem* libpmem, const std::string& directory);
  Status AddFile(size_t bytes) MT_REQUIRES(mutex_);
  static void* Cut(File* file, size_t bytes);  // null: no room

  const Libpmem* const libpmem_;
  const std::string directory_;
  const pid_t pid_;
  mutable Mutex mutex_;
  std::vector<File> files_ MT_GUARDED_BY(mutex_);
  size_t file_bytes_ MT_GUARDED_BY(mutex_) = 0;
  size_t named_ MT_GUARDED_BY(mutex_) = 0;  // number of file names tried so far
  bool is_pmem_ MT_GUARDED_BY(mutex_) = false;
};

}  // namespace multitier

#endif  // CC_TIER_PMEM_PMEM_ROW_MEMORY_H_
