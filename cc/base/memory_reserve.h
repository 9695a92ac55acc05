// MemoryLease: what an operation may need of small memory, held in reserve until the operation ends. The bound of a table's
// rows is elsewhere: table/tiering/tier_budgets.h.
//
// Large memory (row slabs, index, buffers, rows that a batch reads) is asked of Env or by NewArray (new_array.h). Where there
// is none, the operation returns ResourceExhausted before it changes anything. All the small memory is in standard containers.
// Those cannot report a failure without exceptions, and an operation cannot stop halfway. Hence the process has a reserve of
// address space, which costs no memory because nothing touches it:
//
//   1. An operation takes a lease on as many bytes as its containers may need. The reserve then holds the leases of all
//      operations that run, and kBaseBytes on top. Where it cannot, the operation is refused and nothing has changed.
//   2. An operator new that fails gives a piece of the reserve back to the system and tries again (std::new_handler).
//   3. The operation ends and frees its containers. The next lease fills the reserve up.
//
// The handler belongs to the process. So what else uses operator new (LevelDB, TensorFlow) profits from the reserve, too. When
// nothing is left in it, a thread that has a lease, or that the engine started, tries again for ten seconds, because other
// operations may end. Then it ends the process with a message: an exception through the engine would leave locks behind. Any
// other thread gets the handler that was set before, or std::bad_alloc.
//
// Thread-safe. A lease belongs to the thread that took it; other threads that work for the operation use the same reserve.

#ifndef CC_BASE_MEMORY_RESERVE_H_
#define CC_BASE_MEMORY_RESERVE_H_

#include <cstddef>
#include <string>
#include <utility>

#include "cc/base/status.h"

namespace multitier {

class MemoryLease {
 public:
  static constexpr size_t kBaseBytes = size_t{32} << 20;
  static constexpr size_t kLeastBytes = size_t{4} << 20;  // on top of all leases: with less no lease is granted

  explicit MemoryLease(size_t bytes);
  ~MemoryLease();
  MemoryLease(MemoryLease&& other) noexcept : bytes_(other.bytes_), ok_(std::exchange(other.ok_, false)) {}

  bool ok() const { return ok_; }
  // Where !ok(): ResourceExhausted. `what`: who needs the memory.
  Status Refusal(const std::string& what) const;

  // From now on the calling thread waits like a thread with a lease. Each thread of the engine calls it first: nothing on such
  // a thread could catch std::bad_alloc. The reserve also gives what the thread's variables need.
  static void WaitOnThisThread();

  // Bytes that are in reserve now, of all leases and on top.
  static size_t reserved();

 private:
  const size_t bytes_;
  bool ok_;
};

}  // namespace multitier

#endif  // CC_BASE_MEMORY_RESERVE_H_
