// Adoption: a new table takes over the rows that its last tier recovered (TableOptions::adopt).
//
//   1. columns   those recovered come first, in their order; then those of the options that are not among them. Rows stay as
//                they are, each with the columns it was written with
//   2. scan      the tier gives each key once, its newest record, by header alone where it can. Keys go to their shards in
//                small batches, so that the misses of the index overlap
//   3. order     of a bounded tier: by frequency, or by version, since the recency is not stored. All of them are colder than
//                what is used from now on
// The table's own count of applies goes on from the newest version, so that versions never go back.

#include <algorithm>

#include "cc/table/host/host_table.h"

namespace multitier {
namespace {

constexpr size_t kBatch = 512;
constexpr size_t kAhead = 16;

struct Adopted {
  uint64_t hash;
  int64_t key;
  int64_t version;
  uint32_t frequency;
  uint32_t location;
};

}  // namespace

Result<RowLayout> HostTable::FirstLayout() const {
  MT_ASSIGN_OR_RETURN(RowLayout row, RowLayout::Create(options_.dim, options_.value_dtype));
  std::vector<ColumnSpec> recovered;
  if (options_.adopt) recovered = options_.lower_tiers.back().tier->recovered_columns();
  auto mismatch = [&](const ColumnSpec& found, const ColumnSpec& expected) {
    return FailedPreconditionError("table '", options_.name, "': adopt: expected column '", expected.name, "' of ",
                                   DTypeName(expected.dtype), " x ", expected.dim, ", found '", found.name, "' of ",
                                   DTypeName(found.dtype), " x ", found.dim, " in the recovered tier ",
                                   options_.lower_tiers.back().tier->name());
  };
  for (size_t i = 0; i < recovered.size(); ++i) {
    if (i > 0) {
      MT_ASSIGN_OR_RETURN(row, row.WithColumn(recovered[i]));
    } else if (recovered[i].dim != options_.dim || recovered[i].dtype != options_.value_dtype) {
      return mismatch(recovered[i], row.value());
    }
  }
  for (const ColumnSpec& slot : options_.slots) {
    const int column = row.Find(slot.name);
    if (column < 0 || column >= static_cast<int>(recovered.size())) {
      MT_ASSIGN_OR_RETURN(row, row.WithColumn(slot));
    } else if (row.columns()[column].dim != slot.dim || row.columns()[column].dtype != slot.dtype) {
      return mismatch(row.columns()[column], slot);
    }
  }
  return row;
}

Status HostTable::Adopt() {
  const int level = levels_.last();
  const bool ordered = levels_.bounded[level];
  int64_t newest = -1;
  std::vector<std::vector<Adopted>> batches(shards_.size()), all(shards_.size());
  auto insert = [&](size_t s) -> Status {
    std::vector<Adopted>& batch = batches[s];
    Shard::Locked lock(shards_[s]);
    MT_RETURN_IF_ERROR(lock->ReserveWords(batch.size()));
    for (size_t i = 0; i < std::min(kAhead, batch.size()); ++i) lock->Prefetch(batch[i].hash);
    for (size_t i = 0; i < batch.size(); ++i) {
      if (i + kAhead < batch.size()) lock->Prefetch(batch[i + kAhead].hash);
      MT_RETURN_IF_ERROR(lock->Adopt(batch[i].hash, level, batch[i].location));
    }
    if (ordered) all[s].insert(all[s].end(), batch.begin(), batch.end());
    batch.clear();
    return OkStatus();
  };
  const size_t rows = static_cast<size_t>(tiers_.stats(level).rows);
  for (auto& shard : shards_) {  // at once, instead of doubling again and again
    MT_RETURN_IF_ERROR(Shard::Locked(shard)->ReserveWords(rows >> shards_.log2()));
  }
  const Status scanned = tiers_.Scan(level, [&](const RecordHeader& record, uint32_t location) -> Status {
    const uint64_t hash = HashKey(record.key);
    const size_t s = static_cast<size_t>(shards_.index(hash));
    batches[s].push_back(Adopted{hash, record.key, record.version, record.frequency, location});
    newest = std::max(newest, record.version);
    return batches[s].size() < kBatch ? OkStatus() : insert(s);
  });
  if (!scanned.ok()) return tiers_.Error("adopting rows", level, scanned);
  uint64_t most = 0;
  for (size_t s = 0; s < shards_.size(); ++s) {
    MT_RETURN_IF_ERROR(insert(s));
    most = std::max<uint64_t>(most, all[s].size());
  }
  RaiseTo(&newest_step_, newest);
  base_.removed.Forget();
  RaiseTo(&applies_, std::max<int64_t>(newest, 0));
  if (!ordered) return OkStatus();
  common_.accesses += most;
  for (size_t s = 0; s < shards_.size(); ++s) {
    std::sort(all[s].begin(), all[s].end(), [](const Adopted& a, const Adopted& b) {
      return a.version != b.version ? a.version < b.version : a.key < b.key;
    });
    Shard::Locked lock(shards_[s]);
    for (size_t i = 0; i < all[s].size(); ++i) {
      RecordHeader header;
      header.key = all[s][i].key;
      header.version = all[s][i].version;
      header.frequency = all[s][i].frequency;
      header.recency = static_cast<uint32_t>(i + 1);
      lock->records().Order(level, header, all[s][i].location);
    }
  }
  return OkStatus();
}

}  // namespace multitier
