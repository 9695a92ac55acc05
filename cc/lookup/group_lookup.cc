// Each phase is one list of tasks, the costliest first, that the executor's threads take from:
//
//   lookup    1. a member each: check, rows; then, unless it is cut, everything else, while its values are in the cache
//             2. a piece each (with a plan) or a slice of rows each (without) of the members that are cut
//             3. with a plan: pooling of those, a range of rows each
//   gradient  1. a piece each; the weights of a member each

#include "cc/lookup/group_lookup.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <utility>

#include "cc/base/hash.h"
#include "cc/base/ieee.h"
#include "cc/base/multiversion.h"
#include "cc/base/partition.h"

namespace multitier {
namespace group_internal {

constexpr size_t kSliceEntries = 4096;   // of a lookup without a plan: their values stay in the second-level cache
constexpr size_t kPieceEntries = 8192;   // a member is cut to pieces of about so many
constexpr size_t kMaxPieces = 16;
constexpr size_t kCutShare = 8;          // where it has more than an eighth of the group's entries
constexpr size_t kSerialEntries = 512;   // groups that are not worth waking a thread for

struct Task {
  size_t cost;
  std::function<void()> run;
};

void RunAll(std::vector<Task>* tasks, Executor* executor) {
  std::stable_sort(tasks->begin(), tasks->end(), [](const Task& a, const Task& b) { return a.cost > b.cost; });
  size_t cost = 0;
  for (const Task& task : *tasks) cost += task.cost;
  ParallelFor(cost < kSerialEntries ? nullptr : executor, static_cast<int>(tasks->size()),
              [&](int i) { (*tasks)[static_cast<size_t>(i)].run(); });
}

template <typename T>
Status Allocate(const std::string& name, size_t n, std::unique_ptr<T[]>* data) {
  data->reset(new (std::nothrow) T[n]);
  if (*data != nullptr) return OkStatus();
  return ResourceExhaustedError("group lookup, ", name, ": no memory for ", n, " elements of ", sizeof(T), " bytes");
}

// out[i] = values[places[i]].
template <int kDim>
MT_ALWAYS_INLINE void CopyRows(const float* values, const int32_t* places, size_t n, int dim, float* out) {
  const int64_t d = kDim > 0 ? kDim : dim;
  for (size_t i = 0; i < n; ++i) {
    std::memcpy(out + static_cast<int64_t>(i) * d, values + places[i] * d, static_cast<size_t>(d) * sizeof(float));
  }
}

MT_MULTIVERSION void CopyPlaces(const float* values, const int32_t* places, size_t n, int dim, float* out) {
  switch (dim) {
    case 8: return CopyRows<8>(values, places, n, dim, out);
    case 16: return CopyRows<16>(values, places, n, dim, out);
    case 32: return CopyRows<32>(values, places, n, dim, out);
    default: return CopyRows<0>(values, places, n, dim, out);
  }
}

// What the gradient of the entries of a piece is made of.
struct PieceGradient {
  const float* grad;         // [rows, dim]
  const int32_t* positions;  // [n] its entries in the member; null: 0 ... n - 1
  const int32_t* index;      // by entry
  const int64_t* rows;       // by entry; null: the entry
  const float* weights;      // by entry; null: all one
  const float* factors;      // by row; null: all one
  size_t n;
  int32_t first;             // of its places
  int dim;
  float* sums;               // [u, dim]
};

enum class Scale { kNone, kFactor, kWeight };

// The terms are those of PoolGradient, in float32: grad x factor, or (grad / divisor) x weight.
template <Scale kScale, int kDim>
MT_ALWAYS_INLINE void SumTerms(const PieceGradient& piece) {
  const int64_t dim = kDim > 0 ? kDim : piece.dim;
  int32_t seen = 0;  // distinct keys are numbered in the order of their first occurrence
  for (size_t i = 0; i < piece.n; ++i) {
    const int64_t entry = piece.positions != nullptr ? piece.positions[i] : static_cast<int64_t>(i);
    const int64_t row = piece.rows != nullptr ? piece.rows[entry] : entry;
    const int32_t place = piece.index[entry] - piece.first;
    const float* const g = piece.grad + row * dim;
    float* const sum = piece.sums + place * dim;
    const float factor = kScale == Scale::kNone || piece.factors == nullptr ? 1.0f : piece.factors[row];
    const float weight = kScale == Scale::kWeight ? piece.weights[entry] : 1.0f;
    auto term = [&](int64_t d) {
      if constexpr (kScale == Scale::kNone) return g[d];
      if constexpr (kScale == Scale::kFactor) return g[d] * factor;
      return (factor == 0.0f ? 0.0f : g[d] / factor) * weight;
    };
    if (place == seen) {
      ++seen;
#pragma GCC ivdep
      for (int64_t d = 0; d < dim; ++d) sum[d] = term(d);
    } else {
#pragma GCC ivdep
      for (int64_t d = 0; d < dim; ++d) sum[d] += term(d);
    }
  }
}

template <Scale kScale>
MT_ALWAYS_INLINE void SumTermsOf(const PieceGradient& piece) {
  switch (piece.dim) {
    case 8: return SumTerms<kScale, 8>(piece);
    case 16: return SumTerms<kScale, 16>(piece);
    case 32: return SumTerms<kScale, 32>(piece);
    default: return SumTerms<kScale, 0>(piece);
  }
}

MT_MULTIVERSION void SumPlain(const PieceGradient& piece) { SumTermsOf<Scale::kNone>(piece); }
MT_MULTIVERSION void SumScaled(const PieceGradient& piece) { SumTermsOf<Scale::kFactor>(piece); }
MT_MULTIVERSION void SumWeighted(const PieceGradient& piece) { SumTermsOf<Scale::kWeight>(piece); }

// In place: the gradients of n values from those of the values clipped. c = v m / max(|v|, m), so that where |v| >= m
// dc = (g - v (v.g) / |v|^2) m / |v|.
MT_MULTIVERSION void ClipGradient(const float* values, size_t n, int dim, float max_norm, float* grads) {
  for (size_t i = 0; i < n; ++i) {
    const float* v = values + i * static_cast<size_t>(dim);
    float* g = grads + i * static_cast<size_t>(dim);
    float squares = 0.0f, dot = 0.0f;
    for (int d = 0; d < dim; ++d) {
      squares += v[d] * v[d];
      dot += v[d] * g[d];
    }
    const float norm = std::sqrt(squares);
    if (norm < max_norm || norm == 0.0f) continue;
    const float scale = max_norm / norm, along = dot / squares;
    for (int d = 0; d < dim; ++d) g[d] = (g[d] - v[d] * along) * scale;
  }
}

// ---- Rows and routing.

Status CheckRows(const GroupMember& m) {
  const size_t n = m.keys.size();
  if (n > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return InvalidArgumentError("group lookup, ", m.name, ": expected fewer than 2^31 ids, found ", n);
  }
  if (!m.weights.empty() && m.weights.size() != n) {
    return InvalidArgumentError("group lookup, ", m.name, ": expected ", n, " weights (one an id) or none, found ",
                                m.weights.size());
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

// rows: the output row of each entry; empty where entry i is row i.
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
                                  "] before the one in front of it");
    }
    previous = row;
    (*rows)[i] = row;
  }
  return OkStatus();
}

// Matrices: a key is a row number of the whole. Gives its unit, and changes the key to the row in it.
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

// Sorts keys [begin, end) of a member into `pieces`: its units where it has several, else by hash.
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
  } else if (m.units[0].table != nullptr) {
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

// The values of a unit's keys. places: see EmbeddingTable::Lookup; null: not wanted.
Status ReadUnit(const GroupMember& m, const GroupUnit& unit, Span<const int64_t> keys, float* values, uint32_t* places) {
  if (unit.table != nullptr) return unit.table->Lookup(keys, values, nullptr, places);
  const size_t bytes = static_cast<size_t>(m.dim) * sizeof(float);
  constexpr size_t kAhead = 16;
  for (size_t i = 0; i < keys.size(); ++i) {
    MT_RETURN_IF_ERROR(CheckMatrixRow(m, unit, keys[i]));
    if (i + kAhead < keys.size()) __builtin_prefetch(unit.matrix + keys[i + kAhead] * m.dim);
    std::memcpy(values + i * static_cast<size_t>(m.dim), unit.matrix + keys[i] * m.dim, bytes);
  }
  return OkStatus();
}

}  // namespace group_internal

using namespace group_internal;  // NOLINT: of this file alone

// One call of LookupGroup.
class GroupLookup {
 public:
  GroupLookup(Span<const GroupMember> members, GroupPlan* plan, Executor* executor)
      : members_(members), plan_(plan), executor_(executor), statuses_(members.size()) {}

  Status Run() {
    const size_t n = members_.size();
    size_t total = 0;
    for (const GroupMember& m : members_) total += m.keys.size();
    if (plan_ != nullptr) Lay();
    rows_.resize(n);
    cut_.assign(n, 0);
    std::vector<Task> tasks;
    for (size_t i = 0; i < n; ++i) {
      const size_t entries = members_[i].keys.size();
      const bool large = entries > kPieceEntries && entries * kCutShare > total;
      if (plan_ != nullptr) {
        if (members_[i].units.size() > 1) cut_[i] = members_[i].units.size();
        if (members_[i].units.size() == 1 && large) cut_[i] = std::clamp<size_t>(entries / kPieceEntries, 2, kMaxPieces);
      } else if (large) {
        cut_[i] = 1;
      }
      tasks.push_back(Task{entries + 1, [this, i] { statuses_[i] = First(i); }});
    }
    RunAll(&tasks, executor_);
    MT_RETURN_IF_ERROR(FirstError());
    tasks.clear();
    if (plan_ != nullptr) {
      AddPieces(&tasks);
    } else {
      AddSlices(&tasks);
    }
    if (!tasks.empty()) RunAll(&tasks, executor_);
    for (const Status& status : later_) MT_RETURN_IF_ERROR(status);
    if (plan_ == nullptr) return OkStatus();
    tasks.clear();
    for (size_t i = 0; i < n; ++i) {
      if (cut_[i] == 0) {
        plan_->units_[FirstUnit(i)] = std::move(plan_->members_[i].pieces[0].unique);
      } else {
        JoinPieces(i);
        AddPooling(i, &tasks);
      }
    }
    if (!tasks.empty()) RunAll(&tasks, executor_);
    return OkStatus();
  }

 private:
  size_t FirstUnit(size_t i) const { return static_cast<size_t>(plan_->members_[i].first_unit); }

  Status FirstError() const {
    for (const Status& status : statuses_) MT_RETURN_IF_ERROR(status);
    return OkStatus();
  }

  void Lay() {
    plan_->members_.resize(members_.size());
    int unit = 0;
    for (size_t i = 0; i < members_.size(); ++i) {
      const GroupMember& m = members_[i];
      GroupPlan::Member& to = plan_->members_[i];
      to.first_unit = unit;
      to.dim = m.dim;
      to.combiner = m.combiner;
      to.max_norm = m.max_norm;
      to.entries = m.keys.size();
      to.batch = m.batch * m.steps;
      to.weights = m.weights;
      unit += static_cast<int>(m.units.size());
    }
    plan_->units_.resize(static_cast<size_t>(unit));
    for (size_t i = 0; i < members_.size(); ++i) {
      for (size_t p = 0; p < members_[i].units.size(); ++p) plan_->units_[FirstUnit(i) + p].dim = members_[i].dim;
    }
  }

  // The first task of a member.
  Status First(size_t i) {
    const GroupMember& m = members_[i];
    if (plan_ == nullptr) {
      MT_RETURN_IF_ERROR(FindRows(m, &rows_[i]));
      return cut_[i] != 0 ? OkStatus() : ReadRange(i, 0, m.batch * m.steps);
    }
    GroupPlan::Member* to = &plan_->members_[i];
    MT_RETURN_IF_ERROR(FindRows(m, &to->rows));
    FindFactors(to);
    MT_RETURN_IF_ERROR(Allocate(m.name, m.keys.size(), &to->index));
    MT_RETURN_IF_ERROR(Allocate(m.name, m.keys.size() * static_cast<size_t>(m.dim), &to->values));
    if (m.max_norm >= 0.0f) {
      MT_RETURN_IF_ERROR(Allocate(m.name, m.keys.size() * static_cast<size_t>(m.dim), &to->unclipped));
    }
    to->pieces.resize(std::max<size_t>(1, cut_[i]));
    if (cut_[i] == 0) {
      to->pieces[0].unit = to->first_unit;
      to->pieces[0].entries = m.keys.size();
      MT_RETURN_IF_ERROR(ReadPiece(i, 0));
      PoolInto(i, 0, m.batch * m.steps);
      DropValues(to);
      return OkStatus();
    }
    MT_RETURN_IF_ERROR(Route(m, 0, m.keys.size(), to->pieces.size(), &to->routed));
    for (size_t p = 0; p < to->pieces.size(); ++p) {
      GroupPlan::Piece& piece = to->pieces[p];
      piece.unit = to->first_unit + (m.units.size() > 1 ? static_cast<int>(p) : 0);
      piece.first = to->routed.begins[p];
      piece.entries = to->routed.begins[p + 1] - piece.first;
    }
    return OkStatus();
  }

  static void FindFactors(GroupPlan::Member* m) {
    m->factors.clear();
    if (m->rows.empty() || m->combiner == Combiner::kSum) return;
    const ScopedIeeeArithmetic ieee;
    m->factors.assign(static_cast<size_t>(m->batch), 0.0f);
    const bool mean = m->combiner == Combiner::kMean;
    for (size_t begin = 0, end; begin < m->rows.size(); begin = end) {
      end = begin;
      float sum = 0.0f;
      for (; end < m->rows.size() && m->rows[end] == m->rows[begin]; ++end) {
        if (m->weights.empty()) continue;
        const float w = m->weights[end];
        sum += mean ? w : w * w;
      }
      const double n = static_cast<double>(end - begin);
      m->factors[static_cast<size_t>(m->rows[begin])] =
          m->weights.empty() ? static_cast<float>(mean ? 1.0 / n : 1.0 / std::sqrt(n)) : mean ? sum : std::sqrt(sum);
    }
  }

  // Dedups a piece's keys, reads and clips their values.
  Status ReadPiece(size_t i, size_t p) {
    const GroupMember& m = members_[i];
    GroupPlan::Member& to = plan_->members_[i];
    GroupPlan::Piece& piece = to.pieces[p];
    const bool routed = !to.routed.begins.empty();
    const int64_t* keys = (routed ? to.routed.keys.data() : m.keys.data()) + piece.first;
    const int32_t* positions = routed ? to.routed.positions.data() + piece.first : nullptr;
    GroupPlan::Unit* unique = &piece.unique;
    unique->dim = m.dim;
    MT_RETURN_IF_ERROR(Allocate(m.name, piece.entries, &unique->keys));
    MT_RETURN_IF_ERROR(Allocate(m.name, piece.entries, &unique->counts));
    MT_RETURN_IF_ERROR(Allocate(m.name, piece.entries, &unique->places));
    unique->size = Dedup(keys, positions, piece, to.index.get(), unique);
    const size_t at = piece.first * static_cast<size_t>(m.dim);
    const GroupUnit& unit = m.units[static_cast<size_t>(piece.unit - to.first_unit)];
    MT_RETURN_IF_ERROR(ReadUnit(m, unit, Span<const int64_t>(unique->keys.get(), unique->size), to.values.get() + at,
                                unique->places.get()));
    if (m.max_norm < 0.0f) return OkStatus();
    std::memcpy(to.unclipped.get() + at, to.values.get() + at, unique->size * static_cast<size_t>(m.dim) * sizeof(float));
    ClipByNorm(to.values.get() + at, static_cast<int64_t>(unique->size), m.dim, m.max_norm);
    return OkStatus();
  }

  static size_t Dedup(const int64_t* keys, const int32_t* positions, const GroupPlan::Piece& piece, int32_t* index,
                      GroupPlan::Unit* unique) {
    static thread_local std::vector<uint32_t> seen;
    constexpr uint32_t kEmpty = 0xffffffffu;
    size_t slots = 16;
    while (slots < 2 * piece.entries) slots *= 2;
    seen.assign(slots, kEmpty);
    int64_t* const found = unique->keys.get();
    uint32_t size = 0;
    for (size_t i = 0; i < piece.entries; ++i) {
      const int64_t key = keys[i];
      // Not the low bits, which a partition's keys share, nor those that Route cuts by.
      size_t slot = (HashKey(key) >> 10) & (slots - 1);
      while (seen[slot] != kEmpty && found[seen[slot]] != key) slot = (slot + 1) & (slots - 1);
      uint32_t which = seen[slot];
      if (which == kEmpty) {
        which = seen[slot] = size++;
        found[which] = key;
        unique->counts[which] = 0;
      }
      ++unique->counts[which];
      index[positions != nullptr ? positions[i] : static_cast<int32_t>(i)] = static_cast<int32_t>(piece.first + which);
    }
    return size;
  }

  void PoolInto(size_t i, int64_t row_begin, int64_t row_end) {
    const GroupMember& m = members_[i];
    const GroupPlan::Member& from = plan_->members_[i];
    if (from.rows.empty()) {
      if (!m.keys.empty()) {
        CopyPlaces(from.values.get(), from.index.get() + row_begin, static_cast<size_t>(row_end - row_begin), m.dim,
                   m.out + row_begin * m.dim);
        return;
      }
      std::memset(m.out + row_begin * m.dim, 0, static_cast<size_t>((row_end - row_begin) * m.dim) * sizeof(float));
      return;
    }
    const auto first = std::lower_bound(from.rows.begin(), from.rows.end(), row_begin);
    const size_t entry = static_cast<size_t>(first - from.rows.begin());
    PoolRange(from.sparse_batch(), EntryValues{from.values.get(), from.index.get()}, row_begin, row_end, entry, m.out);
  }

  // What the gradient will not ask for.
  static void DropValues(GroupPlan::Member* m) {
    if (m->weights.empty()) m->values.reset();
  }

  void AddPieces(std::vector<Task>* tasks) {
    for (size_t i = 0; i < members_.size(); ++i) {
      for (size_t p = 0; p < cut_[i]; ++p) {
        const size_t which = later_.size();
        later_.emplace_back();
        tasks->push_back(Task{plan_->members_[i].pieces[p].entries, [this, i, p, which] { later_[which] = ReadPiece(i, p); }});
      }
    }
  }

  // Sets the units of a member that was cut.
  void JoinPieces(size_t i) {
    GroupPlan::Member& m = plan_->members_[i];
    if (members_[i].units.size() > 1) {
      for (GroupPlan::Piece& piece : m.pieces) plan_->units_[static_cast<size_t>(piece.unit)] = std::move(piece.unique);
      return;
    }
    GroupPlan::Unit& unit = plan_->units_[FirstUnit(i)];
    for (GroupPlan::Piece& piece : m.pieces) {
      piece.unit_offset = unit.size;
      unit.size += piece.unique.size;
    }
    unit.keys.reset(new int64_t[unit.size]);
    unit.counts.reset(new int64_t[unit.size]);
    unit.places.reset(new uint32_t[unit.size]);
    for (GroupPlan::Piece& piece : m.pieces) {
      const GroupPlan::Unit& from = piece.unique;
      std::copy_n(from.keys.get(), from.size, unit.keys.get() + piece.unit_offset);
      std::copy_n(from.counts.get(), from.size, unit.counts.get() + piece.unit_offset);
      std::copy_n(from.places.get(), from.size, unit.places.get() + piece.unit_offset);
      piece.unique.keys.reset();
      piece.unique.counts.reset();
      piece.unique.places.reset();
    }
  }

  void AddPooling(size_t i, std::vector<Task>* tasks) {
    const GroupMember& m = members_[i];
    const int64_t rows = m.batch * m.steps;
    const size_t work = m.keys.size() + static_cast<size_t>(rows);
    const int64_t ranges = std::clamp<int64_t>(static_cast<int64_t>(work / kSliceEntries), 1, 64);
    auto left = std::make_shared<std::atomic<int64_t>>(ranges);
    for (int64_t r = 0; r < ranges; ++r) {
      tasks->push_back(Task{work / static_cast<size_t>(ranges), [this, i, r, ranges, rows, left] {
                              PoolInto(i, rows * r / ranges, rows * (r + 1) / ranges);
                              if (left->fetch_sub(1) == 1) DropValues(&plan_->members_[i]);
                            }});
    }
  }

  // ---- Without a plan.

  void AddSlices(std::vector<Task>* tasks) {
    for (size_t i = 0; i < members_.size(); ++i) {
      if (cut_[i] == 0) continue;
      const GroupMember& m = members_[i];
      const int64_t rows = m.batch * m.steps;
      const size_t entries = m.keys.size();
      const int64_t slices = std::max<int64_t>(1, std::min<int64_t>(rows, static_cast<int64_t>(entries / kSliceEntries)));
      int64_t row = 0;
      for (int64_t s = 1; s <= slices; ++s) {
        // Slices of as many entries each as whole rows allow.
        const size_t upto = entries * static_cast<size_t>(s) / static_cast<size_t>(slices);
        int64_t end = s == slices ? rows : rows_[i].empty() ? static_cast<int64_t>(upto) : rows_[i][upto - 1] + 1;
        end = std::max(end, row);
        if (end == row) continue;
        const size_t which = later_.size();
        later_.emplace_back();
        const int64_t begin = row;
        tasks->push_back(Task{entries / static_cast<size_t>(slices),
                              [this, i, begin, end, which] { later_[which] = ReadRange(i, begin, end); }});
        row = end;
      }
    }
  }

  // Reads and pools the rows [row_begin, row_end) of a member.
  Status ReadRange(size_t i, int64_t row_begin, int64_t row_end) {
    const GroupMember& m = members_[i];
    const std::vector<int64_t>& rows = rows_[i];
    const size_t dim = static_cast<size_t>(m.dim);
    if (m.keys.empty()) {
      std::memset(m.out + row_begin * m.dim, 0, static_cast<size_t>(row_end - row_begin) * dim * sizeof(float));
      return OkStatus();
    }
    const bool in_order = rows.empty();
    const size_t begin = in_order ? static_cast<size_t>(row_begin)
                                  : static_cast<size_t>(std::lower_bound(rows.begin(), rows.end(), row_begin) - rows.begin());
    const size_t end = in_order ? static_cast<size_t>(row_end)
                                : static_cast<size_t>(std::lower_bound(rows.begin(), rows.end(), row_end) - rows.begin());
    const size_t n = end - begin;
    if (in_order && m.units.size() == 1) {
      float* out = m.out + row_begin * m.dim;
      MT_RETURN_IF_ERROR(ReadUnit(m, m.units[0], m.keys.subspan(begin, n), out, nullptr));
      if (m.max_norm >= 0.0f) ClipByNorm(out, static_cast<int64_t>(n), m.dim, m.max_norm);
      return OkStatus();
    }
    static thread_local std::vector<float> scratch;
    std::unique_ptr<float[]> large;
    float* values = nullptr;
    if (n <= 2 * kSliceEntries && n * dim <= (size_t{1} << 20)) {
      if (scratch.size() < n * dim) scratch.resize(n * dim);
      values = scratch.data();
    } else {
      MT_RETURN_IF_ERROR(Allocate(m.name, n * dim, &large));
      values = large.get();
    }
    std::vector<int32_t> places;
    if (m.units.size() == 1) {
      MT_RETURN_IF_ERROR(ReadUnit(m, m.units[0], m.keys.subspan(begin, n), values, nullptr));
    } else {
      PartitionedKeys routed;
      MT_RETURN_IF_ERROR(Route(m, begin, end, m.units.size(), &routed));
      for (size_t u = 0; u < m.units.size(); ++u) {
        const Span<const int64_t> keys = routed.keys_of(static_cast<int>(u));
        if (keys.empty()) continue;
        MT_RETURN_IF_ERROR(ReadUnit(m, m.units[u], keys, values + routed.begins[u] * dim, nullptr));
      }
      places.resize(n);
      for (size_t p = 0; p < n; ++p) places[static_cast<size_t>(routed.positions[p])] = static_cast<int32_t>(p);
    }
    if (m.max_norm >= 0.0f) ClipByNorm(values, static_cast<int64_t>(n), m.dim, m.max_norm);
    if (in_order) {
      CopyPlaces(values, places.data(), n, m.dim, m.out + row_begin * m.dim);
      return OkStatus();
    }
    // The entries of the slice as a batch of their own, whose rows keep their numbers.
    SparseBatch batch;
    batch.indices = Span<const int64_t>(rows.data() + begin, n);
    batch.weights = m.weights.empty() ? m.weights : m.weights.subspan(begin, n);
    batch.batch = m.batch * m.steps;
    batch.dim = m.dim;
    batch.combiner = m.combiner;
    PoolRange(batch, EntryValues{values, places.empty() ? nullptr : places.data()}, row_begin, row_end, 0, m.out);
    return OkStatus();
  }

  const Span<const GroupMember> members_;
  GroupPlan* const plan_;
  Executor* const executor_;
  std::vector<Status> statuses_;           // [members]
  std::vector<Status> later_;              // by piece or slice
  std::vector<std::vector<int64_t>> rows_; // [members], without a plan
  std::vector<size_t> cut_;                // [members] pieces, where cut; without a plan: whether
};

class GroupGradient {
 public:
  static void Run(const GroupPlan& plan, const GroupGradients& gradients, Executor* executor) {
    std::vector<Task> tasks;
    for (size_t i = 0; i < plan.members_.size(); ++i) {
      const GroupPlan::Member& m = plan.members_[i];
      const float* const grad = gradients.grads[i];
      if (grad == nullptr) continue;
      for (const GroupPlan::Piece& piece : m.pieces) {
        float* const sums = gradients.sums[static_cast<size_t>(piece.unit)];
        if (sums == nullptr) continue;
        float* const to = sums + piece.unit_offset * static_cast<size_t>(m.dim);
        tasks.push_back(Task{piece.entries, [&m, &piece, grad, to] { SumPiece(m, piece, grad, to); }});
      }
      float* const weights_gradient = gradients.weights_gradients.empty() ? nullptr : gradients.weights_gradients[i];
      if (weights_gradient == nullptr) continue;
      tasks.push_back(Task{m.entries, [&m, grad, weights_gradient] {
                             PoolWeightsGradient(m.sparse_batch(), EntryValues{m.values.get(), m.index.get()}, grad,
                                                 weights_gradient);
                           }});
    }
    RunAll(&tasks, executor);
  }

 private:
  static void SumPiece(const GroupPlan::Member& m, const GroupPlan::Piece& piece, const float* grad, float* sums) {
    const ScopedIeeeArithmetic ieee;
    const bool routed = !m.routed.begins.empty();
    PieceGradient g;
    g.grad = grad;
    g.positions = routed ? m.routed.positions.data() + piece.first : nullptr;
    g.index = m.index.get();
    g.rows = m.rows.empty() ? nullptr : m.rows.data();
    g.weights = m.weights.empty() ? nullptr : m.weights.data();
    g.factors = m.factors.empty() ? nullptr : m.factors.data();
    g.n = piece.entries;
    g.first = static_cast<int32_t>(piece.first);
    g.dim = m.dim;
    g.sums = sums;
    if (g.weights != nullptr) {
      SumWeighted(g);
    } else if (g.factors != nullptr) {
      SumScaled(g);
    } else {
      SumPlain(g);
    }
    if (m.max_norm < 0.0f) return;
    ClipGradient(m.unclipped.get() + piece.first * static_cast<size_t>(m.dim), piece.unique.size, m.dim, m.max_norm, sums);
  }
};

Result<int64_t> RaggedSteps(const std::string& name, Span<const int64_t> splits, size_t entries) {
  int64_t steps = 0;
  bool ordered = !splits.empty() && splits[0] == 0;
  for (size_t i = 1; i < splits.size() && ordered; ++i) {
    ordered = splits[i] >= splits[i - 1];
    steps = std::max(steps, splits[i] - splits[i - 1]);
  }
  if (ordered && splits[splits.size() - 1] == static_cast<int64_t>(entries)) return steps;
  return InvalidArgumentError("group lookup, ", name, ": expected row splits from 0 to ", entries,
                              " (the number of ids) that never fall, found others");
}

Status LookupGroup(Span<const GroupMember> members, GroupPlan* plan, Executor* executor) {
  return GroupLookup(members, plan, executor).Run();
}

void GradientOfGroup(const GroupPlan& plan, const GroupGradients& gradients, Executor* executor) {
  GroupGradient::Run(plan, gradients, executor);
}

}  // namespace multitier
