// simt: runs CUDA kernels on a CPU, deterministically, and detects their synchronization errors.
//
// Each GPU thread is a fiber. The fibers of the resident blocks take turns on one CPU thread, so the seed determines a run:
//
//   Run(grid, block, kernel, args)
//     1. as many blocks as fit become resident, in random order; each of their threads gets a fiber
//     2. a random fiber runs until it calls a collective, reaches an atomic operation that yields, or returns
//     3. when the last fiber of a block returns, the next block becomes resident
//
// Threads of a warp are scheduled independently, as on Volta and later GPUs. Nothing runs in lockstep; the lanes of a warp meet
// only at collectives. Each launch chooses at random how often atomics yield, and which fibers rarely get a turn.
//
// Detected in every build: a collective whose mask lacks the caller, contains lanes that have returned, or differs between
// lanes; deadlock; no progress; stack overflow; too much shared memory. The process prints the reason and aborts. Detected
// under ThreadSanitizer: each GPU thread is a TSan fiber. The only order between two fibers is the order that CUDA guarantees:
// __syncthreads, __syncwarp, acquire and release atomics, kernel boundaries. Shuffles and votes order no memory. TSan therefore
// reports an unordered pair of accesses even if they did not collide in this run. Detected under AddressSanitizer: accesses
// outside of allocations, and to freed ones.
//
// Not detected: scopes narrower than the device; effects of caches; reordering of relaxed accesses (TSan reports the missing
// order, but values are always the newest); cooperative groups across blocks; performance problems.
//
// Threading: one Run of a Machine at a time. The functions below the class work only inside of a kernel.

#ifndef CC_DEVICE_SIMT_SIMT_H_
#define CC_DEVICE_SIMT_SIMT_H_

#include <cstddef>
#include <cstdint>
#include <memory>

namespace multitier::simt {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr Dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}  // NOLINT: implicit, as in CUDA
};

struct Options {
  uint64_t seed = 1;
  int resident_blocks = 4;           // blocks that run at one time; the others wait, as on a full GPU
  size_t shared_bytes = 48 << 10;    // shared memory of a block; each variable is padded to 128 bytes
  uint64_t max_switches = 1u << 26;  // fiber switches of one launch; more than this count as no progress
};

struct Stats {
  uint64_t launches = 0, threads = 0, switches = 0, collectives = 0, atomics = 0;
  uint64_t chain = 0;  // the additions of the thread with most of them, of all launches together
};

class Machine {
 public:
  explicit Machine(const Options& options);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Calls kernel(args) in every thread of the grid; returns when all of them have returned. REQUIRES: not inside of a kernel.
  void Run(Dim3 grid, Dim3 block, void (*kernel)(const void* args), const void* args);

  const Stats& stats() const;

  struct State;  // of simt.cc

 private:
  std::unique_ptr<State> state_;
};

// Prints the message and the GPU thread that runs, and aborts the process.
[[noreturn]] void Fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// The running GPU thread. Copies: kernels are instrumented, the emulator's own state is not.
Dim3 ThreadIdx();
Dim3 BlockIdx();
Dim3 BlockDim();
Dim3 GridDim();
unsigned Lane();

// Returns the block's object for `site`, an address that identifies the place in the code. Its initial contents are arbitrary.
void* SharedMemory(const void* site, size_t bytes);

void CountAddition();  // see Stats::chain
void MaybeYield();     // called before each atomic operation
void BlockBarrier();
void WarpBarrier(unsigned mask);
// The lanes of `mask` meet; returns the value of source_lane. Orders no memory.
uint64_t Exchange(unsigned mask, uint64_t value, unsigned source_lane);
// The lanes of `mask` meet; returns one bit for each lane. Orders no memory.
unsigned Vote(unsigned mask, bool predicate);

}  // namespace multitier::simt

#endif  // CC_DEVICE_SIMT_SIMT_H_
