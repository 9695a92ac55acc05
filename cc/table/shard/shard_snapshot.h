// ShardSnapshot: what a snapshot of the table takes from one shard: its rows, counted keys and records of the snapshot's
// moment, and copies of those that changed since (SnapshotMarks).
//
// Owns nothing. Not thread-safe: see ShardRows.

#ifndef CC_TABLE_SHARD_SHARD_SNAPSHOT_H_
#define CC_TABLE_SHARD_SHARD_SNAPSHOT_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cc/table/shard/shard_parts.h"

namespace multitier {

class ShardSnapshot {
 public:
  explicit ShardSnapshot(ShardParts* parts) : parts_(*parts) {}
  ShardSnapshot(const ShardSnapshot&) = delete;
  ShardSnapshot& operator=(const ShardSnapshot&) = delete;

  void Begin(std::shared_ptr<SnapshotState> state) { parts_.marks.Begin(std::move(state)); }
  bool BeginDelta(std::shared_ptr<SnapshotState> state) { return parts_.marks.BeginDelta(std::move(state)); }
  void End() { parts_.marks.End(); }
  // Start and stop noting changes for the next BeginDelta.
  void TrackChanges() { parts_.marks.TrackChanges(); }
  void ForgetChanges() { parts_.marks.ForgetChanges(); }
  // Keys that changed and are not in DRAM any more; to note one.
  const std::unordered_set<int64_t>& changed_keys() const { return parts_.marks.changed_keys(); }
  void NoteGone(int64_t key) { parts_.marks.NoteGone(key); }
  // The copies of rows that changed and wait for the snapshot, which gives them now.
  std::vector<Rows> TakeCopies() { return parts_.marks.TakeCopies(); }
  // For a delta: up to n keys that it must still look up and give: their rows were removed, or are or were in lower tiers.
  std::vector<int64_t> KeysToGive(size_t n) const;
  bool TakeKeyToGive(int64_t key) { return parts_.marks.TakeKey(key); }
  bool wants_record(int level, uint32_t location) const { return parts_.marks.wants_record(level, location); }
  // Looks at slots from *slot on. Calls visit for each row that the snapshot has still to give. Stops after `most` rows or
  // `looked` slots. False if there are no more slots. The same for counted keys.
  template <typename Visit>
  bool GiveRows(uint32_t* slot, size_t most, uint32_t looked, Visit visit);
  template <typename Visit>
  bool GiveCounted(uint32_t* slot, size_t most, uint32_t looked, Visit visit);
  // Whether the snapshot has still to give the record, as its key's row or as the clean copy of it. If true, it counts as
  // given, and the caller gives it. `mark`: from before it was read.
  bool GiveRecord(int level, const ReadRecord& record, const SnapshotState::MoveMark& mark);
  // For an unreadable record: true if the snapshot still needs its row. If the row is also in DRAM, copies it from there and
  // returns false.
  bool NeedsRecord(int level, int64_t key, uint32_t location, const SnapshotState::MoveMark& mark);

 private:
  // Whether the record is the key's row or its copy, and has still to be given. *slot: of the row that it is a copy of.
  bool IsToGive(int level, int64_t key, uint32_t location, const SnapshotState::MoveMark& mark, uint32_t* slot);

  ShardParts& parts_;
};

template <typename Visit>
bool ShardSnapshot::GiveRows(uint32_t* slot, size_t most, uint32_t looked, Visit visit) {
  const uint32_t end = std::min(parts_.dram.end(), parts_.marks.rows_end());
  constexpr uint32_t kSlotsAhead = 16;
  for (; *slot < end && most > 0 && looked > 0; ++*slot, --looked) {
    const uint32_t ahead = *slot + kSlotsAhead;
    if (ahead < end && parts_.marks.is_marked(ahead)) parts_.PrefetchRow(ahead);
    if (!parts_.marks.TakeRow(*slot)) continue;
    const RowHeader* row = parts_.dram.Header(*slot);
    if (row->has(kRowFree | kRowUncommitted)) continue;
    if (row->below != kNoLocation) parts_.marks.TakeRecord(parts_.levels.last(), row->below);
    visit(*row);
    --most;
  }
  return *slot < end;
}

template <typename Visit>
bool ShardSnapshot::GiveCounted(uint32_t* slot, size_t most, uint32_t looked, Visit visit) {
  const uint32_t end = std::min(parts_.counted.end(), parts_.marks.counted_end());
  for (; *slot < end && most > 0 && looked > 0; ++*slot, --looked) {
    if (!parts_.marks.TakeCounted(*slot)) continue;
    visit(*parts_.counted.at(*slot));
    --most;
  }
  return *slot < end;
}

}  // namespace multitier

#endif  // CC_TABLE_SHARD_SHARD_SNAPSHOT_H_
