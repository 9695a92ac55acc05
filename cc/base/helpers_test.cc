#include "cc/base/helpers.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace multitier::helpers_test {
namespace {

TEST(HelpersTest, EveryPieceRunsOnceWhateverTheNumberOfCallers) {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([caller] {
      for (size_t n = 0; n < 100; ++n) {
        std::vector<std::atomic<int>> runs(n);
        RunOnHelpers(n, caller * 3, [&](size_t i) { ++runs[i]; });
        for (const std::atomic<int>& run : runs) ASSERT_EQ(run, 1);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(HelpersTest, PiecesRunAtTheSameTime) {
  std::atomic<int> started{0};
  RunOnHelpers(4, 7, [&](size_t) {
    ++started;
    while (started < 4) std::this_thread::yield();  // ends only where four threads are here
  });
  EXPECT_EQ(started, 4);
}

TEST(HelpersTest, ForkedChildHasItsOwn) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer stops a process that starts threads after a fork";
#endif
  RunOnHelpers(8, 7, [](size_t) {});
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::atomic<int> started{0};
    RunOnHelpers(2, 7, [&](size_t) {
      ++started;
      while (started < 2) std::this_thread::yield();
    });
    ::_exit(0);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace multitier::helpers_test
