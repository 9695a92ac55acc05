#include "cc/tier/leveldb/leveldb_tier.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "cc/base/helpers.h"
#include "cc/tier/leveldb/leveldb_entry.h"
#include "leveldb/write_batch.h"

namespace multitier {
namespace {

constexpr size_t kReadsPerPiece = 64;

}  // namespace

LevelDbTier::LevelDbTier(const LevelDbOptions& options)
    : options_(options), pid_(::getpid()), database_(std::make_unique<LevelDbDatabase>(options)) {}

Result<std::unique_ptr<LevelDbTier>> LevelDbTier::Open(const LevelDbOptions& options) {
  std::unique_ptr<LevelDbTier> tier(new LevelDbTier(options));
  MT_RETURN_IF_ERROR(tier->database_->Create());
  tier->compactor_ = tier->MakeCompactor();
  return tier;
}

LevelDbTier::~LevelDbTier() {
  if (::getpid() == pid_) return;
  // The parent's: its threads are not here.
  (void)compactor_.release();
  (void)database_.release();
}

TierCapabilities LevelDbTier::capabilities() const {
  TierCapabilities capabilities;
  capabilities.keyed = true;
  return capabilities;
}

std::shared_ptr<const RowLayout> LevelDbTier::layout() const {
  MutexLock lock(mutex_);
  return layout_;
}

Status LevelDbTier::CheckProcess() const {
  if (::getpid() == pid_) return OkStatus();
  return FailedPreconditionError("leveldb tier '", options_.directory, "': it belongs to process ", pid_,
                                 ", and this is a forked child");
}

Status LevelDbTier::ReadError(const ReadRecord& record, const leveldb::Status& status) const {
  const LevelDbEnv::Place& place = LevelDbEnv::last_read();
  const std::string where =
      place.path.empty() ? StrCat("'", options_.directory, "'") : StrCat("'", place.path, "' at offset ", place.offset);
  return database_->ErrorOf(StrCat("read of key ", record.header.key, " at location ", record.location, " in ", where), status);
}

Status LevelDbTier::MissingEntry(const Held& held, const ReadRecord& record, const uint32_t* found) const {
  {
    MutexLock lock(mutex_);
    const bool is_held = slots_.IsHeld(record.location) && slots_.key(record.location) == held.key &&
                         slots_.generation(record.location) == held.generation;
    // A newer entry: the key was written again, and its older record is about to be freed.
    const bool superseded = found != nullptr && static_cast<int32_t>(*found - held.generation) > 0;
    if (!is_held || superseded) {
      return NotFoundError("leveldb tier: no record at location ", record.location, " for key ", record.key);
    }
  }
  return DataLossError("leveldb tier: read of key ", held.key, " at location ", record.location, " in '", options_.directory,
                       "': expected its entry of generation ", held.generation, ", found ",
                       found == nullptr ? "none" : StrCat("generation ", *found));
}

Status LevelDbTier::SetLayout(std::shared_ptr<const RowLayout> layout) {
  MT_RETURN_IF_ERROR(CheckProcess());
  MutexLock lock(mutex_);
  layout_ = std::move(layout);
  return OkStatus();
}

Status LevelDbTier::Write(Span<const WriteRecord> records, uint32_t* locations) {
  MT_RETURN_IF_ERROR(CheckProcess());
  const std::shared_ptr<const RowLayout> layout = this->layout();
  if (layout == nullptr) return FailedPreconditionError("leveldb tier: write before SetLayout");
  for (const WriteRecord& record : records) {
    if (record.header.num_columns >= 1 && record.header.num_columns <= layout->columns().size()) continue;
    return InvalidArgumentError("leveldb tier: write of key ", record.header.key, ": expected 1 to ", layout->columns().size(),
                                " columns, found ", record.header.num_columns);
  }
  if (records.empty()) return OkStatus();
  compactor_->WaitIfBehind();
  MutexLock writing(database_->write_mutex);
  const int64_t n = static_cast<int64_t>(records.size());
  {
    MutexLock lock(mutex_);
    const int64_t most = options_.max_rows > 0 ? options_.max_rows : int64_t{kNoLocation};
    if (slots_.num_held() + n > most) {
      return ResourceExhaustedError("leveldb tier: write of ", n, " records: the tier holds ", slots_.num_held(),
                                    " rows of at most ", most);
    }
    for (size_t i = 0; i < records.size(); ++i) locations[i] = slots_.Take();
  }
  const uint32_t first_generation = next_generation_;
  next_generation_ += static_cast<uint32_t>(n);
  leveldb::WriteBatch batch;
  std::string value;
  for (size_t i = 0; i < records.size(); ++i) {
    const EntryKey key(records[i].header.key);
    const uint32_t generation = first_generation + static_cast<uint32_t>(i);
    EncodeEntry(key, records[i], generation, BytesOfColumns(*layout, records[i].header.num_columns), &value);
    batch.Put(key.slice(), value);
  }
  Status status = database_->CheckSpace(batch.ApproximateSize());
  if (status.ok()) status = database_->Commit("write", leveldb::WriteOptions(), /*at_once=*/false, &batch);
  if (status.ok()) appended_bytes_ += static_cast<int64_t>(batch.ApproximateSize());
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < records.size(); ++i) {
      if (status.ok()) {
        slots_.Hold(locations[i], records[i].header.key, first_generation + static_cast<uint32_t>(i));
      } else {
        slots_.GiveBack(locations[i]);
      }
    }
  }
  if (status.ok()) compactor_->CompactIfDue();
  return status;
}

Status LevelDbTier::Read(Span<ReadRecord> records) {
  MT_RETURN_IF_ERROR(CheckProcess());
  std::vector<Held> held;
  std::shared_ptr<const RowLayout> layout;
  {
    MutexLock lock(mutex_);
    layout = layout_;
    for (size_t i = 0; i < records.size(); ++i) {
      const uint32_t location = records[i].location;
      if (slots_.IsHeld(location)) {
        held.push_back(Held{slots_.key(location), slots_.generation(location), static_cast<uint32_t>(i)});
      } else {
        records[i].status =
            NotFoundError("leveldb tier: no record at location ", records[i].location, " for key ", records[i].key);
      }
    }
  }
  if (held.empty()) return OkStatus();
  std::sort(held.begin(), held.end(), ByKey);  // neighbours share blocks
  RunOnHelpers((held.size() + kReadsPerPiece - 1) / kReadsPerPiece, options_.read_helpers, [&](size_t piece) {
    std::string value;
    const size_t end = std::min(held.size(), (piece + 1) * kReadsPerPiece);
    for (size_t i = piece * kReadsPerPiece; i < end; ++i) ReadOne(*layout, held[i], &records[held[i].index], &value);
  });
  return OkStatus();
}

void LevelDbTier::ReadOne(const RowLayout& layout, const Held& held, ReadRecord* record, std::string* value) const {
  const EntryKey key(held.key);
  record->header.key = held.key;
  if (std::exchange(record->any_key, false)) record->key = held.key;
  LevelDbEnv::last_read().path.clear();
  leveldb::ReadOptions options;
  options.verify_checksums = true;
  const leveldb::Status status = database_->Use([&](leveldb::DB* db) { return db->Get(options, key.slice(), value); });
  uint32_t generation = 0;
  if (status.ok()) {
    const char* bad = DecodeEntry(key.slice(), *value, &record->header, &generation);
    if (bad == nullptr && generation == held.generation) {
      const uint32_t num_columns = record->header.num_columns;
      const bool fits = num_columns >= 1 && num_columns <= layout.columns().size() &&
                        value->size() == kEntryHeaderBytes + BytesOfColumns(layout, num_columns);
      if (fits) {
        const size_t row_bytes = value->size() - kEntryHeaderBytes;
        if (record->row_data != nullptr) std::memcpy(record->row_data, value->data() + kEntryHeaderBytes, row_bytes);
        record->status = OkStatus();
        return;
      }
      bad = "its columns are not those of the table";
    }
    record->status =
        bad != nullptr ? ReadError(*record, leveldb::Status::Corruption(bad)) : MissingEntry(held, *record, &generation);
  } else {
    record->status = status.IsNotFound() ? MissingEntry(held, *record, nullptr) : ReadError(*record, status);
  }
}

void LevelDbTier::Free(Span<const KeyLocation> records) {
  if (::getpid() != pid_) return;
  MutexLock lock(mutex_);
  for (const KeyLocation& record : records) {
    MT_CHECK(slots_.IsHeld(record.location) && slots_.key(record.location) == record.key);
    slots_.GiveBack(record.location);
  }
}

Status LevelDbTier::Remove(Span<const KeyLocation> records) {
  MT_RETURN_IF_ERROR(CheckProcess());
  if (records.empty()) return OkStatus();
  compactor_->WaitIfBehind();
  MutexLock writing(database_->write_mutex);
  leveldb::WriteBatch batch;
  for (const KeyLocation& record : records) batch.Delete(EntryKey(record.key).slice());
  MT_RETURN_IF_ERROR(database_->Commit("removal", leveldb::WriteOptions(), /*at_once=*/false, &batch));
  appended_bytes_ += static_cast<int64_t>(batch.ApproximateSize());
  size_t row_bytes = 0;
  {
    MutexLock lock(mutex_);
    if (layout_ != nullptr) row_bytes = layout_->row_bytes();
    for (const KeyLocation& record : records) {
      if (record.location == kNoLocation) continue;
      MT_CHECK(slots_.IsHeld(record.location) && slots_.key(record.location) == record.key);
      slots_.GiveBack(record.location);
    }
  }
  compactor_->NoteRemoved(static_cast<int64_t>(records.size() * (row_bytes + kEntryFileBytes)));
  compactor_->CompactIfDue();
  return OkStatus();
}

uint64_t LevelDbTier::location_end() const {
  MutexLock lock(mutex_);
  return slots_.end();
}

TierStats LevelDbTier::stats() const {
  TierStats stats;
  {
    MutexLock lock(mutex_);
    stats.rows = slots_.num_held();
    stats.row_bytes = layout_ == nullptr ? 0 : stats.rows * static_cast<int64_t>(layout_->row_bytes());
    stats.resident_bytes = static_cast<int64_t>(slots_.resident_bytes());
  }
  if (::getpid() != pid_) return stats;
  std::string memory;
  if (database_->Use([&](leveldb::DB* db) { return db->GetProperty("leveldb.approximate-memory-usage", &memory); })) {
    stats.resident_bytes += std::strtoll(memory.c_str(), nullptr, 10);
  }
  const LevelDbDisk& disk = *database_->disk();
  stats.stored_bytes = disk.stored_bytes();
  stats.device_reads = disk.reads;
  stats.device_read_bytes = disk.read_bytes;
  stats.device_written_bytes = disk.written_bytes;
  stats.appended_bytes = appended_bytes_;
  stats.read_backend = "pread";
  return stats;
}

}  // namespace multitier
