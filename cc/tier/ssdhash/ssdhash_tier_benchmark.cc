// Rows of 128 bytes. Files go under $MT_BENCH_DIR (default /tmp), rows in $MT_BENCH_ROWS (default 4,000,000).
//
//   Demote      Write of batches of 4,096 new rows
//   Overwrite   Write of random keys and Free of their older rows, compaction inline: write amplification, space
//   MissRead    Read of batches of random rows; RawRead the same number of random 4 KiB blocks through the BatchReader alone
//   Reopen      Open with recovery, then Scan

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/hash.h"
#include "cc/tier/ssdhash/ssdhash_tier.h"

namespace multitier {
namespace {

constexpr size_t kBatch = 4096;

int64_t NumRows() {
  const char* text = std::getenv("MT_BENCH_ROWS");
  return text == nullptr ? 4000000 : std::atoll(text);
}

std::string Directory(const char* name) {
  const char* base = std::getenv("MT_BENCH_DIR");
  return StrCat(base == nullptr ? "/tmp" : base, "/ssd_benchmark_", static_cast<int>(::getpid()), "_", name);
}

// A tier of rows 0 ... rows-1, and where they are.
struct Filled {
  explicit Filled(const char* name, SsdHashOptions options = SsdHashOptions()) {
    options.directory = Directory(name);
    MT_CHECK(Env::Posix()->CreateDir(options.directory).ok());
    Result<std::unique_ptr<SsdHashTier>> opened = SsdHashTier::Open(options);
    MT_CHECK(opened.ok());
    tier = *std::move(opened);
    MT_CHECK(tier->SetLayout(std::make_shared<const RowLayout>(*RowLayout::Create(32, DType::kFloat32))).ok());
    tier->SetRelocator([this](Span<Relocation> batch) {
      for (Relocation& record : batch) {
        uint32_t& location = locations[static_cast<size_t>(record.key)];
        if (location != record.from) continue;
        location = record.to;
        record.moved = true;
      }
    });
    data.assign(kBatch * 128, 1);
  }

  void Put(const std::vector<int64_t>& keys) {
    records.resize(keys.size());
    out.resize(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      records[i].header = RecordHeader{keys[i], 1, 1, 1};
      records[i].row_data = data.data() + i * 128;
    }
    MT_CHECK(tier->Write(records, out.data()).ok());
    old.clear();
    for (size_t i = 0; i < keys.size(); ++i) {
      uint32_t& location = locations[static_cast<size_t>(keys[i])];
      if (location != kNoLocation) old.push_back({keys[i], location});
      location = out[i];
    }
    tier->Free(old);
  }
  void PutAll(int64_t rows) {
    locations.assign(static_cast<size_t>(rows), kNoLocation);
    std::vector<int64_t> keys;
    for (int64_t key = 0; key < rows; ++key) {
      keys.push_back(key);
      if (keys.size() < kBatch && key + 1 < rows) continue;
      Put(keys);
      keys.clear();
    }
  }

  std::unique_ptr<SsdHashTier> tier;
  std::vector<uint32_t> locations;
  std::vector<uint8_t> data;
  std::vector<WriteRecord> records;
  std::vector<uint32_t> out;
  std::vector<KeyLocation> old;
};

void Demote(benchmark::State& state) {
  for (auto _ : state) {
    state.PauseTiming();
    Filled filled("demote");
    state.ResumeTiming();
    filled.PutAll(NumRows());
    state.PauseTiming();
    filled.tier.reset();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * NumRows());
}
BENCHMARK(Demote)->Iterations(1)->UseRealTime()->Unit(benchmark::kMillisecond);

void Overwrite(benchmark::State& state) {
  SsdHashOptions options;
  options.async_compaction = state.range(0) != 0;
  Filled filled("overwrite", options);
  const int64_t rows = NumRows() / 2;
  filled.PutAll(rows);
  std::mt19937_64 random(1);
  std::vector<int64_t> keys;
  std::vector<uint8_t> in_batch(static_cast<size_t>(rows));
  const auto overwrite = [&](int64_t n) {
    for (int64_t done = 0; done < n; done += kBatch) {
      keys.clear();
      while (keys.size() < kBatch) {
        const int64_t key = static_cast<int64_t>(random() % static_cast<uint64_t>(rows));
        if (std::exchange(in_batch[static_cast<size_t>(key)], 1) == 0) keys.push_back(key);
      }
      for (const int64_t key : keys) in_batch[static_cast<size_t>(key)] = 0;
      filled.Put(keys);
    }
  };
  overwrite(2 * rows);  // to the steady state
  const TierStats before = filled.tier->stats();
  for (auto _ : state) overwrite(rows);
  const TierStats after = filled.tier->stats();
  state.SetItemsProcessed(state.iterations() * rows);
  state.counters["write_amplification"] = static_cast<double>(after.device_written_bytes - before.device_written_bytes) /
                                          static_cast<double>(after.appended_bytes - before.appended_bytes);
  state.counters["bytes_per_row"] = static_cast<double>(after.stored_bytes) / static_cast<double>(after.rows);
  state.counters["segments"] = static_cast<double>(after.segments);
}
BENCHMARK(Overwrite)->Arg(0)->Iterations(1)->UseRealTime()->Unit(benchmark::kMillisecond);

BatchReader::Kind KindOf(int64_t arg) { return arg == 0 ? BatchReader::Kind::kRing : BatchReader::Kind::kThreads; }

void MissRead(benchmark::State& state) {
  SsdHashOptions options;
  options.reader = KindOf(state.range(0));
  Filled filled("read", options);
  filled.PutAll(NumRows());
  MT_CHECK(filled.tier->Sync().ok());
  std::mt19937_64 random(7);
  const size_t n = static_cast<size_t>(state.range(1));
  std::vector<ReadRecord> batch(n);
  std::vector<uint8_t> rows(n * 128);
  for (auto _ : state) {
    for (size_t i = 0; i < n; ++i) {
      batch[i].key = static_cast<int64_t>(random() % static_cast<uint64_t>(NumRows()));
      batch[i].location = filled.locations[static_cast<size_t>(batch[i].key)];
      batch[i].row_data = rows.data() + i * 128;
    }
    MT_CHECK(filled.tier->Read(Span<ReadRecord>(batch)).ok());
    for (const ReadRecord& read : batch) MT_CHECK(read.status.ok() && read.header.key == read.key);
  }
  const TierStats stats = filled.tier->stats();
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(n));
  state.counters["reads"] = benchmark::Counter(static_cast<double>(stats.device_reads), benchmark::Counter::kIsRate);
}
BENCHMARK(MissRead)->Args({0, 16384})->Args({1, 16384})->Iterations(20)->UseRealTime()->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();

void RawRead(benchmark::State& state) {
  const std::string path = Directory("raw");
  std::unique_ptr<PositionedFile> file = *Env::Posix()->OpenPositionedFile(path, Env::OpenMode::kCreate, true);
  const uint64_t bytes = static_cast<uint64_t>(NumRows()) * 168 / 4096 * 4096;
  auto* page = static_cast<uint8_t*>(Env::Posix()->AllocatePages(1 << 20, false));
  for (uint64_t at = 0; at < bytes; at += 1 << 20) MT_CHECK(file->Write(at, page, 1 << 20).ok());
  Env::Posix()->FreePages(page, 1 << 20);
  std::unique_ptr<BatchReader> reader = *BatchReader::Create(KindOf(state.range(0)));
  std::mt19937_64 random(7);
  std::vector<BlockRead> reads(static_cast<size_t>(state.range(1)));
  for (auto _ : state) {
    for (BlockRead& read : reads) read = BlockRead{file.get(), random() % (bytes / 4096) * 4096, 4096};
    reader->Read(reads, [](size_t, const Status& status, const uint8_t*) { MT_CHECK(status.ok()); });
  }
  state.SetItemsProcessed(state.iterations() * state.range(1));
  (void)Env::Posix()->DeleteFile(path);
}
BENCHMARK(RawRead)->Args({0, 16384})->Args({1, 16384})->Iterations(20)->UseRealTime()->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();

void Reopen(benchmark::State& state) {
  SsdHashOptions options;
  options.keep = true;
  Filled filled("reopen", options);
  filled.PutAll(NumRows());
  filled.tier.reset();
  options.directory = Directory("reopen");
  options.recover = true;
  for (auto _ : state) {
    Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(options);
    MT_CHECK(tier.ok() && (*tier)->recovery().rows == NumRows());
    uint64_t sum = 0;
    MT_CHECK((*tier)->Scan([&](const RecordHeader& header, uint32_t location) {
                      sum += HashKey(header.key) ^ location;
                      return OkStatus();
                    }).ok());
    benchmark::DoNotOptimize(sum);
  }
  options.keep = false;
  MT_CHECK(SsdHashTier::Open(options).ok());
  state.SetItemsProcessed(state.iterations() * NumRows());
}
BENCHMARK(Reopen)->Iterations(2)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace multitier
