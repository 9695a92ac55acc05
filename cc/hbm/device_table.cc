#include "cc/hbm/device_table.h"

#include <algorithm>

namespace multitier::hbm {

using device::kBucketSlots;

namespace {

// Rows / (slots of a bucket * 0.8), rounded up: a random bucket seldom fills before the rows are all used. Or 0.5.
uint32_t BucketsFor(uint64_t rows, SlotsOfTable slots) {
  const uint64_t tenths = slots == SlotsOfTable::kFew ? 8 : 5;
  return static_cast<uint32_t>((rows * 10 + tenths * kBucketSlots - 1) / (tenths * kBucketSlots));
}

}  // namespace

template <typename T>
Status DeviceTable::Allocate(const DeviceMemory& memory, size_t n, T** array) {
  MT_ASSIGN_OR_RETURN(device::Buffer buffer, memory.OnDevice(n * sizeof(T)));
  *array = buffer.as<T>();
  bytes_ += buffer.bytes();
  buffers_.push_back(std::move(buffer));
  return OkStatus();
}

Result<std::unique_ptr<DeviceTable>> DeviceTable::Create(const DeviceMemory& memory, size_t row_bytes, uint64_t budget_bytes,
                                                         device::RankBy rank_by, SlotsOfTable slots_of_table) {
  const uint64_t capacity = std::min(budget_bytes / row_bytes, kMostRows);
  if (capacity == 0) {
    return InvalidArgumentError("expected a budget of tier hbm of at least one row (", row_bytes, " bytes), found ",
                                budget_bytes);
  }
  std::unique_ptr<DeviceTable> table(new DeviceTable);
  device::Table& view = table->view_;
  view.buckets = BucketsFor(capacity, slots_of_table);
  view.capacity = static_cast<uint32_t>(capacity);
  view.row_stride = static_cast<uint32_t>(sizeof(device::DeviceRowHeader) + row_bytes);
  const size_t slots = size_t{view.buckets} * kBucketSlots;
  MT_RETURN_IF_ERROR(table->Allocate(memory, slots, &view.digests));
  MT_RETURN_IF_ERROR(table->Allocate(memory, slots, &view.slots));
  MT_RETURN_IF_ERROR(table->Allocate(memory, slots, &view.last_used));
  view.rank_by = rank_by;
  if (rank_by != device::RankBy::kNothing) MT_RETURN_IF_ERROR(table->Allocate(memory, slots, &view.ranks));
  MT_RETURN_IF_ERROR(table->Allocate(memory, capacity, &view.slot_of_row));
  MT_RETURN_IF_ERROR(table->Allocate(memory, capacity, &view.free_rows));
  MT_RETURN_IF_ERROR(table->Allocate(memory, 1, &view.num_free));
  MT_RETURN_IF_ERROR(table->Allocate(memory, view.buckets, &view.heads));
  table->num_arrays_ = table->buffers_.size();
  MT_RETURN_IF_ERROR(table->Allocate(memory, capacity * view.row_stride, &view.rows));
  MT_RETURN_IF_ERROR(table->Allocate(memory, 1, &table->on_device_));
  MT_RETURN_IF_ERROR(table->Allocate(memory, 1, &table->birth_on_device_));
  MT_RETURN_IF_ERROR(table->Allocate(memory, view.row_stride, &table->new_row_));
  MT_ASSIGN_OR_RETURN(table->pinned_birth_, memory.Pinned(sizeof(device::Birth)));
  MT_ASSIGN_OR_RETURN(table->pinned_row_, memory.Pinned(view.row_stride));
  MT_ASSIGN_OR_RETURN(table->pinned_view_, memory.Pinned(sizeof(device::Table)));
  *table->pinned_view_.as<device::Table>() = view;
  return table;
}

void DeviceTable::SetBirth(const std::vector<ComputedColumns>& columns, DType value_dtype, Span<const uint8_t> data) {
  auto* const row = pinned_row_.as<uint8_t>();
  *reinterpret_cast<device::DeviceRowHeader*>(row) = device::DeviceRowHeader{-1, 0, device::kRowProvisional, 0};
  std::copy(data.begin(), data.end(), row + sizeof(device::DeviceRowHeader));
  bears_ = !columns.empty() && columns.size() <= device::Birth::kMostColumns;
  if (!bears_) return;
  auto* const birth = pinned_birth_.as<device::Birth>();
  *birth = device::Birth{};
  std::copy(columns.begin(), columns.end(), birth->columns);
  birth->dim = columns.back().end;
  birth->value_dtype = value_dtype;
  birth->row = new_row_;
}

Status DeviceTable::Reset(device::Device* device, device::Stream stream) const {
  MT_RETURN_IF_ERROR(device->Copy(stream, on_device_, pinned_view_.as<void>(), sizeof(device::Table)));
  if (bears_) MT_RETURN_IF_ERROR(device->Copy(stream, birth_on_device_, pinned_birth_.as<void>(), sizeof(device::Birth)));
  MT_RETURN_IF_ERROR(device->Copy(stream, new_row_, pinned_row_.as<void>(), view_.row_stride));
  for (const device::Buffer& array : arrays()) {
    MT_RETURN_IF_ERROR(device->Fill(stream, array.as<void>(), 0, array.bytes()));
  }
  MT_RETURN_IF_ERROR(device->Fill(stream, view_.heads, 0xff, view_.buckets * sizeof(uint32_t)));
  return device->kernels().reset(stream, device::ResetArgs{on_device_, view_.capacity});
}

}  // namespace multitier::hbm
