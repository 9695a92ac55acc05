// Handing down: rows that changed in HBM go to the table below, and stay in HBM, clean. Victims come down in operation.cc.
//
//   span    rows of HBM that are marked and listed at once; their number comes down
//   chunk   of the rows listed: copied to the host, and put into the table below
//
// So the cost is a pass over the rows' flags on the device, and copies of what changed. Between mark and copy, rows may be
// updated, but none enters or leaves HBM, because the caller has the turn.

#include <algorithm>

#include "cc/hbm/operation.h"

namespace multitier::hbm {

namespace {

// The device needs 24 bytes for each row of a span, and the table's pool keeps them.
constexpr uint32_t kSpanRows = 1 << 17;
constexpr size_t kChunkBytes = size_t{8} << 20, kChunkRows = 4096;

}  // namespace

// Rows [first, first + n) of the device's table, those that are dirty, `chunk` at a time.
Status HbmTable::HandDownSpan(uint32_t first, uint32_t n, uint32_t chunk) {
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
  auto* const length = s.OnDevice<uint32_t>(1);
  auto* const outbox_rows = s.OnDevice<uint8_t>(chunk * stride);
  auto* const outbox_keys = s.OnDevice<int64_t>(chunk);
  auto* const pinned_length = s.Pinned<uint32_t>(1);
  auto* const pinned_rows = s.Pinned<uint8_t>(chunk * stride);
  auto* const pinned_keys = s.Pinned<int64_t>(chunk);
  MT_RETURN_IF_ERROR(s.status());
  Operation::Numbers* const numbers = op.counted_on_device;
  const device::RangeArgs range{table_->on_device(), first, n, rows, keys, &numbers->distinct};
  const uint8_t* const begin = table_->view().rows;
  const device::MarkArgs mark{&numbers->distinct,     n,     rows, begin, begin + size_t{table_->view().capacity} * stride,
                              device::Marked::kDirty, marked};
  const device::CompactArgs compact{marked, &numbers->distinct, n, {scan}, list, &numbers->changed};
  op.busy = true;
  MT_RETURN_IF_ERROR(device_->Fill(stream_, numbers, 0, sizeof(Operation::Numbers)));
  MT_RETURN_IF_ERROR(device_->Fill(stream_, scan, 0, device::ScanScratch::Words(n) * sizeof(uint64_t)));
  {
    MutexLock lock(enqueue_);
    MT_RETURN_IF_ERROR(kernels_.range(stream_, range));
    MT_RETURN_IF_ERROR(kernels_.mark(stream_, mark));
    MT_RETURN_IF_ERROR(kernels_.compact(stream_, compact));
  }
  BringNumbersDown(&op);
  MT_RETURN_IF_ERROR(broken());
  const uint32_t found = op.counted->changed;
  for (uint32_t at = 0; at < found; at += chunk) {
    const uint32_t some = std::min(chunk, found - at);
    const device::TakeOutArgs take_out{
        list + at, length, some, rows, keys, static_cast<uint32_t>(stride), /*clean=*/true, nullptr, outbox_rows, outbox_keys,
    };
    *pinned_length = some;
    op.busy = true;
    Insist([&] { return device_->Copy(stream_, length, pinned_length, sizeof(uint32_t)); });
    {
      MutexLock lock(enqueue_);
      Insist([&] { return kernels_.take_out(stream_, take_out); });
    }
    Insist([&] { return device_->Copy(stream_, pinned_rows, outbox_rows, some * stride); });
    Insist([&] { return device_->Copy(stream_, pinned_keys, outbox_keys, some * sizeof(int64_t)); });
    Insist([&] { return Synchronize(&op); });
    MT_RETURN_IF_ERROR(broken());
    handed_down_ += some;
    rows_below_.PutBack(Span<const int64_t>(pinned_keys, some), stride, pinned_rows, &s);
    MT_RETURN_IF_ERROR(rows_below_.status());
  }
  return OkStatus();
}

Status HbmTable::HandDownAll() {
  MT_RETURN_IF_ERROR(broken());
  MT_RETURN_IF_ERROR(rows_below_.Retry());
  if (!maybe_dirty_.exchange(false)) return OkStatus();
  const uint32_t capacity = table_->view().capacity;
  uint32_t span = std::min(capacity, kSpanRows);
  const auto chunk =
      static_cast<uint32_t>(std::max<size_t>(1, std::min({size_t{capacity}, kChunkRows, kChunkBytes / table_->stride()})));
  for (uint32_t first = 0; first < capacity;) {
    const uint32_t n = std::min(span, capacity - first);
    const Status status = HandDownSpan(first, n, std::min(n, chunk));
    if (status.ok()) {
      first += n;
    } else if (status.code() == StatusCode::kResourceExhausted && rows_below_.status().ok() && n > 1) {
      span = n / 2;  // the device has no memory for n rows at a time
    } else {
      maybe_dirty_ = true;
      return status;
    }
  }
  return OkStatus();
}

}  // namespace multitier::hbm
