#include "cc/table/snapshot_marks.h"

#include "cc/table/row_export.h"

namespace multitier {

void SnapshotMarks::Begin(std::shared_ptr<SnapshotState> state) {
  rows_.Fill(dram_->end());
  counted_marks_.Fill(counted_->end());
  state_ = std::move(state);
}

void SnapshotMarks::End() {
  rows_.Clear();
  counted_marks_.Clear();
  state_ = nullptr;
}

void SnapshotMarks::Copy(int64_t key, uint32_t frequency, int64_t version, const uint8_t* row_data) {
  state_->AddCopies(
      [&](Rows* copies) { AppendRow(*dram_->layout(), state_->all_columns, key, frequency, version, row_data, copies); });
}

void SnapshotMarks::RowChanges(uint32_t slot) {
  if (!rows_.Take(slot)) return;
  const RowHeader* row = dram_->Header(slot);
  if (row->below != kNoLocation) state_->given[levels_->last()].Set(row->below, true);
  Copy(row->key, row->frequency, row->version, RowSlab::Data(row));
}

void SnapshotMarks::CountedChanges(uint32_t counted) {
  if (!counted_marks_.Take(counted)) return;
  state_->AddCopies([&](Rows* copies) { AppendCounted(*counted_->at(counted), copies); });
}

void SnapshotMarks::RecordGoes(int level, uint32_t location, const RecordHeader& header, uint8_t* row_data) {
  if (!wants_record(level, location)) return;
  state_->given[level].Set(location, true);
  if (header.below != kNoLocation) state_->given[levels_->last()].Set(header.below, true);
  dram_->layout()->FillSlots(row_data, header.num_columns);
  Copy(header.key, header.frequency, header.version, row_data);
}

void SnapshotMarks::RecordLost(int level, uint32_t location) {
  if (state_ != nullptr) state_->LeaveOut(level, location);
}

void SnapshotMarks::RowDemoted(uint32_t slot, int level, uint32_t location) {
  if (state_ == nullptr) return;
  if (!state_->in_dram && !levels_->keeps_copies(level)) RowChanges(slot);
  state_->given[level].Set(location, !rows_.Take(slot));
}

void SnapshotMarks::RowCopied(uint32_t slot, uint32_t location) {
  if (state_ != nullptr) state_->given[levels_->last()].Set(location, !rows_.has(slot));
}

void SnapshotMarks::RowPromoted(uint32_t slot, int level, uint32_t location) {
  if (state_ == nullptr) return;
  if (!state_->given[level].has(location)) rows_.Set(slot);
  if (levels_->keeps_copies(level)) return;
  // The record is freed: only the row is left.
  RowChanges(slot);
  state_->given[level].Set(location, true);
  const uint32_t below = dram_->Header(slot)->below;
  if (below != kNoLocation) state_->given[levels_->last()].Set(below, true);
}

void SnapshotMarks::RecordCopied(int from_level, uint32_t from, int to_level, uint32_t to) {
  if (state_ != nullptr) state_->given[to_level].Set(to, state_->given[from_level].has(from));
}

void SnapshotMarks::RecordRelocated(int level, uint32_t from, uint32_t to) {
  if (state_ != nullptr) state_->Moved(level, from, to);
}

}  // namespace multitier
