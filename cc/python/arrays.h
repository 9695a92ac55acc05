// Converts arrays, columns and rows between NumPy and the engine.
//
// Every array argument is contiguous and has the dtype and shape of the signature: tf_multitier/engine converts arguments
// before.

#ifndef CC_PYTHON_ARRAYS_H_
#define CC_PYTHON_ARRAYS_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/base/span.h"
#include "cc/table/api/embedding_table.h"

namespace multitier {

namespace py = pybind11;

template <typename T>
using Array = py::array_t<T, py::array::c_style>;
using ColumnTuple = std::tuple<std::string, int, float>;  // name, dim, initial value

template <typename T>
Span<const T> View(const Array<T>& array) {
  return Span<const T>(array.data(), static_cast<size_t>(array.size()));
}

// Passes a vector to NumPy without a copy.
template <typename T>
py::array Own(std::vector<T> values, std::vector<py::ssize_t> shape) {
  auto owner = std::make_unique<std::vector<T>>(std::move(values));
  const T* data = owner->data();
  py::capsule free(owner.get(), [](void* p) { delete static_cast<std::vector<T>*>(p); });
  owner.release();
  return py::array_t<T>(std::move(shape), data, free);
}

template <typename T>
py::array Own(std::vector<T> values) {
  const auto n = static_cast<py::ssize_t>(values.size());
  return Own(std::move(values), {n});
}

std::vector<ColumnSpec> ToSpecs(const std::vector<ColumnTuple>& columns);
std::vector<ColumnTuple> ToTuples(const std::vector<ColumnSpec>& columns);

// Converts rows to the dict for Python's `Rows`, and back.
py::dict ToDict(Rows rows);
// In place of what `rows` had. Memory that it has is used again.
void FromDict(const py::dict& dict, Rows* rows);

}  // namespace multitier

#endif  // CC_PYTHON_ARRAYS_H_
