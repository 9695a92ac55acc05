// The compiler must keep prefetches. Each case measures the machine code between two labels: no code, no prefetch.

#include "cc/base/prefetch.h"

#include <gtest/gtest.h>

#include <vector>

// In front of and behind the statements that are measured.
#define MT_LABEL(name) asm volatile(name ":")

extern "C" {
extern const char mt_lines_begin[] __attribute__((visibility("hidden")));
extern const char mt_lines_end[] __attribute__((visibility("hidden")));
extern const char mt_bytes_begin[] __attribute__((visibility("hidden")));
extern const char mt_bytes_end[] __attribute__((visibility("hidden")));
}

namespace multitier {
namespace {

// As the engine uses them: a method in a header, called by a lambda that does nothing else.
struct Rows {
  const char* memory;
  size_t stride;
  void Fetch(size_t i) const { PrefetchLine(memory + i * stride); }
  void FetchAll(size_t i) const { PrefetchBytes(memory + i * stride, stride); }
};

__attribute__((noinline, noclone)) void FetchLines(const Rows& rows, size_t n) {
  auto fetch = [&](size_t from) __attribute__((noinline)) {
    for (size_t i = from; i < n; ++i) rows.Fetch(i);
  };
  MT_LABEL("mt_lines_begin");
  fetch(0);
  MT_LABEL("mt_lines_end");
}

__attribute__((noinline, noclone)) void FetchBytes(const Rows& rows, size_t n) {
  auto fetch = [&](size_t from) __attribute__((noinline)) {
    for (size_t i = from; i < n; ++i) rows.FetchAll(i);
  };
  MT_LABEL("mt_bytes_begin");
  fetch(0);
  MT_LABEL("mt_bytes_end");
}

TEST(PrefetchTest, CallOfAFunctionThatOnlyPrefetchesIsKept) {
  const std::vector<char> memory(4096);
  FetchLines({memory.data(), 64}, 64);
  FetchBytes({memory.data(), 160}, 25);
  EXPECT_GT(mt_lines_end - mt_lines_begin, 0);
  EXPECT_GT(mt_bytes_end - mt_bytes_begin, 0);
}

TEST(PrefetchTest, AnyAddressIsAllowed) {
  PrefetchLine(nullptr);
  PrefetchBytes<PrefetchTo::kSecondLevel>(nullptr, 1000);
  PrefetchBytes<PrefetchTo::kNonTemporal>(reinterpret_cast<const void*>(~uintptr_t{0} - 4096), 100);
}

}  // namespace
}  // namespace multitier
