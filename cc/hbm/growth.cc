// Growth: a table that keeps every row in HBM allocates more memory when rows are added. New slots move the rows in the same
// way (MoveTo). hbm_table.h has the protocol.

#include <algorithm>
#include <optional>
#include <utility>

#include "cc/hbm/operation.h"
#include "cc/hbm/pins.h"

namespace multitier::hbm {

using device::DeviceRowHeader;

Status HbmTable::RunGrowing(const BatchKeys& keys, Output* output, const std::function<Status(Operation*)>& part,
                            std::shared_ptr<Operation>* kept, uint64_t number, bool prefetches, bool creates) {
  for (bool may_ask = grows_, runs_alone = false;;) {
    uint64_t rows = 0;
    bool creates_rows = false;
    {
      std::optional<Inside> inside;
      std::optional<Alone> alone;
      if (runs_alone) {
        alone.emplace(this);
      } else {
        inside.emplace(this);
      }
      const auto op = std::make_shared<Operation>(this, number);
      op->may_ask = may_ask;
      op->alone = runs_alone;
      op->training = kept != nullptr;
      op->prefetches = prefetches;
      op->may_bear = table_ != nullptr && table_->birth() != nullptr && (kept != nullptr || creates);
      MT_RETURN_IF_ERROR(FindKeys(op.get(), keys, /*stamp=*/true, output));
      const Status status = part(op.get());
      rows = op->asks_for_rows;
      creates_rows = op->creates_rows;
      runs_alone = op->asks_alone && status.ok();
      if (rows == 0 && !runs_alone) {
        if (status.ok() && kept != nullptr) *kept = op;
        return status;
      }
    }
    if (rows == 0) continue;
    const Status grown = Grow(rows);
    may_ask = grown.ok();
    if (!may_ask && (creates_rows || grown.code() != StatusCode::kResourceExhausted)) return grown;
  }
}

bool HbmTable::AsksForRows(Operation* op, bool creates) const {
  if (!op->may_ask) return false;
  uint64_t provisional = 0;
  for (uint32_t i = 0; i < op->counted->misses; ++i) {
    const auto* header = reinterpret_cast<const DeviceRowHeader*>(op->staged_below + i * table_->stride());
    provisional += (header->flags & device::kRowProvisional) != 0;
  }
  op->creates_rows = creates && !bounded_below_ && provisional + op->provisional > 0;
  // Under a filter some of the absent keys stay absent: they ask for no memory, but only where all of them would fit.
  uint64_t rows = static_cast<uint64_t>(rows_.load()) + op->counted->misses - provisional;
  if (op->training && keeps_provisional_) rows += provisional;
  if (op->creates_rows) {
    const uint64_t total = static_cast<uint64_t>(TotalCount()) + provisional + op->provisional;
    if (!filters_ || total > MostRows()) rows = std::max(rows + (filters_ ? 0 : provisional), total);
    // Rows that lookups left without an update make room as victims.
    if (total <= MostRows()) rows = std::min(rows, MostRows());
  }
  if (rows <= table_->view().capacity) return false;
  op->asks_for_rows = rows;
  return true;
}

Status HbmTable::EnqueueMove(const DeviceTable& to, Operation* op) {
  Scratch& s = op->scratch;
  const device::Table &from_view = table_->view(), &to_view = to.view();
  const bool fewer = to_view.capacity < from_view.capacity;
  const uint32_t listed = fewer ? to_view.capacity : 0;  // rows of which the free ones are listed
  const size_t words = device::ScanScratch::Words(listed);
  op->counted = s.Pinned<Operation::Numbers>(1);
  op->counted_on_device = s.OnDevice<Operation::Numbers>(1);
  auto* const scan = s.OnDevice<uint64_t>(words);
  auto* const free_marks = s.OnDevice<uint32_t>(listed);
  MT_RETURN_IF_ERROR(s.status());
  device::MoveArgs move{table_->on_device(), to.on_device(), from_view.capacity, to_view.buckets,
                        &op->counted_on_device->changed};
  move.new_row = to.new_row();
  if (fewer) {
    move.first_row = from_view.capacity - to_view.capacity;
    move.left_provisional = &op->counted_on_device->forgotten_provisional;
    move.free_marks = free_marks;
  }
  const device::CompactArgs list_free{free_marks, &to.on_device()->capacity, listed,
                                      {scan},     to_view.free_rows,         to_view.num_free};
  op->busy = true;
  MT_RETURN_IF_ERROR(device_->Fill(stream_, op->counted_on_device, 0, sizeof(Operation::Numbers)));
  MT_RETURN_IF_ERROR(device_->Fill(stream_, scan, 0, words * sizeof(uint64_t)));
  MutexLock lock(enqueue_);
  MT_RETURN_IF_ERROR(to.Reset(device_.get(), stream_));
  MT_RETURN_IF_ERROR(kernels_.move_index(stream_, move));
  MT_RETURN_IF_ERROR(kernels_.move_rows(stream_, move));
  if (fewer) MT_RETURN_IF_ERROR(kernels_.compact(stream_, list_free));
  return device_->Copy(stream_, op->counted, op->counted_on_device, sizeof(Operation::Numbers));
}

// REQUIRES: the gate is closed. If the table gets fewer rows, everything was handed down
Status HbmTable::MoveTo(const RowLayout& layout, uint64_t bytes, const std::function<Status()>& then, bool* moved) {
  auto made = NewDeviceTable(layout.row_bytes(), bytes);
  if (made.status().code() == StatusCode::kResourceExhausted) return OkStatus();
  MT_RETURN_IF_ERROR(made.status());
  other_ = *std::move(made);
  SetBirth(layout, other_.get());
  Operation op(this);
  Status status = EnqueueMove(*other_, &op);
  Insist([&] { return Synchronize(&op); });
  MT_RETURN_IF_ERROR(broken());
  const bool fewer = other_->view().capacity < table_->view().capacity;
  const bool no_memory = status.code() == StatusCode::kResourceExhausted;  // for the operation
  *moved = status.ok() && (fewer || op.counted->changed == 0);
  if (*moved) status = then();
  if (*moved && status.ok()) Publish(op);
  other_ = nullptr;
  return no_memory ? OkStatus() : status;
}

// The table is in the other memory. REQUIRES: the gate is closed
void HbmTable::Publish(const Operation& op) {
  const Operation::Numbers& moved = *op.counted;
  ++epoch_;
  {
    MutexLock lock(enqueue_);
    std::swap(table_, other_);
    resident_bytes_ = static_cast<int64_t>(table_->bytes());
  }
  if (moved.changed == 0) return;
  rows_ -= moved.changed;
  surely_in_hbm_ -= moved.changed - moved.forgotten_provisional;
  MutexLock turn(turn_);
  if (pins_->Count() > 0) (void)pins_->Sweep(/*all=*/false);  // some of the rows that left were pinned
}

uint64_t HbmTable::MostRows() const { return std::min(budget_.rows(table_->row_bytes()), DeviceTable::kMostRows); }

Status HbmTable::Grow(uint64_t rows) {
  const Alone alone(this);
  MT_RETURN_IF_ERROR(broken());  // by the operation that this one waited for: then there is no table
  const size_t row_bytes = table_->row_bytes();
  const uint64_t capacity = table_->view().capacity, most = MostRows();
  if (capacity >= rows) return OkStatus();  // another operation has made the room
  if (rows > most) {
    return ResourceExhaustedError("table '", options().name, "': tier hbm: expected room for ", rows, " rows (",
                                  rows * row_bytes, " bytes), found a size of ", budget_.text(), ", which holds ", most,
                                  ": remove or expire keys, or use a larger storage_size or storage_rows (OneEmbedding: "
                                  "capacity), a tier below, an admission filter, drop_coldest=True, or on_full='warn'");
  }
  const uint64_t wanted = std::min(most, std::max(rows, 2 * capacity));
  bool moved = false;
  const auto nothing = [] { return OkStatus(); };
  MT_RETURN_IF_ERROR(MoveTo(*layout(), wanted * row_bytes, nothing, &moved));
  if (moved) return OkStatus();
  MT_RETURN_IF_ERROR(HandDownAllInTurn());
  Status status = Replace(row_bytes, wanted * row_bytes, nothing);
  if (status.code() == StatusCode::kResourceExhausted && rows < 2 * capacity)
    status = Replace(row_bytes, rows * row_bytes, nothing);
  return status;
}

}  // namespace multitier::hbm
