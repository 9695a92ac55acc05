// One arithmetic on every thread.

#ifndef CC_BASE_IEEE_H_
#define CC_BASE_IEEE_H_

#include <cstdint>

namespace multitier {

// While it lives the thread computes as IEEE 754 says: round to nearest, subnormals kept. TensorFlow's worker threads
// flush subnormals to zero and its callers' threads do not; without this a row's bits would depend on which of them
// came by.
class ScopedIeeeArithmetic {
 public:
  ScopedIeeeArithmetic();
  ~ScopedIeeeArithmetic();
  ScopedIeeeArithmetic(const ScopedIeeeArithmetic&) = delete;
  ScopedIeeeArithmetic& operator=(const ScopedIeeeArithmetic&) = delete;

 private:
  uint64_t saved_;
};

}  // namespace multitier

#endif  // CC_BASE_IEEE_H_
