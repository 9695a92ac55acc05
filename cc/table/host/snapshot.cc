// Snapshot and Export: the whole table as of one moment, in chunks, while operations go on. Copy-on-write: a row that changes
// before the snapshot comes to it is copied first. snapshot_together.h takes one moment for several tables, as a save does.
//
//   1. moment  the gate is closed while every row of DRAM and every counted key is marked as to be given (a bit a slot), and a
//              Bloom filter is copied. Records below need no mark: see SnapshotState
//   2. DRAM    slot by slot, a slice of each shard in turn under its lock: each marked row is given, and its mark is cleared
//   3. below   each tier, the upper one first, in the order of its locations, which a device reads fastest. Records are read
//              without a lock. Then, under the shard's lock, a record is given if it is to be given and the key's word or row
//              names it
// One row is given once: at its place in DRAM or at the location of its record, whichever the snapshot meets first. Both marks
// are cleared then.
//
// In the meantime rows change, leave and move. Each such step happens under the shard's lock and keeps what is to be given
// ahead of 2 and 3:
//   change, removal, expiry, drop   the row is copied first
//   DRAM -> a tier      while 2 runs the mark goes along. Later, a row of DRAM that is to be given has an unchanged copy in the
//                       last tier, where 3 finds it: the row may go back there. Into any other tier, it is copied first
//   a tier -> DRAM      if the record stays as the row's clean copy, the row takes the mark; else the row is copied
//   first -> last tier  the mark goes along: 3 comes to the last tier later
//   compaction          the mark goes along, and the record's new place is noted; 3 looks at noted places at its end
// While 3 reads a tier, only compaction moves a row that is still to be given to another place of that tier. So if a place was
// noted after 3 had read the record there, that record may be an older one of its key. It is skipped: the look at noted places
// gives the row. Any other record is given if the key's word or row names it.
//
// At the end the rows that were given are counted against those that the table had at the moment. A snapshot that lacks a row
// fails, whatever a tier said of its record. Damaged rows that on_corruption leaves out are counted as given.
//
// Files in place of rows (SnapshotRequest::take_file): snapshot_files.h. They are given between 1 and 2.
//
// A snapshot of what changed since the moment of an earlier one (SnapshotRequest::since) takes over what ChangedRows has noted:
// 1 marks these rows of DRAM alone; 3 reads the keys that are below, or removed, wherever they are by then. A row that changes
// first is copied, as above.
//
// Copies wait in memory for the next chunk. While there are many, operations that change rows wait at their start, or between
// two slices of a long one, where they hold nothing; jobs of the pool, which must not wait, come back later. One snapshot at a
// time. An operation that changes the layout, or that closes the gate for long, waits for it.

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>

#include "cc/base/can_allocate.h"
#include "cc/table/api/table_snapshot.h"
#include "cc/table/host/host_table.h"
#include "cc/table/host/snapshot_files.h"
#include "cc/table/marks/row_export.h"

namespace multitier {
namespace {

constexpr size_t kGivenRows = 1024;  // under one hold of a shard's lock
constexpr size_t kReadBytes = 4u << 20;
constexpr size_t kFactsBytes = 3 * sizeof(int64_t);                       // of a row: key, frequency, version
constexpr uint32_t kGivenSlots = 16 * kGivenRows;                         // looked at, at most
constexpr size_t kManyWaitingBytes = WaitingCopies::kFarBehindBytes / 4;  // of copies in all tables
constexpr size_t kWorthTakingBytes = 1u << 20;                            // of copies in this table

}  // namespace

// Gives keys of a snapshot of what changed, as they are: nothing has changed them since its moment.
class ChangedKeyVisitor : public RecordVisitor {
 public:
  ChangedKeyVisitor(const RowLayout& layout, bool all_columns, Rows* rows)
      : layout_(layout), all_columns_(all_columns), rows_(rows) {}
  bool NeedsRow() const override { return true; }
  Status OnMemory(Shard::Locked& lock, TierKey* key, const Found& found) override {
    if (!lock->snapshot().TakeKeyToGive(key->key)) return OkStatus();  // it changed since, and was copied
    if (found.row != nullptr && !found.row->has(kRowUncommitted)) {
      Append(key->key, found.row->frequency, found.row->version, RowSlab::Data(found.row));
    } else if (found.counted != nullptr && found.counted->frequency > 0) {
      AppendCounted(*found.counted, rows_);
    } else {
      rows_->removed_keys.push_back(key->key);
    }
    return OkStatus();
  }
  Answer OnRecord(Shard::Locked& lock, TierKey* key, const RecordHeader& header) override {
    if (lock->snapshot().TakeKeyToGive(key->key)) Append(key->key, header.frequency, header.version, key->row.data());
    return Answer::kKeep;
  }

 private:
  void Append(int64_t key, uint32_t frequency, int64_t version, const uint8_t* data) {
    AppendRow(layout_, all_columns_, key, frequency, version, data, rows_);
  }

  const RowLayout& layout_;
  const bool all_columns_;
  Rows* const rows_;
};

// --- The snapshot.

class HostTable::Snapshot : public TableSnapshot {
 public:
  Snapshot(HostTable* table, SnapshotRequest request)
      : table_(table),
        turn_(&table->snapshot_.one_at_a_time()),
        layout_(table->layout()),
        state_(std::make_shared<SnapshotState>()),
        max_rows_(static_cast<size_t>(request.max_rows)),
        visit_(std::move(request.visit)),
        files_(&table->tiers_, std::move(request.take_file)),
        since_(request.since),
        track_as_(request.track_as) {
    if (request.waiting != nullptr) state_->waiting = std::move(request.waiting);
    state_->all_columns = request.all_columns;
    state_->is_delta = since_ != 0;
    state_->leaves_out_damaged = table->options_.on_corruption != OnCorruption::kError;
  }
  ~Snapshot() override {
    Release();
    state_->End();
    table_->snapshot_.End();
    const bool loses_track = marked_ && track_as_ != 0 && !succeeded_;
    if (loses_track) table_->base_.changes_since = 0;
    for (auto& shard : table_->shards_) {
      Shard::Locked lock(shard);
      lock->snapshot().End();
      if (loses_track) lock->snapshot().ForgetChanges();
    }
    Shard::Locked(table_->shards_[0])->counters().corrupt += corrupt_;
  }

  Status Hold() override {
    held_since_ = std::chrono::steady_clock::now();
    table_->base_.gate.Close();
    holds_ = true;
    return OkStatus();
  }

  void Mark() override {
    applies_ = table_->applies_.load();
    if (table_->bloom_ != nullptr) filter_counters_ = table_->bloom_->State();
    marked_ = true;
    files_.Take(table_->shards_, state_.get());
    for (auto& shard : table_->shards_) {
      Shard::Locked lock(shard);
      if (!state_->is_delta) {
        lock->snapshot().Begin(state_);
      } else if (!lock->snapshot().BeginDelta(state_)) {
        knows_changes_ = false;
      }
      if (track_as_ != 0) {
        lock->snapshot().TrackChanges();
      } else if (state_->is_delta) {
        lock->snapshot().ForgetChanges();
      }
      state_->rows += lock->counts().rows;
      state_->counted_keys += lock->counts().counted_rows;
    }
    if (track_as_ != 0 || state_->is_delta) table_->base_.changes_since = track_as_;
    table_->snapshot_.Begin(state_);
  }

  void Release() override {
    if (!std::exchange(holds_, false)) return;
    table_->base_.gate.Open();
    const auto held = std::chrono::steady_clock::now() - held_since_;
    table_->snapshot_.set_held_us(std::chrono::duration_cast<std::chrono::microseconds>(held).count());
  }

  Result<bool> GiveFile() override {
    MT_ASSIGN_OR_RETURN(const std::optional<int64_t> rows, files_.Give());
    if (!rows.has_value()) return false;
    rows_given_ += *rows;
    table_->snapshot_.set_linked_bytes(files_.linked_bytes());
    return true;
  }

  Status GiveCopies() override {
    MT_RETURN_IF_ERROR(TakeAlong());
    if (chunk_.columns.empty()) return OkStatus();  // none waited
    MT_RETURN_IF_ERROR(GiveChunk());
    chunk_ = Rows();
    return OkStatus();
  }

  size_t copied_bytes() const override { return state_->copied; }

  Status Run() override {
    const size_t bytes = ScratchBytes();
    if (!CanAllocate(bytes)) {
      return ResourceExhaustedError("table '", table_->options_.name, "': reading all rows: no memory for ", bytes, " bytes");
    }
    state_->thread = std::this_thread::get_id();
    MT_RETURN_IF_ERROR(GiveAll());
    succeeded_ = true;
    return OkStatus();
  }

 private:
  // What Run needs at most: one chunk, the copies that wait and those that were taken, and one read.
  size_t ScratchBytes() const {
    const size_t row_bytes = layout_->row_bytes(), rows = static_cast<size_t>(state_->rows);
    const size_t chunk = ChunkCapacity() * (row_bytes + kFactsBytes);
    const size_t copies = 2 * std::min<size_t>(WaitingCopies::kFarBehindBytes, rows * (row_bytes + kFactsBytes));
    size_t read = 0;
    for (int level = 0; level < table_->levels_.count; ++level) {
      read = std::max(read, std::min<size_t>(ReadAtOnce(), table_->tiers_.location_end(level)));
    }
    return chunk + copies + read * (kScratchBytesOfKey + row_bytes);
  }

  // REQUIRES: memory for ScratchBytes
  Status GiveAll() {
    if (!knows_changes_) return table_->ChangesNotKnown(since_);
    BeginChunk();
    for (auto& shard : table_->shards_) MT_RETURN_IF_ERROR(Counted(shard.get()));
    MT_RETURN_IF_ERROR(InDram());
    state_->in_dram = false;
    // A step that saw in_dram as true has moved its mark once its shard's lock is free.
    for (auto& shard : table_->shards_) {
      Shard::Locked lock(shard);
    }
    if (state_->is_delta) {
      for (auto& shard : table_->shards_) MT_RETURN_IF_ERROR(ChangedKeys(shard.get()));
    } else {
      for (int level = 0; level < table_->levels_.count; ++level) MT_RETURN_IF_ERROR(Below(level));
    }
    MT_RETURN_IF_ERROR(TakeAlong());
    chunk_.applies = applies_;
    chunk_.filter_counters = std::move(filter_counters_);
    CountChunk();
    MT_RETURN_IF_ERROR(CheckComplete());
    return visit_(&chunk_);
  }

  // Of everything, the last chunk included.
  Status CheckComplete() const {
    if (state_->is_delta) {  // ChangedKeys ends when no key is left
      if (state_->lost == 0) return OkStatus();
      return DataLossError("table '", table_->options_.name, "': reading what changed: ", state_->lost.load(),
                           " damaged rows were removed before they were read");
    }
    const int64_t left_out = state_->left_out.load();
    if (rows_given_ + left_out == state_->rows && counted_given_ == state_->counted_keys) return OkStatus();
    const std::string message = StrCat("table '", table_->options_.name, "': reading all rows: expected ", state_->rows,
                                       " rows and ", state_->counted_keys, " counted keys, found ", rows_given_, " and ",
                                       counted_given_, "; ", left_out, " damaged rows were left out");
    const bool lacks = rows_given_ + left_out < state_->rows || counted_given_ < state_->counted_keys;
    return lacks ? DataLossError(message) : InternalError(message);
  }

  void BeginChunk() {
    chunk_ = Rows();
    SetColumns(&chunk_);
    const size_t rows = ChunkCapacity();
    chunk_.keys.reserve(rows);
    chunk_.frequencies.reserve(rows);
    chunk_.versions.reserve(rows);
    chunk_.data.reserve(rows * static_cast<size_t>(chunk_.row_elements()));
  }

  void SetColumns(Rows* rows) const {
    for (const Column& column : layout_->columns()) {
      rows->columns.push_back(column);
      if (!state_->all_columns) break;
    }
  }

  // Rows of one chunk, of those that were not given yet.
  size_t ChunkCapacity() const {
    return std::min(max_rows_, static_cast<size_t>(std::max<int64_t>(0, state_->rows - rows_given_)));
  }
  size_t ReadAtOnce() const { return std::max<size_t>(1, kReadBytes / layout_->row_bytes()); }

  Status GiveWhereFull() {
    if (room() > 0) return OkStatus();
    MT_RETURN_IF_ERROR(GiveChunk());
    BeginChunk();
    return OkStatus();
  }

  Status GiveChunk() {
    CountChunk();
    return visit_(&chunk_);
  }

  void CountChunk() {
    rows_given_ += static_cast<int64_t>(chunk_.keys.size());
    counted_given_ += static_cast<int64_t>(chunk_.counted_keys.size());
  }

  // Rows and counted keys that the chunk takes.
  size_t room() const { return max_rows_ - chunk_.keys.size() - chunk_.counted_keys.size() - chunk_.removed_keys.size(); }

  Status Counted(Shard* shard) {
    uint32_t slot = 0;
    for (bool more = true; more;) {
      more = Shard::Locked(shard)->snapshot().GiveCounted(&slot, std::min(kGivenRows, room()), kGivenSlots,
                                                          [&](const CountedKey& counted) { AppendCounted(counted, &chunk_); });
      MT_RETURN_IF_ERROR(GiveWhereFull());
      MT_RETURN_IF_ERROR(TakeAlong());
    }
    return OkStatus();
  }

  // Gives the copies that wait.
  Status TakeAlong() {
    for (auto& shard : table_->shards_) {
      std::vector<Rows> copies = Shard::Locked(shard)->snapshot().TakeCopies();  // the visitor may need the shard's lock
      MT_RETURN_IF_ERROR(GiveTaken(std::move(copies)));
    }
    return OkStatus();
  }

  Status GiveTaken(std::vector<Rows> blocks) {
    for (Rows& block : blocks) {
      if (chunk_.columns.empty()) BeginChunk();
      size_t next = 0;
      for (bool more = true; more;) {
        more = AppendSome(block, room(), &next, &chunk_);
        MT_RETURN_IF_ERROR(GiveWhereFull());
      }
      block = Rows();
    }
    return OkStatus();
  }

  // One slice of each shard in turn. So every chunk has rows of all shards, and an import can use several threads. A shard that
  // was passed may have copies yet: of rows below, or of keys of a delta. They are taken along once many wait.
  Status InDram() {
    struct Place {
      Shard* shard;
      uint32_t slot;
    };
    std::deque<Place> places;
    for (auto& shard : table_->shards_) places.push_back(Place{shard.get(), 0});
    const auto give = [this](const RowHeader& row) {
      AppendRow(*layout_, state_->all_columns, row.key, row.frequency, row.version, RowSlab::Data(&row), &chunk_);
    };
    while (!places.empty()) {
      Place place = places.front();
      places.pop_front();
      bool more = false;
      std::vector<Rows> copies;
      {
        Shard::Locked lock(place.shard);
        more = lock->snapshot().GiveRows(&place.slot, std::min(kGivenRows, room()), kGivenSlots, give);
        copies = lock->snapshot().TakeCopies();
      }
      if (more) places.push_back(place);
      MT_RETURN_IF_ERROR(GiveWhereFull());
      MT_RETURN_IF_ERROR(GiveTaken(std::move(copies)));
      if (state_->waiting->bytes() > kManyWaitingBytes && state_->copied > kWorthTakingBytes) MT_RETURN_IF_ERROR(TakeAlong());
    }
    return OkStatus();
  }

  // Of a snapshot of what changed: keys that were below at its moment, were removed, or were demoted since.
  Status ChangedKeys(Shard* shard) {
    for (;;) {
      const std::vector<int64_t> keys = Shard::Locked(shard)->snapshot().KeysToGive(std::min(kGivenRows, room()));
      if (keys.empty()) return TakeAlong();
      MT_RETURN_IF_ERROR(ReadChangedKeys(keys));
      MT_RETURN_IF_ERROR(GiveWhereFull());
      MT_RETURN_IF_ERROR(TakeAlong());
    }
  }

  Status ReadChangedKeys(const std::vector<int64_t>& keys) {
    MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::Enter(&table_->base_));
    BorrowedKeyBatch batch;
    batch->SortByShard(keys, table_->shards_.log2(), /*distinct=*/true);
    TierKeys wanted;
    for (int s = 0; s < static_cast<int>(table_->shards_.size()); ++s) {
      for (uint32_t e = batch->begin(s); e < batch->end(s); ++e) wanted.Add(*batch, e, s);
    }
    ChangedKeyVisitor visitor(*layout_, state_->all_columns, &chunk_);
    return table_->reader_.Read(&wanted, &visitor);
  }

  Status Below(int level) {
    MT_RETURN_IF_ERROR(BelowIn(level, 0, table_->tiers_.location_end(level)));
    // Records that moved in the meantime, perhaps to a place that was passed: each look is at what moved during the one before.
    for (;;) {
      std::vector<LocationRun> moved;
      {
        MutexLock lock(state_->mutex);
        moved.swap(state_->moved[level]);
      }
      if (moved.empty()) return OkStatus();
      for (const LocationRun& run : moved) MT_RETURN_IF_ERROR(BelowIn(level, run.first, uint64_t{run.last} + 1));
    }
  }

  Status BelowIn(int level, uint64_t location, uint64_t end) {
    const size_t row_bytes = layout_->row_bytes();
    const size_t at_once = ReadAtOnce();
    std::vector<ReadRecord> records;
    while (location < end) {
      records.clear();
      for (; location < end && records.size() < at_once; ++location) {
        location = state_->given[level].FirstUnset(location, end);
        if (location == end) break;
        ReadRecord& record = records.emplace_back();
        record.location = static_cast<uint32_t>(location);
        record.any_key = true;
      }
      read_.resize(std::max(read_.size(), records.size() * row_bytes));
      for (size_t i = 0; i < records.size(); ++i) records[i].row_data = read_.data() + i * row_bytes;
      moves_ = state_->Moves(level);
      if (!records.empty()) {
        const Status read = table_->tiers_.Read(level, records);
        if (!read.ok()) return table_->tiers_.Error("reading all rows", level, read);
      }
      for (const ReadRecord& record : records) MT_RETURN_IF_ERROR(Give(level, record));
      MT_RETURN_IF_ERROR(TakeAlong());
    }
    return OkStatus();
  }

  Status Give(int level, const ReadRecord& record) {
    if (!record.status.ok()) return GoWithout(level, record);
    Shard* const shard = table_->shards_.of(HashKey(record.header.key));
    if (!Shard::Locked(shard)->snapshot().GiveRecord(level, record, moves_)) return OkStatus();
    layout_->FillSlots(record.row_data, record.header.num_columns);
    AppendRow(*layout_, state_->all_columns, record.header.key, record.header.frequency, record.header.version, record.row_data,
              &chunk_);
    return GiveWhereFull();
  }

  // A record that cannot be read. If a row needs it, returns an error or, if on_corruption says so, leaves the row out.
  Status GoWithout(int level, const ReadRecord& record) {
    if (record.any_key) {
      if (record.status.code() == StatusCode::kNotFound) return OkStatus();  // nothing is there
      if (state_->given[level].has(record.location)) return OkStatus();      // by now
    } else {
      Shard* const shard = table_->shards_.of(HashKey(record.key));
      if (!Shard::Locked(shard)->snapshot().NeedsRecord(level, record.key, record.location, moves_)) return OkStatus();
    }
    if (record.status.code() == StatusCode::kDataLoss) {
      ++corrupt_;
      if (table_->options_.on_corruption != OnCorruption::kError) {
        state_->LeaveOut(level, record.location);
        return OkStatus();
      }
    }
    return table_->tiers_.RecordError("reading all rows", level, record);
  }

  HostTable* const table_;
  const TurnHold turn_;  // given back after everything else
  const std::shared_ptr<const RowLayout> layout_;
  const std::shared_ptr<SnapshotState> state_;
  const size_t max_rows_;
  const std::function<Status(Rows*)> visit_;
  SnapshotFiles files_;
  const int64_t since_, track_as_;
  bool holds_ = false;  // the gate is closed
  bool marked_ = false, succeeded_ = false;
  bool knows_changes_ = true;
  std::chrono::steady_clock::time_point held_since_;
  Rows chunk_;
  std::vector<uint8_t> read_;      // row data of the records of one read
  SnapshotState::MoveMark moves_;  // before that read
  int64_t applies_ = 0;
  std::vector<uint8_t> filter_counters_;
  int64_t corrupt_ = 0;                         // damaged records met
  int64_t rows_given_ = 0, counted_given_ = 0;  // in all chunks
};

Result<std::unique_ptr<TableSnapshot>> HostTable::PrepareSnapshot(SnapshotRequest request) {
  if (request.max_rows < 1) {
    return InvalidArgumentError("table '", options_.name, "': snapshot: max_rows: expected at least 1, found ",
                                request.max_rows);
  }
  MT_RETURN_IF_ERROR(base_.CheckProcess());
  const int64_t since = request.since;
  const bool files = levels_.count == 1 && since == 0 && request.all_columns && options_.on_corruption == OnCorruption::kError;
  if (request.take_file != nullptr) {
    snapshot_.set_linked_bytes(0);  // of the save before
    if (!files || request.link_name.empty() || !tiers_.PrepareLinks(0, request.link_name)) request.take_file = nullptr;
    if (request.take_file != nullptr && request.write_down && !levels_.bounded[0]) {
      MT_RETURN_IF_ERROR(WriteDown());
      tiers_.PrepareLinks(0, request.link_name);  // of the files that are full now
    }
  }
  auto snapshot = std::make_unique<Snapshot>(this, std::move(request));
  if (since != 0 && ChangesSince() != since) return ChangesNotKnown(since);
  return std::unique_ptr<TableSnapshot>(std::move(snapshot));
}

Status HostTable::ChangesNotKnown(int64_t since) const {
  return FailedPreconditionError("table '", options_.name, "': expected changes since moment ", since, ", found ",
                                 ChangesSince() == 0       ? "no tracked changes"
                                 : ChangesSince() == since ? "too many to track"
                                                           : StrCat("those since moment ", ChangesSince()),
                                 ": take a full snapshot");
}

}  // namespace multitier
