// Thread: the only place where the engine starts threads.
//
// std::thread throws if the system cannot start a thread (a limit on processes, no memory for a stack). The engine has no
// exceptions, so here that is a Status. Each caller must handle it: the calling thread does the work itself, or the operation
// is refused.
//
// A new thread inherits the scheduling policy of the thread that starts it. Threads that are first needed during a save would
// be batch threads for the life of the process, so here they are not: see BatchScheduling.
//
// A process has one set of pools. A forked child has no threads of its parent and gets its own set (OfThisProcess).

#ifndef CC_BASE_THREAD_H_
#define CC_BASE_THREAD_H_

#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <functional>

#include "cc/base/status.h"

namespace multitier {

// Starts a detached thread. `name` is its name in tools, at most 15 characters. ResourceExhausted, with the errno, if no thread
// can be started; then `body` does not run.
Status StartThread(const char* name, std::function<void()> body);

// A thread that can be joined.
class Thread {
 public:
  Thread() = default;
  ~Thread() { Join(); }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  // See StartThread. REQUIRES: the thread does not run
  Status Start(const char* name, std::function<void()> body);
  // Waits for the thread's end. Does nothing if it was not started.
  void Join();
  bool started() const { return started_; }

 private:
  bool started_ = false;
  pthread_t thread_{};
};

// While one exists, the calling thread has the scheduling policy SCHED_BATCH, if it had SCHED_OTHER and the system allows it.
// Threads that are started here in the meantime have SCHED_OTHER. Where the whole process has another policy, nothing changes.
class BatchScheduling {
 public:
  BatchScheduling();
  ~BatchScheduling();  // on the thread that made it
  BatchScheduling(const BatchScheduling&) = delete;
  BatchScheduling& operator=(const BatchScheduling&) = delete;

 private:
  const bool changed_;
};

// The T of this process. Its default constructor makes it at the first use. It is never destroyed, because its threads may be
// asleep in it when the process exits. Thread-safe.
template <typename T>
T* OfThisProcess() {
  struct Owned {
    pid_t pid = ::getpid();
    T value;
  };
  static std::atomic<Owned*> current{nullptr};
  Owned* known = current.load();
  while (known == nullptr || known->pid != ::getpid()) {
    auto* const made = new Owned;
    if (current.compare_exchange_strong(known, made)) return &made->value;
    delete made;
  }
  return &known->value;
}

}  // namespace multitier

#endif  // CC_BASE_THREAD_H_
