#include "cc/row/schema.h"

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

}  // namespace multitier
