// Thread: the only place where the engine starts threads.
//
// std::thread throws where the system has no thread to give (a limit on processes, no memory for a stack), and the engine has
// no exceptions. Here that is a Status, and each caller says what it does then: the work is done by the thread that asked for
// it, or the operation is refused.
//
// A process has one set of pools. A forked child has none of its parent's threads and gets a set of its own (OfThisProcess).

#ifndef CC_BASE_THREAD_H_
#define CC_BASE_THREAD_H_

#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <functional>

#include "cc/base/status.h"

namespace multitier {

// Starts a thread that nobody waits for. `name` is what tools show, at most 15 characters. ResourceExhausted, with the errno,
// where no thread can be started: then `body` does not run.
Status StartThread(const char* name, std::function<void()> body);

// A thread that is waited for.
class Thread {
 public:
  Thread() = default;
  ~Thread() { Join(); }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  // As StartThread. REQUIRES: it does not run
  Status Start(const char* name, std::function<void()> body);
  // Waits for its end. Nothing where it was not started.
  void Join();
  bool started() const { return started_; }

 private:
  bool started_ = false;
  pthread_t thread_{};
};

// The T of this process: made by its default constructor at the first use, never destroyed (its threads may be asleep in it
// when the process exits). Thread-safe.
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
