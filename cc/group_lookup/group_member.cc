#include "cc/group_lookup/group_member.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "cc/base/hash.h"
#include "cc/base/prefetch.h"
#include "cc/partition/partition.h"

namespace multitier {
namespace group_internal {
namespace {

Status CheckRows(const GroupMember& m) {
  const size_t n = m.keys.size();
  if (n > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return InvalidArgumentError("group lookup, ", m.name, ": expected fewer than 2^31 ids, found ", n);
  }
  if (!m.weights.empty() && m.weights.size() != n) {
    return InvalidArgumentError("group lookup, ", m.name, ": expected ", n, " weights (one per id) or none, found ",
                                m.weights.size());
  }
  if (!m.tables.empty() && m.tables.size() != n) {
    return InvalidArgumentError("group lookup, ", m.name, ": expected ", n, " table numbers (one per id) or none, found ",
                                m.tables.size());
  }
  if (m.form == GroupForm::kDense && !m.weights.empty()) {
    return InvalidArgumentError("group lookup, ", m.name, ": expected no weights with dense ids, found ", m.weights.size());
  }
  const bool sparse = m.form == GroupForm::kSparse || m.form == GroupForm::kSequence;
  if (sparse && m.indices.size() != 2 * n) {
    return InvalidArgumentError("group lookup, ", m.name, ": expected one row index for each of ", n, " ids, found ",
                                m.indices.size() / 2);
  }
  for (const GroupUnit& unit : m.units) {
    if (unit.table != nullptr && unit.table->dim() != m.dim) {
      return InvalidArgumentError("group lookup, ", m.name, ": expected dim ", m.dim, ", found ", unit.table->dim(), " in '",
                                  unit.table->options().name, "'");
    }
  }
  return OkStatus();
}

// Matrices: a key is a row number of the whole matrix. Returns its unit, and changes the key to the row number in that unit.
struct MatrixRouting {
  explicit MatrixRouting(const GroupMember& m) : member(m), parts(static_cast<int64_t>(m.units.size())) {
    for (const GroupUnit& unit : m.units) total += unit.rows;
    each = total / parts;
    extra = total % parts;
  }
  Status Check(int64_t key) const {
    if (key >= 0 && key < total) return OkStatus();
    return InvalidArgumentError("group lookup, ", member.name, ": expected ids in [0, ", total, "), found ", key);
  }
  int UnitOf(int64_t* key) const {
    int64_t unit;
    if (member.routing == Routing::kMod) {
      unit = *key % parts;
      *key /= parts;
    } else {
      unit = std::max(*key / (each + 1), each > 0 ? (*key - extra) / each : 0);
      *key = unit < extra ? *key % (each + 1) : (*key - extra) % each;
    }
    return static_cast<int>(unit);
  }
  const GroupMember& member;
  const int64_t parts;
  int64_t total = 0, each = 0, extra = 0;
};

Status CheckMatrixRow(const GroupMember& m, const GroupUnit& unit, int64_t key) {
  if (key >= 0 && key < unit.rows) return OkStatus();
  return InvalidArgumentError("group lookup, ", m.name, ": expected ids in [0, ", unit.rows, ")",
                              m.units.size() > 1 ? " in each part" : "", ", found ", key);
}

}  // namespace

Status FindRows(const GroupMember& m, std::vector<int64_t>* rows) {
  MT_RETURN_IF_ERROR(CheckRows(m));
  const size_t n = m.keys.size();
  rows->clear();
  if (m.form == GroupForm::kDense) return OkStatus();
  if (m.form == GroupForm::kRagged || m.form == GroupForm::kRaggedSequence) {
    MT_RETURN_IF_ERROR(RaggedSteps(m.name, m.indices, n).status());
    rows->reserve(n);
    for (int64_t row = 0; row < m.batch; ++row) {
      for (int64_t e = m.indices[row]; e < m.indices[row + 1]; ++e) {
        rows->push_back(m.form == GroupForm::kRagged ? row : row * m.steps + e - m.indices[row]);
      }
    }
    return OkStatus();
  }
  const bool sequence = m.form == GroupForm::kSequence;
  bool in_order = static_cast<int64_t>(n) == m.batch * m.steps && m.weights.empty();
  const int64_t* at = m.indices.data();
  for (size_t i = 0; i < n && in_order; ++i) {
    const int64_t row = sequence ? at[2 * i] * m.steps + at[2 * i + 1] : at[2 * i];
    in_order = row == static_cast<int64_t>(i) && (!sequence || (at[2 * i + 1] >= 0 && at[2 * i + 1] < m.steps));
  }
  if (in_order) return OkStatus();
  rows->resize(n);
  int64_t previous = 0;
  for (size_t i = 0; i < n; ++i) {
    int64_t row = at[2 * i];
    if (row < 0 || row >= m.batch) {
      return InvalidArgumentError("group lookup, ", m.name, ": expected rows in [0, ", m.batch, "), found indices[", i,
                                  "] = ", row);
    }
    if (sequence) {
      const int64_t step = at[2 * i + 1];
      if (step < 0 || step >= m.steps) {
        return InvalidArgumentError("group lookup, ", m.name, ": expected steps in [0, ", m.steps, "), found indices[", i,
                                    "] = [", row, ", ", step, "]");
      }
      row = row * m.steps + step;
    }
    if (row < previous) {
      return InvalidArgumentError("group lookup, ", m.name, ": expected indices in row-major order, found indices[", i,
                                  "] before its predecessor");
    }
    previous = row;
    (*rows)[i] = row;
  }
  return OkStatus();
}

Status Route(const GroupMember& m, size_t begin, size_t end, size_t pieces, PartitionedKeys* routed) {
  const size_t n = end - begin;
  routed->keys.resize(n);
  routed->positions.resize(n);
  routed->begins.assign(pieces + 1, 0);
  std::vector<uint16_t> piece(n);
  std::vector<int64_t> local;
  const int64_t* keys = m.keys.data() + begin;
  if (m.units.size() == 1) {
    for (size_t i = 0; i < n; ++i) piece[i] = static_cast<uint16_t>((HashKey(keys[i]) >> 40 & 0xffff) * pieces >> 16);
  } else if (m.routing == Routing::kHash) {
    for (size_t i = 0; i < n; ++i) piece[i] = static_cast<uint16_t>(PartitionOf(keys[i], static_cast<int>(pieces)));
  } else {
    const MatrixRouting matrices(m);
    local.assign(keys, keys + n);
    for (size_t i = 0; i < n; ++i) {
      MT_RETURN_IF_ERROR(matrices.Check(local[i]));
      piece[i] = static_cast<uint16_t>(matrices.UnitOf(&local[i]));
    }
    keys = local.data();
  }
  for (size_t i = 0; i < n; ++i) ++routed->begins[piece[i] + 1u];
  for (size_t p = 0; p < pieces; ++p) routed->begins[p + 1] += routed->begins[p];
  std::vector<size_t> next(routed->begins.begin(), routed->begins.end() - 1);
  for (size_t i = 0; i < n; ++i) {
    const size_t to = next[piece[i]]++;
    routed->keys[to] = keys[i];
    routed->positions[to] = static_cast<int32_t>(i);
  }
  return OkStatus();
}

Status ReadUnit(const GroupMember& m, const GroupUnit& unit, Span<const int64_t> keys, Span<const uint16_t> tables,
                float* values, uint32_t* places, int64_t stride) {
  if (unit.table != nullptr) return unit.table->Lookup(keys, values, nullptr, places, stride, m.reason, tables);
  const size_t bytes = static_cast<size_t>(m.dim) * sizeof(float);
  constexpr size_t kAhead = 16;
  for (size_t i = 0; i < keys.size(); ++i) {
    MT_RETURN_IF_ERROR(CheckMatrixRow(m, unit, keys[i]));
    if (i + kAhead < keys.size()) PrefetchLine(unit.matrix + keys[i + kAhead] * m.dim);
    std::memcpy(values + static_cast<int64_t>(i) * stride, unit.matrix + keys[i] * m.dim, bytes);
  }
  return OkStatus();
}

}  // namespace group_internal

Result<int64_t> RaggedSteps(const std::string& name, Span<const int64_t> splits, size_t entries) {
  int64_t steps = 0;
  bool ordered = !splits.empty() && splits[0] == 0;
  for (size_t i = 1; i < splits.size() && ordered; ++i) {
    ordered = splits[i] >= splits[i - 1];
    steps = std::max(steps, splits[i] - splits[i - 1]);
  }
  if (ordered && splits[splits.size() - 1] == static_cast<int64_t>(entries)) return steps;
  return InvalidArgumentError("group lookup, ", name, ": expected row splits from 0 to ", entries,
                              " (the number of ids) in nondecreasing order, found others");
}

}  // namespace multitier
