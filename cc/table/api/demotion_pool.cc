#include "cc/table/api/demotion_pool.h"

#include <cstdio>
#include <cstdlib>

#include "cc/base/mutex.h"
#include "cc/base/thread.h"

namespace multitier {
namespace {

struct ProcessPool {
  Mutex mutex;
  DemotionPool* pool MT_GUARDED_BY(mutex) = nullptr;
  bool warned MT_GUARDED_BY(mutex) = false;
};

}  // namespace

Result<int> DemotionPool::ThreadsFromEnvironment() {
  const char* text = std::getenv(kThreadsVariable);
  if (text == nullptr || *text == '\0') return 1;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0' || value < 1 || value > kMaxThreads) {
    return InvalidArgumentError(kThreadsVariable, ": expected a number of threads from 1 to ", kMaxThreads, ", found '", text,
                                "'");
  }
  return static_cast<int>(value);
}

Result<DemotionPool*> DemotionPool::Get() {
  MT_ASSIGN_OR_RETURN(const int threads, ThreadsFromEnvironment());
  auto* const process = OfThisProcess<ProcessPool>();
  MutexLock lock(process->mutex);
  if (process->pool == nullptr) process->pool = new DemotionPool(threads);
  if (process->pool->threads() != threads && !process->warned) {
    process->warned = true;
    std::fprintf(stderr, "%s is %d now, but this process has its %d eviction threads since its first table\n", kThreadsVariable,
                 threads, process->pool->threads());
  }
  return process->pool;
}

}  // namespace multitier
