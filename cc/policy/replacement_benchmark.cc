// Hit rates and costs of the replacement policies on synthetic traces, one cell of the table
//   Zipf exponent x cache size (percent of the keys) x trace
// a benchmark. A trace is batches of 16,384 draws over 500,000 keys, each key used once a batch, as the table uses them:
//   static     the same distribution throughout
//   drift      400 keys drawn by the same distribution swap places with random ones before each batch
//   one-shot   a fifth of the draws are keys that never come again
// Counters: hit rate in percent over unique keys of each policy after a warm-up, ns a use spent in each policy, and
// `over_lru`, points that the default is better than exact LRU. No LRU-like policy may lose more than half a point.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/policy/replacement.h"

namespace multitier {
namespace {

constexpr uint32_t kKeys = 500000;
constexpr uint32_t kDraws = 16384;
constexpr int kWarmBatches = 120, kBatches = 120;
constexpr uint32_t kNowhere = 0xffffffffu;

enum Kind { kStatic, kDrift, kOneShot };

// The batches of a trace, each with its unique keys in the order of their last draw.
class Trace {
 public:
  Trace(double exponent, Kind kind) : kind_(kind), key_of_rank_(kKeys) {
    double sum = 0;
    for (uint32_t rank = 0; rank < kKeys; ++rank) cumulative_.push_back(sum += std::pow(rank + 1.0, -exponent));
    for (uint32_t rank = 0; rank < kKeys; ++rank) key_of_rank_[rank] = rank;
    std::shuffle(key_of_rank_.begin(), key_of_rank_.end(), random_);
    last_batch_.resize(kKeys + (kWarmBatches + kBatches) * kDraws, -1);
  }

  std::vector<uint32_t> Next() {
    if (kind_ == kDrift) {
      for (int i = 0; i < 400; ++i) std::swap(key_of_rank_[Rank()], key_of_rank_[random_() % kKeys]);
    }
    std::vector<uint32_t> draws(kDraws), keys;
    for (uint32_t& key : draws) key = kind_ == kOneShot && random_() % 5 == 0 ? next_fresh_++ : key_of_rank_[Rank()];
    ++batch_;
    for (size_t i = draws.size(); i-- > 0;) {
      if (last_batch_[draws[i]] == batch_) continue;
      last_batch_[draws[i]] = batch_;
      keys.push_back(draws[i]);
    }
    std::reverse(keys.begin(), keys.end());
    return keys;
  }
  size_t num_keys() const { return last_batch_.size(); }

 private:
  uint32_t Rank() {
    const double u = static_cast<double>(random_() >> 11) * 0x1p-53 * cumulative_.back();
    return static_cast<uint32_t>(std::lower_bound(cumulative_.begin(), cumulative_.end(), u) - cumulative_.begin());
  }

  const Kind kind_;
  std::mt19937_64 random_{1};
  std::vector<double> cumulative_;
  std::vector<uint32_t> key_of_rank_;
  std::vector<int> last_batch_;  // by key
  uint32_t next_fresh_ = kKeys;
  int batch_ = 0;
};

// A cache of rows under a policy, trimmed at the end of each batch.
class Cache {
 public:
  Cache(Replacement replacement, size_t capacity, size_t num_keys)
      : policy_(ReplacementPolicy::Create(replacement)), capacity_(capacity), keys_(num_keys) {
    key_at_.resize(capacity + kDraws);
    for (uint32_t location = static_cast<uint32_t>(key_at_.size()); location-- > 0;) free_.push_back(location);
  }

  void Use(const std::vector<uint32_t>& batch, bool count) {
    inserted_.clear();
    touched_.clear();
    for (const uint32_t key : batch) {
      Key& k = keys_[key];
      ++k.frequency;
      const uint64_t idle = uses_ - k.last_use;
      k.last_use = ++uses_;
      if (k.location != kNowhere) {
        touched_.push_back(RowUse{k.location, k.frequency, 0});
        continue;
      }
      k.location = free_.back();
      free_.pop_back();
      key_at_[k.location] = key;
      inserted_.push_back(RowUse{k.location, k.frequency, idle});
    }
    victims_.clear();
    const auto start = std::chrono::steady_clock::now();
    policy_->Insert(inserted_);
    policy_->Touch(touched_);
    if (policy_->rows() > capacity_) {
      policy_->ChooseVictims(policy_->rows() - capacity_, [](uint32_t) { return false; }, &victims_);
      policy_->Remove(victims_);
    }
    const auto end = std::chrono::steady_clock::now();
    for (const uint32_t victim : victims_) {
      keys_[key_at_[victim]].location = kNowhere;
      free_.push_back(victim);
    }
    if (!count) return;
    nanoseconds_ += std::chrono::duration<double, std::nano>(end - start).count();
    hits_ += static_cast<double>(touched_.size());
    counted_ += static_cast<double>(batch.size());
  }
  double hit_percent() const { return 100 * hits_ / counted_; }
  double ns_per_use() const { return nanoseconds_ / counted_; }

 private:
  struct Key {
    uint32_t location = kNowhere;
    uint32_t frequency = 0;
    uint64_t last_use = 0;
  };

  const std::unique_ptr<ReplacementPolicy> policy_;
  const size_t capacity_;
  std::vector<Key> keys_;
  std::vector<uint32_t> key_at_, free_, victims_;  // by location; locations
  std::vector<RowUse> inserted_, touched_;
  uint64_t uses_ = 0;
  double hits_ = 0, counted_ = 0, nanoseconds_ = 0;
};

void BM_Trace(benchmark::State& state) {
  static const char* const kKindNames[] = {"static", "drift", "one-shot"};
  const double exponent = static_cast<double>(state.range(0)) / 100;
  const size_t capacity = kKeys * static_cast<size_t>(state.range(1)) / 100;
  for (auto _ : state) {
    Trace trace(exponent, static_cast<Kind>(state.range(2)));
    std::vector<std::unique_ptr<Cache>> caches;
    for (const Replacement replacement : {Replacement::kDefault, Replacement::kLru, Replacement::kLfu}) {
      caches.push_back(std::make_unique<Cache>(replacement, capacity, trace.num_keys()));
    }
    for (int batch = 0; batch < kWarmBatches + kBatches; ++batch) {
      const std::vector<uint32_t> keys = trace.Next();
      for (auto& cache : caches) cache->Use(keys, batch >= kWarmBatches);
    }
    state.counters["default"] = caches[0]->hit_percent();
    state.counters["lru"] = caches[1]->hit_percent();
    state.counters["lfu"] = caches[2]->hit_percent();
    state.counters["over_lru"] = caches[0]->hit_percent() - caches[1]->hit_percent();
    state.counters["ns_default"] = caches[0]->ns_per_use();
    state.counters["ns_lru"] = caches[1]->ns_per_use();
    state.counters["ns_lfu"] = caches[2]->ns_per_use();
  }
  state.SetLabel(kKindNames[state.range(2)]);
}
BENCHMARK(BM_Trace)
    ->ArgNames({"zipf", "cache", "trace"})
    ->ArgsProduct({{80, 99, 110}, {1, 5, 20}, {kStatic, kDrift, kOneShot}})
    ->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace multitier
