// Compiled without -fsanitize=thread: see simt/sanitizer_fibers.h. This file has its own lock for the same reason: TSan would
// treat a mutex as an order between two host threads, and would then not report that one of them did not wait for an event.

#include "cc/device/emulated_device.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "cc/base/ieee.h"
#include "cc/device/simt/sanitizer_fibers.h"

namespace multitier::device {
namespace {

// A mutex that TSan does not see.
class HiddenMutex {
 public:
  void lock() {
    uint32_t expected = 0;
    if (__atomic_compare_exchange_n(&word_, &expected, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
    while (__atomic_exchange_n(&word_, 2, __ATOMIC_ACQUIRE) != 0) syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, 2, nullptr);
  }
  void unlock() {
    if (__atomic_exchange_n(&word_, 0, __ATOMIC_RELEASE) == 2) syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, 1);
  }

 private:
  uint32_t word_ = 0;  // 0: free, 1: held, 2: held, and others wait
};

class HiddenLock {
 public:
  explicit HiddenLock(HiddenMutex* mutex) : mutex_(mutex) { mutex_->lock(); }
  ~HiddenLock() { mutex_->unlock(); }

 private:
  HiddenMutex* const mutex_;
  simt::IgnoreAccesses ignore_;  // of the host; streams run on fibers of their own
};

// Each record has a number, and who waits, waits for that of the last call before: streams may come to the records of one
// event in another order than that of the calls.
struct EmulatedEvent {
  bool HasHappened(int64_t number) const { return std::find(ahead.begin(), ahead.end(), number) == ahead.end(); }
  void Happen(int64_t number) {
    const simt::IgnoreAccesses ignore;  // streams take turns here by a lock that is not theirs
    ahead.erase(std::find(ahead.begin(), ahead.end(), number));
    clock_gettime(CLOCK_MONOTONIC, &time);
  }

  int64_t recorded = 0;        // the last record's number
  std::vector<int64_t> ahead;  // records that no stream has come to
  timespec time{};             // when it happened last
  char order;                  // an address, for TSan
};

struct Operation {
  enum Kind { kKernel, kCopy, kFill, kSort, kRecord, kWait };
  explicit Operation(Kind k) : kind(k) {}

  Kind kind;
  void (*kernel)(const void*) = nullptr;
  simt::Dim3 grid, block;
  void* args = nullptr;  // of the kernel: owned
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
  int byte = 0;
  int bits = 0;             // of a sort
  void* scratch = nullptr;  // of a sort: as many bytes
  EmulatedEvent* event = nullptr;
  int64_t number = 0;      // of a record; of a wait: the record to wait for
  char* order = nullptr;   // what the host did before it enqueued this: owned
  bool late = false;       // of a copy
  bool overtaken = false;  // of a late copy
};

struct EmulatedStream {
  EmulatedDevice::State* device = nullptr;
  std::deque<Operation> queue;
  void* tsan = simt::NewTsanFiber();
  char order;  // everything that is done
};

// Distributes the numbers by 8 bits at a time, from one array to the other. The copies are what TSan and ASan see of it.
void SortNumbers(const Operation& operation) {
  const size_t n = operation.bytes / sizeof(uint64_t);
  auto* const to = static_cast<uint64_t*>(operation.to);
  auto* const spare = static_cast<uint64_t*>(operation.scratch);
  std::memcpy(to, operation.from, operation.bytes);
  std::memset(spare, 0, operation.bytes);
  uint64_t *source = to, *target = spare;
  for (int shift = 32; shift < 32 + operation.bits; shift += 8) {
    size_t begins[257] = {};
    for (size_t i = 0; i < n; ++i) ++begins[(source[i] >> shift & 0xff) + 1];
    for (int d = 0; d < 256; ++d) begins[d + 1] += begins[d];
    for (size_t i = 0; i < n; ++i) target[begins[source[i] >> shift & 0xff]++] = source[i];
    uint64_t* const swapped = source;
    source = target;
    target = swapped;
  }
  if (source != to) std::memcpy(to, source, operation.bytes);
}

uint64_t DigestOf(const void* memory, size_t bytes) {
  const auto* const from = static_cast<const unsigned char*>(memory);
  uint64_t digest = 0xcbf29ce484222325u ^ bytes;
  for (size_t i = 0; i < bytes; ++i) digest = (digest ^ from[i]) * 0x100000001b3u;
  return digest ^ digest >> 32;
}

// One allocation. The type is local to this file, so that an instrumented file cannot instantiate the same map.
struct Allocation {
  size_t bytes = 0;
};

constexpr size_t kAlignment = 256;

}  // namespace

struct EmulatedDevice::State {
  explicit State(const Options& o) : options(o), machine(o.simt), random(o.simt.seed * 2 + 1) {}

  Options options;
  mutable HiddenMutex mutex;
  simt::Machine machine;
  std::vector<EmulatedStream*> streams;
  std::vector<EmulatedEvent*> deleted;    // streams may still have waits for them
  std::map<void*, Allocation> allocated;  // device memory
  size_t used_bytes = 0;
  uint64_t random;
  int64_t fail_in = -1;  // calls until one fails; negative: none does
  int64_t calls = 0;
  int64_t synchronizations = 0, launches = 0;
  int64_t fail_every = 0, allocations = 0;
  int64_t overtaken_copies = 0;
  uint64_t copied_down = 0;

  bool IsOnDevice(const void* memory) const {
    auto after = allocated.upper_bound(const_cast<void*>(memory));
    if (after == allocated.begin()) return false;
    --after;
    return memory < static_cast<const char*>(after->first) + after->second.bytes;
  }
  uint64_t Random() {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return random >> 33;
  }
  bool FailsNow() {
    ++calls;
    return fail_in >= 0 && fail_in-- == 0;
  }
  void Push(EmulatedStream* stream, Operation operation);
  bool Advance(bool late_copies = true);
  bool AdvanceOne(bool late_copies);
  void Execute(EmulatedStream* stream, const Operation& operation);
};

// Runs one operation of one stream that is not blocked. Returns false if there is none. late_copies: whether it may be a late
// copy if there is nothing else.
bool EmulatedDevice::State::Advance(bool late_copies) {
  return AdvanceOne(false) || (late_copies && options.late_copies > 0 && AdvanceOne(true));
}

bool EmulatedDevice::State::AdvanceOne(bool late_copies) {
  const size_t n = streams.size(), first = n == 0 ? 0 : Random() % n;
  for (size_t i = 0; i < n; ++i) {
    EmulatedStream* stream = streams[(first + i) % n];
    if (stream->queue.empty()) continue;
    const Operation& next = stream->queue.front();
    if (next.kind == Operation::kWait && !next.event->HasHappened(next.number)) continue;
    if (next.late && !late_copies) continue;
    for (size_t other_at = 0; options.late_copies > 0 && other_at < n; ++other_at) {
      EmulatedStream* const other = streams[other_at];
      if (other == stream || other->queue.empty() || !other->queue.front().late || other->queue.front().overtaken) continue;
      other->queue.front().overtaken = true;
      ++overtaken_copies;
    }
    const Operation operation = next;
    stream->queue.pop_front();
    Execute(stream, operation);
    return true;
  }
  return false;
}

void EmulatedDevice::State::Execute(EmulatedStream* stream, const Operation& operation) {
  const ScopedIeeeArithmetic ieee;  // as a GPU, whatever the thread's mode is that happens to wait
  void* const caller = simt::CurrentTsanFiber();
  simt::SwitchTsanFiber(stream->tsan);
  simt::Acquire(operation.order);
  switch (operation.kind) {
    case Operation::kKernel:
      machine.Run(operation.grid, operation.block, operation.kernel, operation.args);
      break;
    case Operation::kCopy:
      std::memcpy(operation.to, operation.from, operation.bytes);  // as the stream: TSan sees it
      if (IsOnDevice(operation.from) && !IsOnDevice(operation.to)) copied_down += DigestOf(operation.to, operation.bytes);
      break;
    case Operation::kFill:
      std::memset(operation.to, operation.byte, operation.bytes);
      break;
    case Operation::kSort:
      SortNumbers(operation);
      break;
    case Operation::kRecord:
      simt::Release(&operation.event->order);
      operation.event->Happen(operation.number);
      break;
    case Operation::kWait:
      simt::Acquire(&operation.event->order);
      break;
  }
  simt::Release(&stream->order);
  std::free(operation.args);  // as the stream, which read it last
  simt::SwitchTsanFiber(caller);
  std::free(operation.order);
}

void EmulatedDevice::State::Push(EmulatedStream* stream, Operation operation) {
  operation.order = static_cast<char*>(std::malloc(1));
  simt::Release(operation.order);
  stream->queue.push_back(operation);
  while (Random() % 4 == 0 && Advance(/*late_copies=*/false)) {
  }
}

namespace {

EmulatedStream* Get(Stream stream) { return static_cast<EmulatedStream*>(stream.native); }
EmulatedEvent* Get(Event event) { return static_cast<EmulatedEvent*>(event.native); }

Status Injected(const char* call) { return InternalError("emulated device: ", call, " failed, as asked for by FailCall"); }

}  // namespace

EmulatedDevice::EmulatedDevice(const Options& options, const DeviceKernels* kernels)
    : state_(std::make_unique<State>(options)), kernels_(kernels) {}

EmulatedDevice::~EmulatedDevice() {
  while (state_->Advance()) {
  }
  for (EmulatedStream* stream : state_->streams) {
    simt::DeleteTsanFiber(stream->tsan);
    delete stream;
  }
  for (const EmulatedEvent* event : state_->deleted) delete event;
  for (const auto& [memory, allocation] : state_->allocated) std::free(memory);
}

Result<void*> EmulatedDevice::Allocate(size_t bytes) {
  if (bytes == 0) return static_cast<void*>(nullptr);
  HiddenLock lock(&state_->mutex);
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const size_t free = state_->options.memory_bytes - std::min(state_->options.memory_bytes, state_->used_bytes);
  void* memory = nullptr;
  const bool fails =
      state_->FailsNow() || (state_->fail_every > 0 && state_->allocations++ % state_->fail_every >= state_->fail_every - 2);
  if (!fails && rounded <= free) memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) {
    return ResourceExhaustedError("emulated device: no memory for ", bytes, " bytes; ", free, " of ",
                                  state_->options.memory_bytes, " bytes are free");
  }
  const auto byte = static_cast<unsigned char>(state_->options.new_memory);
  for (size_t i = 0; i < rounded; ++i) static_cast<unsigned char*>(memory)[i] = byte;  // uninstrumented, so no access for TSan
  state_->allocated[memory].bytes = rounded;
  state_->used_bytes += rounded;
  return memory;
}

void EmulatedDevice::Free(void* memory) {
  {
    HiddenLock lock(&state_->mutex);
    const auto found = state_->allocated.find(memory);
    if (found == state_->allocated.end()) simt::Fail("Free of %p, which is not allocated", memory);
    state_->used_bytes -= found->second.bytes;
    state_->allocated.erase(found);
  }
  std::free(memory);  // here TSan sees a stream that still uses it
}

Result<void*> EmulatedDevice::AllocatePinned(size_t bytes) {
  HiddenLock lock(&state_->mutex);
  if (bytes == 0) return static_cast<void*>(nullptr);
  void* memory = nullptr;
  if (!state_->FailsNow()) memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (memory == nullptr) return ResourceExhaustedError("emulated device: no pinned memory for ", bytes, " bytes");
  return memory;
}

void EmulatedDevice::FreePinned(void* memory) { std::free(memory); }

Result<Stream> EmulatedDevice::NewStream() {
  HiddenLock lock(&state_->mutex);
  if (state_->FailsNow()) return Injected("NewStream");
  auto* stream = new EmulatedStream;
  stream->device = state_.get();
  state_->streams.push_back(stream);
  return Stream{stream};
}

void EmulatedDevice::Delete(Stream stream) {
  HiddenLock lock(&state_->mutex);
  EmulatedStream* const deleted = Get(stream);
  if (!deleted->queue.empty()) simt::Fail("a stream is deleted while it has work");
  for (size_t i = 0; i < state_->streams.size(); ++i) {
    if (state_->streams[i] != deleted) continue;
    state_->streams[i] = state_->streams.back();
    state_->streams.pop_back();
    break;
  }
  simt::DeleteTsanFiber(deleted->tsan);
  delete deleted;
}

Status EmulatedDevice::Copy(Stream stream, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return OkStatus();
  HiddenLock lock(&state_->mutex);
  if (state_->FailsNow()) return Injected("Copy");
  Operation operation(Operation::kCopy);
  operation.to = to;
  operation.from = from;
  operation.bytes = bytes;
  const int late = state_->options.late_copies;
  operation.late = late > 0 && state_->Random() % static_cast<uint64_t>(late) == 0;
  state_->Push(Get(stream), operation);
  return OkStatus();
}

Status EmulatedDevice::Fill(Stream stream, void* memory, int byte, size_t bytes) {
  if (bytes == 0) return OkStatus();
  HiddenLock lock(&state_->mutex);
  if (state_->FailsNow()) return Injected("Fill");
  Operation operation(Operation::kFill);
  operation.to = memory;
  operation.byte = byte;
  operation.bytes = bytes;
  state_->Push(Get(stream), operation);
  return OkStatus();
}

Status EmulatedDevice::SortByUpper(Stream stream, const uint64_t* from, uint64_t* to, uint32_t n, int bits, void* scratch) {
  if (n == 0) return OkStatus();
  HiddenLock lock(&state_->mutex);
  if (state_->FailsNow()) return Injected("SortByUpper");
  ++state_->launches;
  Operation operation(Operation::kSort);
  operation.to = to;
  operation.from = from;
  operation.bytes = n * sizeof(uint64_t);
  operation.bits = bits;
  operation.scratch = scratch;
  state_->Push(Get(stream), operation);
  return OkStatus();
}

Result<Event> EmulatedDevice::NewEvent() {
  HiddenLock lock(&state_->mutex);
  if (state_->FailsNow()) return Injected("NewEvent");
  return Event{new EmulatedEvent};
}

void EmulatedDevice::Delete(Event event) {
  HiddenLock lock(&state_->mutex);
  if (!Get(event)->ahead.empty()) simt::Fail("an event is deleted before it happened");
  state_->deleted.push_back(Get(event));
}

Status EmulatedDevice::Record(Stream stream, Event event) {
  HiddenLock lock(&state_->mutex);
  if (state_->FailsNow()) return Injected("Record");
  Operation operation(Operation::kRecord);
  operation.event = Get(event);
  operation.number = ++operation.event->recorded;
  operation.event->ahead.push_back(operation.number);
  state_->Push(Get(stream), operation);
  return OkStatus();
}

Status EmulatedDevice::Wait(Stream stream, Event event) {
  HiddenLock lock(&state_->mutex);
  if (state_->FailsNow()) return Injected("Wait");
  Operation operation(Operation::kWait);
  operation.event = Get(event);
  operation.number = operation.event->recorded;
  state_->Push(Get(stream), operation);
  return OkStatus();
}

Result<bool> EmulatedDevice::Happened(Event event) {
  HiddenLock lock(&state_->mutex);
  if (state_->FailsNow()) return Injected("Happened");
  EmulatedEvent* const e = Get(event);
  if (!e->HasHappened(e->recorded)) state_->Advance();
  if (!e->HasHappened(e->recorded)) return false;
  simt::Acquire(&e->order);
  return true;
}

Result<double> EmulatedDevice::Seconds(Event from, Event to) {
  HiddenLock lock(&state_->mutex);
  if (state_->FailsNow()) return Injected("Seconds");
  const timespec &a = Get(from)->time, &b = Get(to)->time;
  return static_cast<double>(b.tv_sec - a.tv_sec) + 1e-9 * static_cast<double>(b.tv_nsec - a.tv_nsec);
}

Status EmulatedDevice::Synchronize(Stream stream) {
  HiddenLock lock(&state_->mutex);
  ++state_->synchronizations;
  if (state_->FailsNow()) return Injected("Synchronize");
  EmulatedStream* const s = Get(stream);
  while (!s->queue.empty()) {
    if (!state_->Advance()) simt::Fail("the host waits for a stream that cannot go on");
  }
  simt::Acquire(&s->order);
  return OkStatus();
}

void EmulatedDevice::FailCall(int64_t n) {
  HiddenLock lock(&state_->mutex);
  state_->fail_in = n;
}

void EmulatedDevice::SetMemory(size_t bytes) {
  HiddenLock lock(&state_->mutex);
  state_->options.memory_bytes = bytes;
}

void EmulatedDevice::FailTwoAllocationsOf(int64_t n) {
  HiddenLock lock(&state_->mutex);
  state_->fail_every = n;
  state_->allocations = 0;
}

int64_t EmulatedDevice::calls() const {
  HiddenLock lock(&state_->mutex);
  return state_->calls;
}

int64_t EmulatedDevice::synchronizations() const {
  HiddenLock lock(&state_->mutex);
  return state_->synchronizations;
}

int64_t EmulatedDevice::launches() const {
  HiddenLock lock(&state_->mutex);
  return state_->launches;
}

int64_t EmulatedDevice::overtaken_copies() const {
  HiddenLock lock(&state_->mutex);
  return state_->overtaken_copies;
}

size_t EmulatedDevice::used_bytes() const {
  HiddenLock lock(&state_->mutex);
  return state_->used_bytes;
}

uint64_t EmulatedDevice::copied_down() const {
  HiddenLock lock(&state_->mutex);
  return state_->copied_down;
}

simt::Stats EmulatedDevice::stats() const {
  HiddenLock lock(&state_->mutex);
  return state_->machine.stats();
}

Status EnqueueKernel(Stream stream, const char* name, simt::Dim3 grid, simt::Dim3 block, void (*kernel)(const void*),
                     const void* args, size_t args_bytes) {
  EmulatedDevice::State* const device = Get(stream)->device;
  HiddenLock lock(&device->mutex);
  if (device->FailsNow()) return Injected(name);
  ++device->launches;
  Operation operation(Operation::kKernel);
  operation.kernel = kernel;
  operation.grid = grid;
  operation.block = block;
  operation.args = std::malloc(args_bytes);
  std::memcpy(operation.args, args, args_bytes);
  device->Push(Get(stream), operation);
  return OkStatus();
}

}  // namespace multitier::device
