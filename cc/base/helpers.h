// Helpers: threads that do a part of what one call does.
//
//   RunOnHelpers   spreads the pieces of one batch over threads that do nothing else: reads, above all
//   RunApart       hands over work that may wait long, on a thread that nothing else needs
//
// Both have threads of this process, which start as they are needed. Where no thread can be started the caller does the work:
// RunOnHelpers by itself, RunApart by saying so. A forked child has a set of its own. Thread-safe.

#ifndef CC_BASE_HELPERS_H_
#define CC_BASE_HELPERS_H_

#include <cstddef>
#include <functional>

namespace multitier {

constexpr int kMaxHelpers = 16;  // of all calls together

// Calls body(i) once for each i in [0, n), on this thread and at most max_helpers others, and returns when all are done. The
// calling thread works too, so a call makes progress when all helpers are busy, and waits only for pieces that run. Helpers
// sleep while there is no work, and never end.
void RunOnHelpers(size_t n, int max_helpers, const std::function<void(size_t)>& body);

// Runs `body` on a thread of its own and returns at once. False: none can be started, and `body` does not run. A thread that
// had no work for a second ends.
bool RunApart(const std::function<void()>& body);

}  // namespace multitier

#endif  // CC_BASE_HELPERS_H_
