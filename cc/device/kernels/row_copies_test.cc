// Rows of every width, from and to any address: gather and take out copy each byte of them and no other.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "cc/device/emulated_device.h"
#include "cc/device/kernels/kernels.h"
#include "cc/device/kernels/test_memory.h"
#include "cc/row/value_column.h"

namespace multitier::device {
namespace {

std::vector<uint32_t> Widths(std::mt19937_64* random) {
  std::vector<uint32_t> widths = {1, 2, 3, 4, 7, 8, 12, 16, 20, 63, 64, 127, 128, 132, 255, 256, 300};
  for (int i = 0; i < 8; ++i) widths.push_back(1 + static_cast<uint32_t>((*random)() % 300));
  return widths;
}

// Rows on a device, of random bytes.
class RowCopies : public testing::Test {
 protected:
  RowCopies()
      : device_(std::make_shared<EmulatedDevice>(EmulatedDevice::Options(), &EmulatedKernels())),
        stream_(*device_->NewStream()),
        memory_(device_, stream_) {}

  void MakeRows(size_t n, size_t row_bytes) {
    row_bytes_ = row_bytes;
    bytes_.resize(n * row_bytes);
    for (uint8_t& byte : bytes_) byte = static_cast<uint8_t>(random_());
    rows_ = memory_.Up(bytes_);
    pointers_.clear();
    for (size_t i = 0; i < n; ++i) pointers_.push_back(rows_ + i * row_bytes);
  }

  std::mt19937_64 random_{5};
  const std::shared_ptr<EmulatedDevice> device_;
  const Stream stream_;
  TestMemory memory_;
  size_t row_bytes_ = 0;
  std::vector<uint8_t> bytes_;
  uint8_t* rows_ = nullptr;
  std::vector<uint8_t*> pointers_;
};

TEST_F(RowCopies, GatherWritesTheValuesAndNothingElse) {
  for (const uint32_t dim : Widths(&random_)) {
    MakeRows(9, sizeof(DeviceRowHeader) + (dim * sizeof(float) + 15) / 16 * 16 + 32);
    for (const uint32_t n : {1u, 6u, 33u, 150u}) {
      const uint32_t shift = static_cast<uint32_t>(random_() % 5);  // floats; 0 and 4: a multiple of 16 bytes
      std::vector<uint32_t> inverse(n);
      for (uint32_t& key : inverse) key = static_cast<uint32_t>(random_() % pointers_.size());
      float* const memory = memory_.Filled<float>(size_t{n} * dim + 8, 0x5c);
      const GatherArgs args{memory_.Up(pointers_), memory_.Up(inverse), n, dim, memory + shift};
      ASSERT_TRUE(device_->kernels().gather(stream_, args).ok());
      std::vector<uint8_t> expected((size_t{n} * dim + 8) * sizeof(float), 0x5c);
      for (uint32_t i = 0; i < n; ++i) {
        std::memcpy(expected.data() + (shift + size_t{i} * dim) * sizeof(float),
                    bytes_.data() + inverse[i] * row_bytes_ + sizeof(DeviceRowHeader), dim * sizeof(float));
      }
      const std::vector<uint8_t> found = memory_.Down(reinterpret_cast<const uint8_t*>(memory), expected.size());
      ASSERT_EQ(found, expected) << n << " rows of " << dim << ", " << shift << " floats behind a multiple of 16 bytes";
    }
  }
}

// Every bit pattern, of NaN, too.
TEST_F(RowCopies, GatherWidensValuesOf16Bits) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const uint32_t dim : Widths(&random_)) {
      MakeRows(9, sizeof(DeviceRowHeader) + (dim * sizeof(uint16_t) + 15) / 16 * 16 + 32);
      const uint32_t n = 70, shift = static_cast<uint32_t>(random_() % 5);
      std::vector<uint32_t> inverse(n);
      for (uint32_t& key : inverse) key = static_cast<uint32_t>(random_() % pointers_.size());
      float* const memory = memory_.Filled<float>(size_t{n} * dim + 8, 0x5c);
      const GatherArgs args{memory_.Up(pointers_), memory_.Up(inverse), n, dim, memory + shift, dtype};
      ASSERT_TRUE(device_->kernels().gather(stream_, args).ok());
      std::vector<float> expected(size_t{n} * dim + 8);
      std::memset(expected.data(), 0x5c, expected.size() * sizeof(float));
      for (uint32_t i = 0; i < n; ++i) {
        ReadColumn(dtype, bytes_.data() + inverse[i] * row_bytes_ + sizeof(DeviceRowHeader), dim,
                   expected.data() + shift + size_t{i} * dim);
      }
      const std::vector<float> found = memory_.Down(memory, expected.size());
      ASSERT_EQ(std::memcmp(found.data(), expected.data(), expected.size() * sizeof(float)), 0)
          << DTypeName(dtype) << ", dim " << dim << ", shift " << shift;
    }
  }
}

TEST_F(RowCopies, TakeOutCopiesListedRowsBehindThoseThatAreThere) {
  for (const uint32_t dim : Widths(&random_)) {
    const auto row_bytes = static_cast<uint32_t>(sizeof(DeviceRowHeader) + (dim * sizeof(float) + 15) / 16 * 16);
    MakeRows(80, row_bytes);
    std::vector<uint32_t> list;
    std::vector<int64_t> keys;
    for (uint32_t i = 0; i < pointers_.size(); ++i) {
      keys.push_back(static_cast<int64_t>(random_()));
      if (random_() % 4 != 0) list.push_back(i);
    }
    const auto n = static_cast<uint32_t>(list.size()), before = static_cast<uint32_t>(random_() % 3);
    uint8_t* const outbox = memory_.Filled<uint8_t>(size_t{n + 4} * row_bytes, 0x5c);
    int64_t* const outbox_keys = memory_.Filled<int64_t>(n + 4, 0x5c);
    const TakeOutArgs args{memory_.Up(list),
                           memory_.Up(std::vector<uint32_t>{n}),
                           n,
                           memory_.Up(pointers_),
                           memory_.Up(keys),
                           row_bytes,
                           before > 0 ? memory_.Up(std::vector<uint32_t>{before}) : nullptr,
                           outbox,
                           outbox_keys};
    ASSERT_TRUE(device_->kernels().take_out(stream_, args).ok());
    std::vector<uint8_t> expected(size_t{n + 4} * row_bytes, 0x5c);
    std::vector<int64_t> expected_keys(n + 4, 0x5c5c5c5c5c5c5c5c);
    for (uint32_t i = 0; i < n; ++i) {
      std::memcpy(expected.data() + size_t{before + i} * row_bytes, bytes_.data() + size_t{list[i]} * row_bytes, row_bytes);
      expected_keys[before + i] = keys[list[i]];
    }
    ASSERT_EQ(memory_.Down(outbox, expected.size()), expected) << "dim " << dim;
    ASSERT_EQ(memory_.Down(outbox_keys, expected_keys.size()), expected_keys) << "dim " << dim;
    ASSERT_EQ(memory_.Down(rows_, bytes_.size()), bytes_) << "dim " << dim;
  }
}

}  // namespace
}  // namespace multitier::device
