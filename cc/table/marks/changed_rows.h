// ChangedRows: the rows and counted keys of one shard that were added, changed or removed since a moment. A snapshot of the
// changes since that moment (a delta, snapshot.cc) takes them.
//
//   a row in DRAM, or a counted key          one bit for its slot
//   a row that changed, and then was         its key, in a set
//   demoted, removed or dropped
//
// A key is never in both. When a row changes, its slot's bit is set and its key is removed from the set. When a row whose bit
// is set leaves DRAM, its key is added to the set. A row that is demoted and promoted without a change is in neither. Rows and
// records store nothing, so this works for all tiers, and a delta looks only at what changed.
//
// Memory: one bit for each slot, and about 40 bytes for each key of the set. If the set has more than kMostKeys keys, tracking
// stops, and the next snapshot must be a full one.
//
// Not thread-safe: its owner, SnapshotMarks, is called under the shard's lock.

#ifndef CC_TABLE_MARKS_CHANGED_ROWS_H_
#define CC_TABLE_MARKS_CHANGED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <utility>

#include "cc/table/marks/snapshot_state.h"

namespace multitier {

class ChangedRows {
 public:
  static constexpr size_t kMostKeys = size_t{4} << 20;  // of one shard

  struct Changes {
    SlotBits rows, counted;
    std::unordered_set<int64_t> keys;
  };

  // Starts tracking, with no changes.
  void Start() {
    changes_ = Changes();
    active_ = true;
  }
  void Stop() {
    changes_ = Changes();
    active_ = false;
  }
  bool active() const { return active_; }
  // The changes since Start or the last Take. Tracking continues, with no changes.
  Changes Take() { return std::exchange(changes_, Changes()); }

  void RowChanged(uint32_t slot, int64_t key) { Mark(&changes_.rows, slot, key); }
  void CountedChanged(uint32_t counted, int64_t key) { Mark(&changes_.counted, counted, key); }
  // The slot is about to be used for another key, whose row has not changed.
  void RowCreated(uint32_t slot) { (void)changes_.rows.Take(slot); }
  void CountedCreated(uint32_t counted) { (void)changes_.counted.Take(counted); }
  // The row leaves DRAM and stays in the table.
  void RowDemoted(uint32_t slot, int64_t key) {
    if (changes_.rows.Take(slot)) Add(key);
  }
  // The key leaves the table.
  void RowGone(uint32_t slot, int64_t key) {
    (void)changes_.rows.Take(slot);
    Add(key);
  }
  void CountedGone(uint32_t counted, int64_t key) {
    (void)changes_.counted.Take(counted);
    Add(key);
  }
  void RecordGone(int64_t key) { Add(key); }
  // A row comes here from a slot of another shard.
  void TakeOver(const ChangedRows& from, uint32_t from_slot, uint32_t slot) {
    if (from.changes_.rows.has(from_slot)) changes_.rows.Set(slot);
  }
  const std::unordered_set<int64_t>& keys() const { return changes_.keys; }

 private:
  void Mark(SlotBits* bits, uint32_t slot, int64_t key) {
    if (!active_ || bits->has(slot)) return;
    bits->Set(slot);
    if (!changes_.keys.empty()) changes_.keys.erase(key);
  }
  void Add(int64_t key) {
    if (!active_) return;
    changes_.keys.insert(key);
    if (changes_.keys.size() > kMostKeys) Stop();
  }

  bool active_ = false;
  Changes changes_;
};

}  // namespace multitier

#endif  // CC_TABLE_MARKS_CHANGED_ROWS_H_
