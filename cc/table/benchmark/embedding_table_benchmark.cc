// Cost of the engine per key, on one thread: dim 16 with an Adagrad slot, uniform keys, batches of 65,536.
//
//   BM_Lookup/ROWS         lookup of keys that are there
//   BM_Apply/ROWS          Adagrad on keys that are there
//   BM_TieredLookup/ROWS   the same over a lower tier, every row resident: what tiers cost where they are not needed
//   BM_TieredApply/ROWS
//   BM_TieredZipf          Adagrad on Zipf keys (1.05) of 1 M rows, a tenth of them in DRAM over a tier in memory
//   BM_Insert/KIND         Adagrad on keys that are not, from an empty table to 4 M rows: growth and first touch included
//   BM_Fill/ROWS           the same from an empty table to ROWS rows, uniform initializer
//   BM_FirstTouch          what the machine charges for the memory of BM_Insert alone
//   BM_Memory/ROWS         bytes a row in addition to the row data, from the process's resident set

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "cc/base/hash.h"
#include "cc/table/api/embedding_table.h"
#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier {
namespace {

constexpr int kDim = 16;
constexpr int64_t kBatch = 65536;

int64_t KeyOfRank(uint64_t rank) { return static_cast<int64_t>(Mix64(rank + 12345)); }

InitializerSpec InitializerOf(InitializerKind kind) {
  InitializerSpec spec;
  spec.kind = kind;
  spec.a = kind == InitializerKind::kUniform ? -0.05f : 0.0f;
  spec.b = 0.05f;
  spec.seed = 7;
  return spec;
}

std::unique_ptr<EmbeddingTable> NewTable(InitializerKind kind, int64_t dram_rows = 0) {
  TableOptions options;
  if (dram_rows > 0) {  // over a lower tier
    options.dram_budget_bytes = static_cast<uint64_t>(dram_rows) * 2 * kDim * sizeof(float);
    options.lower_tiers.push_back({std::make_shared<MemoryTier>(), 0});
  }
  options.dim = kDim;
  options.initializer = InitializerOf(kind);
  ColumnSpec slot;
  slot.name = "accumulator";
  slot.dim = kDim;
  slot.initial_value = 0.1f;
  options.slots.push_back(slot);
  auto table = EmbeddingTable::Create(options);
  if (!table.ok()) std::abort();
  return *std::move(table);
}

void Train(EmbeddingTable* table, const std::vector<int64_t>& keys, const std::vector<float>& grads) {
  static const UpdateRule* const rule = *FindUpdateRule("adagrad");
  ApplyRequest request;
  request.keys = keys;
  request.grads = grads.data();
  request.rule = rule;
  request.slot_columns = {"accumulator"};
  request.hyper.assign(rule->hyperparameters().size(), 0.0f);
  request.hyper[0] = 0.1f;
  if (!table->Apply(request).ok()) std::abort();
}

std::vector<float> SomeGradients() {
  std::vector<float> grads(kBatch * kDim);
  for (size_t i = 0; i < grads.size(); ++i) grads[i] = 0.001f * static_cast<float>(i % 97);
  return grads;
}

// The table of the benchmark before, if it has the rows wanted, or has fewer and grows; else another.
std::unique_ptr<EmbeddingTable> held;
int64_t held_rows = 0;
bool held_tiered = false;

EmbeddingTable* FilledTable(int64_t rows, bool tiered = false) {
  if (held_rows > rows || held_tiered != tiered) held.reset();
  if (held == nullptr) {
    held = NewTable(InitializerKind::kUniform, tiered ? int64_t{64} << 20 : 0);
    held_rows = 0;
    held_tiered = tiered;
  }
  const std::vector<float> grads = SomeGradients();
  std::vector<int64_t> keys;
  for (; held_rows < rows; held_rows += static_cast<int64_t>(keys.size())) {
    keys.clear();
    for (int64_t i = held_rows; i < std::min(rows, held_rows + kBatch); ++i) keys.push_back(KeyOfRank(i));
    Train(held.get(), keys, grads);
  }
  return held.get();
}

void ManySizes(benchmark::internal::Benchmark* benchmark) {
  for (const int64_t millions : {1, 2, 5, 10, 20, 40}) benchmark->Arg(millions << 20);
}

std::vector<std::vector<int64_t>> UniformBatches(int64_t rows) {
  std::mt19937_64 random(3);
  std::vector<std::vector<int64_t>> batches(16, std::vector<int64_t>(kBatch));
  for (auto& batch : batches) {
    for (int64_t& key : batch) key = KeyOfRank(random() % rows);
  }
  return batches;
}

void ReportPerKey(benchmark::State& state) {
  state.SetItemsProcessed(state.iterations() * kBatch);
  state.counters["ns/key"] = benchmark::Counter(static_cast<double>(state.iterations() * kBatch) * 1e-9,
                                                benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void Lookups(benchmark::State& state, bool tiered) {
  EmbeddingTable* table = FilledTable(state.range(0), tiered);
  const auto batches = UniformBatches(state.range(0));
  std::vector<float> out(kBatch * kDim);
  size_t i = 0;
  for (auto _ : state) {
    if (!table->Lookup(batches[i++ % batches.size()], out.data()).ok()) std::abort();
    benchmark::DoNotOptimize(out.data());
  }
  ReportPerKey(state);
}

void BM_Lookup(benchmark::State& state) { Lookups(state, false); }
BENCHMARK(BM_Lookup)->Apply(ManySizes)->Unit(benchmark::kMillisecond);

void Applies(benchmark::State& state, bool tiered) {
  EmbeddingTable* table = FilledTable(state.range(0), tiered);
  const auto batches = UniformBatches(state.range(0));
  const std::vector<float> grads = SomeGradients();
  size_t i = 0;
  for (auto _ : state) Train(table, batches[i++ % batches.size()], grads);
  ReportPerKey(state);
}

void BM_Apply(benchmark::State& state) { Applies(state, false); }
BENCHMARK(BM_Apply)->Apply(ManySizes)->Unit(benchmark::kMillisecond);

void BM_TieredLookup(benchmark::State& state) { Lookups(state, true); }
BENCHMARK(BM_TieredLookup)->Arg(1 << 20)->Arg(10 << 20)->Unit(benchmark::kMillisecond);

void BM_TieredApply(benchmark::State& state) { Applies(state, true); }
BENCHMARK(BM_TieredApply)->Arg(1 << 20)->Arg(10 << 20)->Unit(benchmark::kMillisecond);

void BM_TieredZipf(benchmark::State& state) {
  constexpr int64_t kRows = 1 << 20;
  auto table = NewTable(InitializerKind::kUniform, kRows / 10);
  std::vector<double> sums(kRows);
  double sum = 0;
  for (int64_t i = 0; i < kRows; ++i) sums[i] = sum += std::pow(static_cast<double>(i + 1), -1.05);
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> uniform(0, sum);
  std::vector<std::vector<int64_t>> batches(32, std::vector<int64_t>(kBatch));
  for (auto& batch : batches) {
    for (int64_t& key : batch) key = KeyOfRank(std::lower_bound(sums.begin(), sums.end(), uniform(random)) - sums.begin());
  }
  const std::vector<float> grads = SomeGradients();
  for (const auto& batch : batches) Train(table.get(), batch, grads);
  const TableStats before = table->Stats();
  size_t i = 0;
  for (auto _ : state) Train(table.get(), batches[i++ % batches.size()], grads);
  const TableStats after = table->Stats();
  const double hits = static_cast<double>(after.tiers[0].hits - before.tiers[0].hits);
  const double misses = static_cast<double>(after.tiers[1].hits - before.tiers[1].hits);
  state.counters["hit rate"] = hits / (hits + misses);
  ReportPerKey(state);
}
BENCHMARK(BM_TieredZipf)->Unit(benchmark::kMillisecond);

void BM_Insert(benchmark::State& state) {
  constexpr int64_t kBatches = 64;  // 4 M rows
  const std::vector<float> grads = SomeGradients();
  std::vector<int64_t> keys(kBatch);
  for (auto _ : state) {
    auto table = NewTable(static_cast<InitializerKind>(state.range(0)));
    for (int64_t b = 0; b < kBatches; ++b) {
      state.PauseTiming();
      for (int64_t i = 0; i < kBatch; ++i) keys[i] = KeyOfRank(b * kBatch + i);
      state.ResumeTiming();
      Train(table.get(), keys, grads);
    }
    state.PauseTiming();
    table.reset();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * kBatch * kBatches);
  state.counters["ns/key"] = benchmark::Counter(static_cast<double>(state.iterations() * kBatch * kBatches) * 1e-9,
                                                benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_Insert)
    ->ArgName("initializer")
    ->Arg(static_cast<int>(InitializerKind::kConstant))
    ->Arg(static_cast<int>(InitializerKind::kUniform))
    ->Arg(static_cast<int>(InitializerKind::kTruncatedNormal))
    ->Unit(benchmark::kMillisecond)
    ->Iterations(2);

void BM_Fill(benchmark::State& state) {
  const int64_t rows = state.range(0) / kBatch * kBatch;
  const std::vector<float> grads = SomeGradients();
  std::vector<int64_t> keys(kBatch);
  held.reset();  // gives its memory back
  for (auto _ : state) {
    auto table = NewTable(InitializerKind::kUniform);
    for (int64_t from = 0; from < rows; from += kBatch) {
      state.PauseTiming();
      for (int64_t i = 0; i < kBatch; ++i) keys[i] = KeyOfRank(from + i);
      state.ResumeTiming();
      Train(table.get(), keys, grads);
    }
    state.PauseTiming();
    state.counters["index bytes/key"] = static_cast<double>(table->Stats().index_bytes) / static_cast<double>(rows);
    table.reset();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * rows);
  state.counters["ns/key"] = benchmark::Counter(static_cast<double>(state.iterations() * rows) * 1e-9,
                                                benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_Fill)->Apply(ManySizes)->Unit(benchmark::kMillisecond)->Iterations(1);

// What the machine charges for the memory alone that BM_Insert takes: 4 M times a row with its header and its share of the
// index, on huge pages never touched before. On a virtual machine whose host takes free pages back it varies several times.
void BM_FirstTouch(benchmark::State& state) {
  constexpr int64_t kRows = 64 * kBatch;
  Env* const env = Env::Posix();
  const size_t bytes = static_cast<size_t>(kRows) * (2 * kDim * sizeof(float) + sizeof(RowHeader) + 22);
  for (auto _ : state) {
    char* pages = static_cast<char*>(env->AllocatePages(bytes, /*huge=*/true));
    if (pages == nullptr) std::abort();
    for (size_t i = 0; i < bytes; i += 4096) pages[i] = 1;
    benchmark::DoNotOptimize(pages);
    env->FreePages(pages, bytes);
  }
  state.counters["ns/key"] = benchmark::Counter(static_cast<double>(state.iterations() * kRows) * 1e-9,
                                                benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_FirstTouch)->Unit(benchmark::kMillisecond)->Iterations(2);

int64_t ResidentBytes() {
  long pages = 0, resident = 0;
  FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld %ld", &pages, &resident) != 2) std::abort();
  std::fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

void BM_Memory(benchmark::State& state) {
  for (auto _ : state) {
    const int64_t rows = state.range(0);
    const std::vector<float> grads = SomeGradients();
    std::vector<int64_t> keys(kBatch);
    auto table = NewTable(InitializerKind::kConstant);
    Train(table.get(), keys, grads);  // key 0, and the buffers of a batch
    const int64_t before = ResidentBytes();
    for (int64_t from = 0; from < rows; from += kBatch) {
      for (int64_t i = 0; i < kBatch; ++i) keys[i] = KeyOfRank(from + i);
      Train(table.get(), keys, grads);
    }
    const double total = static_cast<double>(ResidentBytes() - before) / static_cast<double>(rows);
    state.counters["bytes/row besides data"] = total - static_cast<double>(table->Stats().row_bytes);
    state.counters["index bytes/key"] = static_cast<double>(table->Stats().index_bytes) / static_cast<double>(rows);
  }
}
BENCHMARK(BM_Memory)->Arg(3 << 20)->Arg(6 << 20)->Arg(12 << 20)->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace multitier

BENCHMARK_MAIN();
