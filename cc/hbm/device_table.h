// DeviceTable: the memory of one table in HBM. cc/device/kernels/table.h has the picture of it.
//
// The budget counts row data, as everywhere: capacity = budget / row_bytes. Headers and index come on top: 51 bytes a row, 61
// with ranks; about 16 or 22 more where it has twice as many slots as rows. Owns the memory. What is in it belongs to the
// device's stream: not thread-safe.

#ifndef CC_HBM_DEVICE_TABLE_H_
#define CC_HBM_DEVICE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/device/device.h"
#include "cc/device/kernels/kernels.h"
#include "cc/hbm/device_memory.h"

namespace multitier::hbm {

// Of a table's index. kFew: at most 0.8 of the slots are used when all rows are; a bucket that fills evicts a row.
// kTwiceTheRows: no bucket of random keys fills.
enum class SlotsOfTable { kFew, kTwiceTheRows };

class DeviceTable {
 public:
  static constexpr uint64_t kMostRows = (uint64_t{1} << 31) - device::kBucketSlots;  // slots have numbers of 32 bits

  // InvalidArgument where the budget does not hold one row; ResourceExhausted where the device has no memory.
  static Result<std::unique_ptr<DeviceTable>> Create(const DeviceMemory& memory, size_t row_bytes, uint64_t budget_bytes,
                                                     device::RankBy rank_by, SlotsOfTable slots = SlotsOfTable::kFew);

  // What new rows begin with: data [row_bytes], of which the value is not read. Before Reset, which copies it to the device.
  // Without columns, or with more than a Birth has, rows are not born on the device; new_row() has the slots in any case.
  void SetBirth(const std::vector<ComputedColumns>& columns, DType value_dtype, Span<const uint8_t> data);
  const device::Birth& birth_on_host() const { return *pinned_birth_.as<device::Birth>(); }  // REQUIRES: birth()
  uint8_t* new_row() const { return new_row_; }                                              // on the device, with its header
  const device::Birth* birth() const { return bears_ ? birth_on_device_ : nullptr; }         // on the device

  // Makes it empty: enqueues. To be called once before use. Writes all arrays.
  Status Reset(device::Device* device, device::Stream stream) const;

  const device::Table& view() const { return view_; }
  const device::Table* on_device() const { return on_device_; }
  size_t stride() const { return view_.row_stride; }  // of a row with its header
  size_t row_bytes() const { return view_.row_stride - sizeof(device::DeviceRowHeader); }
  uint64_t bytes() const { return bytes_; }
  // The arrays of the view but the rows.
  Span<const device::Buffer> arrays() const { return Span<const device::Buffer>(buffers_.data(), num_arrays_); }

 private:
  DeviceTable() = default;
  template <typename T>
  Status Allocate(const DeviceMemory& memory, size_t n, T** array);

  device::Table view_{};
  device::Table* on_device_ = nullptr;
  device::Birth* birth_on_device_ = nullptr;
  uint8_t* new_row_ = nullptr;  // on the device
  bool bears_ = false;
  device::Buffer pinned_view_, pinned_birth_, pinned_row_;
  std::vector<device::Buffer> buffers_;  // the arrays come first
  size_t num_arrays_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace multitier::hbm

#endif  // CC_HBM_DEVICE_TABLE_H_
