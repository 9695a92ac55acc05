// Under a limit of address space: each case runs in a forked child, which alone is limited.

#include "cc/tier/leveldb/leveldb_cache.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "cc/base/memory_reserve.h"

namespace multitier::leveldb_cache_test {
namespace {

// malloc finds nothing any more, of any size. What the reserve holds remains.
void UseUpMemory() {
  size_t pages = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%zu", &pages) != 1) std::abort();
  std::fclose(file);
  const rlimit limit{pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE)), RLIM_INFINITY};
  if (::setrlimit(RLIMIT_AS, &limit) != 0) std::abort();
  for (size_t size = size_t{1} << 20; size >= 16; size /= 2) {
    while (volatile void* const block = std::malloc(size)) (void)block;  // never freed: the process ends soon
  }
}

// 0: the cache found all of n entries again.
int InsertUntilTheEnd(leveldb::Cache* cache, int n) {
  const MemoryLease lease(0);
  UseUpMemory();
  for (int i = 0; i < n; ++i) {
    const leveldb::Slice key(reinterpret_cast<const char*>(&i), sizeof(i));
    cache->Release(cache->Insert(key, cache, 1, [](const leveldb::Slice&, void*) {}));
  }
  for (int i = 0; i < n; ++i) {
    leveldb::Cache::Handle* const handle = cache->Lookup(leveldb::Slice(reinterpret_cast<const char*>(&i), sizeof(i)));
    if (handle == nullptr) return 1;
    cache->Release(handle);
  }
  return 0;
}

TEST(LevelDbCacheTest, AnInsertionWithoutMemoryTakesFromTheReserve) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "sanitizers need address space without a limit";
#endif
  const pid_t child = ::fork();
  if (child == 0) {
    LevelDbCache cache(1 << 20);
    ::_exit(InsertUntilTheEnd(&cache, 10000));
  }
  int status = 1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace multitier::leveldb_cache_test
