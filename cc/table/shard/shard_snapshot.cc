#include "cc/table/shard/shard_snapshot.h"

#include "cc/base/hash.h"

namespace multitier {

std::vector<int64_t> ShardSnapshot::KeysToGive(size_t n) const {
  std::vector<int64_t> keys;
  for (auto key = parts_.marks.keys().begin(); key != parts_.marks.keys().end() && keys.size() < n; ++key) keys.push_back(*key);
  return keys;
}

bool ShardSnapshot::IsToGive(int level, int64_t key, uint32_t location, const SnapshotState::MoveMark& mark, uint32_t* slot) {
  if (!parts_.marks.wants_record(level, location)) return false;
  const bool named = parts_.index.Find(HashKey(key), [&](uint64_t word) {
    word = parts_.pending.Original(word);
    if (ShardIndex::state(word) != WordState::kDram) return IsRecord(word, level, location);
    const RowHeader* row = parts_.dram.Header(ShardIndex::location(word));
    if (row->key != key || row->has(kRowUncommitted) || level != parts_.levels.last() || row->below != location) return false;
    *slot = ShardIndex::location(word);
    return true;
  }) != nullptr;
  // It came to stand there since: what was read may be an older record of the key. There will be a look at it: see Moved.
  return named && !parts_.marks.MovedSince(mark, level, location);
}

bool ShardSnapshot::GiveRecord(int level, const ReadRecord& record, const SnapshotState::MoveMark& mark) {
  const int64_t key = record.header.key;
  uint32_t slot = kNoLocation;
  if (!IsToGive(level, key, record.location, mark, &slot)) return false;
  parts_.marks.TakeRecord(level, record.location);
  // Its copy may have moved since the record was read.
  const uint32_t below = record.header.below;
  if (below != kNoLocation && parts_.levels.tier[level]->SwitchBelow(KeyLocation{key, record.location}, below, below)) {
    parts_.marks.TakeRecord(parts_.levels.last(), below);
  }
  if (slot != kNoLocation) (void)parts_.marks.TakeRow(slot);
  return true;
}

bool ShardSnapshot::NeedsRecord(int level, int64_t key, uint32_t location, const SnapshotState::MoveMark& mark) {
  uint32_t slot = kNoLocation;
  if (!IsToGive(level, key, location, mark, &slot)) return false;
  if (slot == kNoLocation || !parts_.marks.wants_row(slot)) return true;
  parts_.marks.KeepRow(slot);
  return false;
}

}  // namespace multitier
