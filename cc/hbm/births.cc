// Births: rows of new keys that a kernel makes. hbm_table.h says when, and why nothing is lost.

#include <algorithm>

#include "cc/hbm/insertion.h"
#include "cc/hbm/operation.h"

namespace multitier::hbm {

using device::DeviceRowHeader;
using device::ScanScratch;

void HbmTable::SetBirth(DeviceTable* table) const {
  std::vector<ComputedColumns> columns;
  if (keeps_provisional_) columns = below_->absent_values().initial().Computed();
  std::vector<uint8_t> row(table->row_bytes());
  layout()->FillSlots(row.data(), 1);
  table->SetBirth(columns, row);
}

// REQUIRES: turn_ is held
bool HbmTable::MayBear(const Operation& op) const {
  const int64_t in_hbm = surely_in_hbm_;  // before the rows are counted: those that an update creates in between are not there
  return static_cast<uint64_t>(rows_) + op.n <= table_->view().capacity &&
         in_hbm >= below_->TotalCount() + rows_below_.new_rows();
}

Status HbmTable::PrepareBirths(Operation* op) {
  const uint32_t n = op->n;
  const size_t words = ScanScratch::Words(n);
  Scratch& s = op->scratch;
  Operation::Numbers* const numbers = op->counted_on_device;
  auto* const scans = s.OnDevice<uint64_t>(2 * words);
  auto* const list = s.OnDevice<uint32_t>(n);
  device::InsertArgs insert = TakeInsertion(1, n, &s);
  MT_RETURN_IF_ERROR(s.status());
  InsertKeysOf(op->find, list, &numbers->to_bear, &insert);
  insert.evicts = false;
  insert.scan.words = scans + words;
  insert.staged_rows = table_->new_row();
  insert.num_dirty = &numbers->placed.dirty_victims;
  op->to_bear = device::CompactArgs{op->find.missed, op->find.num_keys, n, {scans}, list, &numbers->to_bear};
  op->bear = device::BearArgs{insert,         table_->birth(),        op->dedup.counts, op->find.missed,
                              &numbers->born, &numbers->born_entries, nullptr,          0};
  return device_->Fill(stream_, scans, 0, 2 * words * sizeof(uint64_t));
}

Status HbmTable::BearMissed(Operation* op) {
  MT_RETURN_IF_ERROR(kernels_.compact(stream_, op->to_bear));
  EnqueueInsertion(kernels_, stream_, op->bear.insert, [&](auto call) { Insist(call); });
  Insist([&] { return kernels_.bear(stream_, op->bear); });
  return broken();
}

void HbmTable::NotePlaced(const Operation& op, int64_t rows_before) {
  int64_t present = 0;
  for (uint32_t i = 0; i < op.counted->misses; ++i) {
    const auto* header = reinterpret_cast<const DeviceRowHeader*>(op.staged_below + i * table_->stride());
    present += (header->flags & device::kRowProvisional) == 0;
  }
  NotePlaced(present, op.stage.insert_provisional ? op.counted->misses : present, op.counted->placed, rows_before);
  surely_in_hbm_ += std::max<int64_t>(0, int64_t{op.counted->created} - op.counted->placed.unplaced);
}

void HbmTable::NotePlaced(int64_t present, int64_t to_place, const device::PlacedCounts& placed, int64_t rows_before) {
  const int64_t got_places = int64_t{placed.to_place} - placed.unplaced, victims = got_places - (rows_ - rows_before);
  // Fewer if another operation brought some of the keys in between: then which of them came up here is not known.
  surely_in_hbm_ += (got_places == to_place ? present : 0) - victims;
}

}  // namespace multitier::hbm
