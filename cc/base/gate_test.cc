#include "cc/base/gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace multitier::gate_test {
namespace {

TEST(Gate, ClosedGateIsEmptyAndKeepsItsStateConsistent) {
  Gate gate;
  int64_t a = 0, b = 0;  // changed together, only while closed; no atomics: ThreadSanitizer sees a leak of the gate
  std::atomic<bool> differed{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        if (t == 0) {
          ClosedGate closed(&gate);
          ++a;
          ++b;
        } else {
          InsideGate inside(&gate);
          if (a != b) differed = true;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(differed);
  EXPECT_EQ(a, 2000);
}

TEST(Gate, ClosingDoesNotStarveUnderASteadyStream) {
  Gate gate;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!stop) InsideGate inside(&gate);
    });
  }
  for (int i = 0; i < 200; ++i) ClosedGate closed(&gate);  // the test's time limit is the assertion
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace multitier::gate_test
