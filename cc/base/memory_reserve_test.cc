// Under a limit of address space: each case runs in a forked child, which alone is limited.

#include "cc/base/memory_reserve.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "cc/base/new_array.h"
#include "cc/base/thread.h"

namespace multitier {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

size_t AddressSpace() {
  size_t pages = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%zu", &pages) != 1) std::abort();
  std::fclose(file);
  return pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

void LimitTo(size_t more) {
  const rlimit limit{AddressSpace() + more, RLIM_INFINITY};
  if (::setrlimit(RLIMIT_AS, &limit) != 0) std::abort();
}

// How a child ends that runs `body`: 0 where it is true, 1 where not, minus the signal that ended it.
int InChild(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = 1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

class MemoryLeaseTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP() << "sanitizers need address space without a limit";
#endif
  }
};

TEST_F(MemoryLeaseTest, TheReserveHoldsAllLeasesAndTheBase) {
  const MemoryLease one(100 * kMiB), another(200 * kMiB);
  ASSERT_TRUE(one.ok() && another.ok());
  EXPECT_GE(MemoryLease::reserved(), 300 * kMiB + MemoryLease::kBaseBytes);
}

TEST_F(MemoryLeaseTest, WhatALargeLeaseTookIsGivenBackAtItsEnd) {
  {
    const MemoryLease lease(1000 * kMiB);
  }
  const MemoryLease lease(0);
  EXPECT_LT(MemoryLease::reserved(), 200 * kMiB);
}

TEST_F(MemoryLeaseTest, AllocationsThatFindNoMemoryTakeAsMuchAsWasLeased) {
  EXPECT_EQ(InChild([] {
              const MemoryLease lease(100 * kMiB);
              LimitTo(0);
              std::vector<std::unique_ptr<char[]>> held;
              for (int i = 0; i < 100; ++i) held.push_back(std::make_unique<char[]>(kMiB));
              return lease.ok();
            }),
            0);
}

TEST_F(MemoryLeaseTest, ALeaseIsRefusedUntilThereIsMemoryAgain) {
  EXPECT_EQ(InChild([] {
              {
                const MemoryLease made(0);
              }
              LimitTo(8 * kMiB);
              auto held = NewArray<char>(7 * kMiB);
              const MemoryLease refused(100 * kMiB);
              if (refused.ok() || refused.Refusal("x").code() != StatusCode::kResourceExhausted) return false;
              const MemoryLease small(kMiB);
              held.reset();
              const MemoryLease granted(7 * kMiB);
              return small.ok() && granted.ok();
            }),
            0);
}

TEST_F(MemoryLeaseTest, AnArrayThatFindsNoMemoryLeavesTheReserveAlone) {
  EXPECT_EQ(InChild([] {
              const MemoryLease lease(0);
              LimitTo(kMiB);
              const size_t before = MemoryLease::reserved();
              return NewArray<char>(16 * kMiB) == nullptr && MemoryLease::reserved() == before;
            }),
            0);
}

TEST_F(MemoryLeaseTest, WithoutALeaseMoreThanTheReserveThrows) {
  EXPECT_EQ(InChild([] {
              {
                const MemoryLease made(0);
              }
              LimitTo(kMiB);
              try {
                const std::vector<char> large(500 * kMiB);
              } catch (const std::bad_alloc&) {
                return true;
              }
              return false;
            }),
            0);
}

TEST_F(MemoryLeaseTest, AThreadOfTheEngineWaitsUntilThereIsMemoryAgain) {
  EXPECT_EQ(InChild([] {
              {
                const MemoryLease made(0);
              }
              auto held = NewArray<char>(600 * kMiB);
              Thread thread;
              LimitTo(100 * kMiB);  // for the stack of the thread
              const bool started = thread.Start("test", [] { const std::vector<char> large(500 * kMiB); }).ok();
              while (started && MemoryLease::reserved() != 0) ::sched_yield();
              held.reset();
              if (started) thread.Join();
              return started;
            }),
            0);
}

TEST_F(MemoryLeaseTest, InAnOperationMoreThanTheReserveEndsTheProcess) {
  EXPECT_EQ(InChild([] {
              const MemoryLease lease(0);
              LimitTo(kMiB);
              const std::vector<char> large(500 * kMiB);
              return false;
            }),
            -SIGABRT);
}

TEST_F(MemoryLeaseTest, ARequestThatNoReserveCanMeetEndsTheProcessThoughOthersFillTheReserve) {
  EXPECT_EQ(InChild([] {
              ::alarm(50);
              const MemoryLease lease(0);
              Thread others;
              const Status started = others.Start("test", [] {
                while (true) {
                  const MemoryLease other(0);
                  for (int i = 0; i < 1000; ++i) ::sched_yield();  // they need it now and then
                }
              });
              LimitTo(100 * kMiB);
              const std::vector<char> large(500 * kMiB);
              return started.ok();
            }),
            -SIGABRT);
}

TEST_F(MemoryLeaseTest, AChildOfAProcessThatUsesItMayUseIt) {
  const MemoryLease parents(kMiB);
  EXPECT_EQ(InChild([] { return MemoryLease(100 * kMiB).ok(); }), 0);
}

}  // namespace
}  // namespace multitier
