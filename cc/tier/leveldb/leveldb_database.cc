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

#include "cc/tier/leveldb/leveldb_database.h"

#include <errno.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <utility>

#include "cc/env/env.h"
#include "cc/env/posix_error.h"

namespace multitier {
namespace {

class NullLogger : public leveldb::Logger {
 public:
  void Logv(const char*, std::va_list) override {}
};

}  // namespace

LevelDbDatabase::LevelDbDatabase(const LevelDbOptions& options)
    : options_(options),
      disk_(std::make_unique<LevelDbDisk>()),
      filter_(leveldb::NewBloomFilterPolicy(10)),
      cache_(leveldb::NewLRUCache(options.block_cache_bytes)),
      logger_(std::make_unique<NullLogger>()) {}

Status LevelDbDatabase::Create() {
  MT_ASSIGN_OR_RETURN(Opened opened, OpenOne(/*create=*/true));
  const Replacing replacing(open_mutex_);
  open_ = std::move(opened);
  was_there_ = true;
  return OkStatus();
}

Result<LevelDbDatabase::Opened> LevelDbDatabase::OpenOne(bool create) {
  Opened database;
  database.env = std::make_unique<LevelDbEnv>(disk_.get());
  if (Status started = database.env->Start(); !started.ok()) {
    return Status(started.code(),
                  StrCat("leveldb tier: opening of the database in '", options_.directory, "': ", started.message()),
                  started.os_error());
  }
  leveldb::Options options;
  options.env = database.env.get();
  options.info_log = logger_.get();
  options.create_if_missing = options.error_if_exists = create;
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

Status LevelDbDatabase::ErrorOf(const std::string& what, const leveldb::Status& status) const {
  const std::string message = StrCat("leveldb tier: ", what, ": ", status.ToString());
  if (status.IsCorruption()) return DataLossError(message);
  const int error = disk_->ErrnoOf(status);
  const StatusCode code = error == 0 ? StatusCode::kUnavailable : PosixError("", "", error).code();
  // InvalidArgument: there is no database where one is to be opened again.
  const bool missing = status.IsNotFound() || status.IsInvalidArgument() || code == StatusCode::kNotFound;
  return missing && was_there_ ? DataLossError(message) : Status(code, message, error);
}

Status LevelDbDatabase::CheckSpace(size_t bytes) const {
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

Status LevelDbDatabase::Refusal() const {
  if (room_needed_ == 0) return failure_;
  return Status(failure_.code(), StrCat(failure_.message(), "; writes continue when ", room_needed_, " bytes are free"),
                failure_.os_error());
}

Status LevelDbDatabase::RecoverFromFailure(size_t bytes, bool at_once) {
  if (failure_.ok() || failure_.code() == StatusCode::kDataLoss) return failure_;
  const uint64_t now = Env::Posix()->NowMicros();
  if (!at_once && recovered_at_us_ != 0 && now - recovered_at_us_ < options_.retry_us) return Refusal();
  recovered_at_us_ = now;
  // Opening writes what the logs hold, with indexes and filters, before it deletes them.
  const size_t logs = static_cast<size_t>(disk_->log_bytes());
  const size_t needed = std::min(2 * options_.write_buffer_bytes, logs + logs / 8 + (256 << 10)) + bytes;
  const std::string probe = options_.directory + "/probe.tmp";
  const int error = disk_->ProbeSpace(probe, needed);
  room_needed_ = error == ENOSPC || error == EDQUOT || error == EFBIG ? needed : 0;
  if (room_needed_ != 0) return Refusal();
  if (error != 0) return failure_ = ErrorOf("looking for room", disk_->Failed(probe, error));
  return OpenAgain();
}

Status LevelDbDatabase::OpenAgain() {
  {
    const Reading reading(open_mutex_);
    open_.env->Freeze();
  }
  const Replacing replacing(open_mutex_);
  const leveldb::Status checked = disk_->CheckFiles();
  Result<Opened> opened = checked.ok() ? OpenOne(/*create=*/false) : Result<Opened>(ErrorOf("opening again", checked));
  failure_ = opened.status();
  if (!opened.ok()) return failure_;
  std::swap(open_, *opened);
  return OkStatus();
}

Status LevelDbDatabase::Commit(const char* operation, const leveldb::WriteOptions& options, bool at_once,
                               leveldb::WriteBatch* batch) {
  // Twice, because the first may only tell of a compaction that failed when the disk was still full.
  for (int attempt = 0; attempt < 2; ++attempt) {
    MT_RETURN_IF_ERROR(RecoverFromFailure(batch->ApproximateSize(), at_once));
    const leveldb::Status status = Use([&](leveldb::DB* db) { return db->Write(options, batch); });
    if (status.ok()) {
      recovered_at_us_ = 0;
      return OkStatus();
    }
    failure_ = ErrorOf(StrCat(operation, " in '", options_.directory, "'"), status);
  }
  return failure_;
}

}  // namespace multitier
