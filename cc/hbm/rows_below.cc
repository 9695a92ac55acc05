#include "cc/hbm/rows_below.h"

#include <algorithm>
#include <cstring>

#include "cc/base/ieee.h"
#include "cc/base/new_array.h"
#include "cc/device/kernels/table.h"
#include "cc/row/value_column.h"

namespace multitier::hbm {

using device::DeviceRowHeader;

namespace {

const DeviceRowHeader* HeaderOf(const uint8_t* row) { return reinterpret_cast<const DeviceRowHeader*>(row); }
DeviceRowHeader* HeaderOf(uint8_t* row) { return reinterpret_cast<DeviceRowHeader*>(row); }

}  // namespace

Status RowsBelow::CopyOut(Span<const int64_t> keys, Span<const uint16_t> tables, CopyOutAs as, ReadFor reason, size_t stride,
                          uint8_t* rows) {
  const size_t row_bytes = stride - sizeof(DeviceRowHeader);
  std::vector<RowFacts> facts(keys.size());
  MT_RETURN_IF_ERROR(
      below_->CopyOut(RowBatch{keys, facts.data(), rows + sizeof(DeviceRowHeader), stride, row_bytes, tables}, as));
  const AbsentValues& absent = below_->absent_values();
  std::vector<float> value;
  const ScopedIeeeArithmetic ieee;
  for (size_t i = 0; i < keys.size(); ++i) {
    uint8_t* const row = rows + i * stride;
    if (const uint8_t* pending = Pending(keys[i]); pending != nullptr) {
      std::memcpy(row, pending, stride);
      continue;
    }
    const auto flags = static_cast<uint16_t>(facts[i].has_row ? 0 : device::kRowProvisional);
    *reinterpret_cast<DeviceRowHeader*>(row) = DeviceRowHeader{facts[i].version, facts[i].frequency, flags, 0};
    if (facts[i].has_row || absent.are_initial(reason)) continue;
    value.resize(static_cast<size_t>(below_->dim()));
    float* const out = value.data();
    const uint16_t table = KnownTable(tables, i);
    absent.Fill(reason, &keys[i], &table, 1, &out);
    WriteColumn(below_->options().value_dtype, out, value.size(), row + sizeof(DeviceRowHeader));
  }
  return OkStatus();
}

Status RowsBelow::Create(Span<const int64_t> keys, size_t stride, uint8_t* rows, size_t* created) {
  std::vector<size_t> provisional;
  std::vector<int64_t> provisional_keys;
  for (size_t i = 0; i < keys.size(); ++i) {
    if ((HeaderOf(rows + i * stride)->flags & device::kRowProvisional) == 0) continue;
    provisional.push_back(i);
    provisional_keys.push_back(keys[i]);
  }
  *created = provisional.size();
  if (provisional.empty()) return OkStatus();
  const size_t row_bytes = stride - sizeof(DeviceRowHeader);
  const ArrayPtr<uint8_t> data = NewArray<uint8_t>(provisional.size() * row_bytes);
  if (data == nullptr) {
    return ResourceExhaustedError("table '", below_->options().name, "': no memory for ", provisional.size(),
                                  " new rows: expected ", provisional.size() * row_bytes, " bytes, found less");
  }
  for (size_t j = 0; j < provisional.size(); ++j) {
    std::memcpy(data.get() + j * row_bytes, rows + provisional[j] * stride + sizeof(DeviceRowHeader), row_bytes);
  }
  std::vector<RowFacts> facts(provisional.size(), RowFacts{-1, 0, true});
  MT_RETURN_IF_ERROR(below_->PutBack(RowBatch{provisional_keys, facts.data(), data.get(), row_bytes, row_bytes}));
  for (const size_t i : provisional) HeaderOf(rows + i * stride)->flags &= static_cast<uint16_t>(~device::kRowProvisional);
  return OkStatus();
}

Status RowsBelow::Put(Span<const int64_t> keys, size_t stride, size_t distance, const uint8_t* rows) {
  std::vector<RowFacts> facts(keys.size());
  int64_t new_rows = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const DeviceRowHeader& header = *HeaderOf(rows + i * distance);
    facts[i] = RowFacts{header.version, header.frequency, true};
    new_rows += (header.flags & device::kRowNew) != 0;
  }
  uint8_t* const data = const_cast<uint8_t*>(rows) + sizeof(DeviceRowHeader);  // PutBack only reads it
  MT_RETURN_IF_ERROR(below_->PutBack(RowBatch{keys, facts.data(), data, distance, stride - sizeof(DeviceRowHeader)}));
  new_rows_ -= new_rows;
  return OkStatus();
}

void RowsBelow::PutBack(Span<const int64_t> keys, size_t stride, uint8_t* rows, Scratch* scratch) {
  PutBack(keys, stride, stride, rows, [&] { return std::make_shared<device::Buffer>(scratch->Keep(rows)); });
}

void RowsBelow::PutBack(Span<const int64_t> keys, size_t stride, size_t distance, uint8_t* rows,
                        const std::function<std::shared_ptr<void>()>& keep) {
  if (keys.empty()) return;
  Status status = Retry();
  if (status.ok()) status = Put(keys, stride, distance, rows);
  if (status.ok()) return;
  (void)SetStatus(status);
  kept_.push_back(keep());
  pending_stride_ = stride;
  for (size_t i = 0; i < keys.size(); ++i) {
    uint8_t* const row = rows + i * distance;
    uint8_t*& pending = pending_[keys[i]];
    // It left HBM as new once; what changed since is the same row.
    if (pending != nullptr) HeaderOf(row)->flags |= HeaderOf(pending)->flags & device::kRowNew;
    pending = row;
  }
}

Status RowsBelow::Retry() {
  if (pending_.empty()) return SetStatus(OkStatus());
  const ArrayPtr<uint8_t> rows = NewArray<uint8_t>(pending_.size() * pending_stride_);
  if (rows == nullptr) {
    return SetStatus(ResourceExhaustedError("table '", below_->options().name, "': no memory to hand down ", pending_.size(),
                                            " rows from HBM: expected ", pending_.size() * pending_stride_,
                                            " bytes, found less"));
  }
  std::vector<int64_t> keys;
  for (const auto& [key, row] : pending_) {
    std::memcpy(rows.get() + keys.size() * pending_stride_, row, pending_stride_);
    keys.push_back(key);
  }
  const Status put = Put(keys, pending_stride_, pending_stride_, rows.get());
  if (put.ok()) ForgetPending();
  return SetStatus(put);
}

const uint8_t* RowsBelow::Pending(int64_t key) const {
  const auto found = pending_.find(key);
  return found == pending_.end() ? nullptr : found->second;
}

bool RowsBelow::Forget(int64_t key) {
  const auto found = pending_.find(key);
  if (found == pending_.end()) return false;
  const bool was_new = (HeaderOf(found->second)->flags & device::kRowNew) != 0;
  new_rows_ -= was_new;
  pending_.erase(found);
  if (pending_.empty()) ForgetPending();
  return was_new;
}

void RowsBelow::ForgetPending() {
  pending_.clear();
  kept_.clear();
}

void RowsBelow::ForgetAll() {
  ForgetPending();
  (void)SetStatus(OkStatus());
  new_rows_ = 0;
}

}  // namespace multitier::hbm
