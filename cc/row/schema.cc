#include "cc/row/schema.h"

#include <string>
#include <utility>

namespace multitier {

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
  if (dim < 1 || dim > (1 << 20))
    return InvalidArgumentError("schema: column '", column.name, "': expected dim in [1, ", 1 << 20, "], found ", dim);
  column.dim = static_cast<int>(dim);
  MT_ASSIGN_OR_RETURN(column.initial_value, json.GetFloat("initial_value"));
  return column;
}

}  // namespace multitier
