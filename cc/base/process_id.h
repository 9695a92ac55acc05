// ProcessId: getpid without its system call, for checks that every operation makes.
//
// The child of a fork sets its own number before fork() returns there. A child made by the bare system call clone is taken for
// its parent. Thread-safe.

#ifndef CC_BASE_PROCESS_ID_H_
#define CC_BASE_PROCESS_ID_H_

#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>

namespace multitier {

inline pid_t ProcessId() {
  static std::atomic<pid_t> id{[] {
    pthread_atfork(nullptr, nullptr, [] { id.store(getpid(), std::memory_order_relaxed); });
    return getpid();
  }()};
  return id.load(std::memory_order_relaxed);
}

}  // namespace multitier

#endif  // CC_BASE_PROCESS_ID_H_
