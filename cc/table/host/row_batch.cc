// CopyOut and PutBack: rows to a holder of copies above the table, and back.

#include "cc/table/host/row_batch.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cc/base/ieee.h"
#include "cc/table/apply/apply_operation.h"
#include "cc/table/host/host_table.h"

namespace multitier {
namespace {

constexpr size_t kFilled = 32;  // keys whose initial values are computed at once

// Copies rows out, from wherever they are.
class CopyOutVisitor : public RecordVisitor {
 public:
  CopyOutVisitor(const RowBatch* rows, const KeyBatch* batch, const TierBudgets* budgets, const Demoter* demoter, bool promotes)
      : rows_(*rows), batch_(*batch), budgets_(*budgets), demoter_(*demoter), promotes_(promotes) {}
  bool NeedsRow() const override { return true; }
  Status OnMemory(Shard::Locked&, TierKey* key, const Found& found) override {
    CopyRow(key->entry, found.row);
    return OkStatus();
  }
  Answer OnRecord(Shard::Locked& lock, TierKey* key, const RecordHeader& header) override {
    if (promotes_) ++lock->counters().lower[key->level].hits;
    Copy(key->entry, header.version, header.frequency, key->row.data());
    const bool room = promotes_ && budgets_.dram_rows(*lock->layout()) > 0 && !demoter_.failed();
    return room ? Answer::kInstall : Answer::kKeep;
  }
  // row: null where the key has none; an uncommitted one reads as absent.
  void CopyRow(uint32_t entry, const RowHeader* row) {
    if (row == nullptr || row->has(kRowUncommitted)) return;
    Copy(entry, row->version, row->frequency, RowSlab::Data(row));
  }

 private:
  void Copy(uint32_t entry, int64_t version, uint32_t frequency, const uint8_t* data) {
    const size_t i = batch_.first_position(entry);
    rows_.facts[i] = RowFacts{version, frequency, true};
    std::memcpy(rows_.data + i * rows_.stride, data, rows_.row_bytes);
  }

  const RowBatch& rows_;
  const KeyBatch& batch_;
  const TierBudgets& budgets_;
  const Demoter& demoter_;
  const bool promotes_;
};

}  // namespace

Status HostTable::CheckRowBatch(const char* operation, const RowBatch& rows) const {
  const size_t expected = layout()->row_bytes();
  if (rows.row_bytes == expected && rows.stride >= expected) return OkStatus();
  return InvalidArgumentError("table '", options_.name, "': ", operation, ": expected rows of ", expected,
                              " bytes with at least that stride, found rows of ", rows.row_bytes, " bytes with stride ",
                              rows.stride);
}

// What a row of an absent key begins with.
void HostTable::FillAbsentRows(const RowBatch& rows) const {
  std::vector<size_t> absent;
  for (size_t i = 0; i < rows.keys.size(); ++i) {
    if (!rows.facts[i].has_row) absent.push_back(i);
  }
  const ScopedIeeeArithmetic ieee;
  const std::shared_ptr<const RowLayout> layout = this->layout();
  int64_t keys[kFilled];
  uint16_t tables[kFilled];
  uint8_t* values[kFilled];
  for (size_t from = 0; from < absent.size(); from += kFilled) {
    const size_t n = std::min(kFilled, absent.size() - from);
    for (size_t j = 0; j < n; ++j) {
      uint8_t* const row = rows.data + absent[from + j] * rows.stride;
      std::memset(row, 0, rows.row_bytes);
      layout->FillSlots(row, 1);
      keys[j] = rows.keys[absent[from + j]];
      tables[j] = KnownTable(rows.tables, absent[from + j]);
      values[j] = row;
    }
    base_.absent.initial().FillRows(keys, tables, n, values);
  }
}

NotedApply HostTable::NoteApply(int64_t global_step) {
  const int64_t number = applies_.fetch_add(1) + 1;
  return NotedApply{base_.score.Take(global_step >= 0 ? global_step : number), number};
}

void HostTable::CountInFilter(Span<const int64_t> keys, Span<const int64_t> counts, bool take_back) {
  if (bloom_ == nullptr) return;
  for (size_t i = 0; i < keys.size(); ++i) {
    take_back ? bloom_->Subtract(keys[i], counts[i]) : bloom_->Add(keys[i], counts[i]);
  }
}

Status HostTable::CopyOut(const RowBatch& rows, CopyOutAs as) {
  MT_RETURN_IF_ERROR(CheckMemory(rows.keys.size()));
  if (rows.keys.empty()) return base_.CheckProcess();
  MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::Enter(&base_));
  MT_RETURN_IF_ERROR(CheckRowBatch("copying rows out", rows));
  const bool use = as == CopyOutAs::kUse;
  const size_t n = rows.keys.size();
  std::fill_n(rows.facts, n, RowFacts());
  const uint64_t stamp = use && common_.evicts ? common_.accesses.fetch_add(n) : 0;
  BorrowedKeyBatch batch;
  batch->SortByShard(rows.keys, shards_.log2(), /*distinct=*/true);
  CopyOutVisitor visitor(&rows, &*batch, &base_.budgets, &demoter_, use);
  TierKeys below;
  for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
    if (batch->begin(s) == batch->end(s)) continue;
    Shard::Locked lock(shards_[s]);
    for (uint32_t e = batch->begin(s); e < batch->end(s); ++e) {
      const Found found = lock->Find(batch->key(e), batch->hash(e));
      const uint64_t touched = stamp == 0 ? 0 : stamp + batch->first_position(e);
      if (found.maybe_below) {
        below.Add(*batch, e, s).touched = touched;
        continue;
      }
      visitor.CopyRow(e, found.row);
      const bool used = found.row != nullptr && touched != 0 &&
                        NoteUse(found.row, static_cast<uint32_t>(touched), static_cast<uint32_t>(2 * n), notes_lazily_);
      if (used) lock->pins().Used();
    }
  }
  if (use && !below.empty()) snapshot_.Await();  // rows that come up may have to be copied for it
  MT_RETURN_IF_ERROR(reader_.Read(&below, &visitor));
  FillAbsentRows(rows);
  if (!use) return OkStatus();
  const auto absent = std::count_if(rows.facts, rows.facts + n, [](const RowFacts& facts) { return !facts.has_row; });
  lookups_ += static_cast<int64_t>(n);
  lookups_absent_ += absent;
  lookup_hits_ += std::max<int64_t>(0, static_cast<int64_t>(n - below.size()) - absent);
  if (!below.empty()) demoter_.TrimAndRemember();
  return OkStatus();
}

Status HostTable::PutBack(const RowBatch& rows) {
  MT_RETURN_IF_ERROR(CheckMemory(rows.keys.size()));
  if (rows.keys.empty()) return base_.CheckProcess();
  MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::EnterToChange(&base_));
  MT_RETURN_IF_ERROR(CheckRowBatch("putting rows back", rows));
  ApplyOperation operation(&base_, &demoter_, &reader_);
  ApplyOperation::Keys keys;
  keys.keys = rows.keys;
  keys.distinct = true;
  keys.admits_all = true;  // they were admitted when they got their rows
  MT_RETURN_IF_ERROR(operation.Gather(keys, nullptr));
  const KeyBatch& batch = operation.batch();
  FreedRecords freed;
  for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
    Shard::Locked lock(shards_[s]);
    for (uint32_t e = batch.begin(s); e < batch.end(s); ++e) {
      const size_t i = batch.first_position(e);
      RowHeader* const row = operation.row(e);
      std::memcpy(lock->BeginChange(row, batch.hash(e)), rows.data + i * rows.stride, rows.row_bytes);
      lock->Commit(row);
      row->frequency = rows.facts[i].frequency;
      row->version = rows.facts[i].version;
      lock->FinishChange(row, operation.Touched(e), batch.num_keys(), &freed);
      lock->Reorder(row, batch.hash(e), operation.stamp());  // its frequency and version changed
    }
    tiers_.Free(&freed);
  }
  for (size_t i = 0; i < rows.keys.size(); ++i) RaiseTo(&newest_step_, rows.facts[i].version);
  demoter_.TrimAndRemember();
  return OkStatus();
}

}  // namespace multitier
