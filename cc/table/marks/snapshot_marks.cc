#include "cc/table/marks/snapshot_marks.h"

#include "cc/table/marks/row_export.h"

namespace multitier {

void SnapshotMarks::Begin(std::shared_ptr<SnapshotState> state) {
  rows_.Fill(dram_->end());
  counted_marks_.Fill(counted_->end());
  SetState(std::move(state));
}

bool SnapshotMarks::BeginDelta(std::shared_ptr<SnapshotState> state) {
  if (!changed_.active()) return false;
  ChangedRows::Changes changes = changed_.Take();
  rows_ = std::move(changes.rows);
  counted_marks_ = std::move(changes.counted);
  keys_ = std::move(changes.keys);
  SetState(std::move(state));
  return true;
}

void SnapshotMarks::SetState(std::shared_ptr<SnapshotState> state) {
  state_ = std::move(state);
  floats_ = ElementsOf(*dram_->layout(), state_->all_columns);
  NoteWhetherRowsMatter();
}

void SnapshotMarks::End() {
  rows_.Clear();
  counted_marks_.Clear();
  keys_ = std::unordered_set<int64_t>();
  (void)TakeCopies();
  copies_ = ShardCopies();
  state_ = nullptr;
  NoteWhetherRowsMatter();
}

void SnapshotMarks::Copy(int64_t key, uint32_t frequency, int64_t version, const uint8_t* row_data) {
  if (state_->over) return;
  AppendRow(*dram_->layout(), state_->all_columns, key, frequency, version, row_data, copies_.Next(floats_));
  state_->CountCopies(copies_.ToCount());
}

void SnapshotMarks::CopyRemoved(int64_t key) {
  if (state_->over) return;
  copies_.Next(0)->removed_keys.push_back(key);
  state_->CountCopies(copies_.ToCount());
}

void SnapshotMarks::CopyCounted(const CountedKey& entry) {
  if (state_->over || entry.frequency == 0) return;
  AppendCounted(entry, copies_.Next(0));
  state_->CountCopies(copies_.ToCount());
}

std::vector<Rows> SnapshotMarks::TakeCopies() {
  size_t counted = 0;
  std::vector<Rows> taken = copies_.Take(&counted);
  if (state_ != nullptr) state_->CopiesTaken(counted);
  return taken;
}

void SnapshotMarks::KeepRow(uint32_t slot) {
  const RowHeader* row = dram_->Header(slot);
  if (rows_.Take(slot)) {
    if (CopyIsGiven(slot)) return;
    if (row->below != kNoLocation) TakeRecord(levels_->last(), row->below);
  } else if (keys_.empty() || !TakeKey(row->key)) {
    return;
  } else if (row->has(kRowUncommitted)) {  // the key was absent at the moment
    return CopyRemoved(row->key);
  }
  Copy(row->key, row->frequency, row->version, RowSlab::Data(row));
}

void SnapshotMarks::KeepCounted(uint32_t counted) {
  const CountedKey& entry = *counted_->at(counted);
  if (!counted_marks_.Take(counted) && (keys_.empty() || !TakeKey(entry.key))) return;
  if (entry.frequency == 0 && state_->is_delta) return CopyRemoved(entry.key);
  CopyCounted(entry);
}

void SnapshotMarks::RowGoes(uint32_t slot) {
  KeepRow(slot);
  changed_.RowGone(slot, dram_->Header(slot)->key);
}

void SnapshotMarks::CountedChanges(uint32_t counted) {
  KeepCounted(counted);
  changed_.CountedChanged(counted, counted_->at(counted)->key);
}

void SnapshotMarks::CountedGoes(uint32_t counted) {
  KeepCounted(counted);
  changed_.CountedGone(counted, counted_->at(counted)->key);
}

void SnapshotMarks::RecordGoes(int level, uint32_t location, const RecordHeader& header, uint8_t* row_data) {
  changed_.RecordGone(header.key);
  if (!wants_record(level, location)) return;
  if (state_->is_delta) {
    if (!TakeKey(header.key)) return;
  } else {
    state_->given[level].Set(location, true);
    if (header.below != kNoLocation) state_->given[levels_->last()].Set(header.below, true);
  }
  dram_->layout()->FillSlots(row_data, header.num_columns);
  Copy(header.key, header.frequency, header.version, row_data);
}

void SnapshotMarks::RecordLost(int level, uint32_t location, int64_t key) {
  changed_.RecordGone(key);
  if (state_ == nullptr) return;
  if (!state_->is_delta) return state_->LeaveOut(level, location);
  if (TakeKey(key) && !state_->leaves_out_damaged) ++state_->lost;
}

void SnapshotMarks::RowDemoted(uint32_t slot, int level, uint32_t location) {
  if (changed_.active()) changed_.RowDemoted(slot, dram_->Header(slot)->key);
  if (state_ == nullptr) return;
  if (state_->is_delta) {
    if (rows_.Take(slot)) keys_.insert(dram_->Header(slot)->key);
    return;
  }
  if (!state_->in_dram && !levels_->keeps_copies(level)) KeepRow(slot);
  state_->given[level].Set(location, !TakeRow(slot));
}

void SnapshotMarks::RowCopied(uint32_t slot, uint32_t location) {
  if (state_ != nullptr && !state_->is_delta) state_->given[levels_->last()].Set(location, !rows_.has(slot));
}

void SnapshotMarks::RowPromoted(uint32_t slot, int level, uint32_t location) {
  if (state_ == nullptr || state_->is_delta) return;
  if (!state_->given[level].has(location)) rows_.Set(slot);
  if (levels_->keeps_copies(level)) return;
  // The record is freed: only the row is left.
  KeepRow(slot);
  state_->given[level].Set(location, true);
  const uint32_t below = dram_->Header(slot)->below;
  if (below != kNoLocation) state_->given[levels_->last()].Set(below, true);
}

void SnapshotMarks::RecordCopied(int from_level, uint32_t from, int to_level, uint32_t to) {
  if (state_ != nullptr && !state_->is_delta) state_->given[to_level].Set(to, state_->given[from_level].has(from));
}

void SnapshotMarks::RecordRelocated(int level, uint32_t from, uint32_t to) {
  if (state_ != nullptr && !state_->is_delta) state_->Moved(level, from, to);
}

}  // namespace multitier
