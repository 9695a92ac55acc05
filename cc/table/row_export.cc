#include "cc/table/row_export.h"

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

void AppendRow(const RowLayout& layout, bool all_columns, int64_t key, uint32_t frequency, int64_t version,
               const uint8_t* row_data, Rows* rows) {
  AppendFacts(key, frequency, version, rows);
  const size_t columns = all_columns ? layout.columns().size() : 1;
  for (size_t c = 0; c < columns; ++c) AppendColumn(layout.columns()[c], row_data, rows);
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
