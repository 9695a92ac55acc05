// Rows per second of LevelDbTier: batches written, and batches read at random.
//
// Arguments of the reads: threads in addition to the calling one, and whether the page cache is dropped before (1: cold; the
// files' pages are dropped with posix_fadvise, so each block comes from the device).

#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/env/instance_dir.h"
#include "cc/row/row_layout.h"
#include "cc/tier/leveldb/leveldb_tier.h"

namespace multitier {
namespace {

constexpr size_t kBatch = 16384;
constexpr int64_t kRows = 2000000;

// A tier with kRows rows of 128 bytes in table files, in a directory of its own.
struct FilledTier {
  explicit FilledTier(int helpers) {
    std::string pattern = "leveldb_benchmark_XXXXXX";
    options.directory = ::mkdtemp(pattern.data());
    options.read_helpers = helpers;
    tier = *LevelDbTier::Open(options);
    layout = std::make_shared<const RowLayout>(*RowLayout::Create(32, DType::kFloat32));
    if (!tier->SetLayout(layout).ok()) std::abort();
  }
  ~FilledTier() {
    tier.reset();
    (void)RemoveDirectoryTree(options.directory);
  }
  // Writes n rows from the given one on, keys scattered.
  void Write(int64_t first, int64_t n) {
    std::vector<uint8_t> row(layout->row_bytes(), 7);
    std::vector<WriteRecord> batch;
    std::vector<uint32_t> batch_locations(kBatch);
    for (int64_t i = first; i < first + n; ++i) {
      WriteRecord record;
      record.header.key = Key(i);
      record.header.num_columns = 1;
      record.row_data = row.data();
      batch.push_back(record);
      if (batch.size() < kBatch && i + 1 < first + n) continue;
      if (!tier->Write(batch, batch_locations.data()).ok()) std::abort();
      locations.insert(locations.end(), batch_locations.begin(), batch_locations.begin() + static_cast<int64_t>(batch.size()));
      batch.clear();
    }
  }
  static int64_t Key(int64_t i) { return static_cast<int64_t>(static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u); }

  LevelDbOptions options;
  std::shared_ptr<const RowLayout> layout;
  std::unique_ptr<LevelDbTier> tier;
  std::vector<uint32_t> locations;
};

void BM_Write(benchmark::State& state) {
  FilledTier filled(0);
  int64_t first = 0;
  for (auto _ : state) {
    filled.Write(first, kBatch);
    first += kBatch;
  }
  state.SetItemsProcessed(first);
  state.counters["stored_per_row"] = static_cast<double>(filled.tier->stats().stored_bytes) / static_cast<double>(first);
}
BENCHMARK(BM_Write)->Iterations(60)->UseRealTime()->Unit(benchmark::kMillisecond);

void BM_Read(benchmark::State& state) {
  static std::unique_ptr<FilledTier> filled;
  static int64_t made_for = -1;
  if (made_for != state.range(0)) {
    filled.reset();
    filled = std::make_unique<FilledTier>(static_cast<int>(state.range(0)));
    filled->Write(0, kRows);
    filled->tier->database()->CompactRange(nullptr, nullptr);
    made_for = state.range(0);
  }
  std::mt19937_64 random(1);
  const size_t n = state.range(1) != 0 ? kBatch / 4 : kBatch;
  std::vector<std::vector<uint8_t>> rows(n, std::vector<uint8_t>(filled->layout->row_bytes()));
  std::vector<ReadRecord> batch(n);
  for (auto _ : state) {
    state.PauseTiming();
    for (const auto& file : std::filesystem::directory_iterator(filled->options.directory)) {
      if (state.range(1) == 0) break;
      const int fd = ::open(file.path().c_str(), O_RDONLY);
      ::fdatasync(fd);
      ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      ::close(fd);
    }
    for (size_t i = 0; i < n; ++i) {
      const size_t row = random() % kRows;
      batch[i].key = FilledTier::Key(static_cast<int64_t>(row));
      batch[i].location = filled->locations[row];
      batch[i].row_data = rows[i].data();
    }
    state.ResumeTiming();
    if (!filled->tier->Read(Span<ReadRecord>(batch)).ok() || !batch[0].status.ok()) std::abort();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(n));
}
BENCHMARK(BM_Read)
    ->Args({0, 0})
    ->Args({0, 1})
    ->Args({1, 0})
    ->Args({1, 1})
    ->Args({3, 0})
    ->Args({3, 1})
    ->Args({7, 0})
    ->Args({7, 1})
    ->Iterations(6)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace multitier
