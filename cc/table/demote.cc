// Trim: demotes the coldest rows until DRAM is within its budget.
//
//   1. choose   under the shard's lock: unpinned rows, least recently used first. A clean row (its copy below is valid) only
//               has its word switched: no write. A dirty row is copied and flagged kRowDemoting; it stays where it is,
//               readable and writable.
//   2. write    the copies in one call of the tier, no lock held.
//   3. switch   under the lock: a row that still carries the flag has not changed since it was copied: its word is switched
//               to the record, and its slot freed; if an operation pinned it meanwhile it stays, clean. A row that has
//               changed, or is gone, keeps its place, and the record is freed.
//
// A failed write only clears the flags: the rows are still in DRAM. One trim at a time works on a shard; who comes second
// leaves, and the first looks again before it stops.

#include <algorithm>
#include <cstring>

#include "cc/table/table_impl.h"

namespace multitier {

uint64_t EmbeddingTable::Impl::budget_rows(const RowLayout& layout) const {
  if (options_.dram_budget_bytes == 0) return ~uint64_t{0} >> 1;
  return options_.dram_budget_bytes / layout.row_bytes();
}

void EmbeddingTable::Impl::TrimAndRemember() {
  Status status = Trim();
  if (status.ok()) return;
  std::lock_guard<std::mutex> lock(trim_mutex_);
  trim_error_ = std::move(status);
  trim_failed_ = true;
}

Status EmbeddingTable::Impl::RetryTrim() {
  if (!trim_failed_) return OkStatus();
  MT_RETURN_IF_ERROR(Trim());
  std::lock_guard<std::mutex> lock(trim_mutex_);
  trim_error_ = OkStatus();
  trim_failed_ = false;
  return OkStatus();
}

Status EmbeddingTable::Impl::Trim() {
  if (lower_ == nullptr) return OkStatus();
  const int64_t budget = static_cast<int64_t>(budget_rows(*layout()));
  if (dram_rows_.load() <= budget) return OkStatus();
  const size_t share = static_cast<size_t>(budget) >> log2_shards_;
  for (auto& shard : shards_) {
    {
      std::lock_guard<SharedMutex> lock(shard->mutex);
      shard->trim_again = true;
      if (shard->trimming) continue;
      shard->trimming = true;
    }
    Status status;
    for (;;) {
      size_t excess = 0;
      {
        std::lock_guard<SharedMutex> lock(shard->mutex);
        excess = shard->dram.rows() > share ? shard->dram.rows() - share : 0;
        if (!status.ok() || excess == 0 || !shard->trim_again) {
          shard->trimming = false;
          ++shard->resolutions;
          shard->resolved.notify_all();
          break;
        }
        shard->trim_again = false;
      }
      status = TrimShard(shard.get(), excess);
    }
    MT_RETURN_IF_ERROR(status);
  }
  return OkStatus();
}

Status EmbeddingTable::Impl::TrimShard(Shard* shard, size_t excess) {
  struct Victim {
    uint32_t recency;
    uint32_t location;
  };
  std::vector<Victim> victims;
  std::vector<WriteRecord> records;
  std::vector<uint8_t> copies;
  size_t row_bytes = 0;
  {
    std::lock_guard<SharedMutex> lock(shard->mutex);
    DramTier& dram = shard->dram;
    row_bytes = dram.layout()->row_bytes();
    for (uint32_t location = 0; location < dram.end(); ++location) {
      const RowHeader* row = dram.Header(location);
      if (row->has(kRowFree | kRowNewborn) || row->pins != 0) continue;
      victims.push_back(Victim{row->recency, location});
    }
    excess = std::min(excess, victims.size());
    std::nth_element(victims.begin(), victims.begin() + static_cast<long>(excess), victims.end(),
                     [](const Victim& a, const Victim& b) {
                       return a.recency != b.recency ? a.recency < b.recency : a.location < b.location;
                     });
    victims.resize(excess);
    for (const Victim& victim : victims) {
      RowHeader* row = dram.Header(victim.location);
      if (row->below != kNoLocation) {
        shard->MoveBelow(shard->Find(row->key, HashKey(row->key)).word, row->below);
        --dram_rows_;
        continue;
      }
      row->flags |= kRowDemoting;
      WriteRecord record;
      record.header.key = row->key;
      record.header.version = row->version;
      record.header.frequency = row->frequency;
      record.header.num_columns = static_cast<uint32_t>(dram.layout()->columns().size());
      copies.insert(copies.end(), DramTier::Data(row), DramTier::Data(row) + row_bytes);
      records.push_back(record);
    }
  }
  if (records.empty()) return OkStatus();
  for (size_t i = 0; i < records.size(); ++i) records[i].row_data = copies.data() + i * row_bytes;

  std::vector<uint32_t> locations(records.size());
  Status written = lower_->Write(records, locations.data());
  std::vector<KeyLocation> unused;
  {
    std::lock_guard<SharedMutex> lock(shard->mutex);
    if (written.ok()) shard->counters.writes += static_cast<int64_t>(records.size());
    for (size_t i = 0; i < records.size(); ++i) {
      const int64_t key = records[i].header.key;
      const Found found = shard->Find(key, HashKey(key));
      const bool unchanged = found.row != nullptr && found.row->has(kRowDemoting);
      if (unchanged) found.row->flags &= static_cast<uint16_t>(~kRowDemoting);
      if (!written.ok()) continue;
      if (!unchanged) {
        if (found.row != nullptr) found.row->flags |= kRowEverBelow;
        unused.push_back(KeyLocation{key, locations[i]});
        continue;
      }
      found.row->flags |= kRowEverBelow;
      found.row->below = locations[i];
      if (found.row->pins != 0) continue;
      shard->MoveBelow(found.word, locations[i]);
      --dram_rows_;
    }
  }
  if (!unused.empty()) lower_->Free(unused);
  if (written.ok()) return OkStatus();
  return Status(written.code(), StrCat("table '", options_.name, "': demoting ", records.size(), " rows from DRAM to tier ",
                                       lower_->name(), ": ", written.message(), " (the rows stay in memory)"));
}

}  // namespace multitier
