#include "cc/base/memory_reserve.h"

#include <bits/functexcept.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "cc/base/mutex.h"

namespace multitier {
namespace {

constexpr size_t kPiece = size_t{1} << 20;      // given back at a time
constexpr size_t kSpare = size_t{16} << 20;     // more than is needed, so that most leases find enough
constexpr size_t kUnused = size_t{64} << 20;    // more than is needed: given back when a lease ends
constexpr size_t kThreadLocalBytes = 32 << 10;  // more than the variables of all libraries take
// By a thread that finds nothing left: ten seconds, because other operations end slowly on a busy machine. Few, because there
// each takes some milliseconds more.
constexpr int kMostWaits = 1000;
constexpr timespec kWait{0, 10000000};
constexpr time_t kForgottenAfter = 1;  // seconds without a wait: the request that waited before got its memory

struct ThisThread {
  int leases = 0;
  int waits = 0;         // in a row. Not forgotten when the reserve has a piece again: it may not be enough
  time_t last_wait = 0;  // seconds of the monotonic clock
};
thread_local ThisThread this_thread;

class Reserve {
 public:
  Reserve() {
    previous_ = std::get_new_handler();
    // A fork happens with the lock held: three functions share it, which the analysis cannot follow.
    pthread_atfork([]() MT_NO_THREAD_SAFETY_ANALYSIS { The()->mutex_.lock(); },
                   []() MT_NO_THREAD_SAFETY_ANALYSIS { The()->mutex_.unlock(); },
                   []() MT_NO_THREAD_SAFETY_ANALYSIS { The()->mutex_.unlock(); });
  }
  static Reserve* The() {
    static auto* const reserve = new Reserve;  // never destroyed: any thread may run out of memory while the process exits
    return reserve;
  }

  bool Take(size_t bytes) {
    const size_t needed = leased_.fetch_add(bytes, std::memory_order_relaxed) + bytes + MemoryLease::kBaseBytes;
    if (needed <= held_.load(std::memory_order_relaxed) || Hold()) return true;
    leased_.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }

  void End(size_t bytes) {
    const size_t left = leased_.fetch_sub(bytes, std::memory_order_relaxed) - bytes;
    if (held_.load(std::memory_order_relaxed) <= left + MemoryLease::kBaseBytes + kUnused) return;
    MutexLock lock(mutex_);
    const size_t enough = leased_ + MemoryLease::kBaseBytes + kSpare;
    if (held_ > enough) Resize(enough);
  }

  // A piece less; false where there is none.
  bool GiveBack() {
    MutexLock lock(mutex_);
    return held_ != 0 && Resize(held_ > kPiece ? held_ - kPiece : 0);
  }

  size_t held() const { return held_; }
  std::new_handler previous() const { return previous_; }

 private:
  // Fills the reserve up; true where it then holds enough for all leases.
  bool Hold() {
    MutexLock lock(mutex_);
    const size_t needed = leased_ + MemoryLease::kBaseBytes;
    if (held_ >= needed || Resize(needed + kSpare) || Resize(needed)) return true;
    const size_t least = leased_ + MemoryLease::kLeastBytes;
    return held_ >= least || Resize(least);
  }

  bool Resize(size_t bytes) MT_REQUIRES(mutex_) {
    bytes = (bytes + kPiece - 1) / kPiece * kPiece;
    void* pages = nullptr;
    if (held_ == 0) {
      pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    } else if (bytes == 0) {
      if (::munmap(pages_, held_) != 0) return false;
    } else {
      pages = ::mremap(pages_, held_, bytes, MREMAP_MAYMOVE);
    }
    if (pages == MAP_FAILED) return false;
    pages_ = pages;
    held_ = bytes;
    return true;
  }

  Mutex mutex_;
  void* pages_ MT_GUARDED_BY(mutex_) = nullptr;
  std::atomic<size_t> held_{0};    // bytes of pages_; changed with mutex_ held
  std::atomic<size_t> leased_{0};  // bytes of all leases
  std::new_handler previous_ = nullptr;
};

// What operator new calls when it finds no memory. It tries again when this returns.
void OnNoMemory() {
  Reserve* const reserve = Reserve::The();
  if (reserve->GiveBack()) return;
  if (this_thread.leases == 0) {
    if (reserve->previous() != nullptr) return reserve->previous()();
    std::__throw_bad_alloc();
  }
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  if (now.tv_sec - this_thread.last_wait > kForgottenAfter) this_thread.waits = 0;
  this_thread.last_wait = now.tv_sec;
  if (++this_thread.waits > kMostWaits) {
    std::fputs("tf_multitier: no memory is left in the middle of an operation, and none of the reserve for it\n", stderr);
    std::abort();
  }
  ::nanosleep(&kWait, nullptr);
}

}  // namespace

MemoryLease::MemoryLease(size_t bytes) : bytes_(bytes) {
  static Reserve* const reserve = [] {
    Reserve* const made = Reserve::The();
    std::set_new_handler(OnNoMemory);
    return made;
  }();
  ok_ = reserve->Take(bytes_);
  if (ok_ && this_thread.leases++ == 0) this_thread.waits = 0;
}

MemoryLease::~MemoryLease() {
  if (!ok_) return;
  --this_thread.leases;
  Reserve::The()->End(bytes_);
}

Status MemoryLease::Refusal(const std::string& what) const {
  return ResourceExhaustedError(what, ": no memory: expected ", bytes_ + kLeastBytes,
                                " bytes of free address space for this operation, found less");
}

void MemoryLease::WaitOnThisThread() {
  // A library's thread_local variables are allocated when the thread first uses one, and the C library ends the process where
  // it finds no memory for them. Memory that was just freed can be had.
  void* found = nullptr;
  while ((found = std::malloc(kThreadLocalBytes)) == nullptr && Reserve::The()->GiveBack()) continue;
  if (found != nullptr) *static_cast<volatile char*>(found) = 0;  // or compilers leave both calls out
  std::free(found);
  ++this_thread.leases;
}

size_t MemoryLease::reserved() { return Reserve::The()->held(); }

}  // namespace multitier
