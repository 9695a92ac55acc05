#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>

#include "cc/base/blocked_test_util.h"

namespace multitier::blocked_test {
namespace {

TEST(Blocked, AThreadThatWaitsForAnEventIsBlockedUntilItComes) {
  std::promise<void> event;
  std::atomic<pid_t> tid{0};
  std::thread waiter([&] {
    tid = ThisThread();
    event.get_future().wait();
  });
  while (tid == 0) std::this_thread::yield();
  EXPECT_TRUE(AwaitBlocked(tid));
  event.set_value();
  waiter.join();
}

TEST(Blocked, AThreadThatWaitsForATimeIsNot) {
  std::mutex mutex;
  std::condition_variable changed;
  bool waits = false, done = false;
  std::atomic<pid_t> tid{0};
  std::thread waiter([&] {
    std::unique_lock<std::mutex> lock(mutex);
    tid = ThisThread();
    waits = true;
    changed.wait_for(lock, std::chrono::hours(1), [&] { return done; });
  });
  for (bool begun = false; !begun;) {
    std::lock_guard<std::mutex> lock(mutex);
    begun = waits;  // the waiter let go of the lock
  }
  for (int look = 0; look < 1000; ++look) EXPECT_FALSE(blocked_internal::SwitchesOfAWaiter(tid));
  {
    std::lock_guard<std::mutex> lock(mutex);
    done = true;
  }
  changed.notify_all();
  waiter.join();
}

TEST(Blocked, AllOthersAreBlockedOnceTheLastOneIs) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer has a thread of its own";
#endif
  std::promise<void> event;
  std::shared_future<void> comes = event.get_future().share();
  std::atomic<bool> work{true};
  std::thread first([&] { comes.wait(); }), second([&] {
    while (work) std::this_thread::yield();
    comes.wait();
  });
  EXPECT_FALSE(blocked_internal::SwitchesOfAllOthers());
  work = false;
  EXPECT_TRUE(AwaitAllOthersBlocked());
  event.set_value();
  first.join();
  second.join();
}

}  // namespace
}  // namespace multitier::blocked_test
