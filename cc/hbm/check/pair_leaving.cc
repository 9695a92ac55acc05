// Pins of prefetched rows, and rows that leave the tables.

#include <numeric>

#include "cc/hbm/check/pair_side.h"

namespace multitier::hbm {

// Those of the keys that are in one table; then again as a later prefetch that only renews.
Status PairSide::Pin() {
  device::PinArgs pin{};
  pin.table = of_turn(0).on_device();
  pin.rows = work_->find.rows;
  pin.num_keys = work_->find.num_keys;
  pin.max_keys = batch_->n();
  pin.operation = batch_->operation;
  pin.later = memory().Up(std::vector<uint32_t>{batch_->operation - PairBatch::kOperations, batch_->operation + 1});
  pin.num_later = 2;
  pin.pinned = memory().Filled<uint32_t>(1, 0);
  MT_RETURN_IF_ERROR(kernels_.pin(stream_, pin));
  if (batch_->number % 2 == 1) {
    pin.operation = batch_->operation + 1;
    pin.renews = true;
    MT_RETURN_IF_ERROR(kernels_.pin(stream_, pin));
  }
  Read("pinned rows", pin.pinned, 1);
  ReadTables();
  return OkStatus();
}

// The pins of this batch and of the last one stay.
Status PairSide::SweepPins() {
  const std::vector<uint32_t> kept = {batch_->operation - PairBatch::kOperations, batch_->operation};
  auto* const kept_on_device = memory().Up(kept);
  for (const auto& table : tables_) {
    auto* const pinned = memory().Filled<uint32_t>(kept.size(), 0);
    MT_RETURN_IF_ERROR(
        kernels_.sweep_pins(stream_, device::SweepPinsArgs{table->on_device(), table->view().buckets, batch_->operation + 1,
                                                           kept_on_device, static_cast<uint32_t>(kept.size()), pinned}));
    Read("pins that stay", pinned, kept.size());
  }
  ReadTables();
  return OkStatus();
}

// Of another table than that which the next steps are of.
Status PairSide::ListDirty() {
  const DeviceTable& table = of_turn(1);
  auto* const length = memory().New<uint32_t>(1);
  MT_RETURN_IF_ERROR(kernels_.list_dirty(
      stream_, device::ListDirtyArgs{table.on_device(), table.view().capacity, {Scan(table.view().capacity)}, length}));
  MT_RETURN_IF_ERROR(ReadCount("dirty rows", length, table.view().capacity, &work_->dirty));
  ReadTables();
  return OkStatus();
}

// Without the first of them.
Status PairSide::TakeListed() {
  if (work_->dirty < 2) return OkStatus();
  const DeviceTable& table = of_turn(1);
  const uint32_t n = work_->dirty - 1;
  device::TakeListedArgs take{table.on_device(), 1, n, memory().New<uint8_t>(n * table.stride()), memory().New<int64_t>(n)};
  MT_RETURN_IF_ERROR(kernels_.take_listed(stream_, take));
  Read("listed rows", take.outbox_rows, n * table.stride());
  Read("listed keys", take.outbox_keys, n);
  ReadTables();
  return OkStatus();
}

// Rows of the batch that are in one table, of each kind. The dirty ones are taken out; all of a part of it are forgotten.
Status PairSide::Mark() {
  const device::Table& view = of_turn(0).view();
  const device::FindArgs& find = work_->find;
  const uint8_t *const begin = view.rows, *const end = begin + size_t{view.capacity} * view.row_stride;
  for (const device::Marked which :
       {device::Marked::kAll, device::Marked::kBorn, device::Marked::kProvisional, device::Marked::kDirty}) {
    const bool all = which == device::Marked::kAll;
    auto* const marked = memory().Filled<uint32_t>(find.max_keys, 0);
    MT_RETURN_IF_ERROR(kernels_.mark(stream_, device::MarkArgs{find.num_keys, find.max_keys, find.rows,
                                                               all ? begin + (end - begin) / 2 : begin, end, which, marked}));
    Read("marked", marked, work_->distinct);
    device::CompactArgs listed = CompactOf(marked, find.num_keys, find.max_keys);
    MT_RETURN_IF_ERROR(kernels_.compact(stream_, listed));
    MT_RETURN_IF_ERROR(ReadCount("marked rows", listed.length, work_->distinct, all ? &work_->forgotten : &work_->taken));
    (all ? work_->to_forget : work_->to_take) = listed;
  }
  return OkStatus();
}

// Twice into one outbox.
Status PairSide::TakeOut() {
  const uint32_t taken = work_->taken, row_bytes = of_turn(0).view().row_stride;
  if (taken == 0) return OkStatus();
  device::TakeOutArgs take{};
  take.list = work_->to_take.list;
  take.length = work_->to_take.length;
  take.max_length = taken;
  take.rows = work_->find.rows;
  take.keys = work_->find.keys;
  take.row_bytes = row_bytes;
  take.outbox_rows = memory().New<uint8_t>(size_t{taken} * 2 * row_bytes);
  take.outbox_keys = memory().New<int64_t>(size_t{taken} * 2);
  MT_RETURN_IF_ERROR(kernels_.take_out(stream_, take));
  take.before = take.length;
  MT_RETURN_IF_ERROR(kernels_.take_out(stream_, take));
  Read("rows taken out", take.outbox_rows, size_t{taken} * 2 * row_bytes);
  Read("keys taken out", take.outbox_keys, size_t{taken} * 2);
  ReadTables();
  return OkStatus();
}

Status PairSide::Forget() {
  device::ForgetArgs& forget = work_->forget;
  forget = device::ForgetArgs{of_turn(0).on_device(), work_->to_forget.list, work_->to_forget.length,
                              work_->forgotten,       work_->find.rows,      memory().Filled<uint32_t>(1, 0)};
  if (work_->forgotten == 0) return OkStatus();
  MT_RETURN_IF_ERROR(kernels_.forget(stream_, forget));
  Read("forgotten provisional rows", forget.provisional, 1);
  ReadTables();
  return OkStatus();
}

Status PairSide::CountForgotten() {
  if (work_->forgotten == 0) return OkStatus();
  MT_RETURN_IF_ERROR(kernels_.count_forgotten(stream_, work_->forget));
  ReadTables();
  return OkStatus();
}

// To more rows, to wider ones, and to fewer wider ones.
Status PairSide::MoveIndex() {
  const DeviceTable& from = of_turn(2);
  const bool fewer = batch_->number % 3 == 2;
  const size_t row_bytes = from.row_bytes() + batch_->number % 3 * 48;
  const uint64_t rows = fewer ? options_.rows * 2 / 3 : options_.rows * 2;
  MT_ASSIGN_OR_RETURN(work_->other, DeviceTable::Create(device_, row_bytes, rows * row_bytes, from.view().rank_by,
                                                        SlotsOfTable::kTwiceTheRows));
  DeviceTable& to = *work_->other;
  std::vector<uint8_t> new_row(row_bytes);
  std::iota(new_row.begin(), new_row.end(), static_cast<uint8_t>(1));
  to.SetBirth({}, DType::kFloat32, new_row);
  MT_RETURN_IF_ERROR(to.Reset(device_.get(), stream_));
  device::MoveArgs& move = work_->move;
  move = device::MoveArgs{from.on_device(), to.on_device(), from.view().capacity, to.view().buckets,
                          memory().Filled<uint32_t>(1, 0)};
  move.new_row = to.new_row();
  if (fewer) {
    move.first_row = from.view().capacity - to.view().capacity;
    move.left_provisional = memory().Filled<uint32_t>(1, 0);
    move.free_marks = memory().New<uint32_t>(to.view().capacity);
  }
  MT_RETURN_IF_ERROR(kernels_.move_index(stream_, move));
  ReadArrays(to);
  if (fewer) Read("provisional rows left out", move.left_provisional, 1);
  uint32_t left_out;
  return ReadCount("keys left out", move.left_out, fewer ? options_.rows : 0, &left_out);
}

Status PairSide::MoveRows() {
  const device::MoveArgs& move = work_->move;
  MT_RETURN_IF_ERROR(kernels_.move_rows(stream_, move));
  if (move.free_marks != nullptr) Read("rows that are free", move.free_marks, work_->other->view().capacity);
  ReadTable(*work_->other);
  return OkStatus();
}

// As if nearly 2^30 operations had passed: what was not used in the last batches becomes as old as that.
Status PairSide::Renumber() {
  if (batch_->number % 3 != 1) return OkStatus();
  const uint32_t operation = batch_->operation + (1u << 30) - 2;
  for (const auto& table : tables_) {
    MT_RETURN_IF_ERROR(kernels_.renumber(stream_, device::RenumberArgs{table->on_device(), table->view().buckets, operation}));
  }
  ReadTables();
  return OkStatus();
}

}  // namespace multitier::hbm
