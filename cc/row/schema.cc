#include "cc/row/schema.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace multitier {
namespace {

constexpr int64_t kMaxDim = 1 << 20;
constexpr size_t kMaxRowBytes = size_t{1} << 30;

Status CheckDim(const std::string& column, int64_t dim) {
  if (dim >= 1 && dim <= kMaxDim) return OkStatus();
  return InvalidArgumentError("schema: column '", column, "': expected dim in [1, ", kMaxDim, "], found ", dim);
}

}  // namespace

Json ColumnsToJson(const RowLayout& layout) {
  Json columns = Json::Array();
  for (const Column& column : layout.columns()) {
    Json object = Json::Object();
    object.Set("name", Json::String(column.name));
    object.Set("dtype", Json::String(DTypeName(column.dtype)));
    object.Set("dim", Json::Int(column.dim));
    object.Set("initial_value", Json::Float(column.initial_value));
    object.Set("offset", Json::Uint(column.offset));
    columns.Append(std::move(object));
  }
  return columns;
}

Result<ColumnSpec> ColumnFromJson(const Json& json) {
  ColumnSpec column;
  MT_ASSIGN_OR_RETURN(column.name, json.GetString("name"));
  MT_ASSIGN_OR_RETURN(const std::string dtype, json.GetString("dtype"));
  const Result<DType> parsed = ParseDType(dtype);
  if (!parsed.ok()) return InvalidArgumentError("schema: column '", column.name, "': ", parsed.status().message());
  column.dtype = *parsed;
  MT_ASSIGN_OR_RETURN(const int64_t dim, json.GetInt("dim"));
  MT_RETURN_IF_ERROR(CheckDim(column.name, dim));
  column.dim = static_cast<int>(dim);
  MT_ASSIGN_OR_RETURN(column.initial_value, json.GetFloat("initial_value"));
  return column;
}

Status CheckColumns(const std::vector<ColumnSpec>& columns) {
  if (columns.empty()) return InvalidArgumentError("schema: expected a value column, found no columns");
  std::set<std::string_view> names{"value"};  // whatever the first one is called
  size_t row_bytes = 0;
  for (size_t i = 0; i < columns.size(); ++i) {
    const ColumnSpec& column = columns[i];
    MT_RETURN_IF_ERROR(CheckDim(column.name, column.dim));
    if (column.name.empty() || (!names.insert(column.name).second && i > 0)) {
      return InvalidArgumentError("schema: expected columns with distinct names, found '", column.name, "'",
                                  column.name.empty() ? "" : " twice");
    }
    row_bytes += (static_cast<size_t>(column.dim) * DTypeSize(column.dtype) + 15) / 16 * 16;
    if (row_bytes > kMaxRowBytes) {
      return InvalidArgumentError("schema: expected a row of at most ", kMaxRowBytes, " bytes, found ", row_bytes);
    }
  }
  return OkStatus();
}

bool AreOfOneTable(const std::vector<ColumnSpec>& a, const std::vector<ColumnSpec>& b) {
  const size_t n = std::min(a.size(), b.size());
  return std::equal(
      a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin(),
      [](const ColumnSpec& x, const ColumnSpec& y) { return x.name == y.name && x.dtype == y.dtype && x.dim == y.dim; });
}

}  // namespace multitier
