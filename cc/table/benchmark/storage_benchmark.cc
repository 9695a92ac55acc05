// Tables over real tiers in the working directory: reopening one (adopt), PMEM alone and DRAM alone, Flush, and lookups and
// training during a snapshot. Rows of 128 bytes (dim 16, Adagrad), batches of 16,384 keys, uniform.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/env/instance_dir.h"
#include "cc/table/api/embedding_table.h"
#include "cc/tier/leveldb/leveldb_tier.h"
#include "cc/tier/pmem/pmem_row_memory.h"
#include "cc/tier/pmem/pmem_tier.h"
#include "cc/tier/ssdhash/ssdhash_tier.h"

namespace multitier {
namespace {

constexpr int kDim = 16;
constexpr size_t kBatch = 16384;

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

struct Directory {
  Directory() {
    if (::mkdtemp(path.data()) == nullptr) std::abort();
  }
  ~Directory() { (void)RemoveDirectoryTree(path); }
  std::string path = "storage_benchmark_XXXXXX";
};

std::shared_ptr<Tier> Open(const std::string& type, const std::string& directory, bool recover) {
  if (type == "ssdhash") {
    SsdHashOptions options;
    options.directory = directory;
    options.keep = true;
    options.recover = recover;
    return *SsdHashTier::Open(options);
  }
  if (type == "leveldb") {
    LevelDbOptions options;
    options.directory = directory;
    return *LevelDbTier::Open(options);
  }
  PmemOptions options;
  options.directory = directory;
  return *PmemTier::Open(options);
}

TableOptions Options(std::shared_ptr<Tier> tier) {
  TableOptions options;
  options.dim = kDim;
  options.initializer.kind = InitializerKind::kConstant;
  ColumnSpec slot;
  slot.name = "accumulator";
  slot.dim = kDim;
  options.slots.push_back(slot);
  if (tier != nullptr) options.lower_tiers.push_back({std::move(tier), 0});
  return options;
}

void Train(EmbeddingTable* table, const std::vector<int64_t>& keys) {
  static const std::vector<float> grads(kBatch * kDim, 0.01f);
  ApplyRequest request;
  request.keys = keys;
  request.grads = grads.data();
  request.rule = *FindUpdateRule("adagrad");
  request.slot_columns = {"accumulator"};
  for (size_t i = 0; i < request.rule->hyperparameters().size(); ++i) request.hyper.push_back(0.1f);
  request.global_step = 1;
  Must(table->Apply(request));
}

void Fill(EmbeddingTable* table, int64_t rows) {
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < rows; ++key) {
    keys.push_back(key);
    if (keys.size() < kBatch && key + 1 < rows) continue;
    Train(table, keys);
    keys.clear();
  }
}

// Flush, close, and open again. Counters: rows/s of each.
void Reopen(benchmark::State& state, const std::string& type) {
  const int64_t rows = state.range(0);
  Directory directory;
  for (auto _ : state) {
    TableOptions options = Options(Open(type, directory.path, false));
    options.dram_budget_bytes = static_cast<uint64_t>(rows) * 128 / 4;
    auto table = *EmbeddingTable::Create(options);
    Fill(table.get(), rows);
    const auto seconds = [last = std::chrono::steady_clock::now()]() mutable {
      const auto now = std::chrono::steady_clock::now();
      const double elapsed = std::chrono::duration<double>(now - last).count();
      last = now;
      return elapsed;
    };
    auto lap = seconds;
    lap();
    Must(table->Flush());
    state.counters["flush_s"] = lap();
    table.reset();
    options.lower_tiers.clear();
    lap();
    options.lower_tiers.push_back({Open(type, directory.path, true), 0});
    const double tier = lap();
    options.adopt = true;
    table = *EmbeddingTable::Create(options);
    const double adopt = lap();
    if (table->TotalCount() != rows) std::abort();
    state.counters["tier_rows_per_s"] = static_cast<double>(rows) / tier;
    state.counters["adopt_rows_per_s"] = static_cast<double>(rows) / adopt;
    state.counters["rows_per_s"] = static_cast<double>(rows) / (tier + adopt);
    state.counters["index_bytes_per_key"] = static_cast<double>(table->Stats().index_bytes) / static_cast<double>(rows);
  }
}
void BM_ReopenSsdHash(benchmark::State& state) { Reopen(state, "ssdhash"); }
BENCHMARK(BM_ReopenSsdHash)->Arg(2000000)->Iterations(1)->Unit(benchmark::kMillisecond);

// Lookups and applies at random, every row in the one tier there is.
enum class Where { kDram, kPmemInPlace, kPmemCopied };
void OneTier(benchmark::State& state, Where where, bool train) {
  constexpr int64_t kRows = 1000000;
  Directory directory;
  TableOptions options = Options(where == Where::kPmemCopied ? Open("pmem", directory.path, false) : nullptr);
  options.dram_named = where != Where::kPmemCopied;
  if (where == Where::kPmemInPlace) options.row_memory = *PmemRowMemory::Open(directory.path);
  auto table = *EmbeddingTable::Create(options);
  Fill(table.get(), kRows);
  std::mt19937_64 random(1);
  std::vector<int64_t> keys(kBatch);
  std::vector<float> out(kBatch * kDim);
  for (auto _ : state) {
    for (int64_t& key : keys) key = static_cast<int64_t>(random() % kRows);
    if (train) {
      Train(table.get(), keys);
    } else {
      Must(table->Lookup(keys, out.data()));
    }
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kBatch));
}
void BM_LookupDram(benchmark::State& state) { OneTier(state, Where::kDram, false); }
void BM_LookupPmem(benchmark::State& state) { OneTier(state, Where::kPmemInPlace, false); }
void BM_LookupPmemCopied(benchmark::State& state) { OneTier(state, Where::kPmemCopied, false); }
void BM_ApplyDram(benchmark::State& state) { OneTier(state, Where::kDram, true); }
void BM_ApplyPmem(benchmark::State& state) { OneTier(state, Where::kPmemInPlace, true); }
void BM_ApplyPmemCopied(benchmark::State& state) { OneTier(state, Where::kPmemCopied, true); }
BENCHMARK(BM_LookupDram)->Iterations(60)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_LookupPmem)->Iterations(60)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_LookupPmemCopied)->Iterations(60)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_ApplyDram)->Iterations(60)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_ApplyPmem)->Iterations(60)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_ApplyPmemCopied)->Iterations(60)->Unit(benchmark::kMicrosecond);

// How long a lookup, and a step of training, takes at most during a snapshot whose visitor takes 50 ms a chunk of 64 Ki rows,
// as a disk would. A lookup waits while the moment is marked; a step waits for the visitor, too, where it
// changes rows faster than those are taken. Counters: the longest without and with the snapshot, and the seconds of that.
void SnapshotPause(benchmark::State& state, bool ssdhash) {
  constexpr int64_t kRows = 2000000;
  Directory directory;
  for (auto _ : state) {
    TableOptions options = Options(ssdhash ? Open("ssdhash", directory.path, false) : nullptr);
    if (ssdhash) options.dram_budget_bytes = static_cast<uint64_t>(kRows) * 128 / 4;
    auto table = *EmbeddingTable::Create(options);
    Fill(table.get(), kRows);
    using Clock = std::chrono::steady_clock;
    const auto seconds_since = [](Clock::time_point from) {
      return std::chrono::duration<double>(Clock::now() - from).count();
    };
    std::mt19937_64 random(1);
    std::vector<int64_t> keys(kBatch);
    std::vector<float> out(kBatch * kDim);
    const auto longest = [&](bool train, const std::function<bool()>& goes_on) {
      double most = 0;
      while (goes_on()) {
        for (int64_t& key : keys) key = static_cast<int64_t>(random() % kRows);
        const auto begun = Clock::now();
        train ? Train(table.get(), keys) : Must(table->Lookup(keys, out.data()));
        most = std::max(most, seconds_since(begun));
      }
      return most;
    };
    for (const bool train : {false, true}) {
      const std::string what = train ? "step" : "lookup";
      int operations = 100;
      state.counters[what + "_ms"] = 1e3 * longest(train, [&] { return --operations > 0; });
      std::atomic<bool> saved{false};
      double took = 0;
      std::thread saver([&] {
        const auto begun = Clock::now();
        Must(table->TakeSnapshot(true, 64 << 10, [](Rows*) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          return OkStatus();
        }));
        took = seconds_since(begun);
        saved = true;
      });
      state.counters[what + "_during_snapshot_ms"] = 1e3 * longest(train, [&] { return !saved; });
      saver.join();
      state.counters["snapshot_s"] = took;
    }
  }
}
void BM_SnapshotPauseDram(benchmark::State& state) { SnapshotPause(state, false); }
void BM_SnapshotPauseSsdHash(benchmark::State& state) { SnapshotPause(state, true); }
BENCHMARK(BM_SnapshotPauseDram)->Iterations(1)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_SnapshotPauseSsdHash)->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace multitier
