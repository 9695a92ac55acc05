#include "cc/base/shared_mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

namespace multitier::shared_mutex_test {
namespace {

TEST(SharedMutex, ReadersShareAndWritersExclude) {
  SharedMutex mutex;
  int64_t a = 0, b = 0;
  std::atomic<bool> differed{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        if (t < 2) {
          std::lock_guard<SharedMutex> lock(mutex);
          ++a;
          ++b;
        } else {
          std::shared_lock<SharedMutex> lock(mutex);
          if (a != b) differed = true;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(differed);
  EXPECT_EQ(a, 4000);
}

TEST(SharedMutex, TwoReadersAreInsideAtOnce) {
  SharedMutex mutex;
  std::shared_lock<SharedMutex> first(mutex);
  std::atomic<bool> second{false};
  std::thread reader([&] {
    std::shared_lock<SharedMutex> lock(mutex);
    second = true;
  });
  reader.join();  // would not return if readers excluded each other
  EXPECT_TRUE(second);
}

TEST(SharedMutex, WriterDoesNotStarveUnderASteadyStreamOfReaders) {
  SharedMutex mutex;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!stop) std::shared_lock<SharedMutex> lock(mutex);
    });
  }
  for (int i = 0; i < 100; ++i) std::lock_guard<SharedMutex> lock(mutex);  // the test's time limit is the assertion
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace multitier::shared_mutex_test
