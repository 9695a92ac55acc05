#include "cc/row/initializer_set.h"

#include <algorithm>
#include <string>
#include <tuple>

namespace multitier {
namespace {

Status Invalid(const std::string& where, const std::string& message) {
  return InvalidArgumentError("initializers", where, ": ", message);
}

Status CheckSegments(const std::vector<ColumnInitializer>& columns, int dim, const std::string& where) {
  if (columns.empty()) return Invalid(where, "expected at least one segment of columns, found none: begin one at column 0");
  for (size_t i = 0; i < columns.size(); ++i) {
    const std::string first = StrCat(where, ".columns[", i, "].first_column");
    const int found = columns[i].first_column;
    if (i == 0 && found != 0) return Invalid(first, StrCat("expected 0, found ", found, ": let the first segment begin there"));
    if (i > 0 && found <= columns[i - 1].first_column) {
      return Invalid(first,
                     StrCat("expected more than ", columns[i - 1].first_column, ", found ", found, ": sort the segments"));
    }
    if (found >= dim) {
      return Invalid(first, StrCat("expected less than dim (", dim, "), found ", found, ": leave the segment out"));
    }
    const InitializerSpec& spec = columns[i].initializer;
    if (spec.kind == InitializerKind::kMatrix) {
      return Invalid(StrCat(where, ".columns[", i, "]"),
                     "expected an initializer that is computed from the key, found matrix: use another one");
    }
  }
  return OkStatus();
}

bool IsSame(const ColumnInitializer& x, const ColumnInitializer& y) {
  const auto all = [](const ColumnInitializer& of) {
    const InitializerSpec& spec = of.initializer;
    return std::tie(of.first_column, spec.kind, spec.a, spec.b, spec.lower, spec.upper, spec.seed);
  };
  return all(x) == all(y);
}

bool IsSame(const TableInitializer& x, const TableInitializer& y) {
  return std::equal(x.columns.begin(), x.columns.end(), y.columns.begin(), y.columns.end(),
                    [](const ColumnInitializer& a, const ColumnInitializer& b) { return IsSame(a, b); });
}

}  // namespace

Result<InitializerSet> InitializerSet::Create(const InitializerSpec& spec, int dim, DType dtype) {
  InitializerSet set;
  set.first_segment_.push_back(0);
  if (spec.tables == nullptr) {
    MT_ASSIGN_OR_RETURN(Initializer made, Initializer::Create(spec, dim, dtype));
    set.segments_.push_back(std::move(made));
    set.first_segment_.push_back(1);
    return set;
  }
  const std::vector<TableInitializer>& tables = *spec.tables;
  if (tables.empty() || tables.size() > kMostTables) {
    return Invalid("", StrCat("expected 1 to ", kMostTables, " tables, found ", tables.size(), ": use several variables"));
  }
  for (size_t t = 0; t < tables.size(); ++t) {
    const std::vector<ColumnInitializer>& columns = tables[t].columns;
    const std::string where = StrCat("[", t, "]");
    MT_RETURN_IF_ERROR(CheckSegments(columns, dim, where));
    for (size_t i = 0; i < columns.size(); ++i) {
      const int end = i + 1 < columns.size() ? columns[i + 1].first_column : dim;
      const Result<Initializer> made = Initializer::Create(columns[i].initializer, end, dtype);
      if (!made.ok()) return Invalid(StrCat(where, ".columns[", i, "]"), std::string(made.status().message()));
      set.segments_.push_back(*made);
    }
    set.first_segment_.push_back(set.segments_.size());
    set.differ_by_table_ |= !IsSame(tables[0], tables[t]);
  }
  return set;
}

std::vector<ComputedColumns> InitializerSet::Computed() const {
  std::vector<ComputedColumns> columns(tables() == 1 ? segments_.size() : 0);
  for (size_t s = 0; s < columns.size(); ++s) {
    if (!segments_[s].GetComputed(&columns[s])) return {};
  }
  return columns;
}

// Calls fill(initializer, from, to) for the keys of each run of one table, and its segments from the last to the first.
template <typename Fill>
void InitializerSet::EachRun(const uint16_t* tables, size_t n, Fill fill) const {
  for (size_t from = 0, to; from < n; from = to) {
    const size_t table = this->tables() == 1 ? 0 : tables[from];
    to = this->tables() == 1 ? n : from + 1;
    while (to < n && tables[to] == table) ++to;
    for (size_t s = first_segment_[table + 1]; s-- > first_segment_[table];) fill(segments_[s], from, to);
  }
}

void InitializerSet::FillBatch(const int64_t* keys, const uint16_t* tables, size_t n, float* const* out) const {
  EachRun(tables, n, [&](const Initializer& initializer, size_t from, size_t to) {
    initializer.FillBatch(keys + from, to - from, out + from);
  });
}

void InitializerSet::FillRows(const int64_t* keys, const uint16_t* tables, size_t n, uint8_t* const* out) const {
  EachRun(tables, n, [&](const Initializer& initializer, size_t from, size_t to) {
    initializer.FillRows(keys + from, to - from, out + from);
  });
}

}  // namespace multitier
