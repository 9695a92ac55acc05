// SnapshotMarks: which rows and counted keys of one shard a running snapshot (snapshot.cc) has not given to its visitor yet.
//
// There is one bit for each slot of DRAM and of the counted keys, set at the snapshot's moment. For records in lower tiers, the
// bits are in the SnapshotState, which all shards share. Before a row, record or counted key changes or leaves, its shard calls
// one of the steps below. The step copies the row if the snapshot has not given it yet, or moves the mark with the row. A row
// whose clean copy was given, because the snapshot took the copy's file, is given too, although its own bit is still set.
//
// A delta, which is a snapshot of the changes since an earlier moment, marks only the rows of ChangedRows. If such a row is in
// a lower tier or was removed, a set has its key, because its record may move. So a delta needs no bits for records.
//
// Owns the bits of slots and the copies; shares the SnapshotState. Called only by the shard, under its lock. Locks
// SnapshotState::mutex and WaitingCopies inside.

#ifndef CC_TABLE_MARKS_SNAPSHOT_MARKS_H_
#define CC_TABLE_MARKS_SNAPSHOT_MARKS_H_

#include <cstdint>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cc/row/row_slab.h"
#include "cc/table/api/rows.h"
#include "cc/table/marks/changed_rows.h"
#include "cc/table/marks/counted_keys.h"
#include "cc/table/marks/snapshot_copies.h"
#include "cc/table/marks/snapshot_state.h"
#include "cc/table/marks/tier_levels.h"

namespace multitier {

class SnapshotMarks {
 public:
  SnapshotMarks(const TierLevels* levels, const RowSlab* dram, const CountedKeys* counted)
      : levels_(levels), dram_(dram), counted_(counted) {}

  // The snapshot's moment: marks every row of DRAM and every counted key.
  void Begin(std::shared_ptr<SnapshotState> state);
  // The moment of a delta: marks the changes. If the changes are not known, marks nothing and returns false.
  bool BeginDelta(std::shared_ptr<SnapshotState> state);
  // Starts and stops tracking changes for the next BeginDelta.
  void TrackChanges() {
    changed_.Start();
    NoteWhetherRowsMatter();
  }
  void ForgetChanges() {
    changed_.Stop();
    NoteWhetherRowsMatter();
  }
  // To split a shard: what the other knows of a row that comes here from its slot `from_slot`, and of keys without a row.
  bool tracks_changes() const { return changed_.active(); }
  void TakeOver(const SnapshotMarks& from, uint32_t from_slot, uint32_t slot) {
    changed_.TakeOver(from.changed_, from_slot, slot);
  }
  const std::unordered_set<int64_t>& changed_keys() const { return changed_.keys(); }
  void NoteGone(int64_t key) { changed_.RecordGone(key); }
  void End();
  bool active() const { return state_ != nullptr; }
  // If true, RowCreated and RowChanges do nothing: no snapshot is being taken, and changes are not tracked.
  bool ignores_rows() const { return ignores_rows_; }

  // --- Steps of rows. `slot` is one of DRAM, `counted` one of the counted keys.
  // A slot is about to be used: what it holds came after the snapshot's moment.
  void RowCreated(uint32_t slot) {
    if (ignores_rows_) return;
    (void)rows_.Take(slot);
    changed_.RowCreated(slot);
  }
  void CountedCreated(uint32_t counted) {
    (void)counted_marks_.Take(counted);
    changed_.CountedCreated(counted);
  }
  // The row or counted key is about to change, or to leave the table: it is copied for the snapshot.
  void RowChanges(uint32_t slot) {
    if (rows_.has(slot) || !keys_.empty()) KeepRow(slot);
    if (changed_.active()) changed_.RowChanged(slot, dram_->Header(slot)->key);
  }
  // Fetches what RowChanges looks at first.
  void PrefetchRow(uint32_t slot) const { rows_.Prefetch(slot); }
  void RowGoes(uint32_t slot);
  void CountedChanges(uint32_t counted);
  void CountedGoes(uint32_t counted);
  // The record is about to be deleted, and with it its row. `row_data` is widened to all columns of the layout.
  void RecordGoes(int level, uint32_t location, const RecordHeader& header, uint8_t* row_data);
  // The record is about to be deleted, and cannot be read.
  void RecordLost(int level, uint32_t location, int64_t key);
  // The row is about to become the record at `location`.
  void RowDemoted(uint32_t slot, int level, uint32_t location);
  // The row is about to get a copy, the record at `location` of the last tier.
  void RowCopied(uint32_t slot, uint32_t location);
  // The record at `location` has become the row.
  void RowPromoted(uint32_t slot, int level, uint32_t location);
  // The record at `from` was copied to `to`. From now on its row is at both places, or only at `to`.
  void RecordCopied(int from_level, uint32_t from, int to_level, uint32_t to);
  // The tier moved a record within itself.
  void RecordRelocated(int level, uint32_t from, uint32_t to);

  // --- What is still to be given.
  bool wants_record(int level, uint32_t location) const {
    if (state_ == nullptr) return false;
    return state_->is_delta ? !keys_.empty() : !state_->given[level].has(location);
  }
  bool wants_row(uint32_t slot) const { return rows_.has(slot) && !CopyIsGiven(slot); }
  // Whether the row's own bit is set: it is likely to be given.
  bool is_marked(uint32_t slot) const { return rows_.has(slot); }
  uint32_t rows_end() const { return rows_.end(); }
  uint32_t counted_end() const { return counted_marks_.end(); }
  // The row is copied if it is still to be given.
  void KeepRow(uint32_t slot);
  // Whether it was still to be given: the snapshot gives it now.
  bool TakeRow(uint32_t slot) { return rows_.Take(slot) && !CopyIsGiven(slot); }
  bool TakeCounted(uint32_t counted) { return counted_marks_.Take(counted); }
  // The record need not be given any more.
  void TakeRecord(int level, uint32_t location) {
    if (!state_->is_delta) state_->given[level].Set(location, true);
  }
  // In a delta: the keys of changed rows that are in lower tiers or were removed. TakeKey returns whether the key was not given
  // yet; the snapshot gives it now.
  const std::unordered_set<int64_t>& keys() const { return keys_; }
  bool TakeKey(int64_t key) { return keys_.erase(key) != 0; }
  // The copies that wait: the snapshot gives them now.
  std::vector<Rows> TakeCopies();
  const std::vector<Rows>& copies() const { return copies_.blocks(); }
  // Whether a record was moved to `location` since then: see SnapshotState.
  bool MovedSince(const SnapshotState::MoveMark& mark, int level, uint32_t location) {
    return state_->MovedSince(mark, level, location);
  }

 private:
  bool CopyIsGiven(uint32_t slot) const {
    const RowHeader* row = dram_->Header(slot);
    if (state_ == nullptr || row->has(kRowFree | kRowUncommitted) || row->below == kNoLocation) return false;
    return state_->given[levels_->last()].has(row->below);
  }
  void SetState(std::shared_ptr<SnapshotState> state);
  void KeepCounted(uint32_t counted);
  void CopyRemoved(int64_t key);
  void CopyCounted(const CountedKey& entry);
  void Copy(int64_t key, uint32_t frequency, int64_t version, const uint8_t* row_data);
  void NoteWhetherRowsMatter() { ignores_rows_ = state_ == nullptr && !changed_.active(); }

  const TierLevels* const levels_;
  const RowSlab* const dram_;
  const CountedKeys* const counted_;
  std::shared_ptr<SnapshotState> state_;  // null: no snapshot is being taken
  ShardCopies copies_;
  size_t floats_ = 0;  // of a row in the copies
  SlotBits rows_;
  SlotBits counted_marks_;
  std::unordered_set<int64_t> keys_;  // in a delta: not given yet, and not in DRAM at its moment
  ChangedRows changed_;
  bool ignores_rows_ = true;  // one flag, because each row of an update asks
};

}  // namespace multitier

#endif  // CC_TABLE_MARKS_SNAPSHOT_MARKS_H_
