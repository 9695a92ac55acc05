// Cost a key of the index alone: what a lookup pays before it touches a row.

#include <cstdlib>
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "cc/base/hash.h"
#include "cc/env/env.h"
#include "cc/index/shard_index.h"

namespace multitier {
namespace {

constexpr size_t kBatch = 32;  // keys prefetched together

const ShardIndex::HashOfWord kHashOfKey = [](WordState, uint32_t location) { return HashKey(location); };

void Fill(ShardIndex* index, int64_t n) {
  for (int64_t key = 0; key < n; ++key) {
    if (!index->Insert(HashKey(key), WordState::kDram, static_cast<uint32_t>(key), kHashOfKey).ok()) std::abort();
  }
}

// Uniform keys of [first, first + n), probed 32 at a time: prefetch all, then look at all.
void Probe(benchmark::State& state, int64_t first) {
  const int64_t n = state.range(0);
  ShardIndex index(Env::Posix(), /*frozen=*/false, {static_cast<uint64_t>(n)});
  Fill(&index, n);
  std::mt19937_64 random(1);
  std::vector<int64_t> keys(1 << 20);
  for (int64_t& key : keys) key = first + static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  size_t at = 0;
  uint64_t sum = 0;
  for (auto _ : state) {
    uint64_t hashes[kBatch];
    for (size_t i = 0; i < kBatch; ++i) {
      hashes[i] = HashKey(keys[at + i]);
      index.Prefetch(hashes[i]);
    }
    for (const uint64_t hash : hashes) {
      uint32_t location = index.FindHomeDram(hash);
      if (location == ShardIndex::kNone) {
        const uint64_t* word = index.Find(hash, [](uint64_t) { return true; });
        if (word != nullptr) location = ShardIndex::location(*word);
      }
      sum += location;
    }
    at = (at + kBatch) % keys.size();
  }
  benchmark::DoNotOptimize(sum);
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(kBatch));
  state.counters["bytes_per_key"] = static_cast<double>(index.bytes()) / static_cast<double>(n);
}

void BM_ProbePresent(benchmark::State& state) { Probe(state, 0); }
void BM_ProbeAbsent(benchmark::State& state) { Probe(state, int64_t{1} << 40); }
BENCHMARK(BM_ProbePresent)->Arg(1000000)->Arg(10000000);
BENCHMARK(BM_ProbeAbsent)->Arg(1000000)->Arg(10000000);

// From empty to n keys, growth and first touch of the memory included.
void BM_Insert(benchmark::State& state) {
  const int64_t n = state.range(0);
  for (auto _ : state) {
    ShardIndex index(Env::Posix(), /*frozen=*/state.range(1) != 0, {static_cast<uint64_t>(n)});
    Fill(&index, n);
    benchmark::DoNotOptimize(index.words());
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * n);
}
BENCHMARK(BM_Insert)->Args({1000000, 0})->Args({1000000, 1})->Args({10000000, 0})->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace multitier
