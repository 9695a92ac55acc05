#include "cc/python/arrays.h"

#include <cstdint>

namespace multitier {

std::vector<ColumnSpec> ToSpecs(const std::vector<ColumnTuple>& columns) {
  std::vector<ColumnSpec> specs;
  for (const auto& [name, dim, initial_value] : columns) {
    specs.push_back(ColumnSpec{name, DType::kFloat32, dim, initial_value});
  }
  return specs;
}

std::vector<ColumnTuple> ToTuples(const std::vector<ColumnSpec>& columns) {
  std::vector<ColumnTuple> tuples;
  for (const ColumnSpec& column : columns) tuples.emplace_back(column.name, column.dim, column.initial_value);
  return tuples;
}

py::dict ToDict(Rows rows) {
  const auto n = static_cast<py::ssize_t>(rows.keys.size());
  const auto elements = static_cast<py::ssize_t>(rows.row_elements());
  py::dict out;
  out["columns"] = ToTuples(rows.columns);
  out["dtype"] = DTypeName(rows.columns.empty() ? DType::kFloat32 : rows.columns[0].dtype);
  out["keys"] = Own(std::move(rows.keys));
  out["frequencies"] = Own(std::move(rows.frequencies));
  out["versions"] = Own(std::move(rows.versions));
  out["data"] = Own(std::move(rows.data), {n, elements});
  out["counted_keys"] = Own(std::move(rows.counted_keys));
  out["counted_frequencies"] = Own(std::move(rows.counted_frequencies));
  out["counted_versions"] = Own(std::move(rows.counted_versions));
  return out;
}

namespace {

template <typename T>
void Take(const py::dict& dict, const char* name, std::vector<T>* to) {
  const auto array = dict[name].cast<Array<T>>();
  to->assign(array.data(), array.data() + array.size());
}

}  // namespace

void FromDict(const py::dict& dict, Rows* rows) {
  rows->columns = ToSpecs(dict["columns"].cast<std::vector<ColumnTuple>>());
  Take(dict, "keys", &rows->keys);
  Take(dict, "frequencies", &rows->frequencies);
  Take(dict, "versions", &rows->versions);
  Take(dict, "data", &rows->data);
  Take(dict, "counted_keys", &rows->counted_keys);
  Take(dict, "counted_frequencies", &rows->counted_frequencies);
  Take(dict, "counted_versions", &rows->counted_versions);
}

}  // namespace multitier
