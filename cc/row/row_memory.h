// RowMemory: where a slab's rows live, if not in ordinary memory: memory of another kind that loads and stores reach.
//
// Thread-safe.

#ifndef CC_ROW_ROW_MEMORY_H_
#define CC_ROW_ROW_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "cc/base/status.h"

namespace multitier {

class RowMemory {
 public:
  virtual ~RowMemory() = default;
  virtual const char* name() const = 0;  // of the tier whose rows are there: "pmem"
  // `bytes` (whole pages) of it, every byte good to be written to. ResourceExhausted where there is no more.
  virtual Result<void*> Allocate(size_t bytes) = 0;
  // REQUIRES: what Allocate gave for that many bytes
  virtual void Free(void* memory, size_t bytes) = 0;
  // Taken from the machine, what is not in use included.
  virtual size_t bytes() const = 0;
  // Whether it is files on a device rather than memory.
  virtual bool in_files() const = 0;
};

}  // namespace multitier

#endif  // CC_ROW_ROW_MEMORY_H_
