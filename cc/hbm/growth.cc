// Growth: a table that keeps every row in HBM allocates more memory when rows are added. hbm_table.h has the protocol.

#include <algorithm>

#include "cc/hbm/operation.h"

namespace multitier::hbm {

using device::DeviceRowHeader;

Status HbmTable::RunGrowing(const BatchKeys& keys, Output* output, const std::function<Status(Operation*)>& part,
                            std::shared_ptr<Operation>* kept, uint64_t number, bool prefetches) {
  for (bool may_ask = grows_;;) {
    uint64_t rows = 0;
    bool creates_rows = false;
    {
      Inside inside(this);
      const auto op = std::make_shared<Operation>(this, number);
      op->may_ask = may_ask;
      op->training = kept != nullptr;
      op->prefetches = prefetches;
      MT_RETURN_IF_ERROR(FindKeys(op.get(), keys, /*stamp=*/true, output));
      const Status status = part(op.get());
      rows = op->asks_for_rows;
      creates_rows = op->creates_rows;
      if (rows == 0 && status.ok() && kept != nullptr) *kept = op;
      if (rows == 0) return status;
    }
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
  op->creates_rows = creates && provisional + op->provisional > 0;
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

uint64_t HbmTable::MostRows() const { return std::min(budget_.rows(table_->row_bytes()), DeviceTable::kMostRows); }

Status HbmTable::Grow(uint64_t rows) {
  const Alone alone(this);
  MT_RETURN_IF_ERROR(broken());  // by the operation that this one waited for: then there is no table
  const size_t row_bytes = table_->row_bytes();
  const uint64_t capacity = table_->view().capacity, most = MostRows();
  if (capacity >= rows) return OkStatus();  // another operation has made the room
  if (rows > most) {
    return ResourceExhaustedError("table '", options().name, "': tier hbm: expected room for ", rows, " rows (",
                                  rows * row_bytes, " bytes), found a size of ", budget_.text(), ", which holds ", most);
  }
  {
    MutexLock turn(turn_);
    MT_RETURN_IF_ERROR(HandDownAll());
  }
  const auto nothing = [] { return OkStatus(); };
  Status status = Replace(row_bytes, std::min(most, std::max(rows, 2 * capacity)) * row_bytes, nothing);
  if (status.code() == StatusCode::kResourceExhausted && rows < 2 * capacity)
    status = Replace(row_bytes, rows * row_bytes, nothing);
  return status;
}

}  // namespace multitier::hbm
