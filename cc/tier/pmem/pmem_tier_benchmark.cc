// Rows per second of PmemTier: batches written and read at random, 128-byte rows. The directory is
// PMEM_BENCHMARK_DIR (a DAX mount, tmpfs, any file system), else the working directory. PMEM_IS_PMEM_FORCE=1 takes the
// persistent-memory path.

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/env/instance_dir.h"
#include "cc/row/row_layout.h"
#include "cc/tier/pmem/pmem_tier.h"

namespace multitier {
namespace {

constexpr size_t kBatch = 16384;
constexpr size_t kRows = 1 << 21;

class FilledTier {
 public:
  FilledTier() {
    const char* parent = std::getenv("PMEM_BENCHMARK_DIR");
    options_.directory = StrCat(parent != nullptr ? parent : ".", "/pmem_benchmark_XXXXXX");
    if (::mkdtemp(options_.directory.data()) == nullptr) std::abort();
    tier_ = *PmemTier::Open(options_);
    layout_ = std::make_shared<const RowLayout>(*RowLayout::Create(32, DType::kFloat32));
    if (!tier_->SetLayout(layout_).ok()) std::abort();
  }
  ~FilledTier() {
    tier_.reset();
    (void)RemoveDirectoryTree(options_.directory);
  }

  void WriteBatch() {
    std::vector<WriteRecord> batch(kBatch);
    for (WriteRecord& record : batch) {
      record.header.key = static_cast<int64_t>(rows());
      record.header.num_columns = 1;
      record.row_data = row_.data();
      locations_.push_back(0);
    }
    if (!tier_->Write(batch, locations_.data() + rows() - kBatch).ok()) std::abort();
  }
  size_t rows() const { return locations_.size(); }
  PmemTier* tier() { return tier_.get(); }
  uint32_t location(size_t row) const { return locations_[row]; }
  size_t row_bytes() const { return layout_->row_bytes(); }

 private:
  PmemOptions options_;
  std::unique_ptr<PmemTier> tier_;
  std::shared_ptr<const RowLayout> layout_;
  std::vector<uint32_t> locations_;
  std::vector<uint8_t> row_ = std::vector<uint8_t>(128, 7);
};

void BM_Write(benchmark::State& state) {
  FilledTier filled;
  for (auto _ : state) filled.WriteBatch();
  state.SetItemsProcessed(static_cast<int64_t>(filled.rows()));
}
BENCHMARK(BM_Write)->Iterations(100)->UseRealTime()->Unit(benchmark::kMillisecond);

void BM_Read(benchmark::State& state) {
  FilledTier filled;
  while (filled.rows() < kRows) filled.WriteBatch();
  std::mt19937_64 random(1);
  std::vector<uint8_t> rows(kBatch * filled.row_bytes());
  std::vector<ReadRecord> batch(kBatch);
  for (auto _ : state) {
    for (size_t i = 0; i < kBatch; ++i) {
      batch[i].location = filled.location(random() % kRows);
      batch[i].row_data = rows.data() + i * filled.row_bytes();
    }
    if (!filled.tier()->Read(Span<ReadRecord>(batch)).ok() || !batch[0].status.ok()) std::abort();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kBatch));
}
BENCHMARK(BM_Read)->Iterations(100)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace multitier
