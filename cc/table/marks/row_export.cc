#include "cc/table/marks/row_export.h"

#include <algorithm>

#include "cc/row/value_column.h"

namespace multitier {
namespace {

void AppendFacts(int64_t key, uint32_t frequency, int64_t version, Rows* rows) {
  rows->keys.push_back(key);
  rows->frequencies.push_back(frequency);
  rows->versions.push_back(version);
}

void AppendColumn(const Column& column, const uint8_t* row_data, Rows* rows) {
  const uint8_t* const from = row_data + column.offset;
  if (column.dtype == DType::kFloat32) {
    const float* const floats = reinterpret_cast<const float*>(from);
    rows->data.insert(rows->data.end(), floats, floats + column.dim);
    return;
  }
  const size_t at = rows->data.size(), dim = static_cast<size_t>(column.dim);
  rows->data.resize(at + dim);
  ReadColumn(column.dtype, from, dim, rows->data.data() + at);
}

}  // namespace

size_t ElementsOf(const RowLayout& layout, bool all_columns) {
  size_t elements = 0;
  for (const Column& column : layout.columns()) {
    elements += static_cast<size_t>(column.dim);
    if (!all_columns) break;
  }
  return elements;
}

void AppendRow(const RowLayout& layout, bool all_columns, int64_t key, uint32_t frequency, int64_t version,
               const uint8_t* row_data, Rows* rows) {
  AppendFacts(key, frequency, version, rows);
  const std::vector<Column>& columns = layout.columns();
  const size_t end = all_columns ? columns.size() : 1;
  for (size_t c = 0; c < end;) {
    const Column& first = columns[c];
    if (first.dtype != DType::kFloat32) {
      AppendColumn(columns[c++], row_data, rows);
      continue;
    }
    // Columns of floats without padding between them are copied at once.
    const float* const floats = reinterpret_cast<const float*>(row_data + first.offset);
    size_t n = static_cast<size_t>(first.dim);
    for (++c; c < end && columns[c].dtype == DType::kFloat32 && columns[c].offset == first.offset + n * sizeof(float); ++c) {
      n += static_cast<size_t>(columns[c].dim);
    }
    rows->data.insert(rows->data.end(), floats, floats + n);
  }
}

void AppendColumns(const RowLayout& layout, const std::vector<int>& columns, int64_t key, uint32_t frequency, int64_t version,
                   const uint8_t* row_data, Rows* rows) {
  AppendFacts(key, frequency, version, rows);
  for (const int c : columns) AppendColumn(layout.columns()[c], row_data, rows);
}

void AppendCounted(const CountedKey& counted, Rows* rows) {
  if (counted.frequency == 0) return;
  rows->counted_keys.push_back(counted.key);
  rows->counted_frequencies.push_back(counted.frequency);
  rows->counted_versions.push_back(counted.version);
}

bool AppendSome(const Rows& from, size_t most, size_t* next, Rows* to) {
  const size_t rows = from.keys.size(), counted = from.counted_keys.size(), removed = from.removed_keys.size();
  const size_t elements = rows == 0 ? 0 : from.data.size() / rows;
  const size_t end = *next + std::min(most, rows + counted + removed - *next);
  // Of the n rows or keys that begin with number `first`: those in [*next, end).
  const auto append = [&](size_t first, size_t n, size_t width, const auto& values, auto* out) {
    const size_t begin = std::clamp(*next, first, first + n) - first, stop = std::clamp(end, first, first + n) - first;
    const auto at = values.begin();
    out->insert(out->end(), at + static_cast<long>(begin * width), at + static_cast<long>(stop * width));
  };
  append(0, rows, 1, from.keys, &to->keys);
  append(0, rows, 1, from.frequencies, &to->frequencies);
  append(0, rows, 1, from.versions, &to->versions);
  append(0, rows, elements, from.data, &to->data);
  append(rows, counted, 1, from.counted_keys, &to->counted_keys);
  append(rows, counted, 1, from.counted_frequencies, &to->counted_frequencies);
  append(rows, counted, 1, from.counted_versions, &to->counted_versions);
  append(rows + counted, removed, 1, from.removed_keys, &to->removed_keys);
  *next = end;
  return end < rows + counted + removed;
}

void CutOff(size_t keys, size_t counted, Rows* rows) {
  rows->data.resize(keys * static_cast<size_t>(rows->row_elements()));
  rows->keys.resize(keys);
  rows->frequencies.resize(keys);
  rows->versions.resize(keys);
  rows->counted_keys.resize(counted);
  rows->counted_frequencies.resize(counted);
  rows->counted_versions.resize(counted);
}

}  // namespace multitier
