// Snapshot and Export: the whole table as of one moment, in chunks.
//
// The gate is closed and the tiers' relocators are taken back while it runs, so nothing moves: every word is as it was at the
// start. Rows in DRAM are given in the order of the index. Rows below are read in the order of their locations, as a device
// likes it, a pass for each range of locations that holds at most kPassRows of them: what a pass remembers is bounded, and it
// costs a walk over the index (8 bytes a key) beside the reading. Damaged ones are left out where on_corruption says so.

#include <algorithm>

#include "cc/table/table_impl.h"

namespace multitier {
namespace {

constexpr size_t kPassRows = 4u << 20;
constexpr int kBinShift = 20;  // locations are counted in bins of 1 Mi
constexpr size_t kBins = size_t{1} << (32 - kBinShift);
constexpr size_t kReadBytes = 4u << 20;

}  // namespace

class EmbeddingTable::Impl::Snapshot {
 public:
  Snapshot(Impl* table, bool all_columns, size_t max_rows, const std::function<Status(Rows*)>& visit)
      : table_(table), layout_(table->layout()), all_columns_(all_columns), max_rows_(max_rows), visit_(visit) {
    Begin();
  }

  // Damaged records met.
  int64_t corrupt() const { return corrupt_; }

  Status Run() {
    for (auto& shard : table_->shards_) MT_RETURN_IF_ERROR(InMemory(shard.get()));
    for (int level = 0; level < table_->levels_; ++level) MT_RETURN_IF_ERROR(Below(level));
    chunk_.applies = table_->applies_.load();
    if (table_->bloom_ != nullptr) chunk_.filter_counters = table_->bloom_->State();
    return visit_(&chunk_);
  }

 private:
  void Begin() {
    chunk_ = Rows();
    for (const Column& column : layout_->columns()) {
      chunk_.columns.push_back(column);
      if (!all_columns_) break;
    }
  }

  Status GiveWhereFull() {
    if (chunk_.keys.size() + chunk_.counted_keys.size() < max_rows_) return OkStatus();
    MT_RETURN_IF_ERROR(visit_(&chunk_));
    Begin();
    return OkStatus();
  }

  // Rows and counted keys of a shard that are in memory.
  Status InMemory(Shard* shard) {
    Status status;
    shard->index.ForEach([&](uint64_t word) {
      if (!status.ok()) return;
      const uint32_t location = ShardIndex::location(word);
      if (ShardIndex::state(word) == WordState::kDram) {
        const RowHeader* row = shard->dram.Header(location);
        const KeyFacts facts{row->frequency, row->version, 0};
        table_->AppendRow(*layout_, all_columns_, row->key, facts, DramTier::Data(row), &chunk_);
      } else if (ShardIndex::state(word) == WordState::kCounted && shard->counted.at(location)->frequency > 0) {
        const CountedKey* counted = shard->counted.at(location);
        chunk_.counted_keys.push_back(counted->key);
        chunk_.counted_frequencies.push_back(counted->frequency);
        chunk_.counted_versions.push_back(counted->version);
      }
      status = GiveWhereFull();
    });
    return status;
  }

  // Calls visit(location) for every row in a lower tier.
  template <typename Visit>
  void ForEachBelow(int level, Visit&& visit) const {
    for (auto& shard : table_->shards_) {
      shard->index.ForEach([&](uint64_t word) {
        if (ShardIndex::state(word) == LowerState(level)) visit(ShardIndex::location(word));
      });
    }
  }

  Status Below(int level) {
    std::vector<uint32_t> rows_of_bin(kBins);
    ForEachBelow(level, [&](uint32_t location) { ++rows_of_bin[location >> kBinShift]; });
    for (size_t bin = 0; bin < kBins;) {
      const size_t first = bin;
      size_t rows = rows_of_bin[bin++];
      while (bin < kBins && rows + rows_of_bin[bin] <= kPassRows) rows += rows_of_bin[bin++];
      if (rows == 0) continue;
      std::vector<uint32_t> locations;
      locations.reserve(rows);
      ForEachBelow(level, [&](uint32_t location) {
        const size_t of = location >> kBinShift;
        if (of >= first && of < bin) locations.push_back(location);
      });
      std::sort(locations.begin(), locations.end());
      MT_RETURN_IF_ERROR(ReadBelow(level, locations));
    }
    return OkStatus();
  }

  Status ReadBelow(int level, const std::vector<uint32_t>& locations) {
    const size_t row_bytes = layout_->row_bytes();
    const size_t at_once = std::max<size_t>(1, kReadBytes / row_bytes);
    std::vector<uint8_t> data(std::min(at_once, locations.size()) * row_bytes);
    for (size_t from = 0; from < locations.size(); from += at_once) {
      std::vector<ReadRecord> records(std::min(at_once, locations.size() - from));
      for (size_t i = 0; i < records.size(); ++i) {
        records[i].location = locations[from + i];
        records[i].row_data = data.data() + i * row_bytes;
      }
      const Status read = table_->lower_[level]->Read(records);
      if (!read.ok()) return table_->TierError("reading all rows", level, read);
      for (const ReadRecord& record : records) {
        if (record.status.code() == StatusCode::kDataLoss) {
          ++corrupt_;
          if (table_->options_.on_corruption != OnCorruption::kError) continue;
        }
        if (!record.status.ok()) return table_->TierError("reading all rows", level, record.status);
        layout_->FillSlots(record.row_data, record.header.num_columns);
        const KeyFacts facts{record.header.frequency, record.header.version, table_->tier_number(level)};
        table_->AppendRow(*layout_, all_columns_, record.header.key, facts, record.row_data, &chunk_);
        MT_RETURN_IF_ERROR(GiveWhereFull());
      }
    }
    return OkStatus();
  }

  Impl* const table_;
  const std::shared_ptr<const RowLayout> layout_;
  const bool all_columns_;
  const size_t max_rows_;
  const std::function<Status(Rows*)>& visit_;
  Rows chunk_;
  int64_t corrupt_ = 0;
};

Status EmbeddingTable::Impl::TakeSnapshot(bool all_columns, int64_t max_rows,
                                          const std::function<Status(Rows*)>& visit) {
  MT_RETURN_IF_ERROR(CheckProcess());
  if (max_rows < 1) {
    return InvalidArgumentError("table '", options_.name, "': snapshot expects max_rows >= 1, found ", max_rows);
  }
  ClosedGate closed(&gate_);
  for (int level = 0; level < levels_; ++level) lower_[level]->SetRelocator(nullptr);
  Snapshot snapshot(this, all_columns, static_cast<size_t>(max_rows), visit);
  const Status status = snapshot.Run();
  if (snapshot.corrupt() > 0) {
    std::lock_guard<SharedMutex> lock(shards_[0]->mutex);
    shards_[0]->counters.corrupt += snapshot.corrupt();
  }
  for (int level = 0; level < levels_; ++level) LendRelocator(level);
  return status;
}

Result<Rows> EmbeddingTable::Impl::Export(bool all_columns) {
  Rows all;
  MT_RETURN_IF_ERROR(TakeSnapshot(all_columns, INT64_MAX, [&](Rows* rows) {
    all = std::move(*rows);
    return OkStatus();
  }));
  return all;
}

}  // namespace multitier
