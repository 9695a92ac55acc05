// Libpmem: the functions of libpmem.so.1 that tiers of persistent memory use. The library is loaded by the first of them, so
// that a process without such a tier does not need it.

#ifndef CC_TIER_PMEM_LIBPMEM_H_
#define CC_TIER_PMEM_LIBPMEM_H_

#include <libpmem.h>

#include "cc/base/status.h"

namespace multitier {

struct Libpmem {
  decltype(&pmem_map_file) map_file = nullptr;
  decltype(&pmem_unmap) unmap = nullptr;
  decltype(&pmem_memcpy_nodrain) memcpy_nodrain = nullptr;
  decltype(&pmem_drain) drain = nullptr;
  decltype(&pmem_msync) msync = nullptr;

  // FailedPrecondition, with the loader's reason, where the library is not installed. A later call tries again.
  static Result<const Libpmem*> Load();
};

}  // namespace multitier

#endif  // CC_TIER_PMEM_LIBPMEM_H_
