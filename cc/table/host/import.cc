// Rows coming into the table: Import.
//
// A chunk of rows takes one pass over each shard. A row that is in DRAM is overwritten. A key that is nowhere gets a row, which
// is written once and whole, under the shard's lock. The rest of the chunk goes the way of an apply (ApplyOperation): keys that
// may have a record below, keys that are counted, and all keys where the tiers or memory may have no room for them.
//
// That way is the one that can fail, so it is taken first: a chunk that fails has changed nothing. One exception: other
// operations take the memory that was reserved for the chunk, or move its keys, in the middle of it. Then these keys go the way
// of an apply at the end; if that fails, the other rows of the chunk stay.

#include <algorithm>
#include <utility>

#include "cc/base/prefetch.h"
#include "cc/row/value_column.h"
#include "cc/table/apply/apply_operation.h"
#include "cc/table/host/host_table.h"

namespace multitier {
namespace {

constexpr size_t kCountedChunk = 64 * 1024;
constexpr uint32_t kGroup = 32;              // rows whose words and data are fetched into the cache together
constexpr size_t kMostImportedAhead = 1024;  // of a row

// Whether each column of the layout is among them.
bool HasAll(const std::vector<int>& columns, const RowLayout& layout) {
  for (int c = 0; c < static_cast<int>(layout.columns().size()); ++c) {
    if (std::find(columns.begin(), columns.end(), c) == columns.end()) return false;
  }
  return true;
}

bool IsNowhere(const Found& found) { return found.row == nullptr && found.counted == nullptr && !found.maybe_below; }

}  // namespace

// A chunk of the rows of an import.
struct HostTable::ImportedChunk {
  const Rows& rows;
  size_t from, to;                  // of rows.keys
  const std::vector<int>& columns;  // of the layout: where the columns of `rows` go
  uint64_t stamp = 0;               // the access number of the first row; 0 where no row is ever demoted

  size_t size() const { return to - from; }
  Span<const int64_t> keys() const { return Span<const int64_t>(rows.keys).subspan(from, size()); }
  // Writes one of the rows; `data` are those of the table's row, `row` its header.
  void Write(uint32_t position, const RowLayout& layout, bool lacks_columns, RowHeader* row, uint8_t* data) const {
    if (lacks_columns) layout.FillSlots(data, 1);
    const size_t i = from + position;
    const float* in = rows.data.data() + i * elements;
    for (size_t c = 0; c < columns.size(); ++c) {
      const auto dim = static_cast<size_t>(rows.columns[c].dim);
      const Column& column = layout.columns()[static_cast<size_t>(columns[c])];
      WriteColumn(column.dtype, in, dim, data + column.offset);
      in += dim;
    }
    row->frequency = static_cast<uint32_t>(rows.frequencies[i]);
    row->version = rows.versions[i];
  }
  uint64_t Touched(uint32_t position) const { return stamp == 0 ? 0 : stamp + position; }
  const void* DataAt(uint32_t position) const { return rows.data.data() + (from + position) * elements; }

  const size_t elements = static_cast<size_t>(rows.row_elements());
};

Status HostTable::Import(const Rows& rows, Executor* executor) {
  MT_RETURN_IF_ERROR(CheckMemory(std::min(rows.keys.size() + rows.counted_keys.size(), kChunkKeys)));
  const size_t n = rows.keys.size();
  const std::string table = StrCat("table '", options_.name, "': import: ");
  if (rows.columns.empty() || rows.columns[0].dim != options_.dim) {
    return InvalidArgumentError(table, "expected a value column of dim ", options_.dim, ", found ",
                                rows.columns.empty() ? 0 : rows.columns[0].dim);
  }
  if (rows.frequencies.size() != n || rows.versions.size() != n ||
      rows.data.size() != n * static_cast<size_t>(rows.row_elements())) {
    return InvalidArgumentError(table, "expected ", n, " frequencies, versions and rows of ", rows.row_elements(),
                                " elements, found ", rows.frequencies.size(), ", ", rows.versions.size(), " and ",
                                rows.data.size(), " elements");
  }
  if (rows.counted_frequencies.size() != rows.counted_keys.size() || rows.counted_versions.size() != rows.counted_keys.size()) {
    return InvalidArgumentError(table, "expected a frequency and a version for each of ", rows.counted_keys.size(),
                                " counted keys, found ", rows.counted_frequencies.size(), " and ",
                                rows.counted_versions.size());
  }
  for (const auto* frequencies : {&rows.frequencies, &rows.counted_frequencies}) {
    for (const int64_t f : *frequencies) {
      if (f < 0 || f > 0xffffffffLL) return InvalidArgumentError(table, "expected frequencies in [0, 2^32), found ", f);
    }
  }
  MT_RETURN_IF_ERROR(AddSlots(Span<const ColumnSpec>(rows.columns.data() + 1, rows.columns.size() - 1)));
  const std::shared_ptr<const RowLayout> layout = this->layout();
  std::vector<int> columns{0};
  for (size_t c = 1; c < rows.columns.size(); ++c) columns.push_back(layout->Find(rows.columns[c].name));
  const size_t chunk = base_.chunk_rows();
  base_.removed.Forget();  // and again at the end, when the versions are known
  for (size_t from = 0; from < n; from += chunk) {
    SplitIfLarge(n - from);
    MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::EnterToChange(&base_));
    MT_RETURN_IF_ERROR(ImportChunk(ImportedChunk{rows, from, std::min(n, from + chunk), columns}, executor));
  }
  RaiseTo(&applies_, rows.applies);
  if (n > 0) RaiseTo(&newest_step_, *std::max_element(rows.versions.begin(), rows.versions.end()));
  base_.removed.Forget();  // a restore: what was removed before the save is not known
  MT_RETURN_IF_ERROR(ImportCounted(rows));
  if (bloom_ == nullptr || rows.filter_counters.empty()) return OkStatus();
  MT_ASSIGN_OR_RETURN(const ExclusiveScope alone, ExclusiveScope::Enter(&base_));
  (void)bloom_->RestoreState(rows.filter_counters);  // another filter's: see Rows
  return OkStatus();
}

Status HostTable::ImportChunk(ImportedChunk chunk, Executor* executor) {
  if (common_.evicts) chunk.stamp = common_.accesses.fetch_add(chunk.size());
  std::vector<std::vector<uint32_t>> left(shards_.size()), rest(shards_.size());  // entries of the batch, by shard
  BorrowedKeyBatch batch;
  batch->SortByShard(chunk.keys(), shards_.log2());
  const bool load = MayLoad(*batch) && ReserveToLoad(*batch);
  const auto for_shards = [&](auto visit) {
    ParallelFor(executor, static_cast<int>(shards_.size()), [&](int s) { visit(s, static_cast<size_t>(s)); });
  };
  for_shards([&](int s, size_t of) {
    if (load) return NotInMemory(*batch, s, &left[of]);
    for (uint32_t e = batch->begin(s); e < batch->end(s); ++e) left[of].push_back(e);
  });
  MT_RETURN_IF_ERROR(ImportLeft(chunk, *batch, left, executor));
  Status status;
  if (load) {
    for_shards([&](int s, size_t of) { LoadShard(chunk, *batch, s, left[of], &rest[of]); });
    status = ImportLeft(chunk, *batch, rest, executor);
  }
  demoter_.TrimAndRemember();
  return status;
}

bool HostTable::MayLoad(const KeyBatch& batch) {
  if (demoter_.failed()) return false;                                  // the long way tries again, or says why not
  if (!common_.evicts && base_.budgets.dram().bounded()) return false;  // DRAM may be full
  const std::shared_ptr<const RowLayout> layout = this->layout();
  const size_t most = base_.budgets.share(base_.budgets.dram_rows(*layout), *layout);
  if (most > Budget::kNoBound / 2) return true;
  for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
    if (RowsOf(*Shard::Locked(shards_[s])) + (batch.end(s) - batch.begin(s)) > most) return false;
  }
  return true;
}

bool HostTable::ReserveToLoad(const KeyBatch& batch) {
  for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
    const size_t n = batch.end(s) - batch.begin(s);
    Shard::Locked lock(shards_[s]);
    if (!lock->ReserveWords(n).ok() || !lock->ReserveRows(n).ok()) return false;
  }
  return true;
}

void HostTable::NotInMemory(const KeyBatch& batch, int s, std::vector<uint32_t>* entries) const {
  if (levels_.count == 0 && options_.filter.kind != AdmissionKind::kCounter) return;
  const uint32_t end = batch.end(s);
  Shard::Locked lock(shards_[s]);
  for (uint32_t e = batch.begin(s); e < end; ++e) {
    if (e + kGroup < end) lock->Prefetch(batch.hash(e + kGroup));
    const Found found = lock->Find(batch.key(e), batch.hash(e));
    if (found.counted != nullptr || found.maybe_below) entries->push_back(e);
  }
}

size_t HostTable::RowsOf(const ShardRows& shard) const {
  size_t rows = shard.dram_rows();
  for (int level = 0; level < levels_.count; ++level) rows += static_cast<size_t>(shard.counts().rows_in[level]);
  return rows;
}

bool HostTable::TakeRoomToLoad(ShardRows* shard, size_t n) {
  const RowLayout& layout = *shard->layout();
  if (RowsOf(*shard) + n > base_.budgets.share(base_.budgets.dram_rows(layout), layout)) return false;
  if (!shard->ReserveRows(n).ok()) return false;
  common_.dram_rows += static_cast<int64_t>(n);
  return true;
}

void HostTable::LoadShard(const ImportedChunk& chunk, const KeyBatch& batch, int s, const std::vector<uint32_t>& skipped,
                          std::vector<uint32_t>* rest) {
  const uint32_t end = batch.end(s);
  FreedRecords freed;
  Shard::Locked lock(shards_[s]);
  ShardRows& shard = *lock;
  const RowLayout& layout = *shard.layout();
  const bool lacks_columns = !HasAll(chunk.columns, layout);
  const size_t bytes = chunk.elements * sizeof(float);
  auto fetch_words = [&](uint32_t from) {
    for (uint32_t e = from; e < std::min(end, from + kGroup); ++e) shard.Prefetch(batch.hash(e));
  };
  auto fetch_rows = [&](uint32_t from) {
    for (uint32_t e = from; e < std::min(end, from + kGroup); ++e) {
      const uint32_t slot = shard.FindHomeRow(batch.hash(e));
      if (slot != ShardIndex::kNone) shard.PrefetchRow(slot);
      PrefetchBytes(chunk.DataAt(batch.first_position(e)), std::min<size_t>(bytes, kMostImportedAhead));
    }
  };
  fetch_words(batch.begin(s));
  fetch_words(batch.begin(s) + kGroup);
  fetch_rows(batch.begin(s));
  bool room = true;  // false: no more rows are created, so that of a key's rows none overtakes another
  auto skip = skipped.begin();
  for (uint32_t from = batch.begin(s); from < end; from += kGroup) {
    fetch_words(from + 2 * kGroup);
    fetch_rows(from + kGroup);
    const uint32_t to = std::min(end, from + kGroup);
    Found found[kGroup];
    int64_t absent = 0, created = 0;
    for (uint32_t e = from; e < to; ++e) {
      found[e - from] = shard.Find(batch.key(e), batch.hash(e));
      absent += IsNowhere(found[e - from]);
    }
    if (absent > 0) room = room && TakeRoomToLoad(&shard, static_cast<size_t>(absent));
    const int64_t taken = room ? absent : 0;
    for (uint32_t e = from; e < to; ++e) {
      if (skip != skipped.end() && *skip == e) {
        ++skip;
        continue;
      }
      RowHeader* row = found[e - from].row;
      if (row == nullptr && created > 0) row = shard.Find(batch.key(e), batch.hash(e)).row;  // of this group
      if (row != nullptr) {
        shard.Pin(row);
        ++shard.counters().hits_dram;
      } else if (room && IsNowhere(found[e - from])) {
        row = shard.Create(batch.key(e), batch.hash(e), chunk.stamp);
        created += row != nullptr;
        room = row != nullptr;
      }
      if (row == nullptr) {
        rest->push_back(e);
        continue;
      }
      const uint32_t position = batch.first_position(e);
      uint8_t* const data = shard.BeginChange(row, batch.hash(e));
      shard.Commit(row);
      chunk.Write(position, layout, lacks_columns, row, data);
      shard.FinishChange(row, chunk.Touched(position), chunk.size(), &freed);
      shard.Reorder(row, batch.hash(e), chunk.stamp);  // its frequency or version may have become less
    }
    common_.dram_rows -= taken - created;
  }
  tiers_.Free(&freed);
}

Status HostTable::ImportLeft(const ImportedChunk& chunk, const KeyBatch& of_chunk,
                             const std::vector<std::vector<uint32_t>>& entries, Executor* executor) {
  std::vector<uint32_t> positions;
  for (const std::vector<uint32_t>& of_shard : entries) {
    for (const uint32_t e : of_shard) positions.push_back(of_chunk.first_position(e));
  }
  if (positions.empty()) return OkStatus();
  std::sort(positions.begin(), positions.end());  // the last of a key's rows wins
  std::vector<int64_t> of_positions;
  of_positions.reserve(positions.size());
  for (const uint32_t position : positions) of_positions.push_back(chunk.keys()[position]);
  ApplyOperation operation(&base_, &demoter_, &reader_);
  ApplyOperation::Keys keys;
  keys.keys = of_positions;
  keys.admits_all = true;
  keys.stamp = chunk.stamp;
  keys.uses = positions;
  MT_RETURN_IF_ERROR(operation.Gather(keys, executor));
  ParallelFor(executor, static_cast<int>(shards_.size()), [&](int s) {
    const KeyBatch& batch = operation.batch();
    FreedRecords freed;
    Shard::Locked lock(shards_[s]);
    const RowLayout& layout = *lock->layout();
    const bool lacks_columns = !HasAll(chunk.columns, layout);
    for (uint32_t e = batch.begin(s); e < batch.end(s); ++e) {
      uint32_t i = batch.first_position(e);
      while (batch.next(i) != KeyBatch::kEnd) i = batch.next(i);  // the last wins
      RowHeader* row = operation.row(e);
      uint8_t* const data = lock->BeginChange(row, batch.hash(e));
      lock->Commit(row);
      chunk.Write(positions[i], layout, lacks_columns, row, data);
      lock->FinishChange(row, operation.Touched(e), chunk.size(), &freed);
      lock->Reorder(row, batch.hash(e), chunk.stamp);
    }
    tiers_.Free(&freed);
  });
  return OkStatus();
}

Status HostTable::ImportCounted(const Rows& rows) {
  if (options_.filter.kind != AdmissionKind::kCounter || !filters()) return OkStatus();
  for (size_t from = 0; from < rows.counted_keys.size(); from += kCountedChunk) {
    MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::EnterToChange(&base_));
    BorrowedKeyBatch batch;
    const size_t n = std::min(kCountedChunk, rows.counted_keys.size() - from);
    batch->SortByShard(Span<const int64_t>(rows.counted_keys).subspan(from, n), shards_.log2());
    for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
      if (batch->begin(s) == batch->end(s)) continue;
      MT_RETURN_IF_ERROR(ImportCountedOf(*batch, s, rows, from));
    }
    BoundCounted();
  }
  return OkStatus();
}

Status HostTable::ImportCountedOf(const KeyBatch& batch, int s, const Rows& rows, size_t from) {
  Shard::Locked lock(shards_[s]);
  for (uint32_t e = batch.begin(s); e < batch.end(s); ++e) {  // a key's last entry comes last
    const size_t i = from + batch.first_position(e);
    Found found = lock->Find(batch.key(e), batch.hash(e));
    if (found.row != nullptr || found.maybe_below) continue;  // it has a row, or may have one
    if (found.counted == nullptr) {
      if (!lock->ReserveCounted(1)) return ResourceExhaustedError("table '", options_.name, "': no memory for counted keys");
      MT_RETURN_IF_ERROR(base_.OfThisTable(lock->CreateCounted(batch.key(e), batch.hash(e), /*pins=*/0)));
      found = lock->Find(batch.key(e), batch.hash(e));
    }
    lock->SetCount(found, static_cast<uint32_t>(rows.counted_frequencies[i]), rows.counted_versions[i]);
  }
  return OkStatus();
}

}  // namespace multitier
