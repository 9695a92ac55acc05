// Helper threads that do a part of one call's work.
//
//   RunOnHelpers   distributes the pieces of one batch, mostly reads, over threads that do nothing else
//   RunApart       runs work that may wait for long on a separate thread
//
// They are not threads of a BackgroundPool: its jobs are steps that may have to wait for a thread, and here a call waits for
// its pieces.
//
// The threads belong to the process and start as they are needed. If no thread can be started, the caller does the work:
// RunOnHelpers does it itself, RunApart returns false. A forked child has its own threads. Thread-safe.

#ifndef CC_BASE_HELPERS_H_
#define CC_BASE_HELPERS_H_

#include <cstddef>
#include <functional>

namespace multitier {

constexpr int kMaxHelpers = 16;  // for all calls together

// Calls body(i) once for each i in [0, n), on this thread and at most max_helpers others, and returns when all calls have
// returned. The calling thread works too. So a call makes progress even if all helpers are busy, and waits only for pieces that
// are running. Helpers sleep while there is no work, and never end.
void RunOnHelpers(size_t n, int max_helpers, const std::function<void(size_t)>& body);

// Starts `body` on a separate thread and returns at once. False: no thread can be started, and `body` does not run. A thread
// ends after a second without work.
bool RunApart(const std::function<void()>& body);

}  // namespace multitier

#endif  // CC_BASE_HELPERS_H_
