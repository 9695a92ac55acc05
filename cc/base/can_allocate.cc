#include "cc/base/can_allocate.h"

#include <sys/mman.h>

namespace multitier {

bool CanMap(size_t bytes) {
  void* const pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages != MAP_FAILED && ::munmap(pages, bytes) == 0;
}

}  // namespace multitier
