// What needs the gate closed: removal, expiry, clear, slots, import, snapshots.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "cc/hbm/operation.h"
#include "cc/hbm/pins.h"

namespace multitier::hbm {

namespace {

constexpr size_t kForgottenAtOnce = size_t{1} << 20;

}  // namespace

// REQUIRES: the gate is closed, and what is to stay was handed down
Status HbmTable::Empty() {
  ++epoch_;
  pins_->Forget();
  surely_in_hbm_ = 0;
  SetBirth(*layout(), table_.get());
  Insist([&] { return table_->Reset(device_.get(), stream_); });
  Insist([&] { return device_->Synchronize(stream_); });
  rows_ = 0;
  return broken();
}

// REQUIRES: the gate is closed
void HbmTable::ForgetListed(Operation* op, const device::CompactArgs& list) {
  const device::ForgetArgs forget{
      table_->on_device(), list.list, list.length, op->n, op->find.rows, &op->counted_on_device->forgotten_provisional};
  const int64_t rows_before = rows_;
  op->busy = true;
  ++epoch_;
  Insist([&] { return kernels_.forget(stream_, forget); });
  Insist([&] { return kernels_.count_forgotten(stream_, forget); });
  BringNumbersDown(op, /*rows=*/true);
  surely_in_hbm_ -= rows_before - rows_ - op->counted->forgotten_provisional;
  if (broken().ok() && pins_->Count() > 0) (void)pins_->Sweep(/*all=*/false);  // some of the rows were pinned
}

// The rows of these keys leave HBM, where they are in it. After an error some are left. REQUIRES: the gate is closed, and what
// is to stay was handed down
Status HbmTable::Forget(Span<const int64_t> keys) {
  for (size_t from = 0; from < keys.size() && rows_ > 0; from += kForgottenAtOnce) {
    Operation op(this);
    device::CompactArgs list;
    MT_RETURN_IF_ERROR(
        ListInHbm(&op, keys.subspan(from, std::min(kForgottenAtOnce, keys.size() - from)), device::Marked::kAll, &list));
    ForgetListed(&op, list);
    MT_RETURN_IF_ERROR(broken());
  }
  return broken();
}

// A row that had changed in HBM is below again. REQUIRES: the gate is closed, and no row has changed since all were handed down
Status HbmTable::ForgetDropped() {
  if (!drops_) return OkStatus();
  const std::vector<int64_t> dropped = below_->TakeGone();
  if (dropped.empty()) return broken();
  std::vector<int32_t> tiers(dropped.size());
  const bool known = below_->LookupTier(dropped, tiers.data()).ok();
  std::vector<int64_t> gone, back;
  for (size_t i = 0; i < dropped.size(); ++i) (known && tiers[i] >= 0 ? back : gone).push_back(dropped[i]);
  below_->TakeBackDropped(back);
  Status forgotten = Forget(gone);
  for (int tries = 1; tries < kTries && !forgotten.ok(); ++tries) forgotten = Forget(gone);
  if (!forgotten.ok()) Break(forgotten);
  return broken();
}

void HbmTable::SettleDropped() {
  if (!drops_ || !below_->AnyGone() || !Check().ok()) return;
  const Alone alone(this);
  MutexLock turn(turn_);
  if (HandDownAll().ok()) (void)ForgetDropped();  // else the next operation tries again
}

std::vector<int64_t> HbmTable::PopDropped() {
  SettleDropped();
  return below_->PopDropped();
}

Result<Rows> HbmTable::PopDroppedRows() {
  SettleDropped();
  return below_->PopDroppedRows();
}

Status HbmTable::Remove(Span<const int64_t> keys, int64_t* removed) {
  MT_RETURN_IF_ERROR(CheckMemory(keys.size()));
  MT_RETURN_IF_ERROR(Check());
  if (removed != nullptr) *removed = 0;
  if (keys.empty()) return OkStatus();
  const Alone alone(this);
  MutexLock turn(turn_);
  Operation op(this);
  Headers found;
  MT_RETURN_IF_ERROR(HeadersInHbm(&op, keys, device::Marked::kAll, &found));
  std::vector<int64_t> created_here;  // the table below has no row of them
  if (!found.keys.empty()) {
    ForgetListed(&op, found.list);
    MT_RETURN_IF_ERROR(broken());
  }
  for (size_t i = 0; i < found.keys.size(); ++i) {
    if ((found.headers[i].flags & device::kRowNew) != 0) created_here.push_back(found.keys[i]);
  }
  rows_below_.AddNewRows(-static_cast<int64_t>(created_here.size()));
  for (const int64_t key : keys) {
    if (rows_below_.Forget(key)) created_here.push_back(key);
  }
  removed_new_ += static_cast<int64_t>(created_here.size());
  below_->NoteRemoved(created_here);
  int64_t below = 0;
  const Status status = below_->Remove(keys, &below);
  if (removed != nullptr) *removed = below + static_cast<int64_t>(created_here.size());
  return status;
}

Status HbmTable::Expire(int64_t step, int64_t* expired) {
  MT_RETURN_IF_ERROR(Check());
  if (expired != nullptr) *expired = 0;
  if (!options().expiry.enabled()) return OkStatus();
  const NoSnapshot no_snapshot(this);
  const Alone alone(this);
  {
    MutexLock turn(turn_);
    MT_RETURN_IF_ERROR(HandDownAll());
  }
  std::vector<int64_t> gone;
  const Status status = below_->ExpireKeys(step, expired, &gone);
  MutexLock turn(turn_);
  if (!Forget(gone).ok()) MT_RETURN_IF_ERROR(Empty());  // no expired row may stay, and no other row is only in HBM
  return status;
}

Status HbmTable::Clear() {
  MT_RETURN_IF_ERROR(Check());
  const NoSnapshot no_snapshot(this);
  const Alone alone(this);
  MT_RETURN_IF_ERROR(broken());  // by an operation that this one waited for: then no row below is cleared
  Status emptied;
  {
    MutexLock turn(turn_);
    rows_below_.ForgetAll();
    maybe_dirty_ = false;
    emptied = Empty();
  }
  const Status cleared = below_->Clear();
  return emptied.ok() ? cleared : emptied;
}

// REQUIRES: the gate is closed, and everything was handed down
Status HbmTable::Replace(size_t row_bytes, uint64_t bytes, const std::function<Status()>& then) {
  const size_t row_bytes_before = table_->row_bytes();
  const uint64_t bytes_before = uint64_t{table_->view().capacity} * row_bytes_before;
  Insist([&] { return device_->Synchronize(stream_); });
  MT_RETURN_IF_ERROR(broken());
  ++epoch_;
  {
    MutexLock lock(enqueue_);
    table_ = nullptr;  // there may be no room for both
  }
  pool_->Empty();
  auto table = NewDeviceTable(row_bytes, bytes);
  const Status status = table.ok() ? then() : table.status();
  if (!status.ok()) table = NewDeviceTable(row_bytes_before, bytes_before);
  if (!table.ok()) table = NewDeviceTable(row_bytes_before, bytes_before);  // what was freed may take a second try
  if (!table.ok()) {
    Break(table.status());
    return broken();
  }
  {
    MutexLock lock(enqueue_);
    table_ = *std::move(table);
    resident_bytes_ = static_cast<int64_t>(table_->bytes());
  }
  MutexLock turn(turn_);
  MT_RETURN_IF_ERROR(Empty());
  return status;
}

Status HbmTable::HandDownAllInTurn() {
  MutexLock turn(turn_);
  return HandDownAll();
}

// REQUIRES: the gate is closed
Status HbmTable::AddSlotsInside(Span<const ColumnSpec> slots) {
  RowLayout widened = *layout();
  for (const ColumnSpec& slot : slots) {
    if (widened.Find(slot.name) >= 0) continue;
    auto wider = widened.WithColumn(slot);
    if (!wider.ok()) return below_->AddSlots(slots);  // which says what is wrong
    widened = *std::move(wider);
  }
  const size_t row_bytes = widened.row_bytes();
  if (row_bytes == table_->row_bytes()) return below_->AddSlots(slots);
  const uint64_t rows = grows_ ? static_cast<uint64_t>(std::max<int64_t>(1, TotalCount())) : 1;
  if (budget_.rows(row_bytes) < rows) {
    return InvalidArgumentError("table '", options().name, "': expected a budget of tier hbm of at least ",
                                rows == 1 ? "one" : "", rows == 1 ? "" : StrCat(rows), " row", rows == 1 ? "" : "s", " (",
                                rows * row_bytes, " bytes), found ", budget_.bytes(row_bytes));
  }
  const uint64_t bytes =
      grows_ ? std::min(budget_.bytes(row_bytes), uint64_t{table_->view().capacity} * row_bytes) : budget_.bytes(row_bytes);
  const auto add = [&] { return below_->AddSlots(slots); };
  // A budget in bytes holds fewer of the wider rows. Those that leave HBM were handed down, and the table below drops the rows
  // that are the coldest as they are in HBM.
  if (drops_ || bytes / row_bytes < table_->view().capacity) MT_RETURN_IF_ERROR(HandDownAllInTurn());
  bool moved = false;
  MT_RETURN_IF_ERROR(MoveTo(widened, bytes, add, &moved));
  if (!moved) {
    MT_RETURN_IF_ERROR(HandDownAllInTurn());
    MT_RETURN_IF_ERROR(Replace(row_bytes, bytes, add));
  }
  MutexLock turn(turn_);
  return ForgetDropped();
}

Status HbmTable::AddSlots(Span<const ColumnSpec> slots) {
  MT_RETURN_IF_ERROR(Check());
  const std::shared_ptr<const RowLayout> now = layout();
  const bool all_there =
      std::all_of(slots.begin(), slots.end(), [&](const ColumnSpec& slot) { return now->Find(slot.name) >= 0; });
  if (all_there) return below_->AddSlots(slots);
  const NoSnapshot no_snapshot(this);
  const Alone alone(this);
  {
    MutexLock turn(turn_);
    MT_RETURN_IF_ERROR(broken());
    MT_RETURN_IF_ERROR(rows_below_.Retry());  // pending rows are as wide as before
  }
  return AddSlotsInside(slots);
}

Status HbmTable::Import(const Rows& rows, Executor* executor) {
  MT_RETURN_IF_ERROR(Check());
  const size_t n = rows.keys.size();
  const bool well_formed = !rows.columns.empty() && rows.columns[0].dim == dim() && rows.frequencies.size() == n &&
                           rows.versions.size() == n && rows.data.size() == n * static_cast<size_t>(rows.row_elements());
  if (!well_formed) return below_->Import(rows, executor);  // which says what is wrong
  MT_RETURN_IF_ERROR(AddSlots(Span<const ColumnSpec>(rows.columns.data() + 1, rows.columns.size() - 1)));
  const NoSnapshot no_snapshot(this);
  const Alone alone(this);
  {
    MutexLock turn(turn_);
    MT_RETURN_IF_ERROR(HandDownAll());
    MT_RETURN_IF_ERROR(Forget(rows.keys));
  }
  const Status status = below_->Import(rows, executor);
  MutexLock turn(turn_);
  const Status forgotten = ForgetDropped();
  return status.ok() ? forgotten : status;
}

class HbmTable::Snapshot : public TableSnapshot {
 public:
  explicit Snapshot(HbmTable* table) : table_(table), turn_(&table->one_snapshot_) {}

  // Most of what is dirty goes down before the gate closes.
  Status Prepare(SnapshotRequest request) {
    {
      Inside inside(table_);
      MutexLock turn(table_->turn_);
      MT_RETURN_IF_ERROR(table_->HandDownAll());
    }
    MT_ASSIGN_OR_RETURN(below_, table_->below_->PrepareSnapshot(std::move(request)));
    return OkStatus();
  }

  Status Hold() override {
    held_since_ = std::chrono::steady_clock::now();
    alone_ = std::make_unique<Alone>(table_);
    const Status status = HoldBelow();
    if (!status.ok()) alone_ = nullptr;
    return status;
  }
  void Mark() override { below_->Mark(); }
  void Release() override {
    below_->Release();
    alone_ = nullptr;
    const auto held = std::chrono::steady_clock::now() - held_since_;
    table_->snapshot_held_us_ = std::chrono::duration_cast<std::chrono::microseconds>(held).count();
  }
  Result<bool> GiveFile() override { return below_->GiveFile(); }
  Status Run() override {
    table_->snapshot_thread_ = std::this_thread::get_id();
    const Status status = below_->Run();
    table_->snapshot_thread_ = std::thread::id();
    return status;
  }
  Status GiveCopies() override { return below_->GiveCopies(); }
  size_t copied_bytes() const override { return below_->copied_bytes(); }

 private:
  Status HoldBelow() {
    {
      MutexLock turn(table_->turn_);
      MT_RETURN_IF_ERROR(table_->HandDownAll());
    }
    return below_->Hold();
  }

  HbmTable* const table_;
  const TurnHold turn_;  // given back after the snapshot below has ended
  std::unique_ptr<TableSnapshot> below_;
  std::unique_ptr<Alone> alone_;  // from Hold to Release, by one thread
  std::chrono::steady_clock::time_point held_since_;
};

Result<std::unique_ptr<TableSnapshot>> HbmTable::PrepareSnapshot(SnapshotRequest request) {
  MT_RETURN_IF_ERROR(Check());
  auto snapshot = std::make_unique<Snapshot>(this);
  MT_RETURN_IF_ERROR(snapshot->Prepare(std::move(request)));
  return std::unique_ptr<TableSnapshot>(std::move(snapshot));
}

Result<int64_t> HbmTable::Upsert(const UpsertRequest& request) {
  MT_RETURN_IF_ERROR(Check());
  const NoSnapshot no_snapshot(this);
  const Alone alone(this);
  {
    MutexLock turn(turn_);
    MT_RETURN_IF_ERROR(HandDownAll());
    if (!request.check_only) MT_RETURN_IF_ERROR(Forget(request.keys));
  }
  Result<int64_t> created = below_->Upsert(request);
  MutexLock turn(turn_);
  MT_RETURN_IF_ERROR(ForgetDropped());
  return created;
}

Result<Rows> HbmTable::Scan(const ScanRequest& request, uint64_t* next) {
  MT_RETURN_IF_ERROR(Check());
  Inside inside(this);
  if (bounded_below_) {
    MutexLock turn(turn_);
    MT_RETURN_IF_ERROR(HandDownAll());
    return below_->Scan(request, next);
  }
  {
    MutexLock turn(turn_);
    MT_RETURN_IF_ERROR(HandDownAll());
  }
  return below_->Scan(request, next);
}

Status HbmTable::Flush() {
  MT_RETURN_IF_ERROR(Check());
  {
    Inside inside(this);
    MutexLock turn(turn_);
    MT_RETURN_IF_ERROR(HandDownAll());
  }
  return below_->Flush();
}

Status HbmTable::Drain() {
  MT_RETURN_IF_ERROR(Check());
  Status status;
  {
    Inside inside(this);
    MutexLock turn(turn_);
    status = rows_below_.Retry();
  }
  const Status below = below_->Drain();
  return status.ok() ? below : status;
}

Status HbmTable::SetDramBudget(Budget budget) {
  if (!drops_) return below_->SetDramBudget(budget);
  MT_RETURN_IF_ERROR(Check());
  const Alone alone(this);
  MutexLock turn(turn_);
  MT_RETURN_IF_ERROR(HandDownAll());
  const Status set = below_->SetDramBudget(budget);
  const Status forgotten = ForgetDropped();
  return set.ok() ? forgotten : set;
}

TableStats HbmTable::Stats() const {
  AwaitSettled();
  TableStats stats = below_->Stats();
  TableStats::PerTier hbm;
  hbm.name = "hbm";
  hbm.rows = rows_;
  hbm.row_bytes = hbm.rows * stats.row_bytes;
  const uint64_t budget_bytes = budget_.bytes(static_cast<size_t>(stats.row_bytes));
  hbm.budget_bytes = budget_bytes == kUnboundedBytes ? 0 : static_cast<int64_t>(budget_bytes);
  hbm.hits = hits_;
  hbm.misses = misses_;
  hbm.resident_bytes = resident_bytes_;
  stats.tiers[0].promotions += brought_up_;
  stats.tiers[0].demotions += handed_down_;
  stats.tiers.insert(stats.tiers.begin(), hbm);
  stats.prefetched += pins_->Count();
  stats.rows += rows_below_.new_rows();
  stats.created += rows_below_.new_rows() + removed_new_;
  stats.removed += removed_new_;
  stats.lookups = lookups_;
  stats.absent = absent_;
  stats.updates += updates_;
  stats.last_update = LastUpdate();
  stats.snapshot_held_us = snapshot_held_us_;
  for (const Status& error : {rows_below_.status(), broken()}) {
    if (!error.ok()) stats.sticky_error = error;
  }
  return stats;
}

}  // namespace multitier::hbm
