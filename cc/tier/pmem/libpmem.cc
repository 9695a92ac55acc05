#include "cc/tier/pmem/libpmem.h"

#include <dlfcn.h>

#include "cc/base/mutex.h"

namespace multitier {
namespace {

constexpr char kLibrary[] = "libpmem.so.1";

Status NotLoaded() {
  return FailedPreconditionError("storage type: PMEM: expected ", kLibrary, ", found none that can be loaded (", ::dlerror(),
                                 "): install the package libpmem1 (Debian, Ubuntu) or libpmem (Fedora, RHEL), or choose a type "
                                 "without PMEM");
}

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

Result<const Libpmem*> Libpmem::Load() {
  static Mutex mutex;
  static Libpmem loaded;
  static bool is_loaded = false;
  MutexLock lock(mutex);
  if (is_loaded) return &loaded;
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return NotLoaded();
  is_loaded = Find(library, "pmem_map_file", &loaded.map_file) && Find(library, "pmem_unmap", &loaded.unmap) &&
              Find(library, "pmem_memcpy_nodrain", &loaded.memcpy_nodrain) && Find(library, "pmem_drain", &loaded.drain) &&
              Find(library, "pmem_msync", &loaded.msync);
  if (!is_loaded) return NotLoaded();
  return &loaded;
}

}  // namespace multitier
