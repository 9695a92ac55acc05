// Rows going out of the table a few at a time, and in: Scan, Import.
//
// Scan walks each shard's homes (index buckets) in the order of their bit-reversed numbers. That order is the order of the
// keys' reversed hash bits and does not depend on the size of the index: growth splits a home into two neighbours, so a
// cursor stays good while the index grows, and no key present all along is met twice or missed.
//
// A step takes some homes at once. Their words below memory are made pending while the records are read, all in one call of
// each tier: so a row cannot leave its home's place unseen, nor its location be used again by another. Others' pending words
// are waited for before a step, which holds nothing then.

#include <algorithm>
#include <limits>

#include "cc/row/value_column.h"
#include "cc/table/apply_operation.h"
#include "cc/table/row_export.h"
#include "cc/table/table_impl.h"

namespace multitier {
namespace {

constexpr size_t kCountedChunk = 64 * 1024;
// A cursor: 33 bits of the place in a shard, 7 of the shard, 10 that are 0 (where a variable of several parts has the part's
// number), and 13 of the table, which are not 0.
constexpr int kCursorShardShift = 33, kCursorTableShift = 50;
constexpr int kScanHomes = 4096;          // a step
constexpr int kHomesAhead = 16;           // whose words are fetched into the cache; half as far, their rows
constexpr size_t kMostBytesAhead = 1024;  // of a row
constexpr size_t kScanRecords = 256;      // read while their words are pending: operations that need them wait so long

uint32_t Reverse32(uint32_t x) {
  x = __builtin_bswap32(x);
  x = ((x & 0x0f0f0f0fu) << 4) | ((x >> 4) & 0x0f0f0f0fu);
  x = ((x & 0x33333333u) << 2) | ((x >> 2) & 0x33333333u);
  return ((x & 0x55555555u) << 1) | ((x >> 1) & 0x55555555u);
}

// Whether each column of the layout is among them.
bool HasAll(const std::vector<int>& columns, const RowLayout& layout) {
  for (int c = 0; c < static_cast<int>(layout.columns().size()); ++c) {
    if (std::find(columns.begin(), columns.end(), c) == columns.end()) return false;
  }
  return true;
}

}  // namespace

Result<std::vector<int>> EmbeddingTable::Impl::ColumnsNamed(const char* operation,
                                                            const std::vector<std::string>& names) const {
  const std::shared_ptr<const RowLayout> layout = this->layout();
  std::vector<int> columns;
  for (const std::string& name : names) {
    columns.push_back(layout->Find(name));
    if (columns.back() >= 0) continue;
    std::string known;
    for (const Column& column : layout->columns()) known += StrCat(known.empty() ? "'" : ", '", column.name, "'");
    return InvalidArgumentError("table '", options_.name, "': ", operation, ": expected columns of ", known, ", found '", name,
                                "'");
  }
  for (int c = 0; names.empty() && c < static_cast<int>(layout->columns().size()); ++c) columns.push_back(c);
  return columns;
}

Status EmbeddingTable::Impl::ScanHomes(int s, const ScanRequest& request, const std::vector<int>& columns, uint64_t* cursor,
                                       Rows* rows) {
  struct Taken {
    uint32_t home;
    uint32_t pending_id;
  };
  const std::shared_ptr<const RowLayout> layout = this->layout();
  const size_t keys_before = rows->keys.size(), counted_before = rows->counted_keys.size();
  const auto wanted = static_cast<size_t>(request.max_rows);
  const bool thresholds = request.min_version > std::numeric_limits<int64_t>::min() || request.min_frequency > 0;
  size_t bytes_ahead = sizeof(RowHeader);
  for (const int c : columns) {
    if (thresholds) break;  // most rows are left out
    bytes_ahead = std::max(bytes_ahead, sizeof(RowHeader) + layout->columns()[c].offset + layout->columns()[c].bytes);
  }
  bytes_ahead = std::min(bytes_ahead, kMostBytesAhead);
  std::vector<ReadRecord> below[kMaxLowerTiers];
  std::vector<Taken> taken;
  uint64_t next = *cursor;
  int log2 = 0;
  {
    Shard::Locked lock(shards_[s]);
    auto home_at = [&](uint64_t place) {
      return log2 == 0 ? 0 : Reverse32(static_cast<uint32_t>(place)) & static_cast<uint32_t>((uint64_t{1} << log2) - 1);
    };
    auto home_of = [&] {
      log2 = lock->log2_homes();
      return home_at(next);
    };
    // A home is far from the one before it in memory, and so are its rows.
    auto fetch_ahead = [&] {
      const uint64_t step = uint64_t{1} << (32 - log2);
      const uint64_t words = next + kHomesAhead * step, its_rows = next + kHomesAhead / 2 * step;
      if (words >> 32 == 0) lock->PrefetchHome(home_at(words));
      if (its_rows >> 32 == 0) lock->PrefetchRowsAt(home_at(its_rows), bytes_ahead);
    };
    while (lock->ReadingAt(home_of())) lock.WaitForResolution(lock.resolutions());
    int homes = 0;
    do {
      const uint32_t home = home_of();
      fetch_ahead();
      lock->VisitHome(
          home,
          [&](const RowHeader& row) {
            if (!request.Wants(row.version, row.frequency)) return;
            AppendColumns(*layout, columns, row.key, row.frequency, row.version, RowSlab::Data(&row), rows);
          },
          [&](const CountedKey& counted) {
            if (request.Wants(counted.version, counted.frequency)) AppendCounted(counted, rows);
          },
          [&](int level, uint32_t location) {
            return !thresholds || tiers_.MayReach(level, location, request.min_version, request.min_frequency);
          },
          [&](int level, uint32_t location, uint32_t pending_id) {
            ReadRecord& record = below[level].emplace_back();
            record.location = location;
            record.any_key = true;
            taken.push_back(Taken{home, pending_id});
          });
      next += uint64_t{1} << (32 - log2);
    } while (next >> 32 == 0 && ++homes < kScanHomes && taken.size() < kScanRecords &&
             rows->keys.size() + rows->counted_keys.size() + taken.size() < wanted && !lock->ReadingAt(home_of()));
  }
  Status status;
  std::vector<uint8_t> data[kMaxLowerTiers];
  for (int level = 0; level < levels_.count && status.ok(); ++level) {
    data[level].resize(below[level].size() * layout->row_bytes());
    for (size_t i = 0; i < below[level].size(); ++i) below[level][i].row_data = data[level].data() + i * layout->row_bytes();
    if (!below[level].empty()) status = tiers_.Read(level, below[level]);
    if (!status.ok()) status = tiers_.Error("scanning", level, status);
  }
  int64_t corrupt = 0;
  for (int level = 0; level < levels_.count && status.ok(); ++level) {
    for (const ReadRecord& record : below[level]) {
      if (record.status.code() == StatusCode::kDataLoss) ++corrupt;
      if (record.status.code() == StatusCode::kDataLoss && options_.on_corruption != OnCorruption::kError) continue;
      if (!record.status.ok()) {
        status = tiers_.RecordError("scanning", level, record);
        break;
      }
      const RecordHeader& header = record.header;
      if (!request.Wants(header.version, header.frequency)) continue;
      layout->FillSlots(record.row_data, header.num_columns);
      AppendColumns(*layout, columns, header.key, header.frequency, header.version, record.row_data, rows);
    }
  }
  if (!taken.empty()) {
    Shard::Locked lock(shards_[s]);
    for (const Taken& one : taken) lock->EndReadAt(one.home, log2, one.pending_id);
    lock->counters.corrupt += corrupt;
  }
  if (!status.ok()) {
    CutOff(keys_before, counted_before, rows);
    return status;
  }
  *cursor = next;
  return OkStatus();
}

Result<Rows> EmbeddingTable::Impl::Scan(const ScanRequest& request, uint64_t* next) {
  if (request.max_rows < 1) {
    return InvalidArgumentError("table '", options_.name, "': scan: max_rows: expected at least 1, found ", request.max_rows);
  }
  if (request.min_frequency < 0) {
    return InvalidArgumentError("table '", options_.name, "': scan: min_frequency: expected at least 0, found ",
                                request.min_frequency);
  }
  const uint64_t place = request.cursor & ((uint64_t{1} << kCursorTableShift) - 1);
  if (request.cursor != 0 &&
      (request.cursor >> kCursorTableShift != cursor_tag_ || place >> kCursorShardShift >= shards_.size())) {
    return InvalidArgumentError("table '", options_.name,
                                "': scan: expected a cursor that an earlier scan of this table returned, found ",
                                request.cursor);
  }
  const auto most = static_cast<size_t>(std::min(request.max_rows, TotalCount()));
  const MemoryLease lease(3 * most * (layout()->row_bytes() + 3 * sizeof(int64_t)));  // a vector that grows is there twice
  if (!lease.ok()) return lease.Refusal(StrCat("table '", options_.name, "': scanning ", most, " rows"));
  MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::Enter(&base_));
  MT_ASSIGN_OR_RETURN(const std::vector<int> columns, ColumnsNamed("scan", request.columns));
  Rows rows;
  const std::shared_ptr<const RowLayout> layout = this->layout();
  for (const int c : columns) rows.columns.push_back(layout->columns()[c]);
  if (request.min_version == std::numeric_limits<int64_t>::min() && request.min_frequency == 0) {
    rows.data.reserve(most * static_cast<size_t>(rows.row_elements()));
  }
  size_t s = place >> kCursorShardShift;
  uint64_t position = place & ((uint64_t{1} << kCursorShardShift) - 1);
  while (s < shards_.size() && static_cast<int64_t>(rows.keys.size() + rows.counted_keys.size()) < request.max_rows) {
    MT_RETURN_IF_ERROR(ScanHomes(static_cast<int>(s), request, columns, &position, &rows));
    if (position >= uint64_t{1} << 32) {
      position = 0;
      ++s;
    }
  }
  *next = s == shards_.size() ? 0 : cursor_tag_ << kCursorTableShift | static_cast<uint64_t>(s) << kCursorShardShift | position;
  return rows;
}

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
