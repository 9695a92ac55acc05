#include "cc/table/demotion_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <thread>

namespace multitier {
namespace {

TEST(DemotionPool, JobScheduledWhileItRunsRunsOnceMore) {
  DemotionPool* pool = *DemotionPool::Get();
  std::promise<void> started, go;
  std::atomic<int> runs{0};
  DemotionPool::Job job([&] {
    if (++runs > 1) return;
    started.set_value();
    go.get_future().wait();
  });
  pool->Schedule(&job);
  started.get_future().wait();
  pool->Schedule(&job);
  pool->Schedule(&job);
  go.set_value();
  pool->Wait(&job);
  EXPECT_EQ(runs, 2);
}

TEST(DemotionPool, CancelledJobNeverRunsAgain) {
  DemotionPool* pool = *DemotionPool::Get();
  std::promise<void> started, go;
  DemotionPool::Job blocks([&] {
    started.set_value();
    go.get_future().wait();
  });
  std::atomic<int> runs{0};
  DemotionPool::Job job([&] { ++runs; });
  pool->Schedule(&blocks);
  started.get_future().wait();
  pool->Schedule(&job);  // behind the other, on the only thread
  pool->Cancel(&job);
  pool->Schedule(&job);
  pool->Wait(&job);
  go.set_value();
  pool->Wait(&blocks);
  EXPECT_EQ(runs, 0);
}

TEST(DemotionPool, ForkedChildHasAPoolOfItsOwn) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer allows no thread in a forked child";
#endif
  DemotionPool* pool = *DemotionPool::Get();
  const pid_t child = fork();
  if (child == 0) {
    DemotionPool* mine = *DemotionPool::Get();
    std::atomic<int> runs{0};
    DemotionPool::Job job([&] { ++runs; });
    mine->Schedule(&job);
    mine->Wait(&job);
    _exit(mine != pool && runs == 1 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(DemotionPool, BadNumbersOfThreadsAreRefusedByName) {
  for (const char* bad : {"0", "65", "-1", "two", "3x"}) {
    ASSERT_EQ(setenv(DemotionPool::kThreadsVariable, bad, 1), 0);
    const Status status = DemotionPool::Get().status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(DemotionPool::kThreadsVariable), std::string::npos) << status.message();
  }
  ASSERT_EQ(setenv(DemotionPool::kThreadsVariable, "64", 1), 0);
  EXPECT_EQ(*DemotionPool::ThreadsFromEnvironment(), 64);
  EXPECT_EQ((*DemotionPool::Get())->threads(), 1) << "read when the pool is made";
  unsetenv(DemotionPool::kThreadsVariable);
}

}  // namespace
}  // namespace multitier
