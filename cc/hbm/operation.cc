// The parts of an operation on the device: find, stage, place, take out. hbm_table.h says in which order and why.

#include "cc/hbm/operation.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "cc/hbm/insertion.h"
#include "cc/hbm/pins.h"

namespace multitier::hbm {

using device::ScanScratch;

namespace {

constexpr uint64_t kRenumberEvery = uint64_t{1} << 29;
constexpr size_t kMostKeys = size_t{1} << 30;

}  // namespace

HbmTable::Operation::Operation(HbmTable* t) : Operation(t, 0) {}

HbmTable::Operation::Operation(HbmTable* t, uint64_t taken) : table(t), scratch(t->pool_, t->options().name) {
  MutexLock lock(t->enqueue_);
  number = taken != 0 ? taken : t->queue_->NextOperation();
  t->in_flight_.insert(number);
  if (number / kRenumberEvery <= t->renumbered_at_) return;  // less: a group took the number before another operation
  if (t->table_ == nullptr) return;                          // the device broke while the table grew: FindKeys says so
  t->renumbered_at_ = number / kRenumberEvery;
  const device::RenumberArgs renumber{t->table_->on_device(), t->table_->view().buckets, static_cast<uint32_t>(number)};
  t->Insist([&] { return t->kernels_.renumber(t->stream_, renumber); });
}

HbmTable::Operation::~Operation() {
  if (getpid() != table->pid_) {  // another thread of the parent may have held any lock
    scratch.Abandon();
    if (arrays != nullptr) arrays->Abandon();
    return;
  }
  if (busy && !table->Synchronize(this).ok()) scratch.Bury();
  MutexLock lock(table->enqueue_);
  table->in_flight_.erase(table->in_flight_.find(number));
}

void HbmTable::Operation::NoteSweeps() { sweeps = table->pins_->sweeps(); }

void HbmTable::Operation::NoteUsedPins() {
  const uint32_t used = counted->used_pins - std::exchange(noted_pins, counted->used_pins);
  if (used != 0) table->pins_->Used(used, sweeps);
}

uint32_t HbmTable::Floor() const { return static_cast<uint32_t>(*in_flight_.begin()); }

Status HbmTable::Synchronize(Operation* operation) {
  MT_RETURN_IF_ERROR(queue_->Synchronize());
  operation->busy = false;
  return OkStatus();
}

void HbmTable::Break(const Status& status) {
  MutexLock lock(broken_mutex_);
  broken_ = InternalError("table '", options().name,
                          "': the device failed while rows moved in HBM; changes of rows in HBM since they were ",
                          "last handed down are lost: ", status.ToString());
}

Status HbmTable::broken() const {
  MutexLock lock(broken_mutex_);
  return broken_;
}

Status HbmTable::FindKeys(Operation* op, const BatchKeys& keys, bool stamp, Output* output) {
  MT_RETURN_IF_ERROR(broken());
  if (keys.n > kMostKeys) {
    return InvalidArgumentError("table '", options().name, "': expected at most ", kMostKeys, " keys in a batch in HBM, found ",
                                keys.n);
  }
  const auto n = static_cast<uint32_t>(keys.n);
  Scratch& s = op->scratch;
  op->n = n;
  op->epoch = epoch_;
  const bool widens = keys.on_device && keys.device.is_int32;
  auto* const pinned_keys = keys.on_device ? nullptr : s.Pinned<int64_t>(n);
  auto* const pinned_end = s.Pinned<uint32_t>(1);
  op->counted = s.Pinned<Operation::Numbers>(1);
  op->counted_on_device = s.OnDevice<Operation::Numbers>(1);
  auto* const own_keys = keys.on_device && !widens ? nullptr : s.OnDevice<int64_t>(n);
  const int64_t* const device_keys = own_keys != nullptr ? own_keys : static_cast<const int64_t*>(keys.device.data);
  auto* const device_end = s.OnDevice<uint32_t>(1);
  uint32_t set_size = 2;
  while (set_size < 2 * n) set_size *= 2;
  device::DedupArgs& dedup = op->dedup;
  dedup = device::DedupArgs{device_keys,
                            n,
                            device_end,
                            1,
                            s.OnDevice<uint32_t>(set_size),
                            set_size,
                            s.OnDevice<uint32_t>(n),
                            s.OnDevice<uint32_t>(n),
                            {s.OnDevice<uint64_t>(ScanScratch::Words(n))},
                            s.OnDevice<int64_t>(n),
                            s.OnDevice<uint32_t>(n),
                            s.OnDevice<uint32_t>(n),
                            s.OnDevice<uint32_t>(n),
                            nullptr,
                            s.OnDevice<uint64_t>(n)};
  auto* const rows = s.OnDevice<uint8_t*>(n);
  auto* const missed = s.OnDevice<uint32_t>(n);
  auto* const scan = s.OnDevice<uint64_t>(ScanScratch::Words(n));
  auto* const list = s.OnDevice<uint32_t>(n);
  auto* const listed_keys = s.OnDevice<int64_t>(n);
  auto* const listed_counts = s.OnDevice<uint32_t>(n);
  auto* const ranks = s.OnDevice<uint32_t>(n);
  MT_RETURN_IF_ERROR(s.status());
  Operation::Numbers* const numbers = op->counted_on_device;
  op->first_bad = &numbers->first_bad;
  dedup.num_distinct = &numbers->distinct;
  op->find = device::FindArgs{table_->on_device(),
                              dedup.distinct,
                              dedup.distinct_tables,
                              dedup.num_distinct,
                              n,
                              static_cast<uint32_t>(op->number),
                              stamp,
                              rows,
                              missed};
  op->find.keeps_pins = op->prefetches;
  op->find.used_pins = &numbers->used_pins;
  op->missed = device::CompactArgs{missed,         dedup.num_distinct, n,           {scan},        list, &numbers->misses,
                                   dedup.distinct, dedup.counts,       listed_keys, listed_counts, ranks};
  if (output != nullptr) MT_RETURN_IF_ERROR(output->Take(op));
  if (!keys.on_device) std::copy(keys.host.begin(), keys.host.end(), pinned_keys);
  *pinned_end = n;
  op->busy = true;
  std::unique_lock<Mutex> turn(turn_, std::defer_lock);  // held for births, until their number is known
  if (op->may_bear && expects_new_keys_ && turn.try_lock()) {
    op->bears = MayBear(*op) && TakeBirths(op);
    if (!op->bears) turn.unlock();
  }
  MT_RETURN_IF_ERROR(s.status());
  {
    MutexLock lock(enqueue_);
    op->NoteSweeps();
    device::Device& d = *device_;
    if (!keys.on_device) MT_RETURN_IF_ERROR(d.Copy(stream_, own_keys, pinned_keys, n * sizeof(int64_t)));
    if (widens) {
      const auto* const narrow = static_cast<const int32_t*>(keys.device.data);
      MT_RETURN_IF_ERROR(kernels_.widen(stream_, device::WidenArgs{narrow, own_keys, n}));
    }
    MT_RETURN_IF_ERROR(d.Copy(stream_, device_end, pinned_end, sizeof(uint32_t)));
    MT_RETURN_IF_ERROR(d.Fill(stream_, dedup.set, 0xff, set_size * sizeof(uint32_t)));
    MT_RETURN_IF_ERROR(d.Fill(stream_, dedup.counts, 0, n * sizeof(uint32_t)));
    MT_RETURN_IF_ERROR(d.Fill(stream_, dedup.scan.words, 0, ScanScratch::Words(n) * sizeof(uint64_t)));
    MT_RETURN_IF_ERROR(d.Fill(stream_, scan, 0, ScanScratch::Words(n) * sizeof(uint64_t)));
    MT_RETURN_IF_ERROR(d.Fill(stream_, numbers, 0, sizeof(Operation::Numbers)));
    MT_RETURN_IF_ERROR(d.Fill(stream_, &numbers->first_bad, 0xff, sizeof(uint32_t)));
    if (output != nullptr) MT_RETURN_IF_ERROR(output->Prepare(op));
    MT_RETURN_IF_ERROR(kernels_.dedup(stream_, dedup));
    MT_RETURN_IF_ERROR(kernels_.find(stream_, op->find));
    if (op->bears) {
      MT_RETURN_IF_ERROR(BearMissed(op));
      Insist([&] { return kernels_.compact(stream_, op->missed); });
    } else {
      MT_RETURN_IF_ERROR(kernels_.compact(stream_, op->missed));
      MT_RETURN_IF_ERROR(d.Copy(stream_, op->counted, numbers, sizeof(Operation::Numbers)));
    }
  }
  if (op->bears) {
    BringNumbersDown(op, /*rows=*/true);
    MT_RETURN_IF_ERROR(broken());
    turn.unlock();
  } else {
    MT_RETURN_IF_ERROR(Synchronize(op));
    op->NoteUsedPins();
  }
  if (op->may_bear) expects_new_keys_ = op->counted->born + op->counted->misses > 0;
  if (output != nullptr) MT_RETURN_IF_ERROR(output->Check(*op));
  const uint32_t misses = op->counted->misses;
  op->complete = misses == 0;
  op->can_create = op->counted->distinct;
  if (misses == 0) return OkStatus();
  op->missed_keys = s.Pinned<int64_t>(misses);
  op->missed_counts = s.Pinned<uint32_t>(misses);
  MT_RETURN_IF_ERROR(s.status());
  op->busy = true;
  MT_RETURN_IF_ERROR(device_->Copy(stream_, op->missed_keys, listed_keys, misses * sizeof(int64_t)));
  MT_RETURN_IF_ERROR(device_->Copy(stream_, op->missed_counts, listed_counts, misses * sizeof(uint32_t)));
  return keys.tables.empty() ? Synchronize(op) : FindTables(op, keys.tables);
}

// Distinct keys have the numbers of their first occurrences.
Status HbmTable::FindTables(Operation* op, Span<const uint16_t> tables) {
  const uint32_t misses = op->counted->misses, n = op->n;
  auto* const inverse = op->scratch.Pinned<uint32_t>(n);
  auto* const list = op->scratch.Pinned<uint32_t>(misses);
  MT_RETURN_IF_ERROR(op->scratch.status());
  MT_RETURN_IF_ERROR(device_->Copy(stream_, inverse, op->dedup.inverse, n * sizeof(uint32_t)));
  MT_RETURN_IF_ERROR(device_->Copy(stream_, list, op->missed.list, misses * sizeof(uint32_t)));
  MT_RETURN_IF_ERROR(Synchronize(op));
  std::vector<uint16_t> of_distinct;
  of_distinct.reserve(op->counted->distinct);
  for (uint32_t i = 0; i < n; ++i) {
    if (inverse[i] == of_distinct.size()) of_distinct.push_back(tables[i]);
  }
  op->missed_tables.clear();
  for (uint32_t i = 0; i < misses; ++i) op->missed_tables.push_back(of_distinct[list[i]]);
  return OkStatus();
}

Status HbmTable::CopyOutMisses(Operation* op, CopyOutAs as, ReadFor reason) {
  const uint32_t misses = op->counted->misses;
  const size_t stride = table_->stride();
  op->staged_below = op->scratch.Pinned<uint8_t>(misses * stride);
  auto* const staged = op->scratch.OnDevice<uint8_t>(misses * stride);
  MT_RETURN_IF_ERROR(op->scratch.status());
  MT_RETURN_IF_ERROR(rows_below_.CopyOut(Span<const int64_t>(op->missed_keys, misses), op->missed_tables, as, reason, stride,
                                         op->staged_below));
  op->stage.staged_rows = staged;
  op->stage.staged_stride = static_cast<uint32_t>(stride);
  op->busy = true;
  return device_->Copy(stream_, staged, op->staged_below, misses * stride);
}

// Memory of PlaceMisses and TakeOutChanged: taken before anything changes.
Status HbmTable::MakeRoomForPlacing(Operation* op) {
  const uint32_t misses = op->counted->misses, n = op->n;
  const size_t stride = table_->stride();
  Scratch& s = op->scratch;
  Operation::Numbers* const numbers = op->counted_on_device;
  op->to_place.list = s.OnDevice<uint32_t>(n);
  op->to_place.scan.words = s.OnDevice<uint64_t>(ScanScratch::Words(n));
  op->to_place.length = &numbers->listed_to_place;
  device::InsertArgs& insert = op->insert = TakeInsertion(1, misses, &s);
  insert.scan.words = s.OnDevice<uint64_t>(ScanScratch::Words(misses));
  insert.num_dirty = &numbers->placed.dirty_victims;
  insert.placed = &numbers->placed;
  auto* const outbox_rows = s.OnDevice<uint8_t>(misses * stride);
  auto* const outbox_keys = s.OnDevice<int64_t>(misses);
  auto* const outbox_tables = s.OnDevice<uint32_t>(misses);
  op->changed.marked = s.OnDevice<uint32_t>(n);
  op->list_changed.list = s.OnDevice<uint32_t>(n);
  op->list_changed.scan.words = s.OnDevice<uint64_t>(ScanScratch::Words(n));
  op->outbox_rows = s.Pinned<uint8_t>(misses * stride);
  op->outbox_keys = s.Pinned<int64_t>(misses);
  MT_RETURN_IF_ERROR(s.status());
  op->exchange = device::ExchangeArgs{insert, outbox_rows, static_cast<uint32_t>(stride), outbox_keys, outbox_tables};
  device::Device& d = *device_;
  op->busy = true;
  MT_RETURN_IF_ERROR(d.Fill(stream_, op->to_place.scan.words, 0, ScanScratch::Words(n) * sizeof(uint64_t)));
  MT_RETURN_IF_ERROR(d.Fill(stream_, op->list_changed.scan.words, 0, ScanScratch::Words(n) * sizeof(uint64_t)));
  return d.Fill(stream_, insert.scan.words, 0, ScanScratch::Words(misses) * sizeof(uint64_t));
}

Status HbmTable::FindAgain(Operation* op, bool stamp, bool insert, bool insert_provisional) {
  op->find.stamp = stamp;
  op->NoteSweeps();
  MT_RETURN_IF_ERROR(kernels_.find(stream_, op->find));
  device::StageArgs& stage = op->stage;
  stage.num_keys = op->find.num_keys;
  stage.max_keys = op->n;
  stage.ranks = op->missed.ranks;
  stage.insert = insert;
  stage.insert_provisional = insert_provisional;
  stage.rows = op->find.rows;
  stage.missed = op->find.missed;
  return kernels_.stage(stream_, stage);
}

// Behind the point of no return. REQUIRES: MakeRoomForPlacing, FindAgain
void HbmTable::PlaceMisses(Operation* op) {
  op->placed = true;
  op->to_place.marked = op->find.missed;
  op->to_place.num_keys = op->find.num_keys;
  op->to_place.max_keys = op->n;
  device::InsertArgs& insert = op->insert;
  InsertKeysOf(op->find, op->to_place.list, op->to_place.length, &insert);
  insert.floor = Floor();
  insert.staged_rows = op->stage.staged_rows;
  insert.staged_stride = op->stage.staged_stride;
  insert.staged_ranks = op->missed.ranks;
  op->exchange.insert = insert;
  Insist([&] { return kernels_.compact(stream_, op->to_place); });
  EnqueueInsertion(kernels_, stream_, insert, [&](auto call) { Insist(call); });
  Insist([&] { return kernels_.exchange(stream_, op->exchange); });
}

// Rows that changed in their staged place, as there was none in the table, go to the outbox behind the victims.
void HbmTable::TakeOutChanged(Operation* op) {
  device::MarkArgs& mark = op->changed;
  const uint8_t* const staged = op->stage.staged_rows;
  mark.num_keys = op->find.num_keys;
  mark.max_keys = op->n;
  mark.rows = op->find.rows;
  mark.begin = staged;
  mark.end = staged + size_t{op->counted->misses} * op->stage.staged_stride;
  mark.which = device::Marked::kDirty;
  op->list_changed.marked = mark.marked;
  op->list_changed.num_keys = mark.num_keys;
  op->list_changed.max_keys = op->n;
  op->list_changed.length = &op->counted_on_device->changed;
  op->take_out = device::TakeOutArgs{
      op->list_changed.list,   op->list_changed.length, op->counted->misses,      op->find.rows,           op->find.keys,
      op->stage.staged_stride, op->insert.num_dirty,    op->exchange.outbox_rows, op->exchange.outbox_keys};
  Insist([&] { return kernels_.mark(stream_, mark); });
  Insist([&] { return kernels_.compact(stream_, op->list_changed); });
  Insist([&] { return kernels_.take_out(stream_, op->take_out); });
}

// Brings down what the device counted. rows: and how many rows there are. REQUIRES: then turn_ is held, or the gate is closed:
// who wakes up late must not write an old number
void HbmTable::BringNumbersDown(Operation* op, bool rows) {
  op->busy = true;
  Insist([&] { return device_->Copy(stream_, op->counted, op->counted_on_device, sizeof(Operation::Numbers)); });
  if (rows) {
    Insist([&] { return device_->Copy(stream_, &op->counted->placed.free_rows, table_->view().num_free, sizeof(uint32_t)); });
  }
  Insist([&] { return Synchronize(op); });
  if (!broken().ok()) return;
  if (rows) rows_ = static_cast<int64_t>(table_->view().capacity) - op->counted->placed.free_rows;
  op->NoteUsedPins();
}

// And rows that left HBM; they go below.
void HbmTable::ComeDown(Operation* op) {
  BringNumbersDown(op, op->placed);
  if (!broken().ok()) return;
  rows_below_.AddNewRows(op->counted->created);
  if (!op->placed) return;
  const device::PlacedCounts& placed = op->counted->placed;
  op->complete = placed.to_place == op->counted->misses && placed.unplaced == 0;
  const uint32_t out = placed.dirty_victims + op->counted->changed;
  const size_t stride = table_->stride();
  if (out > 0) {
    op->busy = true;
    Insist([&] { return device_->Copy(stream_, op->outbox_rows, op->exchange.outbox_rows, out * stride); });
    Insist([&] { return device_->Copy(stream_, op->outbox_keys, op->exchange.outbox_keys, out * sizeof(int64_t)); });
    Insist([&] { return Synchronize(op); });
    if (!broken().ok()) return;
  }
  int64_t created = op->counted->created;  // in HBM: without those that got no place there
  for (uint32_t i = placed.dirty_victims; i < out; ++i) {
    const auto* header = reinterpret_cast<const device::DeviceRowHeader*>(op->outbox_rows + i * stride);
    created -= (header->flags & device::kRowNew) != 0;
  }
  surely_in_hbm_ += placed.rows + created;
  if (out == 0) return;
  handed_down_ += out;
  rows_below_.PutBack(Span<const int64_t>(op->outbox_keys, out), stride, op->outbox_rows, &op->scratch);
}

}  // namespace multitier::hbm
