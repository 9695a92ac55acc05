#include "cc/row/row_layout.h"

#include <cstring>

#include "cc/row/value_codec.h"

namespace multitier {
namespace {

constexpr int kMaxDim = 1 << 20;
constexpr size_t kMaxRowBytes = size_t{1} << 30;  // column offsets are 32 bits wide
constexpr size_t kCacheLineBytes = 64;

size_t RoundUp(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

Status CheckDim(const std::string& column, int dim) {
  if (dim >= 1 && dim <= kMaxDim) return OkStatus();
  return InvalidArgumentError("row layout: dim of column '", column, "': expected 1 to ", kMaxDim, ", found ", dim);
}

template <typename Half>
Half Stored(float value) {
  Half half;
  StoreValue(value, &half);
  return half;
}

template <typename T>
void FillWith(uint8_t* out, T value, size_t n) {
  for (size_t i = 0; i < n; ++i) std::memcpy(out + i * sizeof(T), &value, sizeof(T));
}

void FillColumn(const Column& column, uint8_t* out) {
  // Bytes between the last element and the next multiple of 16 are zero, so that equal rows are equal bytes.
  const size_t n = static_cast<size_t>(column.dim);
  switch (column.dtype) {
    case DType::kFloat32:
      FillWith(out, column.initial_value, n);
      break;
    case DType::kBFloat16:
      FillWith(out, Stored<BFloat16>(column.initial_value), n);
      break;
    case DType::kFloat16:
      FillWith(out, Stored<Float16>(column.initial_value), n);
      break;
  }
  const size_t used = n * DTypeSize(column.dtype);
  std::memset(out + used, 0, column.bytes - used);
}

}  // namespace

size_t DTypeSize(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
  }
  return "unknown";
}

Result<DType> ParseDType(const std::string& name) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return InvalidArgumentError("dtype: expected float32, bfloat16 or float16, found '", name, "'");
}

Result<RowLayout> RowLayout::Create(int dim, DType value_dtype) {
  MT_RETURN_IF_ERROR(CheckDim("value", dim));
  RowLayout layout;
  Column value;
  value.name = "value";
  value.dtype = value_dtype;
  value.dim = dim;
  layout.columns_.push_back(std::move(value));
  layout.Place();
  return layout;
}

Result<RowLayout> RowLayout::WithColumn(const ColumnSpec& spec) const {
  MT_RETURN_IF_ERROR(CheckDim(spec.name, spec.dim));
  if (spec.name.empty()) return InvalidArgumentError("row layout: expected a column with a name, found ''");
  if (Find(spec.name) >= 0) return InvalidArgumentError("row layout: column '", spec.name, "' exists already");
  RowLayout layout = *this;
  Column column;
  static_cast<ColumnSpec&>(column) = spec;
  layout.columns_.push_back(std::move(column));
  layout.Place();
  if (layout.row_bytes_ > kMaxRowBytes) {
    return InvalidArgumentError("row layout: with column '", spec.name, "' a row would have ", layout.row_bytes_,
                                " bytes, at most ", kMaxRowBytes, " are supported");
  }
  return layout;
}

int RowLayout::Find(const std::string& name) const {
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

void RowLayout::Place() {
  size_t offset = 0;
  for (Column& column : columns_) {
    column.offset = static_cast<uint32_t>(offset);
    column.bytes = static_cast<uint32_t>(RoundUp(static_cast<size_t>(column.dim) * DTypeSize(column.dtype), 16));
    offset += column.bytes;
  }
  row_bytes_ = offset;
  const size_t exact = sizeof(RowHeader) + row_bytes_;
  const size_t lines = RoundUp(exact, kCacheLineBytes);
  const size_t overhead = sizeof(RowHeader) + (lines - exact) + kIndexBytesPerKeyBound;
  stride_ = overhead <= kMaxOverheadBytes ? lines : exact;
}

void RowLayout::FillSlots(uint8_t* row_data, size_t first_column) const {
  for (size_t i = first_column; i < columns_.size(); ++i) FillColumn(columns_[i], row_data + columns_[i].offset);
}

}  // namespace multitier
