// Handing down: rows that changed in HBM go to the table below, and stay in HBM, clean. Victims come down in operation.cc.
//
//   list     the device lists all rows that changed; their number comes down
//   chunk    of the list: copied to the host, and put into the table below. While one chunk is put below, the next one comes
//            down
//
// So the cost is a pass over the rows' flags on the device, and copies of what changed. Between list and copy, rows may be
// updated, but none enters or leaves HBM, because the caller has the turn.

#include <algorithm>
#include <utility>

#include "cc/hbm/operation.h"

namespace multitier::hbm {

namespace {

// One chunk on its way.
struct Outbox {
  uint8_t* rows = nullptr;  // on the device
  int64_t* keys = nullptr;
  uint8_t* pinned_rows = nullptr;
  int64_t* pinned_keys = nullptr;

  void Take(size_t n, size_t stride, Scratch* scratch) {
    rows = scratch->OnDevice<uint8_t>(n * stride);
    keys = scratch->OnDevice<int64_t>(n);
    pinned_rows = scratch->Pinned<uint8_t>(n * stride);
    pinned_keys = scratch->Pinned<int64_t>(n);
  }
};

}  // namespace

Status HbmTable::ListDirty(uint32_t* found) {
  Operation op(this);
  Scratch& s = op.scratch;
  const uint32_t capacity = table_->view().capacity;
  const size_t words = device::ScanScratch::Words(capacity);
  op.counted = s.Pinned<Operation::Numbers>(1);
  op.counted_on_device = s.OnDevice<Operation::Numbers>(1);
  auto* const scan = s.OnDevice<uint64_t>(words);
  MT_RETURN_IF_ERROR(s.status());
  const device::ListDirtyArgs list{table_->on_device(), capacity, {scan}, &op.counted_on_device->changed};
  op.busy = true;
  MT_RETURN_IF_ERROR(device_->Fill(stream_, op.counted_on_device, 0, sizeof(Operation::Numbers)));
  MT_RETURN_IF_ERROR(device_->Fill(stream_, scan, 0, words * sizeof(uint64_t)));
  {
    MutexLock lock(enqueue_);
    MT_RETURN_IF_ERROR(kernels_.list_dirty(stream_, list));
  }
  BringNumbersDown(&op, /*rows=*/true);
  MT_RETURN_IF_ERROR(broken());
  *found = op.counted->changed;
  return OkStatus();
}

// ResourceExhausted with nothing pending below: nothing has changed, and smaller chunks may work.
Status HbmTable::HandDownListed(uint32_t found, uint32_t chunk) {
  Operation op(this);
  const size_t stride = table_->stride();
  Outbox outbox, coming;
  outbox.Take(chunk, stride, &op.scratch);
  if (found > chunk) coming.Take(chunk, stride, &op.scratch);
  MT_RETURN_IF_ERROR(op.scratch.status());
  const auto enqueue = [&](uint32_t first, const Outbox& to) {
    const uint32_t n = std::min(chunk, found - first);
    const device::TakeListedArgs take{table_->on_device(), first, n, to.rows, to.keys};
    op.busy = true;
    {
      MutexLock lock(enqueue_);
      Insist([&] { return kernels_.take_listed(stream_, take); });
    }
    Insist([&] { return device_->Copy(stream_, to.pinned_rows, to.rows, n * stride); });
    Insist([&] { return device_->Copy(stream_, to.pinned_keys, to.keys, n * sizeof(int64_t)); });
  };
  enqueue(0, outbox);
  bool more = true;
  for (uint32_t first = 0; more; first += chunk) {
    Insist([&] { return Synchronize(&op); });
    MT_RETURN_IF_ERROR(broken());
    more = found - first > chunk && rows_below_.status().ok();  // rows that were taken out are put below in any case
    if (more) enqueue(first + chunk, coming);
    const uint32_t n = std::min(chunk, found - first);
    handed_down_ += n;
    rows_below_.PutBack(Span<const int64_t>(outbox.pinned_keys, n), stride, outbox.pinned_rows, &op.scratch);
    std::swap(outbox, coming);
  }
  return rows_below_.status();
}

Status HbmTable::HandDownChanged() {
  uint32_t found = 0;
  MT_RETURN_IF_ERROR(ListDirty(&found));
  if (found == 0) return OkStatus();
  const uint64_t rows = std::max<uint64_t>(1, hand_down_bytes_ / table_->stride());
  for (auto chunk = static_cast<uint32_t>(std::min<uint64_t>(found, rows));; chunk = (chunk + 1) / 2) {
    const Status status = HandDownListed(found, chunk);
    const bool no_memory = status.code() == StatusCode::kResourceExhausted && rows_below_.status().ok();
    if (no_memory && chunk > 1) continue;
    return status;
  }
}

Status HbmTable::HandDownAll() {
  MT_RETURN_IF_ERROR(broken());
  MT_RETURN_IF_ERROR(rows_below_.Retry());
  if (!maybe_dirty_.exchange(false)) return OkStatus();
  const Status status = HandDownChanged();
  if (!status.ok()) maybe_dirty_ = true;
  return status;
}

}  // namespace multitier::hbm
