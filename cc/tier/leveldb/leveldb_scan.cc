// LevelDbTier: scan, which joins the held locations with the entries of the database, a slice at a time. A held location
// without an entry is damage: LevelDB does not report a table file that was replaced by another.

#include <algorithm>
#include <utility>
#include <vector>

#include "cc/tier/leveldb/leveldb_entry.h"
#include "cc/tier/leveldb/leveldb_tier.h"

namespace multitier {
namespace {

constexpr size_t kScanSlice = 4096;

}  // namespace

Status LevelDbTier::ReadSlice(const std::string& from, std::vector<std::pair<RecordHeader, uint32_t>>* slice, Status* damage) {
  return database_->Use([&](leveldb::DB* db) { return ReadSliceOf(db, from, slice, damage); });
}

Status LevelDbTier::ReadSliceOf(leveldb::DB* db, const std::string& from, std::vector<std::pair<RecordHeader, uint32_t>>* slice,
                                Status* damage) {
  slice->clear();
  leveldb::ReadOptions options;
  options.verify_checksums = true;
  options.fill_cache = false;
  LevelDbEnv::last_read().path.clear();
  const auto error = [&](const leveldb::Status& status) {
    return database_->ErrorOf(StrCat("scan of '", options_.directory, "', read of '", LevelDbEnv::last_read().path, "'"),
                              status);
  };
  std::unique_ptr<leveldb::Iterator> it(db->NewIterator(options));
  for (it->Seek(from); slice->size() < kScanSlice; it->Next()) {
    // Skips a damaged block or file; from then on the status has its error.
    if (damage->ok() && !it->status().ok()) *damage = error(it->status());
    if (!damage->ok() && damage->code() != StatusCode::kDataLoss) return *damage;
    if (!it->Valid()) break;
    if (it->key().size() != kEntryKeyBytes) continue;
    RecordHeader header;
    uint32_t generation = 0;
    const char* bad = DecodeEntry(it->key(), it->value(), &header, &generation);
    const bool in_order = slice->empty() ? it->key().compare(from) >= 0 : slice->back().first.key < EntryKey::Decode(it->key());
    if (!in_order) bad = "it is out of order: a table file was replaced by another";
    if (bad == nullptr) {
      slice->emplace_back(header, generation);
    } else if (damage->ok()) {
      *damage = DataLossError("leveldb tier: scan of '", options_.directory, "': key ", EntryKey::Decode(it->key()), ": ", bad);
    }
  }
  const Status end = it->status().ok() ? OkStatus() : error(it->status());
  return end.code() == StatusCode::kDataLoss ? OkStatus() : end;
}

Status LevelDbTier::CheckGone(const std::vector<Held>& unmet) {
  if (unmet.empty()) return OkStatus();
  MutexLock writing(database_->write_mutex);  // no removal is between its two halves
  MutexLock lock(mutex_);
  for (const Held& held : unmet) {
    if (!slots_.IsHeld(held.index) || slots_.generation(held.index) != held.generation) continue;
    return DataLossError("leveldb tier: scan of '", options_.directory, "': expected an entry of key ", held.key,
                         " of generation ", held.generation, ", found none");
  }
  return OkStatus();
}

Status LevelDbTier::Scan(const std::function<Status(const RecordHeader&, uint32_t location)>& visit) {
  MT_RETURN_IF_ERROR(CheckProcess());
  // Both in the order of keys, so that one pass brings locations and entries together.
  std::vector<Held> held;
  {
    MutexLock lock(mutex_);
    held.reserve(static_cast<size_t>(slots_.num_held()));
    for (uint32_t location = 0; location < slots_.end(); ++location) {
      if (slots_.IsHeld(location)) held.push_back(Held{slots_.key(location), slots_.generation(location), location});
    }
  }
  std::sort(held.begin(), held.end(), ByKey);
  auto at = held.begin();
  std::vector<std::pair<RecordHeader, uint32_t>> slice;
  std::string from;
  Status damage;
  std::vector<Held> unmet;
  do {
    MT_RETURN_IF_ERROR(ReadSlice(from, &slice, &damage));
    if (!slice.empty()) from = EntryKey(slice.back().first.key).slice().ToString() + '\0';
    for (const auto& [header, generation] : slice) {
      for (; at != held.end() && at->key < header.key; ++at) unmet.push_back(*at);
      for (; at != held.end() && at->key == header.key; ++at) {
        if (at->generation == generation) {
          MT_RETURN_IF_ERROR(visit(header, at->index));
        } else if (static_cast<int32_t>(generation - at->generation) < 0) {  // a newer one: it is about to be freed
          unmet.push_back(*at);
        }
      }
    }
  } while (slice.size() == kScanSlice);
  unmet.insert(unmet.end(), at, held.end());
  return damage.ok() ? CheckGone(unmet) : damage;
}

}  // namespace multitier
