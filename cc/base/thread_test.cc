// What happens where the system starts no thread: this program's pthread_create fails while `refused` is set.

#include "cc/base/thread.h"

#include <dlfcn.h>
#include <errno.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <vector>

#include "cc/base/background.h"
#include "cc/base/helpers.h"

namespace {
std::atomic<bool> refused{false};
}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return refused ? EAGAIN : create(thread, attributes, body, argument);
}

namespace multitier {
namespace {

class WithoutThreads : public ::testing::Test {
 protected:
  void SetUp() override { refused = true; }
  void TearDown() override { refused = false; }
};

TEST(Thread, RunsAndIsWaitedFor) {
  Thread thread;
  EXPECT_FALSE(thread.started());
  int runs = 0;
  ASSERT_TRUE(thread.Start("mt-test", [&] { ++runs; }).ok());
  thread.Join();
  EXPECT_EQ(runs, 1);
}

TEST_F(WithoutThreads, StartIsResourceExhaustedWithTheErrno) {
  Thread thread;
  const Status status = thread.Start("mt-test", [] { FAIL(); });
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.os_error(), EAGAIN);
  EXPECT_EQ(status.message(), "thread 'mt-test' could not be started: Resource temporarily unavailable");
  EXPECT_FALSE(thread.started());
  thread.Join();  // nothing to wait for
  EXPECT_EQ(StartThread("mt-test", [] { FAIL(); }).code(), StatusCode::kResourceExhausted);
}

TEST_F(WithoutThreads, CallerRunsAllPiecesOfABatch) {
  std::vector<int> runs(20);
  RunOnHelpers(runs.size(), kMaxHelpers, [&](size_t i) { ++runs[i]; });
  EXPECT_EQ(runs, std::vector<int>(20, 1));
}

TEST_F(WithoutThreads, WorkApartIsLeftToTheCaller) {
  EXPECT_FALSE(RunApart([] { FAIL(); }));
}

TEST_F(WithoutThreads, WaitRunsTheJobHereWithItsPauses) {
  BackgroundPool pool("mt-test", 2);
  int steps = 0;
  constexpr uint64_t kHour = uint64_t{3600} * 1000000;
  BackgroundPool::Job job([&] { return ++steps < 3 ? kHour : BackgroundPool::kDone; });
  EXPECT_FALSE(pool.Schedule(&job, kHour));
  EXPECT_EQ(steps, 0);
  pool.Wait(&job);
  EXPECT_EQ(steps, 3);
  pool.Wait(&job);
  EXPECT_EQ(steps, 3);
}

TEST_F(WithoutThreads, HelpRunsOneStepOfAQueuedJob) {
  BackgroundPool pool("mt-test", 2);
  int steps = 0;
  BackgroundPool::Job job([&] { return ++steps < 2 ? 0 : BackgroundPool::kDone; });
  pool.Help(&job);
  EXPECT_EQ(steps, 0) << "it was not scheduled";
  pool.Schedule(&job);
  pool.Help(&job);
  EXPECT_EQ(steps, 1);
  pool.Cancel(&job);
  pool.Help(&job);
  EXPECT_EQ(steps, 1);
}

TEST_F(WithoutThreads, QueuedJobRunsOnceAThreadCanBeStarted) {
  auto* const pool = new BackgroundPool("mt-test", 1);  // its thread lives on
  std::atomic<int> runs{0};
  BackgroundPool::Job job([&] {
    ++runs;
    return BackgroundPool::kDone;
  });
  EXPECT_FALSE(pool->Schedule(&job));
  refused = false;
  EXPECT_TRUE(pool->Schedule(&job));
  pool->Wait(&job);
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace multitier
