// How the tier survives a failed write. LevelDB writes its log in fragments. After a failed fragment the end of the file is
// unknown, and LevelDB would continue after it. Therefore the first failure stops all writes (write_mutex_ ensures that none is
// in progress). The log then ends with a fragment that recovery treats as the death of its writer. Closing and opening the
// database then reads every acknowledged row: rows of the memory tables are in the logs, and a log is deleted only when its
// rows are in table files. A failed row is not among them, or it is intact but at no location.
//
// The new database is opened before the old one is closed, so that rows stay readable if it cannot be opened. Two databases in
// one directory would destroy it; therefore the old one is frozen first. A frozen database changes no file, and its background
// thread is idle (leveldb_env.h). It reads only data that was written before, and a failed attempt deletes no file. LevelDB
// would continue without lost parts of a log or manifest, and then delete the files that it no longer knows. Therefore the disk
// checks these files first.

#include "cc/tier/leveldb/leveldb_tier.h"

#include <errno.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstring>
#include <utility>
#include <vector>

#include "cc/base/helpers.h"
#include "cc/env/posix_error.h"
#include "cc/tier/leveldb/leveldb_entry.h"
#include "leveldb/write_batch.h"

namespace multitier {
namespace {

constexpr size_t kReadsPerPiece = 64;

class NullLogger : public leveldb::Logger {
 public:
  void Logv(const char*, std::va_list) override {}
};

uint64_t NowMicros() {
  struct timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

}  // namespace

LevelDbTier::LevelDbTier(const LevelDbOptions& options)
    : options_(options),
      pid_(::getpid()),
      disk_(std::make_unique<LevelDbDisk>()),
      list_(disk_.get(), options.directory),
      filter_(leveldb::NewBloomFilterPolicy(10)),
      cache_(leveldb::NewLRUCache(options.block_cache_bytes)),
      logger_(std::make_unique<NullLogger>()) {}

Result<std::unique_ptr<LevelDbTier>> LevelDbTier::Open(const LevelDbOptions& options) {
  std::unique_ptr<LevelDbTier> tier(new LevelDbTier(options));
  if (!options.recover) {
    LevelDbEnv env(tier->disk_.get(), options.durable);
    (void)env.RemoveFile(tier->list_.path());
    leveldb::Options destroyed;
    destroyed.env = &env;
    const leveldb::Status status = leveldb::DestroyDB(options.directory, destroyed);
    if (!status.ok()) return tier->ErrorOf(StrCat("clearing of the database in '", options.directory, "'"), status);
    // DestroyDB takes the directory too where nothing else is in it.
    (void)env.CreateDir(options.directory);
  }
  if (options.recover) {
    MT_RETURN_IF_ERROR(tier->list_.Check(&tier->recovery_));
    const leveldb::Status found = tier->disk_->FindFiles(options.directory);
    if (!found.ok()) return tier->ErrorOf(StrCat("recovery of '", options.directory, "'"), found);
  }
  MT_ASSIGN_OR_RETURN(tier->database_, tier->OpenDatabase(/*create=*/!options.recover));
  if (options.recover) MT_RETURN_IF_ERROR(tier->RecoverLocations());
  if (options.durable) MT_RETURN_IF_ERROR(tier->list_.Write());  // opening has begun a new manifest
  tier->compactor_ = tier->MakeCompactor();
  return tier;
}

LevelDbTier::~LevelDbTier() {
  if (::getpid() == pid_) {
    compactor_.reset();    // uses the database
    database_.db.reset();  // before what it uses
    return;
  }
  // The parent's: its threads are not here.
  (void)compactor_.release();
  (void)database_.db.release();
  (void)database_.env.release();
  (void)disk_.release();
  (void)filter_.release();
  (void)cache_.release();
  (void)logger_.release();
}

Result<LevelDbTier::Database> LevelDbTier::OpenDatabase(bool create) {
  Database database;
  database.env = std::make_unique<LevelDbEnv>(disk_.get(), options_.durable);
  if (Status started = database.env->Start(); !started.ok()) {
    return Status(started.code(),
                  StrCat("leveldb tier: opening of the database in '", options_.directory, "': ", started.message()),
                  started.os_error());
  }
  leveldb::Options options;
  options.env = database.env.get();
  options.info_log = logger_.get();
  options.create_if_missing = create;
  // Bad blocks stop compaction instead of being rewritten with a good checksum.
  options.paranoid_checks = true;
  options.write_buffer_size = options_.write_buffer_bytes;
  options.block_cache = cache_.get();
  options.max_file_size = options_.table_file_bytes;
  options.max_open_files = options_.max_open_files;
  options.compression = options_.compress ? leveldb::kSnappyCompression : leveldb::kNoCompression;
  options.filter_policy = filter_.get();
  leveldb::DB* db = nullptr;
  const leveldb::Status status = leveldb::DB::Open(options, options_.directory, &db);
  if (!status.ok()) return ErrorOf(StrCat("opening of the database in '", options_.directory, "'"), status);
  database.db.reset(db);
  return database;
}

TierCapabilities LevelDbTier::capabilities() const {
  TierCapabilities capabilities;
  capabilities.durable = options_.durable;
  capabilities.keyed = true;
  return capabilities;
}

std::shared_ptr<const RowLayout> LevelDbTier::layout() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return layout_;
}

Status LevelDbTier::CheckProcess() const {
  if (::getpid() == pid_) return OkStatus();
  return FailedPreconditionError("leveldb tier '", options_.directory, "': it belongs to process ", pid_,
                                 ", and this is a forked child");
}

Status LevelDbTier::ErrorOf(const std::string& what, const leveldb::Status& status) const {
  const std::string message = StrCat("leveldb tier: ", what, ": ", status.ToString());
  if (status.IsCorruption()) return DataLossError(message);
  const int error = disk_->ErrnoOf(status);
  const StatusCode code = error == 0 ? StatusCode::kUnavailable : PosixError("", "", error).code();
  // InvalidArgument: there is no database where one is to be opened again.
  const bool missing = status.IsNotFound() || status.IsInvalidArgument() || code == StatusCode::kNotFound;
  const bool was_there = options_.recover || database_.db != nullptr;
  return missing && was_there ? DataLossError(message) : Status(code, message, error);
}

Status LevelDbTier::ReadError(const ReadRecord& record, const leveldb::Status& status) const {
  const LevelDbEnv::Place& place = LevelDbEnv::last_read();
  const std::string where =
      place.path.empty() ? StrCat("'", options_.directory, "'") : StrCat("'", place.path, "' at offset ", place.offset);
  return ErrorOf(StrCat("read of key ", record.header.key, " at location ", record.location, " in ", where), status);
}

Status LevelDbTier::MissingEntry(const Held& held, const ReadRecord& record, const uint32_t* found) const {
  {
    std::lock_guard<std::mutex> lock(mutex_);
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

Status LevelDbTier::CheckSpace(size_t bytes) const {
  struct statvfs info;
  if (::statvfs(options_.directory.c_str(), &info) != 0) {
    return ErrorOf("statvfs", disk_->Failed(options_.directory, errno));
  }
  const uint64_t total = static_cast<uint64_t>(info.f_blocks) * info.f_frsize;
  const uint64_t free = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  const uint64_t reserve = options_.reserve_bytes >= 0 ? static_cast<uint64_t>(options_.reserve_bytes)
                                                       : std::min<uint64_t>(2 * options_.write_buffer_bytes, total / 20);
  if (free >= reserve + bytes) return OkStatus();
  return ResourceExhaustedError("leveldb tier: write of ", bytes, " bytes in '", options_.directory, "': the disk has ", free,
                                " bytes free, and ", reserve, " are kept for compaction");
}

Status LevelDbTier::RecoverFromFailure(size_t bytes, bool at_once) {
  if (failure_.ok() || failure_.code() == StatusCode::kDataLoss) return failure_;
  const uint64_t now = NowMicros();
  const auto refusal = [&] {
    return room_needed_ == 0
               ? failure_
               : Status(failure_.code(), StrCat(failure_.message(), "; writes continue when ", room_needed_, " bytes are free"),
                        failure_.os_error());
  };
  if (!at_once && recovered_at_us_ != 0 && now - recovered_at_us_ < options_.retry_us) return refusal();
  recovered_at_us_ = now;
  // Opening writes what the logs hold, with indexes and filters, before it deletes them.
  const size_t logs = static_cast<size_t>(disk_->log_bytes());
  const size_t needed = std::min(2 * options_.write_buffer_bytes, logs + logs / 8 + (256 << 10)) + bytes;
  const std::string probe = options_.directory + "/probe.tmp";
  const int error = disk_->ProbeSpace(probe, needed);
  room_needed_ = error == ENOSPC || error == EDQUOT || error == EFBIG ? needed : 0;
  if (room_needed_ != 0) return refusal();
  if (error != 0) return failure_ = ErrorOf("looking for room", disk_->Failed(probe, error));
  database_.env->Freeze();
  std::unique_lock<std::shared_mutex> lock(db_mutex_);
  const leveldb::Status checked = disk_->CheckFiles();
  Result<Database> opened = checked.ok() ? OpenDatabase(/*create=*/false) : Result<Database>(ErrorOf("opening again", checked));
  failure_ = opened.status();
  if (!opened.ok()) return failure_;
  std::swap(database_, *opened);
  // The next Sync tries again where this fails. Recovery takes a manifest that is newer than the list as it is.
  if (options_.durable) (void)list_.Write();
  return OkStatus();
}

Status LevelDbTier::CommitBatch(const char* operation, const leveldb::WriteOptions& options, bool at_once,
                                leveldb::WriteBatch* batch) {
  // Twice, because the first may only tell of a compaction that failed when the disk was still full.
  for (int attempt = 0; attempt < 2; ++attempt) {
    MT_RETURN_IF_ERROR(RecoverFromFailure(batch->ApproximateSize(), at_once));
    leveldb::Status status;
    {
      std::shared_lock<std::shared_mutex> lock(db_mutex_);
      status = database_.db->Write(options, batch);
    }
    if (status.ok()) {
      recovered_at_us_ = 0;
      return OkStatus();
    }
    failure_ = ErrorOf(StrCat(operation, " in '", options_.directory, "'"), status);
  }
  return failure_;
}

Status LevelDbTier::SetLayout(std::shared_ptr<const RowLayout> layout) {
  MT_RETURN_IF_ERROR(CheckProcess());
  const std::vector<Column>& columns = layout->columns();
  for (size_t i = 0; i < recovered_columns_.size(); ++i) {
    const ColumnSpec& found = recovered_columns_[i];
    if (i < columns.size() && found.dtype == columns[i].dtype && found.dim == columns[i].dim) continue;
    return FailedPreconditionError("leveldb tier '", options_.directory, "': recovered column ", i, " '", found.name,
                                   "': expected ", DTypeName(found.dtype), " x ", found.dim, ", found in the layout ",
                                   i < columns.size() ? StrCat(DTypeName(columns[i].dtype), " x ", columns[i].dim) : "none");
  }
  std::lock_guard<std::mutex> writing(write_mutex_);
  leveldb::WriteBatch batch;
  batch.Put(kSchemaKey, EncodeSchema(*layout, options_.durable));
  MT_RETURN_IF_ERROR(CommitBatch("write of the schema", leveldb::WriteOptions(), /*at_once=*/false, &batch));
  std::lock_guard<std::mutex> lock(mutex_);
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
  std::lock_guard<std::mutex> writing(write_mutex_);
  const int64_t n = static_cast<int64_t>(records.size());
  {
    std::lock_guard<std::mutex> lock(mutex_);
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
  Status status = CheckSpace(batch.ApproximateSize());
  if (status.ok()) status = CommitBatch("write", leveldb::WriteOptions(), /*at_once=*/false, &batch);
  if (status.ok()) appended_bytes_ += static_cast<int64_t>(batch.ApproximateSize());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (status.ok()) recovered_.reset();
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
    std::lock_guard<std::mutex> lock(mutex_);
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
  std::shared_lock<std::shared_mutex> lock(db_mutex_);
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
  const leveldb::Status status = database_.db->Get(options, key.slice(), value);
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
  std::lock_guard<std::mutex> lock(mutex_);
  for (const KeyLocation& record : records) {
    MT_CHECK(slots_.IsHeld(record.location) && slots_.key(record.location) == record.key);
    slots_.GiveBack(record.location);
  }
}

Status LevelDbTier::Remove(Span<const KeyLocation> records) {
  MT_RETURN_IF_ERROR(CheckProcess());
  if (records.empty()) return OkStatus();
  compactor_->WaitIfBehind();
  std::lock_guard<std::mutex> writing(write_mutex_);
  leveldb::WriteBatch batch;
  for (const KeyLocation& record : records) batch.Delete(EntryKey(record.key).slice());
  MT_RETURN_IF_ERROR(CommitBatch("removal", leveldb::WriteOptions(), /*at_once=*/false, &batch));
  appended_bytes_ += static_cast<int64_t>(batch.ApproximateSize());
  size_t row_bytes = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
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
  std::lock_guard<std::mutex> lock(mutex_);
  return slots_.end();
}

Status LevelDbTier::Sync() {
  MT_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard<std::mutex> writing(write_mutex_);
  leveldb::WriteOptions options;
  options.sync = true;
  leveldb::WriteBatch batch;
  MT_RETURN_IF_ERROR(CommitBatch("sync", options, /*at_once=*/true, &batch));
  if (!options_.durable) return OkStatus();
  MT_RETURN_IF_ERROR(CheckNames());
  return list_.Write();
}

Status LevelDbTier::CheckNames() const {
  const leveldb::Status named = disk_->CheckNames();
  if (!named.ok()) return ErrorOf(StrCat("sync of '", options_.directory, "'"), named);
  if (::access(list_.path().c_str(), F_OK) == 0) return OkStatus();
  return ErrorOf(StrCat("sync of '", options_.directory, "'"), disk_->Failed(list_.path(), errno));
}

TierStats LevelDbTier::stats() const {
  TierStats stats;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stats.rows = slots_.num_held();
    stats.row_bytes = layout_ == nullptr ? 0 : stats.rows * static_cast<int64_t>(layout_->row_bytes());
    stats.resident_bytes = static_cast<int64_t>(slots_.resident_bytes());
    if (recovered_ != nullptr) stats.resident_bytes += static_cast<int64_t>(recovered_->size() * sizeof(Recovered));
  }
  if (::getpid() != pid_) return stats;
  std::shared_lock<std::shared_mutex> lock(db_mutex_);
  std::string memory;
  if (database_.db->GetProperty("leveldb.approximate-memory-usage", &memory)) {
    stats.resident_bytes += std::strtoll(memory.c_str(), nullptr, 10);
  }
  stats.stored_bytes = disk_->stored_bytes();
  stats.device_reads = disk_->reads;
  stats.device_read_bytes = disk_->read_bytes;
  stats.device_written_bytes = disk_->written_bytes;
  stats.appended_bytes = appended_bytes_;
  stats.read_backend = "pread";
  return stats;
}

}  // namespace multitier
