// The least that this machine lets a lookup cost: a loop that fetches the lines of memory that a lookup of a uniform key must
// touch, and does nothing else. One line of an array as large as the index, whose content says where the row is; the row's
// header and value; the value copied to an output that is written front to back. The same distances ahead as lookup.cc.
//
//   LookupFloor/KEYS     what BM_Lookup/KEYS of embedding_table_benchmark touches: rows of 160 bytes, 96 of them read
//   TieredFloor          a hit among 100 M keys, 1 GiB of them in memory: rows of 160 bytes, all read, the header written

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cc/base/hash.h"
#include "cc/base/prefetch.h"
#include "cc/env/env.h"

namespace multitier {
namespace {

constexpr size_t kBatch = 65536, kBlock = 32, kHeaderBytes = 32, kRowBytes = 160;

// Zeros on huge pages, all of them touched.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes), data_(static_cast<uint8_t*>(Env::Posix()->AllocatePages(bytes, true))) {
    if (data_ == nullptr) std::abort();
    std::memset(data_, 0, bytes);
  }
  ~Memory() { Env::Posix()->FreePages(data_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  uint8_t* data() const { return data_; }

 private:
  const size_t bytes_;
  uint8_t* const data_;
};

// index_bytes: a power of two.
void Floor(benchmark::State& state, size_t index_bytes, size_t num_rows, size_t read, bool write) {
  const Memory index(index_bytes), slab(num_rows * kRowBytes);
  std::vector<uint8_t> out(kBatch * (read - kHeaderBytes));
  std::vector<uint64_t> hashes(kBatch + 3 * kBlock);
  std::vector<uint8_t*> rows(kBatch + 2 * kBlock);
  const auto bucket = [&](size_t i) { return index.data() + (hashes[i] & (index_bytes / 64 - 1)) * 64; };
  const auto fetch_buckets = [&](size_t from) {
    for (size_t i = from; i < from + kBlock; ++i) PrefetchLine(bucket(i));
  };
  const auto fetch_rows = [&](size_t from) {
    for (size_t i = from; i < from + kBlock; ++i) {
      uint64_t word = 0;  // always zero, which the compiler cannot know
      std::memcpy(&word, bucket(i) + (hashes[i] >> 61) * 8, sizeof(word));
      rows[i] = slab.data() + ((hashes[i] >> 32) * num_rows >> 32) * kRowBytes + word;
      PrefetchBytes<PrefetchTo::kSecondLevel>(rows[i], read);
    }
  };
  uint64_t next = 0, sum = 0;
  for (auto _ : state) {
    state.PauseTiming();
    for (uint64_t& hash : hashes) hash = Mix64(++next);
    state.ResumeTiming();
    fetch_buckets(0);
    fetch_buckets(kBlock);
    fetch_rows(0);
    for (size_t from = 0; from < kBatch; from += kBlock) {
      fetch_buckets(from + 2 * kBlock);
      fetch_rows(from + kBlock);
      for (size_t i = from; i < from + kBlock; ++i) {
        sum += rows[i][0];
        if (write) rows[i][24] = static_cast<uint8_t>(i);
        uint8_t* const to = out.data() + i * (read - kHeaderBytes);
        for (size_t at = kHeaderBytes; at < read; at += 16) std::memcpy(to + at - kHeaderBytes, rows[i] + at, 16);
      }
    }
    benchmark::DoNotOptimize(out.data());
  }
  benchmark::DoNotOptimize(sum);
  state.counters["ns/key"] = benchmark::Counter(static_cast<double>(state.iterations() * kBatch) * 1e-9,
                                                benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void LookupFloor(benchmark::State& state) {
  const auto keys = static_cast<size_t>(state.range(0));
  size_t index_bytes = 64;  // of which seven tenths are the most that is full
  while (static_cast<double>(index_bytes) / 8 * 0.7 < static_cast<double>(keys)) index_bytes *= 2;
  Floor(state, index_bytes, keys, kHeaderBytes + 64, false);
}
BENCHMARK(LookupFloor)->Arg(1 << 20)->Arg(10 << 20)->Arg(40 << 20)->Unit(benchmark::kMillisecond);

void TieredFloor(benchmark::State& state) { Floor(state, size_t{2} << 30, (size_t{1} << 30) / 128, kRowBytes, true); }
BENCHMARK(TieredFloor)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace multitier
