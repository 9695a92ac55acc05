#include "cc/checkpoint_files/column_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cc/base/crc32.h"
#include "cc/base/json.h"

namespace multitier {
namespace {

constexpr size_t kReadBytes = 4u << 20;  // about, of rows at once

constexpr const char* kColumns[] = {"keys", "frequencies", "versions", "values", "slots"};

}  // namespace

std::string ColumnList::Encode() const {
  Json list = Json::Array(), out = Json::Object();
  for (const Item& item : items) {
    Json json = Json::Object();
    json.Set("column", Json::String(item.column));
    json.Set("path", Json::String(item.path));
    if (item.checksum.has_value()) json.Set("crc32", Json::Uint(*item.checksum));
    list.Append(std::move(json));
  }
  out.Set("rows", Json::Int(rows));
  out.Set("items", std::move(list));
  return out.ToString();
}

Result<ColumnList> ColumnList::Decode(std::string_view payload) {
  ColumnList out;
  MT_ASSIGN_OR_RETURN(const Json json, Json::Parse(payload));
  MT_ASSIGN_OR_RETURN(out.rows, json.GetInt("rows"));
  MT_ASSIGN_OR_RETURN(const Json* list, json.GetArray("items"));
  for (const Json& each : list->items()) {
    Item item;
    MT_ASSIGN_OR_RETURN(item.column, each.GetString("column"));
    MT_ASSIGN_OR_RETURN(item.path, each.GetString("path"));
    if (each.Find("crc32") != nullptr) {
      MT_ASSIGN_OR_RETURN(const uint64_t checksum, each.GetUint("crc32"));
      item.checksum = static_cast<uint32_t>(checksum);
    }
    out.items.push_back(std::move(item));
  }
  return out;
}

Result<std::unique_ptr<ColumnRows>> ColumnRows::Open(const ColumnList& list, std::vector<LinkedFile> files,
                                                     const std::vector<ColumnSpec>& columns) {
  std::unique_ptr<ColumnRows> out(new ColumnRows(list.rows));
  size_t slots = 0;
  for (size_t i = 1; i < columns.size(); ++i) slots += static_cast<size_t>(columns[i].dim);
  const size_t count = slots == 0 ? 4 : 5;
  for (size_t i = 0; i < std::max(count, list.items.size()); ++i) {
    if (i < std::min(count, list.items.size()) && list.items[i].column == kColumns[i]) continue;
    return DataLossError("checkpoint part: expected ", count, " arrays of rows, found ", list.items.size(), " or other ones");
  }
  for (size_t i = 0; i < count; ++i) {
    Array array{list.items[i], std::move(files[i])};
    array.row_bytes = i < 3    ? sizeof(int64_t)
                      : i == 3 ? static_cast<size_t>(columns[0].dim) * sizeof(float)
                               : slots * sizeof(float);
    const uint64_t expected = out->num_rows_ * array.row_bytes;
    if (array.file.bytes != expected) {
      return DataLossError(array.item.path, ": expected ", expected, " bytes, found ", array.file.bytes);
    }
    out->arrays_.push_back(std::move(array));
  }
  return out;
}

Status ColumnRows::Read(Array* from, size_t n, void* out) {
  const size_t bytes = n * from->row_bytes;
  MT_RETURN_IF_ERROR(from->file.read_at(next_ * from->row_bytes, bytes, static_cast<char*>(out)));
  if (!from->item.checksum.has_value()) return OkStatus();
  from->checksum = ExtendCrc32(from->checksum, out, bytes);
  if (next_ + n < num_rows_ || from->checksum == *from->item.checksum) return OkStatus();
  return DataLossError(from->item.path, ": expected checksum ", *from->item.checksum, ", found ", from->checksum,
                       ": it is damaged");
}

Status ColumnRows::ReadElements(Array* from, size_t n, size_t first, Rows* rows) {
  const auto elements = static_cast<size_t>(rows->row_elements());
  const size_t taken = from->row_bytes / sizeof(float);
  if (taken == elements) return Read(from, n, rows->data.data());
  buffer_.resize(n * taken);
  MT_RETURN_IF_ERROR(Read(from, n, buffer_.data()));
  for (size_t i = 0; i < n; ++i) {
    std::memcpy(rows->data.data() + i * elements + first, buffer_.data() + i * taken, from->row_bytes);
  }
  return OkStatus();
}

Status ColumnRows::Next(Rows* rows) {
  size_t row_bytes = 0;
  for (const Array& array : arrays_) row_bytes += array.row_bytes;
  const auto n = static_cast<size_t>(std::min<uint64_t>(num_rows_ - next_, std::max<size_t>(1, kReadBytes / row_bytes)));
  rows->Resize(n);
  MT_RETURN_IF_ERROR(Read(&arrays_[0], n, rows->keys.data()));
  MT_RETURN_IF_ERROR(Read(&arrays_[1], n, rows->frequencies.data()));
  MT_RETURN_IF_ERROR(Read(&arrays_[2], n, rows->versions.data()));
  if (!rows->columns.empty()) {
    MT_RETURN_IF_ERROR(ReadElements(&arrays_[3], n, 0, rows));
    const auto dim = static_cast<size_t>(rows->columns[0].dim);
    if (arrays_.size() > 4) MT_RETURN_IF_ERROR(ReadElements(&arrays_[4], n, dim, rows));
  }
  next_ += n;
  return OkStatus();
}

}  // namespace multitier
