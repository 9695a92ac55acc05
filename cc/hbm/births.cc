// Births: rows of new keys that a kernel makes. hbm_table.h says when, and why nothing is lost.

#include "cc/hbm/insertion.h"
#include "cc/hbm/operation.h"

namespace multitier::hbm {

using device::ScanScratch;

void HbmTable::SetBirth(const RowLayout& layout, DeviceTable* table) const {
  std::vector<ComputedColumns> columns;
  if (keeps_provisional_) columns = below_->absent_values().initial().Computed();
  std::vector<uint8_t> row(table->row_bytes());
  layout.FillSlots(row.data(), 1);
  table->SetBirth(columns, options().value_dtype, row);
}

// REQUIRES: turn_ is held
bool HbmTable::MayBear(const Operation& op) const {
  const int64_t in_hbm = surely_in_hbm_;  // before the rows are counted: those that an update creates in between are not there
  return static_cast<uint64_t>(rows_) + op.n <= table_->view().capacity &&
         in_hbm >= below_->TotalCount() + rows_below_.new_rows();
}

bool HbmTable::TakeBirths(Operation* op) {
  const uint32_t n = op->n;
  const size_t words = ScanScratch::Words(n);
  Scratch& s = op->scratch;
  Operation::Numbers* const numbers = op->counted_on_device;
  auto* const scans = s.OnDevice<uint64_t>(2 * words);
  auto* const list = s.OnDevice<uint32_t>(n);
  device::InsertArgs insert = TakeInsertion(1, n, &s);
  if (!s.GotAll()) return false;
  InsertKeysOf(op->find, list, &numbers->to_bear, &insert);
  insert.evicts = false;
  insert.scan.words = scans + words;
  insert.staged_rows = table_->new_row();
  insert.num_dirty = &numbers->placed.dirty_victims;
  op->to_bear = device::CompactArgs{op->find.missed, op->find.num_keys, n, {scans}, list, &numbers->to_bear};
  op->bear = device::BearArgs{insert,         table_->birth(),        op->dedup.counts, op->find.missed,
                              &numbers->born, &numbers->born_entries, nullptr,          0};
  return true;
}

Status HbmTable::BearMissed(Operation* op) {
  MT_RETURN_IF_ERROR(device_->Fill(stream_, op->to_bear.scan.words, 0, 2 * ScanScratch::Words(op->n) * sizeof(uint64_t)));
  MT_RETURN_IF_ERROR(kernels_.compact(stream_, op->to_bear));
  EnqueueInsertion(kernels_, stream_, op->bear.insert, [&](auto call) { Insist(call); });
  Insist([&] { return kernels_.bear(stream_, op->bear); });
  return broken();
}

}  // namespace multitier::hbm
