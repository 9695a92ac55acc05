// Compares the hit rates of a real table, DRAM over a tier in memory, with exact LRU of as many rows on the same batches.
//
//   hit_rate [zipf=1.05] [cache_percent=5] [drift=none|slow|fast|one-shot] [keys=6600000] [batch=65536] [warm=150]
//            [batches=100]
//   hit_rate trace=FILE cache_percent=5 keys=N ...    batches of 64-bit keys, as they lie in the file
//
// A batch of draws is looked up and trained, as a step does; the table demotes in the background and is drained after each, so
// that it holds no more than its low watermark. A hit is a key of the batch, counted once, that is in DRAM when the batch
// begins. A trace:
//   none       the same Zipf distribution throughout
//   slow, fast 100 or 2,000 keys, drawn by it, swap ranks with random ones before each batch
//   one-shot   a fifth of the draws are keys that never come again
// Prints one line of JSON.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <unordered_map>

#include "cc/base/hash.h"
#include "cc/table/api/embedding_table.h"
#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier {
namespace {

struct Work {
  double zipf = 1.05, cache_percent = 5;
  std::string drift = "none", trace;
  uint64_t keys = 6600000, batch = 65536, warm = 150, batches = 100;

  bool Set(const std::string& flag) {
    const size_t at = flag.find('=');
    if (at == std::string::npos) return false;
    const std::string name = flag.substr(0, at), value = flag.substr(at + 1);
    if (name == "zipf")
      zipf = std::atof(value.c_str());
    else if (name == "cache_percent")
      cache_percent = std::atof(value.c_str());
    else if (name == "drift")
      drift = value;
    else if (name == "trace")
      trace = value;
    else if (name == "keys")
      keys = std::strtoull(value.c_str(), nullptr, 10);
    else if (name == "batch")
      batch = std::strtoull(value.c_str(), nullptr, 10);
    else if (name == "warm")
      warm = std::strtoull(value.c_str(), nullptr, 10);
    else if (name == "batches")
      batches = std::strtoull(value.c_str(), nullptr, 10);
    else
      return false;
    return true;
  }
};

// Batches of keys.
class Draws {
 public:
  explicit Draws(const Work& work) : work_(work), power_(1 - work.zipf) {
    if (!work.trace.empty()) {
      file_ = std::fopen(work.trace.c_str(), "rb");
      if (file_ == nullptr) std::abort();
      return;
    }
    swaps_ = work.drift == "slow" ? 100 : work.drift == "fast" ? 2000 : 0;
    if (swaps_ == 0) return;
    id_of_rank_.resize(work.keys);
    std::iota(id_of_rank_.begin(), id_of_rank_.end(), 0u);
  }
  ~Draws() {
    if (file_ != nullptr) std::fclose(file_);
  }

  // False at the end of a file.
  bool Next(std::vector<int64_t>* keys) {
    keys->resize(work_.batch);
    if (file_ != nullptr) return std::fread(keys->data(), 8, keys->size(), file_) == keys->size();
    for (int i = 0; i < swaps_; ++i) std::swap(id_of_rank_[Rank()], id_of_rank_[random_() % work_.keys]);
    const bool one_shot = work_.drift == "one-shot";
    for (int64_t& key : *keys) {
      uint64_t id = one_shot && random_() % 5 == 0 ? work_.keys + next_fresh_++ : Rank();
      if (swaps_ > 0) id = id_of_rank_[id];
      key = static_cast<int64_t>(HashKey(static_cast<int64_t>(id)));
    }
    return true;
  }

 private:
  uint64_t Rank() {
    const double u = static_cast<double>(random_() >> 11) * 0x1p-53, n = static_cast<double>(work_.keys);
    const double rank = std::pow((std::pow(n + 1, power_) - 1) * u + 1, 1 / power_);
    return std::min(work_.keys - 1, static_cast<uint64_t>(rank) - 1);
  }

  const Work& work_;
  const double power_;
  FILE* file_ = nullptr;
  int swaps_ = 0;
  std::vector<uint32_t> id_of_rank_;
  uint64_t next_fresh_ = 0;
  std::mt19937_64 random_{1};
};

// Exact LRU by the last occurrence, trimmed to its capacity at the end of each batch.
class Lru {
 public:
  explicit Lru(size_t capacity) : capacity_(capacity) {
    nodes_.resize(1);  // the ring's head
    place_.reserve(2 * capacity);
  }
  // How many of the unique keys were there.
  int64_t Use(const std::vector<int64_t>& keys) {
    int64_t hits = 0;
    const uint32_t batch = ++batch_;
    for (const int64_t key : keys) {
      auto [it, fresh] = place_.try_emplace(key, 0);
      if (fresh) {
        if (free_.empty()) {
          free_.push_back(static_cast<uint32_t>(nodes_.size()));
          nodes_.emplace_back();
        }
        it->second = free_.back();
        free_.pop_back();
        nodes_[it->second].key = key;
      } else {
        hits += nodes_[it->second].batch != batch;
        Unlink(it->second);
      }
      nodes_[it->second].batch = batch;
      LinkLast(it->second);
    }
    while (place_.size() > capacity_) {
      const uint32_t first = nodes_[0].next;
      Unlink(first);
      place_.erase(nodes_[first].key);
      free_.push_back(first);
    }
    return hits;
  }

 private:
  struct Node {
    int64_t key = 0;
    uint32_t previous = 0, next = 0, batch = 0;
  };
  void Unlink(uint32_t at) {
    nodes_[nodes_[at].previous].next = nodes_[at].next;
    nodes_[nodes_[at].next].previous = nodes_[at].previous;
  }
  void LinkLast(uint32_t at) {
    const uint32_t last = nodes_[0].previous;
    nodes_[at].previous = last;
    nodes_[at].next = 0;
    nodes_[last].next = at;
    nodes_[0].previous = at;
  }

  const size_t capacity_;
  std::vector<Node> nodes_;
  std::vector<uint32_t> free_;
  std::unordered_map<int64_t, uint32_t> place_;
  uint32_t batch_ = 0;
};

// Keys of the batch that were not in DRAM, so far.
int64_t Missed(const EmbeddingTable& table) {
  const TableStats stats = table.Stats();
  return stats.tiers[1].promotions + stats.created;
}

Status Run(const Work& work) {
  const size_t capacity = static_cast<size_t>(static_cast<double>(work.keys) * work.cache_percent / 100);
  TableOptions options;
  options.dim = 4;
  options.initializer.kind = InitializerKind::kConstant;
  options.dram_budget_bytes = capacity * 16;
  options.lower_tiers.push_back(LowerTierOptions{std::make_shared<MemoryTier>(), 0});
  MT_ASSIGN_OR_RETURN(const std::unique_ptr<EmbeddingTable> table, EmbeddingTable::Create(options));
  Lru lru(capacity);
  Draws draws(work);
  std::vector<int64_t> keys, unique;
  std::vector<float> out(work.batch * 4);
  const std::vector<float> grads(work.batch * 4, 0.0f);
  ApplyRequest request;
  request.grads = grads.data();
  request.rule = *FindUpdateRule("sgd");
  request.hyper = {1.0f};
  int64_t all = 0, hits = 0, lru_hits = 0;
  uint64_t done = 0;
  for (uint64_t b = 0; b < work.warm + work.batches && draws.Next(&keys); ++b) {
    unique = keys;
    std::sort(unique.begin(), unique.end());
    unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
    const int64_t n = static_cast<int64_t>(unique.size()), before = Missed(*table);
    MT_RETURN_IF_ERROR(table->Lookup(keys, out.data()));
    request.keys = keys;
    MT_RETURN_IF_ERROR(table->Apply(request));
    const int64_t missed = Missed(*table) - before;
    MT_RETURN_IF_ERROR(table->Drain());
    const int64_t lru_hit = lru.Use(keys);
    if (b < work.warm) continue;
    ++done;
    all += n;
    hits += n - missed;
    lru_hits += lru_hit;
  }
  const auto percent = [&](int64_t part) {
    return 100.0 * static_cast<double>(part) / static_cast<double>(std::max<int64_t>(all, 1));
  };
  std::printf(
      "{\"zipf\":%g,\"cache_percent\":%g,\"drift\":\"%s\",\"trace\":\"%s\",\"rows\":%zu,\"batches\":%llu,"
      "\"unique\":%.0f,\"table\":%.2f,\"lru\":%.2f,\"over_lru\":%.2f}\n",
      work.zipf, work.cache_percent, work.drift.c_str(), work.trace.c_str(), capacity, static_cast<unsigned long long>(done),
      static_cast<double>(all) / static_cast<double>(std::max<uint64_t>(done, 1)), percent(hits), percent(lru_hits),
      percent(hits - lru_hits));
  return OkStatus();
}

}  // namespace
}  // namespace multitier

int main(int argc, char** argv) {
  multitier::Work work;
  for (int i = 1; i < argc; ++i) {
    if (work.Set(argv[i])) continue;
    std::fprintf(stderr, "expected name=value with a known name, found '%s'\n", argv[i]);
    return 1;
  }
  const multitier::Status status = multitier::Run(work);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
