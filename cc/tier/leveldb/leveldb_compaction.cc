// LevelDbTier: compaction, by the compactor and on request.
//
// LevelDB merges files of a level with those that they overlap on the next one. It leaves a file that overlaps none as it is,
// with all dead entries in it; a file from a full buffer may have many entries of a key. Therefore each range gets a fence at
// both ends: two entries that are newer than all others. The file that has them is as wide as the range, so that the merge
// takes in every file of the range, down to the last level that has one. The end of a round removes its fences. A scan ignores
// keys of their lengths.

#include <string>
#include <utility>
#include <vector>

#include "cc/tier/leveldb/leveldb_entry.h"
#include "cc/tier/leveldb/leveldb_tier.h"
#include "leveldb/write_batch.h"

namespace multitier {
namespace {

constexpr uint64_t kRetriesPerCompaction = 60;  // a failed compaction makes LevelDB refuse writes: it is not repeated often

// Keys that are not those of rows: before all rows, after all rows, and right after a row's key.
std::string BeforeAllRows() { return std::string(1, '\0'); }
std::string AfterAllRows() { return std::string(kEntryKeyBytes + 1, '\xff'); }
std::string After(int64_t key) { return EntryKey(key).slice().ToString() + '\0'; }

}  // namespace

Status LevelDbTier::Compact() {
  MT_RETURN_IF_ERROR(CheckProcess());
  (void)CompactBetween(BeforeAllRows(), AfterAllRows());
  // LevelDB tells no error of it, but refuses writes afterwards.
  MutexLock writing(database_->write_mutex);
  return RemoveFences(/*at_once=*/true);
}

std::unique_ptr<LevelDbCompactor> LevelDbTier::MakeCompactor() {
  LevelDbCompactor::Database database;
  database.live_bytes = [this] { return live_bytes(); };
  database.stored_bytes = [this] { return database_->disk()->stored_bytes(); };
  database.appended_bytes = [this] { return appended_bytes_.load(); };
  database.sample_keys = [this](size_t n) { return SampleKeys(n); };
  database.compact_range = [this](const int64_t* first, const int64_t* last, int64_t bytes) {
    return CompactRange(first, last, bytes);
  };
  LevelDbCompactor::Options options;
  // LevelDB's logs, and a table file that is being replaced.
  options.allowance_bytes = static_cast<int64_t>(2 * options_.write_buffer_bytes + options_.table_file_bytes);
  options.headroom_bytes = static_cast<int64_t>(options_.write_buffer_bytes);
  options.range_bytes = static_cast<int64_t>(2 * options_.table_file_bytes);
  options.retry_us = kRetriesPerCompaction * options_.retry_us;
  return std::make_unique<LevelDbCompactor>(std::move(database), options);
}

int64_t LevelDbTier::live_bytes() const {
  MutexLock lock(mutex_);
  if (layout_ == nullptr) return 0;
  return slots_.num_held() * static_cast<int64_t>(layout_->row_bytes() + kEntryFileBytes);
}

std::vector<int64_t> LevelDbTier::SampleKeys(size_t n) const {
  std::vector<int64_t> keys;
  MutexLock lock(mutex_);
  const uint64_t end = slots_.end(), stride = std::max<uint64_t>(1, end / std::max<size_t>(n, 1));
  for (uint64_t location = 0; location < end; location += stride) {
    const auto at = static_cast<uint32_t>(location);
    if (slots_.IsHeld(at)) keys.push_back(slots_.key(at));
  }
  return keys;
}

Status LevelDbTier::PutFences(const std::string& from, const std::string& to) {
  leveldb::WriteBatch batch;
  for (const std::string& fence : {from, to}) {
    batch.Put(fence, leveldb::Slice());
    fences_.insert(fence);
  }
  return database_->Commit("compaction", leveldb::WriteOptions(), /*at_once=*/false, &batch);
}

Status LevelDbTier::RemoveFences(bool at_once) {
  leveldb::WriteBatch batch;
  for (const std::string& fence : fences_) batch.Delete(fence);
  MT_RETURN_IF_ERROR(database_->Commit("compaction", leveldb::WriteOptions(), at_once, &batch));
  fences_.clear();
  return OkStatus();
}

bool LevelDbTier::CompactBetween(const std::string& from, const std::string& to) {
  const LevelDbDisk* const disk = database_->disk();
  const int64_t errors = disk->errors;
  {
    MutexLock writing(database_->write_mutex);
    if (!PutFences(from, to).ok()) return false;
  }
  const leveldb::Slice from_slice = from, to_slice = to;
  database_->Use([&](leveldb::DB* db) { db->CompactRange(&from_slice, &to_slice); });
  return disk->errors == errors;
}

bool LevelDbTier::CompactRange(const int64_t* first, const int64_t* last, int64_t bytes) {
  // The old files are deleted once the new ones are complete.
  if (!database_->CheckSpace(static_cast<size_t>(bytes)).ok()) return false;
  const bool good =
      CompactBetween(first == nullptr ? BeforeAllRows() : After(*first), last == nullptr ? AfterAllRows() : After(*last));
  if (!good || last != nullptr) return good;
  MutexLock writing(database_->write_mutex);
  return RemoveFences(/*at_once=*/false).ok();
}

}  // namespace multitier
