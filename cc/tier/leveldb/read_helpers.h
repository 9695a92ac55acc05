// RunOnReadHelpers: spreads the reads of one batch over threads that do nothing but read.
//
// A process has one set of helpers, made when first needed, which sleep while there is no work. The calling thread works
// too, so a call makes progress when all helpers are busy with others' batches, and waits only for pieces that run.
//
// In a forked child a new set is made.

#ifndef CC_TIER_LEVELDB_READ_HELPERS_H_
#define CC_TIER_LEVELDB_READ_HELPERS_H_

#include <cstddef>
#include <functional>

namespace multitier {

constexpr int kNumReadHelpers = 7;

// Calls body(i) once for each i in [0, n), on this thread and at most max_helpers others, and returns when all are done.
// Thread-safe. REQUIRES: body waits for no other call of this function
void RunOnReadHelpers(size_t n, int max_helpers, const std::function<void(size_t)>& body);

}  // namespace multitier

#endif  // CC_TIER_LEVELDB_READ_HELPERS_H_
