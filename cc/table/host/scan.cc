// Scan: the rows of the table, a piece for each call. Updates, demotion and growth go on between two calls.
//
// A cursor names a shard and a place in it. There are three sorts of places.
//
// No lower tier: a place is the number of slots left. A row keeps its slot as long as it lives, while the index grows and while
//   rows are widened. So rows are visited in the order of memory: downwards, so that rows that are added meanwhile do not keep
//   a scan from its end. Counted keys come before rows: one may become a row in the meantime, never the other way. Then the key
//   is given as both; in the other order it might be missed.
// Lower tiers: a row may leave its slot. A place is a home (a bucket of the index). Homes are visited in the order of their
//   bit-reversed numbers, which is the order of the keys' reversed hash bits. It does not depend on the size of the index:
//   growth splits a home into two neighbours. So no key that is present all along is met twice or missed.
//   A step takes some homes at once. It makes their words below memory pending while the records are read, all in one call of
//   each tier. Then no row can leave its home's place unseen, and no record's location can be used again. A step first waits
//   for the pending words of others, and holds nothing then.
// One shard that may be split (split.cc): a split moves rows to other slots. If one call can give all rows, it visits slots and
//   returns no cursor. Otherwise a place is a home, and of all shards at once: the order of reversed hash bits does not depend
//   on the number of shards either. The indexes of new shards are smaller than the old one. So a place may be inside a home of
//   theirs, whose keys before the place were given.

#include <algorithm>
#include <limits>

#include "cc/base/can_allocate.h"
#include "cc/base/hash.h"
#include "cc/table/host/host_table.h"
#include "cc/table/marks/row_export.h"

namespace multitier {
namespace {

// A cursor: 33 bits of the place in a shard, 7 of the shard, 10 that are 0 (where a variable of several parts has the part's
// number), and 13 of the table, which are not 0.
constexpr int kCursorShardShift = 33, kCursorTableShift = 50;
constexpr uint64_t kEveryShard = 63;                    // in place of the number of a shard, where there are fewer
constexpr uint64_t kInRows = uint64_t{1} << 32;         // of a place of slots: those of rows, not of counted keys
constexpr uint64_t kPlaceOfNoHome = uint64_t{1} << 32;  // behind the last home
constexpr size_t kSliceRows = 1024;                     // given under one hold of a shard's lock
constexpr uint32_t kSliceSlots = 16384;                 // looked at under one hold
constexpr int kSliceHomes = 4096;                       // visited under one hold
constexpr int kHomesAhead = 16;                         // whose words are fetched into the cache; half as far, their rows
constexpr size_t kMostBytesAhead = 1024;                // of a row
constexpr size_t kSliceRecords = 256;  // read while their words are pending: operations that need them wait so long

uint32_t Reverse32(uint32_t x) {
  x = __builtin_bswap32(x);
  x = ((x & 0x0f0f0f0fu) << 4) | ((x >> 4) & 0x0f0f0f0fu);
  x = ((x & 0x33333333u) << 2) | ((x >> 2) & 0x33333333u);
  return ((x & 0x55555555u) << 1) | ((x >> 1) & 0x55555555u);
}

// The home at a place, of an index with 2^log2 homes, and the distance to the next place.
uint32_t HomeAt(uint64_t place, int log2) {
  return log2 == 0 ? 0 : Reverse32(static_cast<uint32_t>(place)) & static_cast<uint32_t>((uint64_t{1} << log2) - 1);
}
uint64_t StepOf(int log2) { return uint64_t{1} << (32 - log2); }

bool HasThresholds(const ScanRequest& request) {
  return request.min_version > std::numeric_limits<int64_t>::min() || request.min_frequency > 0;
}

size_t Given(const Rows& rows) { return rows.keys.size() + rows.counted_keys.size(); }

}  // namespace

// One call: what it asks for, and the rows that it has found so far.
class HostTable::Scanner {
 public:
  // at_once: the call gives all rows, whatever request.max_rows is.
  Scanner(HostTable* table, const ScanRequest& request, std::vector<int> columns, bool at_once)
      : table_(table),
        request_(request),
        columns_(std::move(columns)),
        layout_(table->layout()),
        most_(at_once ? ~size_t{0} : static_cast<size_t>(request.max_rows)),
        thresholds_(HasThresholds(request)),
        bytes_ahead_(BytesAhead()) {
    for (const int c : columns_) rows_.columns.push_back(layout_->columns()[c]);
  }

  // For `most` rows in all.
  void Reserve(size_t most) {
    rows_.keys.reserve(most);
    rows_.frequencies.reserve(most);
    rows_.versions.reserve(most);
    rows_.data.reserve(most * static_cast<size_t>(rows_.row_elements()));
  }

  bool full() const { return Given(rows_) >= most_; }
  Rows Take() { return std::move(rows_); }

  // Goes on at *place of a shard until the piece is full or a hold of the lock is long enough. False: the shard has no more.
  Result<bool> Visit(uint64_t shard, uint64_t* place) {
    if (shard >= table_->shards_.size()) return VisitPlaces(place);
    return table_->levels_.count == 0 ? VisitSlots(static_cast<int>(shard), place) : VisitHomes(static_cast<int>(shard), place);
  }

 private:
  struct Pending {
    uint32_t home;
    uint32_t id;
  };
  // Records whose words are pending.
  struct Below {
    std::vector<ReadRecord> records[kMaxLowerTiers];  // by lower tier
    std::vector<Pending> pending;
    int log2 = 0;  // homes of the index when the words became pending
  };

  // Of a row that is likely to be given; of others, the header is looked at.
  size_t BytesAhead() const {
    size_t bytes = sizeof(RowHeader);
    for (const int c : columns_) {
      const Column& column = layout_->columns()[c];
      bytes = std::max(bytes, sizeof(RowHeader) + column.offset + column.bytes);
    }
    return thresholds_ ? sizeof(RowHeader) : std::min(bytes, kMostBytesAhead);
  }

  void Give(const RowHeader& row) {
    if (!request_.Wants(row.version, row.frequency)) return;
    AppendColumns(*layout_, columns_, row.key, row.frequency, row.version, RowSlab::Data(&row), &rows_);
  }
  void Give(const CountedKey& counted) {
    if (request_.Wants(counted.version, counted.frequency)) AppendCounted(counted, &rows_);
  }

  // Gives the keys at some places from *place on, of all shards.
  bool VisitPlaces(uint64_t* place) {
    const ShardSet& shards = table_->shards_;
    int log2 = 32;  // of the smallest index: it only grows meanwhile
    for (auto& shard : shards) log2 = std::min(log2, Shard::Locked(shard)->scan().log2_homes());
    const size_t wanted = (most_ - Given(rows_)) / (ShardIndex::kWordsPerBucket * shards.size());
    const uint64_t step = StepOf(log2), homes = std::clamp<size_t>(wanted, 1, kHomesAhead);
    const uint64_t end = std::min(kPlaceOfNoHome, *place / step * step + homes * step);
    for (auto& shard : shards) GivePlaces(shard.get(), *place, end);
    *place = end;
    return end < kPlaceOfNoHome;
  }

  void GivePlaces(Shard* shard, uint64_t begin, uint64_t end) {
    const auto give = [&](const auto& found) {
      if (Reverse32(static_cast<uint32_t>(HashKey(found.key))) >= begin) Give(found);
    };
    Shard::Locked lock(shard);
    const int log2 = lock->scan().log2_homes();
    for (uint64_t place = begin / StepOf(log2) * StepOf(log2); place < end; place += StepOf(log2)) {
      FetchAhead(lock, place, log2);
      const auto no_record = [](int, uint32_t) { return false; };
      lock->scan().VisitHome(HomeAt(place, log2), give, give, no_record, [](int, uint32_t, uint32_t) {});
    }
  }

  bool VisitSlots(int shard, uint64_t* place) {
    Shard::Locked lock(table_->shards_[shard]);
    const size_t end = std::min(most_, Given(rows_) + kSliceRows);
    const auto go_on = [&] { return Given(rows_) < end; };
    const auto give = [&](const auto& found) { Give(found); };
    auto left = static_cast<uint32_t>(*place);
    if (*place < kInRows) {
      if (*place == 0) left = lock->scan().counted_slots();
      *place = lock->scan().VisitCounted(&left, kSliceSlots, go_on, give) ? left : kInRows | lock->scan().row_slots();
      return true;
    }
    const bool more = lock->scan().VisitRows(&left, kSliceSlots, bytes_ahead_, go_on, give);
    *place = kInRows | left;
    return more;
  }

  Result<bool> VisitHomes(int shard, uint64_t* place) {
    const size_t keys_before = rows_.keys.size(), counted_before = rows_.counted_keys.size();
    Below below;
    const uint64_t next = GiveMemory(shard, *place, &below);
    int64_t damaged = 0;
    Status status = Read(&below);
    if (status.ok()) status = GiveRecords(below, &damaged);
    if (!below.pending.empty()) {
      Shard::Locked lock(table_->shards_[shard]);
      for (const Pending& one : below.pending) lock->scan().EndReadAt(one.home, below.log2, one.id);
      lock->counters().corrupt += damaged;
    }
    if (!status.ok()) {
      CutOff(keys_before, counted_before, &rows_);
      return status;
    }
    *place = next;
    return next < kPlaceOfNoHome;
  }

  // Gives what is in memory, and makes the words of records pending. Returns the next place.
  uint64_t GiveMemory(int shard, uint64_t place, Below* below) {
    Shard::Locked lock(table_->shards_[shard]);
    while (lock->scan().ReadingAt(HomeAt(place, lock->scan().log2_homes()))) lock.WaitForResolution(lock.resolutions());
    const int log2 = below->log2 = lock->scan().log2_homes();
    int homes = 0;
    do {
      const uint32_t home = HomeAt(place, log2);
      FetchAhead(lock, place, log2);
      lock->scan().VisitHome(
          home, [&](const RowHeader& row) { Give(row); }, [&](const CountedKey& counted) { Give(counted); },
          [&](int level, uint32_t location) {
            return !thresholds_ || table_->tiers_.MayReach(level, location, request_.min_version, request_.min_frequency);
          },
          [&](int level, uint32_t location, uint32_t id) {
            ReadRecord& record = below->records[level].emplace_back();
            record.location = location;
            record.any_key = true;
            below->pending.push_back(Pending{home, id});
          });
      place += StepOf(log2);
    } while (place < kPlaceOfNoHome && ++homes < kSliceHomes && below->pending.size() < kSliceRecords &&
             Given(rows_) + below->pending.size() < most_ && !lock->scan().ReadingAt(HomeAt(place, log2)));
    return place;
  }

  // A home is far from the one before it in memory, and so are its rows.
  void FetchAhead(const Shard::Locked& lock, uint64_t place, int log2) const {
    const uint64_t words = place + kHomesAhead * StepOf(log2), its_rows = place + kHomesAhead / 2 * StepOf(log2);
    if (words < kPlaceOfNoHome) lock->scan().PrefetchHome(HomeAt(words, log2));
    if (its_rows < kPlaceOfNoHome) lock->scan().PrefetchRowsAt(HomeAt(its_rows, log2), bytes_ahead_);
  }

  Status Read(Below* below) {
    for (int level = 0; level < table_->levels_.count; ++level) {
      std::vector<ReadRecord>& records = below->records[level];
      if (records.empty()) continue;
      data_[level].resize(records.size() * layout_->row_bytes());
      for (size_t i = 0; i < records.size(); ++i) records[i].row_data = data_[level].data() + i * layout_->row_bytes();
      const Status status = table_->tiers_.Read(level, records);
      if (!status.ok()) return table_->tiers_.Error("scanning", level, status);
    }
    return OkStatus();
  }

  Status GiveRecords(const Below& below, int64_t* damaged) {
    for (int level = 0; level < table_->levels_.count; ++level) {
      for (const ReadRecord& record : below.records[level]) {
        if (record.status.code() == StatusCode::kDataLoss) {
          ++*damaged;
          if (table_->options_.on_corruption != OnCorruption::kError) continue;
        }
        if (!record.status.ok()) return table_->tiers_.RecordError("scanning", level, record);
        const RecordHeader& header = record.header;
        if (!request_.Wants(header.version, header.frequency)) continue;
        layout_->FillSlots(record.row_data, header.num_columns);
        AppendColumns(*layout_, columns_, header.key, header.frequency, header.version, record.row_data, &rows_);
      }
    }
    return OkStatus();
  }

  HostTable* const table_;
  const ScanRequest& request_;
  const std::vector<int> columns_;  // by their indexes in the layout
  const std::shared_ptr<const RowLayout> layout_;
  const size_t most_;
  const bool thresholds_;
  const size_t bytes_ahead_;
  std::vector<uint8_t> data_[kMaxLowerTiers];  // of records that are being read
  Rows rows_;
};

Result<std::vector<int>> HostTable::ColumnsNamed(const char* operation, const std::vector<std::string>& names) const {
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

Result<Rows> HostTable::Scan(const ScanRequest& request, uint64_t* next) {
  if (request.max_rows < 1) {
    return InvalidArgumentError("table '", options_.name, "': scan: max_rows: expected at least 1, found ", request.max_rows);
  }
  if (request.min_frequency < 0) {
    return InvalidArgumentError("table '", options_.name, "': scan: min_frequency: expected at least 0, found ",
                                request.min_frequency);
  }
  const auto most = static_cast<size_t>(std::min(request.max_rows, TotalCount()));
  const size_t bytes = 3 * most * (layout()->row_bytes() + 3 * sizeof(int64_t));  // a vector that grows is there twice
  if (!CanAllocate(bytes)) {
    return ResourceExhaustedError("table '", options_.name, "': scan of ", most, " rows: no memory for ", bytes,
                                  " bytes: use a smaller max_rows");
  }
  MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::Enter(&base_));
  const uint64_t in_table = request.cursor & ((uint64_t{1} << kCursorTableShift) - 1);
  uint64_t shard = in_table >> kCursorShardShift;
  const bool fits = shard < shards_.size() || (shard == kEveryShard && levels_.count == 0);
  if (request.cursor != 0 && (request.cursor >> kCursorTableShift != cursor_tag_ || !fits)) {
    return InvalidArgumentError("table '", options_.name,
                                "': scan: expected a cursor that an earlier scan of this table returned, found ",
                                request.cursor);
  }
  MT_ASSIGN_OR_RETURN(std::vector<int> columns, ColumnsNamed("scan", request.columns));
  const bool may_split = split_at_ != kNeverSplits;
  const bool at_once = may_split && request.cursor == 0 && common_.dram_rows.load() <= request.max_rows;
  Scanner scanner(this, request, std::move(columns), at_once);
  if (!HasThresholds(request)) scanner.Reserve(most);
  if (request.cursor == 0 && may_split && !at_once) shard = kEveryShard;
  uint64_t place = in_table & ((uint64_t{1} << kCursorShardShift) - 1);
  const uint64_t end = std::max<uint64_t>(shard + 1, shards_.size());
  while (shard < end && !scanner.full()) {
    MT_ASSIGN_OR_RETURN(const bool more, scanner.Visit(shard, &place));
    if (more) continue;
    place = 0;
    ++shard;
  }
  *next = shard == end ? 0 : cursor_tag_ << kCursorTableShift | shard << kCursorShardShift | place;
  return scanner.Take();
}

}  // namespace multitier
