// The scheduler. sanitizer_fibers.h states what code of this file must not do on a fiber.

#include "cc/device/simt/simt.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cc/device/simt/sanitizer_fibers.h"

// Saves the callee-saved registers and the stack pointer, and continues on another stack.
extern "C" void multitier_simt_switch(void** save_sp, void* next_sp);
#if defined(__x86_64__)
asm(R"(
.text
.globl multitier_simt_switch
.hidden multitier_simt_switch
.type multitier_simt_switch, @function
multitier_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size multitier_simt_switch, .-multitier_simt_switch
)");
#else
#error "multitier_simt_switch is written for x86-64 alone"
#endif

namespace multitier::simt {
namespace {

constexpr uint64_t kCanary = 0x7465737453544143u;
constexpr int kMaxSharedVariables = 16;

size_t StackBytes() { return UnderTsan() || UnderAsan() ? 128 << 10 : 32 << 10; }

// A block's shared memory. The type is local to this file: an instrumented file may instantiate std::vector<char>.
struct Byte {
  char value;
};

enum class Meeting : uint8_t { kSyncWarp, kShuffle, kVote };

struct Block;
struct Warp;

struct Fiber {
  void* sp = nullptr;
  uint64_t* stack = nullptr;
  void* tsan = nullptr;
  void* asan = nullptr;  // its fake stack, while another fiber runs
  Block* block = nullptr;
  Warp* warp = nullptr;
  unsigned lane = 0;
  Dim3 thread_idx;
  size_t ready_at = 0;  // its place in State::ready
  bool slow = false;
  uint64_t additions = 0;
  const char* waits_for = nullptr;
  unsigned waits_mask = 0;
};

struct Warp {
  // A rendezvous of the lanes that pass the same mask. It is closed if no lane has arrived.
  struct Rendezvous {
    unsigned mask = 0, arrived = 0;
    Meeting kind = Meeting::kSyncWarp;
    uint64_t values[32];
    char order;  // an address, for TSan
  };
  Fiber* fibers[32] = {};
  unsigned live = 0;
  Rendezvous open[32];      // by the lowest lane of the mask: masks that are open together are disjoint
  uint64_t result[32][32];  // [lane]: what its last collective saw
};

struct Block {
  Dim3 idx;
  std::vector<Warp> warps;
  int live = 0, at_barrier = 0;
  std::vector<Fiber*> waiting;
  struct Shared {
    const void* site;
    char* memory;
  } shared[kMaxSharedVariables];
  int num_shared = 0;
  size_t shared_used = 0;
  char* shared_memory = nullptr;
  char order[2];  // of barriers, in turns
  int turn = 0;
};

}  // namespace

struct Machine::State {
  Options options;
  Stats stats;
  uint64_t random_state = 0;
  Dim3 grid, block_dim;
  void (*kernel)(const void*) = nullptr;
  const void* args = nullptr;
  std::vector<Fiber*> ready, pool;
  Fiber* current = nullptr;
  void* main_sp = nullptr;
  void* main_tsan = nullptr;
  void* main_asan = nullptr;
  const void* main_bottom = nullptr;  // of the stack that called Run, as ASan knows it
  size_t main_size = 0;
  uint64_t yield_below = 0;  // of 2^32: the probability to yield at an atomic operation
  uint64_t switches = 0;
  uint64_t most_additions = 0;  // of a thread
  int live_blocks = 0;
  char start_order, end_order;  // of a launch: what was before it, what its threads did
};

namespace {

using State = Machine::State;

thread_local State* running = nullptr;

State& Running() {
  if (running == nullptr) Fail("a function of kernels was called outside of a kernel");
  return *running;
}

uint64_t Random(State& m) {
  uint64_t z = m.random_state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

void MakeReady(State& m, Fiber* fiber) {
  fiber->waits_for = nullptr;
  fiber->ready_at = m.ready.size();
  m.ready.push_back(fiber);  // reserved
}

void TakeFromReady(State& m, Fiber* fiber) {
  m.ready[fiber->ready_at] = m.ready.back();
  m.ready[fiber->ready_at]->ready_at = fiber->ready_at;
  m.ready.pop_back();
}

[[noreturn]] void ReportStuck(const State& m, const char* what) {
  std::fprintf(stderr, "simt: %s\n", what);
  int shown = 0;
  for (const Fiber* f : m.pool) {
    if (f->block == nullptr || f->waits_for == nullptr || ++shown > 12) continue;
    std::fprintf(stderr, "  block %u thread %u waits for %s (mask %08x)\n", f->block->idx.x, f->thread_idx.x, f->waits_for,
                 f->waits_mask);
  }
  std::abort();
}

// The next fiber to run. A slow one gets few turns, but gets them: a fiber that spins waits for another one.
Fiber* Draw(State& m) {
  if (m.ready.empty()) ReportStuck(m, "deadlock: no thread can run");
  for (;;) {
    const uint64_t random = Random(m);
    Fiber* fiber = m.ready[(random >> 8) % m.ready.size()];
    if (!fiber->slow || random % 256 == 0) return fiber;
  }
}

// next: null for the caller of Run.
void Switch(State& m, void** save_sp, void** save_asan, Fiber* next) {
  if (++m.switches > m.options.max_switches) ReportStuck(m, "no progress");
  ++m.stats.switches;
  m.current = next;
  SwitchTsanFiber(next != nullptr ? next->tsan : m.main_tsan);
  if (UnderAsan()) {
    __sanitizer_start_switch_fiber(save_asan, next != nullptr ? static_cast<const void*>(next->stack) : m.main_bottom,
                                   next != nullptr ? StackBytes() : m.main_size);
  }
  multitier_simt_switch(save_sp, next != nullptr ? next->sp : m.main_sp);
  if (UnderAsan()) __sanitizer_finish_switch_fiber(save_asan != nullptr ? *save_asan : nullptr, nullptr, nullptr);
}

// The running fiber stops here until the scheduler chooses it again.
void GiveWay(State& m) {
  Fiber* self = m.current;
  if (self->stack[0] != kCanary) Fail("stack overflow");
  Fiber* next = Draw(m);
  if (next != self) Switch(m, &self->sp, &self->asan, next);
}

void WakeAll(State& m, Block* block) {
  for (Fiber* f : block->waiting) MakeReady(m, f);
  block->waiting.clear();
  block->at_barrier = 0;
  block->turn ^= 1;
}

[[noreturn]] void FiberEnd(State& m) {
  Fiber* self = m.current;
  if (self->stack[0] != kCanary) Fail("stack overflow");
  Release(&m.end_order);
  TakeFromReady(m, self);
  if (self->additions > m.most_additions) m.most_additions = self->additions;
  Warp* warp = self->warp;
  warp->live &= ~(1u << self->lane);
  for (const Warp::Rendezvous& meeting : warp->open) {
    if (meeting.arrived != 0 && (meeting.mask >> self->lane & 1)) {
      Fail("lane %u returned while other lanes of mask %08x wait for it", self->lane, meeting.mask);
    }
  }
  Block* block = self->block;
  if (--block->live == 0) {
    --m.live_blocks;
  } else if (block->at_barrier == block->live) {
    WakeAll(m, block);
  }
  self->block = nullptr;
  void* unused_sp;
  // A null fake stack: ASan destroys that of a fiber that does not come back.
  Switch(m, &unused_sp, nullptr,
         block->live == 0 || m.ready.empty() ? nullptr : Draw(m));  // Run refills, or finds the deadlock
  std::abort();
}

void FiberMain() {
  State& m = *running;
  if (UnderAsan()) {
    const void* bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
    if (m.main_bottom == nullptr) {  // the first fiber of a launch comes from Run's stack
      m.main_bottom = bottom;
      m.main_size = size;
    }
  }
  Acquire(&m.start_order);
  m.kernel(m.args);
  FiberEnd(m);
}

void Prepare(Fiber* fiber) {
  if (fiber->stack == nullptr) {
    fiber->stack = static_cast<uint64_t*>(std::aligned_alloc(4096, StackBytes()));
    if (fiber->stack == nullptr) Fail("no memory for the stack of a GPU thread");
  }
  if (UnderAsan()) __asan_unpoison_memory_region(fiber->stack, StackBytes());  // of a kernel before
  fiber->stack[0] = kCanary;
  uint64_t* top = fiber->stack + StackBytes() / 8;
  *--top = 0;  // in place of FiberMain's return address: keeps the stack aligned as a call does
  *--top = reinterpret_cast<uint64_t>(&FiberMain);
  for (int i = 0; i < 6; ++i) *--top = 0;
  fiber->sp = top;
  // Kept from launch to launch, for making one takes a millisecond. So TSan believes that two blocks that ran in one place, one
  // after the other, are ordered. Other seeds put them in other places.
  if (fiber->tsan == nullptr) fiber->tsan = NewTsanFiber();
}

size_t Volume(Dim3 dim) { return size_t{dim.x} * dim.y * dim.z; }

Dim3 At(size_t number, Dim3 dim) {
  return Dim3(static_cast<unsigned>(number % dim.x), static_cast<unsigned>(number / dim.x % dim.y),
              static_cast<unsigned>(number / dim.x / dim.y));
}

void DrawSchedule(State& m) {
  static const uint64_t kYield[] = {0, 1u << 24, 1u << 28, 1u << 31};  // never, 1/256, 1/16, 1/2
  m.yield_below = kYield[Random(m) % 4];
}

// Makes block `number` of the grid resident in place `place`.
void StartBlock(State& m, Block* block, size_t place, size_t number, char* shared, uint64_t slow_in_64) {
  const size_t threads = Volume(m.block_dim);
  block->idx = At(number, m.grid);
  block->live = static_cast<int>(threads);
  block->shared_memory = shared;
  block->num_shared = 0;
  block->shared_used = 0;
  ++m.live_blocks;
  for (size_t t = 0; t < threads; ++t) {
    Fiber* fiber = m.pool[place * threads + t];
    Prepare(fiber);
    fiber->block = block;
    fiber->warp = &block->warps[t / 32];
    fiber->lane = static_cast<unsigned>(t % 32);
    fiber->warp->fibers[fiber->lane] = fiber;
    fiber->warp->live |= 1u << fiber->lane;
    fiber->thread_idx = At(t, m.block_dim);
    fiber->additions = 0;
    fiber->slow = Random(m) % 64 < slow_in_64;
    MakeReady(m, fiber);
  }
}

}  // namespace

Machine::Machine(const Options& options) : state_(std::make_unique<State>()) { state_->options = options; }

Machine::~Machine() {
  for (Fiber* fiber : state_->pool) {
    if (fiber->tsan != nullptr) DeleteTsanFiber(fiber->tsan);
    std::free(fiber->stack);
    delete fiber;
  }
}

const Stats& Machine::stats() const { return state_->stats; }

void Machine::Run(Dim3 grid, Dim3 block_dim, void (*kernel)(const void*), const void* args) {
  State& m = *state_;
  if (running != nullptr) Fail("a kernel launched a kernel");
  const size_t threads = Volume(block_dim), blocks = Volume(grid);
  if (threads == 0 || threads > 1024 || blocks == 0) Fail("a launch of %zu blocks of %zu threads", blocks, threads);
  running = &m;
  m.random_state = m.options.seed ^ (++m.stats.launches << 32);
  m.grid = grid;
  m.block_dim = block_dim;
  m.kernel = kernel;
  m.args = args;
  m.switches = m.most_additions = 0;
  m.main_tsan = CurrentTsanFiber();
  m.main_bottom = nullptr;
  DrawSchedule(m);
  const uint64_t slow_in_64 = Random(m) % 2 == 0 ? 0 : 1 + Random(m) % 8;
  m.stats.threads += threads * blocks;

  // Everything that fibers touch is allocated here, and freed once TSan knows that they ended. Each block has shared memory of
  // its own: at the addresses of an earlier block TSan would see what that one did.
  std::vector<Block> resident(std::min(static_cast<size_t>(m.options.resident_blocks), blocks));
  for (Block& block : resident) {
    block.warps.resize((threads + 31) / 32);
    block.waiting.reserve(threads);
  }
  while (m.pool.size() < resident.size() * threads) m.pool.push_back(new Fiber);
  m.ready.clear();
  m.ready.reserve(resident.size() * threads);
  std::vector<std::vector<Byte>> shared(blocks);
  std::vector<size_t> order(blocks);  // blocks start in any order
  for (size_t i = 0; i < blocks; ++i) order[i] = i;
  for (size_t i = 1; i < blocks; ++i) std::swap(order[i], order[Random(m) % (i + 1)]);

  for (size_t next = 0;;) {
    for (size_t place = 0; place < resident.size() && next < blocks; ++place) {
      if (resident[place].live > 0) continue;
      const size_t number = order[next++];
      shared[number].assign(m.options.shared_bytes, Byte{static_cast<char>(0xa5)});
      StartBlock(m, &resident[place], place, number, reinterpret_cast<char*>(shared[number].data()), slow_in_64);
    }
    if (m.live_blocks == 0) break;
    Release(&m.start_order);
    Switch(m, &m.main_sp, &m.main_asan, Draw(m));
  }
  Acquire(&m.end_order);
  m.stats.chain += m.most_additions;
  running = nullptr;
}

void Fail(const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::fputs("simt: ", stderr);
  std::vfprintf(stderr, format, args);
  va_end(args);
  const Fiber* f = running != nullptr ? running->current : nullptr;
  if (f != nullptr && f->block != nullptr) std::fprintf(stderr, " (block %u thread %u)", f->block->idx.x, f->thread_idx.x);
  std::fputc('\n', stderr);
  std::abort();
}

Dim3 ThreadIdx() { return Running().current->thread_idx; }
Dim3 BlockIdx() { return Running().current->block->idx; }
Dim3 BlockDim() { return Running().block_dim; }
Dim3 GridDim() { return Running().grid; }
unsigned Lane() { return Running().current->lane; }

void* SharedMemory(const void* site, size_t bytes) {
  State& m = Running();
  Block* block = m.current->block;
  for (int i = 0; i < block->num_shared; ++i) {
    if (block->shared[i].site == site) return block->shared[i].memory;
  }
  bytes = (bytes + 127) / 128 * 128;
  if (block->num_shared == kMaxSharedVariables || block->shared_used + bytes > m.options.shared_bytes) {
    Fail("too much shared memory: %zu bytes and %zu more, in %d variables", block->shared_used, bytes, block->num_shared + 1);
  }
  char* const memory = block->shared_memory + block->shared_used;
  block->shared_used += bytes;
  block->shared[block->num_shared++] = {site, memory};
  return memory;
}

void CountAddition() { ++Running().current->additions; }

void MaybeYield() {
  State& m = Running();
  ++m.stats.atomics;
  if ((Random(m) & 0xffffffffu) < m.yield_below || m.stats.atomics % 1024 == 0) GiveWay(m);
}

void BlockBarrier() {
  State& m = Running();
  ++m.stats.collectives;
  Fiber* self = m.current;
  Block* block = self->block;
  char* const order = &block->order[block->turn];
  Release(order);
  if (++block->at_barrier == block->live) {
    WakeAll(m, block);
  } else {
    block->waiting.push_back(self);  // reserved
    TakeFromReady(m, self);
    self->waits_for = "__syncthreads";
  }
  GiveWay(m);
  Acquire(order);
}

namespace {

void CheckMask(const Fiber* self, unsigned mask) {
  const Warp* warp = self->warp;
  if ((mask >> self->lane & 1) == 0) Fail("lane %u calls a collective whose mask %08x lacks it", self->lane, mask);
  if ((mask & ~warp->live) != 0)
    Fail("mask %08x names lanes that have returned or never were: live are %08x", mask, warp->live);
  for (const Warp::Rendezvous& open : warp->open) {
    if (open.arrived != 0 && open.mask != mask && (open.mask & mask) != 0) {
      Fail("lane %u names mask %08x while lanes %08x wait under mask %08x", self->lane, mask, open.arrived, open.mask);
    }
  }
}

// What all lanes brought, [32]: valid until the caller's next collective.
const uint64_t* Meet(Meeting kind, unsigned mask, uint64_t value) {
  static const char* const kNames[] = {"__syncwarp", "a shuffle", "a vote"};
  State& m = Running();
  ++m.stats.collectives;
  Fiber* self = m.current;
  Warp* warp = self->warp;
  CheckMask(self, mask);
  Warp::Rendezvous* const meeting = &warp->open[__builtin_ctz(mask)];
  if (meeting->arrived == 0) {
    meeting->mask = mask;
    meeting->kind = kind;
  }
  if (meeting->kind != kind) Fail("lanes of mask %08x meet at different collectives", mask);
  meeting->arrived |= 1u << self->lane;
  meeting->values[self->lane] = value;
  if (meeting->arrived == mask) {
    for (unsigned lane = 0; lane < 32; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      for (unsigned other = 0; other < 32; ++other) warp->result[lane][other] = meeting->values[other];
      if (lane != self->lane) MakeReady(m, warp->fibers[lane]);
    }
    meeting->arrived = 0;
  } else {
    TakeFromReady(m, self);
    self->waits_for = kNames[static_cast<int>(kind)];
    self->waits_mask = mask;
  }
  GiveWay(m);
  return warp->result[self->lane];
}

}  // namespace

uint64_t Exchange(unsigned mask, uint64_t value, unsigned source_lane) {
  if ((mask >> source_lane & 1) == 0) Fail("shuffle from lane %u, which is not in mask %08x", source_lane, mask);
  return Meet(Meeting::kShuffle, mask, value)[source_lane];
}

unsigned Vote(unsigned mask, bool predicate) {
  const uint64_t* all = Meet(Meeting::kVote, mask, predicate);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (mask >> lane & 1) votes |= static_cast<unsigned>(all[lane]) << lane;
  }
  return votes;
}

void WarpBarrier(unsigned mask) {
  // The mask is checked before its lowest lane is taken; Meet checks it again for the caller's own faults.
  if (mask == 0) Fail("__syncwarp of an empty mask");
  char* const order = &Running().current->warp->open[__builtin_ctz(mask)].order;
  Release(order);
  Meet(Meeting::kSyncWarp, mask, 0);
  Acquire(order);
}

}  // namespace multitier::simt
