#include "cc/table/api/demotion_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>

namespace multitier {
namespace {

// A job that keeps the only thread of the pool until End().
class Blocker {
 public:
  explicit Blocker(DemotionPool* pool) : pool_(pool) {
    pool_->Schedule(&job_);
    started_.get_future().wait();
  }
  void End() {
    go_.set_value();
    pool_->Wait(&job_);
  }

 private:
  DemotionPool* const pool_;
  std::promise<void> started_, go_;
  DemotionPool::Job job_{[this] {
    started_.set_value();
    go_.get_future().wait();
    return DemotionPool::kDone;
  }};
};

TEST(DemotionPool, JobScheduledWhileItRunsRunsOnceMore) {
  DemotionPool* pool = *DemotionPool::Get();
  std::promise<void> started, go;
  std::atomic<int> runs{0};
  DemotionPool::Job job([&] {
    if (++runs > 1) return DemotionPool::kDone;
    started.set_value();
    go.get_future().wait();
    return DemotionPool::kDone;
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
  std::atomic<int> runs{0};
  DemotionPool::Job job([&] {
    ++runs;
    return DemotionPool::kDone;
  });
  Blocker blocker(pool);
  pool->Schedule(&job);  // behind the other, on the only thread
  pool->Cancel(&job);
  pool->Schedule(&job);
  pool->Wait(&job);
  blocker.End();
  EXPECT_EQ(runs, 0);
}

TEST(DemotionPool, StepsOfTwoJobsTakeTurns) {
  DemotionPool* pool = *DemotionPool::Get();
  std::string order;  // written by the only thread
  int left_a = 3, left_b = 3;
  DemotionPool::Job a([&] {
    order += 'a';
    return --left_a == 0 ? DemotionPool::kDone : 0;
  });
  DemotionPool::Job b([&] {
    order += 'b';
    return --left_b == 0 ? DemotionPool::kDone : 0;
  });
  Blocker blocker(pool);
  pool->Schedule(&a);
  pool->Schedule(&b);
  blocker.End();
  pool->Wait(&a);
  pool->Wait(&b);
  EXPECT_EQ(order, "ababab");
}

TEST(DemotionPool, WaitEndsPausesAndCancelLeavesThem) {
  constexpr uint64_t kHour = uint64_t{3600} * 1000000;
  DemotionPool* pool = *DemotionPool::Get();
  std::atomic<int> steps{0};
  DemotionPool::Job waited([&] { return ++steps < 3 ? kHour : DemotionPool::kDone; });
  pool->Schedule(&waited, kHour);
  pool->Wait(&waited);
  EXPECT_EQ(steps, 3);
  DemotionPool::Job cancelled([&] {
    ++steps;
    return DemotionPool::kDone;
  });
  pool->Schedule(&cancelled, kHour);
  pool->Cancel(&cancelled);
  EXPECT_EQ(steps, 3);
  DemotionPool::Job sooner([&] {
    ++steps;
    return DemotionPool::kDone;
  });
  pool->Schedule(&sooner, kHour);
  pool->Schedule(&sooner, 1000);  // as at the earlier time
  while (steps < 4) std::this_thread::yield();
  pool->Wait(&sooner);
  EXPECT_EQ(steps, 4);
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
    DemotionPool::Job job([&] {
      ++runs;
      return DemotionPool::kDone;
    });
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
