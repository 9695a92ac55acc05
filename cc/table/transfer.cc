// Import: rows going into the table, from a checkpoint or an export. Scan: scan.cc.

#include <algorithm>

#include "cc/row/value_column.h"
#include "cc/table/apply_operation.h"
#include "cc/table/table_impl.h"

namespace multitier {
namespace {

constexpr size_t kCountedChunk = 64 * 1024;

// Whether each column of the layout is among them.
bool HasAll(const std::vector<int>& columns, const RowLayout& layout) {
  for (int c = 0; c < static_cast<int>(layout.columns().size()); ++c) {
    if (std::find(columns.begin(), columns.end(), c) == columns.end()) return false;
  }
  return true;
}

}  // namespace

Status EmbeddingTable::Impl::Import(const Rows& rows, Executor* executor) {
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
    MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::EnterToChange(&base_));
    MT_RETURN_IF_ERROR(ImportChunk(rows, from, std::min(n, from + chunk), columns, executor));
  }
  RaiseTo(&applies_, rows.applies);
  for (const int64_t version : rows.versions) RaiseTo(&newest_step_, version);
  base_.removed.Forget();  // a restore: what was removed before the save is not known
  MT_RETURN_IF_ERROR(ImportCounted(rows));
  if (bloom_ == nullptr || rows.filter_counters.empty()) return OkStatus();
  MT_ASSIGN_OR_RETURN(const ExclusiveScope alone, ExclusiveScope::Enter(&base_));
  (void)bloom_->RestoreState(rows.filter_counters);  // another filter's: see Rows
  return OkStatus();
}

Status EmbeddingTable::Impl::ImportCounted(const Rows& rows) {
  if (options_.admission.kind != AdmissionKind::kCounter || !filters()) return OkStatus();
  for (size_t from = 0; from < rows.counted_keys.size(); from += kCountedChunk) {
    MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::EnterToChange(&base_));
    BorrowedKeyBatch batch;
    const size_t n = std::min(kCountedChunk, rows.counted_keys.size() - from);
    batch->Partition(Span<const int64_t>(rows.counted_keys).subspan(from, n), shards_.log2());
    for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
      if (batch->begin(s) == batch->end(s)) continue;
      MT_RETURN_IF_ERROR(ImportCountedOf(*batch, s, rows, from));
    }
    BoundCounted();
  }
  return OkStatus();
}

Status EmbeddingTable::Impl::ImportCountedOf(const KeyBatch& batch, int s, const Rows& rows, size_t from) {
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

Status EmbeddingTable::Impl::ImportChunk(const Rows& rows, size_t from, size_t to, const std::vector<int>& columns,
                                         Executor* executor) {
  ApplyOperation operation(&base_, &demoter_, &reader_);
  ApplyOperation::Keys keys;
  keys.keys = Span<const int64_t>(rows.keys).subspan(from, to - from);
  keys.admits_all = true;
  MT_RETURN_IF_ERROR(operation.Gather(keys, executor));
  std::vector<FreedRecords> freed(shards_.size());
  ParallelFor(executor, static_cast<int>(shards_.size()),
              [&](int s) { ImportShard(rows, from, columns, s, &operation, &freed[static_cast<size_t>(s)]); });
  for (FreedRecords& of_shard : freed) tiers_.Free(&of_shard);
  demoter_.TrimAndRemember();
  return OkStatus();
}

void EmbeddingTable::Impl::ImportShard(const Rows& rows, size_t from, const std::vector<int>& columns, int s,
                                       ApplyOperation* operation, FreedRecords* freed) {
  const KeyBatch& batch = operation->batch();
  const size_t row_elements = static_cast<size_t>(rows.row_elements());
  Shard::Locked lock(shards_[s]);
  const RowLayout& layout = *lock->layout();
  const bool lacks_columns = !HasAll(columns, layout);
  for (uint32_t e = batch.begin(s); e < batch.end(s); ++e) {
    size_t i = batch.first_position(e);
    while (batch.next(static_cast<uint32_t>(i)) != KeyBatch::kEnd) {  // the last wins
      i = batch.next(static_cast<uint32_t>(i));
    }
    i += from;
    RowHeader* row = operation->row(e);
    uint8_t* const to_row = lock->BeginChange(row, batch.hash(e));
    lock->Commit(row);
    if (lacks_columns) layout.FillSlots(to_row, 1);
    const float* data = rows.data.data() + i * row_elements;
    for (size_t c = 0; c < columns.size(); ++c) {
      const size_t dim = static_cast<size_t>(rows.columns[c].dim);
      const Column& column = layout.columns()[columns[c]];
      WriteColumn(column.dtype, data, dim, to_row + column.offset);
      data += dim;
    }
    row->frequency = static_cast<uint32_t>(rows.frequencies[i]);
    row->version = rows.versions[i];
    lock->FinishChange(row, operation->Touched(e), batch.num_keys(), freed);
    lock->Reorder(row, batch.hash(e), operation->stamp());  // its frequency or version may have become less
  }
}

}  // namespace multitier
