// Handing down: rows that changed in HBM go to the table below, and stay in HBM, clean. Victims come down in operation.cc.

#include <algorithm>

#include "cc/hbm/operation.h"

namespace multitier::hbm {

namespace {

// Limits of what is handed down at a time. The containers for one chunk fit into the memory that an operation has in reserve.
constexpr size_t kChunkBytes = size_t{8} << 20, kChunkRows = 4096;

}  // namespace

// Rows [first, first + n) of the device's table, those that are dirty. They stay in HBM, clean.
Status HbmTable::HandDownRange(uint32_t first, uint32_t n) {
  Operation op(this);
  Scratch& s = op.scratch;
  const size_t stride = table_->stride();
  op.counted = s.Pinned<Operation::Numbers>(1);
  op.counted_on_device = s.OnDevice<Operation::Numbers>(1);
  auto* const rows = s.OnDevice<uint8_t*>(n);
  auto* const keys = s.OnDevice<int64_t>(n);
  auto* const marked = s.OnDevice<uint32_t>(n);
  auto* const list = s.OnDevice<uint32_t>(n);
  auto* const scan = s.OnDevice<uint64_t>(device::ScanScratch::Words(n));
  auto* const outbox_rows = s.OnDevice<uint8_t>(n * stride);
  auto* const outbox_keys = s.OnDevice<int64_t>(n);
  auto* const pinned_rows = s.Pinned<uint8_t>(n * stride);
  auto* const pinned_keys = s.Pinned<int64_t>(n);
  MT_RETURN_IF_ERROR(s.status());
  Operation::Numbers* const numbers = op.counted_on_device;
  const device::RangeArgs range{table_->on_device(), first, n, rows, keys, &numbers->distinct};
  const uint8_t* const begin = table_->view().rows;
  const device::MarkArgs mark{&numbers->distinct,     n,     rows, begin, begin + size_t{table_->view().capacity} * stride,
                              device::Marked::kDirty, marked};
  const device::CompactArgs compact{marked, &numbers->distinct, n, {scan}, list, &numbers->changed};
  const device::TakeOutArgs take_out{
      list, &numbers->changed, n, rows, keys, static_cast<uint32_t>(stride), /*clean=*/true, nullptr, outbox_rows, outbox_keys};
  op.busy = true;
  MT_RETURN_IF_ERROR(device_->Fill(stream_, numbers, 0, sizeof(Operation::Numbers)));
  MT_RETURN_IF_ERROR(device_->Fill(stream_, scan, 0, device::ScanScratch::Words(n) * sizeof(uint64_t)));
  {
    MutexLock lock(enqueue_);  // no update between mark and take out
    MT_RETURN_IF_ERROR(kernels_.range(stream_, range));
    MT_RETURN_IF_ERROR(kernels_.mark(stream_, mark));
    MT_RETURN_IF_ERROR(kernels_.compact(stream_, compact));
    Insist([&] { return kernels_.take_out(stream_, take_out); });
  }
  BringNumbersDown(&op);
  MT_RETURN_IF_ERROR(broken());
  const uint32_t found = op.counted->changed;
  if (found == 0) return OkStatus();
  op.busy = true;
  Insist([&] { return device_->Copy(stream_, pinned_rows, outbox_rows, found * stride); });
  Insist([&] { return device_->Copy(stream_, pinned_keys, outbox_keys, found * sizeof(int64_t)); });
  Insist([&] { return Synchronize(&op); });
  MT_RETURN_IF_ERROR(broken());
  handed_down_ += found;
  rows_below_.PutBack(Span<const int64_t>(pinned_keys, found), stride, pinned_rows, &s);
  return rows_below_.status();
}

Status HbmTable::HandDownAll() {
  MT_RETURN_IF_ERROR(broken());
  MT_RETURN_IF_ERROR(rows_below_.Retry());
  if (!maybe_dirty_.exchange(false)) return OkStatus();
  const uint32_t capacity = table_->view().capacity;
  auto chunk =
      static_cast<uint32_t>(std::max<size_t>(1, std::min({size_t{capacity}, kChunkRows, kChunkBytes / table_->stride()})));
  for (uint32_t first = 0; first < capacity;) {
    const uint32_t n = std::min(chunk, capacity - first);
    const Status status = HandDownRange(first, n);
    if (status.ok()) {
      first += n;
    } else if (status.code() == StatusCode::kResourceExhausted && rows_below_.status().ok() && n > 1) {
      chunk = n / 2;  // the device has no memory for n rows at a time
    } else {
      maybe_dirty_ = true;
      return status;
    }
  }
  return OkStatus();
}

}  // namespace multitier::hbm
