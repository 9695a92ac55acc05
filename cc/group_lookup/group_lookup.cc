// A group lookup has three phases. Each phase is one list of tasks, the costliest first; the executor's threads take tasks from
// it:
//
//   1. one task for each member: check it and find its rows; if the member is not cut, do all its work while its values are in
//      the processor cache
//   2. for the members that are cut: one task for each piece (with a plan) or for each slice of rows (without a plan)
//   3. with a plan, for the members that are cut: pooling, one task for each range of rows

#include "cc/group_lookup/group_lookup.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "cc/base/hash.h"
#include "cc/base/ieee.h"
#include "cc/base/memory_reserve.h"
#include "cc/base/multiversion.h"
#include "cc/group_lookup/group_member.h"
#include "cc/group_lookup/group_tasks.h"

namespace multitier {
namespace group_internal {

constexpr size_t kSliceEntries = 4096;  // of a lookup without a plan: their values stay in the second-level cache
constexpr size_t kPieceEntries = 8192;  // a member is cut into pieces of about this number of entries
constexpr size_t kMaxPieces = 16;
constexpr size_t kCutShare = 8;                       // if it has more than an eighth of the group's entries
constexpr size_t kScratchElements = size_t{1} << 20;  // that a thread keeps for its next task

template <typename T>
Status Allocate(const std::string& name, size_t n, ReusedArray<T>* data) {
  if (data->Reset(n)) return OkStatus();
  return ResourceExhaustedError("group lookup, ", name, ": no memory for ", n, " elements of ", sizeof(T), " bytes");
}

// Row i of `out` becomes values[places[i]]; a row has `dim` elements.
template <int kDim>
MT_ALWAYS_INLINE void CopyRows(const float* values, const int32_t* places, size_t n, int dim, float* out, int64_t stride) {
  const int64_t d = kDim > 0 ? kDim : dim;
  for (size_t i = 0; i < n; ++i) {
    std::memcpy(out + static_cast<int64_t>(i) * stride, values + places[i] * d, static_cast<size_t>(d) * sizeof(float));
  }
}

MT_MULTIVERSION void CopyPlaces(const float* values, const int32_t* places, size_t n, int dim, float* out, int64_t stride) {
  switch (dim) {
    case 8:
      return CopyRows<8>(values, places, n, dim, out, stride);
    case 16:
      return CopyRows<16>(values, places, n, dim, out, stride);
    case 32:
      return CopyRows<32>(values, places, n, dim, out, stride);
    default:
      return CopyRows<0>(values, places, n, dim, out, stride);
  }
}

// Rows [row_begin, row_end) of a member that has no entry.
void ZeroRows(const GroupMember& m, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) std::fill_n(m.out + row * m.row_stride(), m.dim, 0.0f);
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
      if (cut_[i] == 0) continue;
      MT_RETURN_IF_ERROR(JoinPieces(i));
      AddPooling(i, &tasks);
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
      for (size_t p = 0; p < members_[i].units.size(); ++p) {
        plan_->units_[FirstUnit(i) + p].dim = members_[i].dim;
        plan_->units_[FirstUnit(i) + p].member = static_cast<int>(i);
        plan_->units_[FirstUnit(i) + p].size = 0;
      }
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
    to->pieces.resize(std::max<size_t>(1, cut_[i]));
    if (cut_[i] == 0) return ReadWhole(i);
    const size_t elements = m.keys.size() * static_cast<size_t>(m.dim);
    MT_RETURN_IF_ERROR(Allocate(m.name, elements, &to->values));
    if (m.max_norm >= 0.0f) MT_RETURN_IF_ERROR(Allocate(m.name, elements, &to->unclipped));
    MT_RETURN_IF_ERROR(Route(m, 0, m.keys.size(), to->pieces.size(), &to->routed));
    for (size_t p = 0; p < to->pieces.size(); ++p) {
      GroupPlan::Piece& piece = to->pieces[p];
      piece.unit = to->first_unit + (m.units.size() > 1 ? static_cast<int>(p) : 0);
      piece.first = to->routed.begins[p];
      piece.entries = to->routed.begins[p + 1] - piece.first;
      piece.unit_offset = 0;
    }
    return OkStatus();
  }

  // Does all the work of a member that is not cut. Its values are in scratch memory of the thread, unless the gradient needs
  // them.
  Status ReadWhole(size_t i) {
    const GroupMember& m = members_[i];
    GroupPlan::Member& to = plan_->members_[i];
    to.routed.begins.clear();
    GroupPlan::Piece& piece = to.pieces[0];
    piece.unit = to.first_unit;
    piece.first = piece.unit_offset = 0;
    piece.entries = m.keys.size();
    MT_RETURN_IF_ERROR(DedupPiece(i, 0));
    const size_t elements = piece.distinct * static_cast<size_t>(m.dim);
    if (m.max_norm >= 0.0f) MT_RETURN_IF_ERROR(Allocate(m.name, elements, &to.unclipped));
    static thread_local ReusedArray<float> scratch;
    ReusedArray<float>* const values = m.weights.empty() ? &scratch : &to.values;
    MT_RETURN_IF_ERROR(Allocate(m.name, elements, values));
    MT_RETURN_IF_ERROR(ReadPiece(i, 0, values->get()));
    PoolInto(i, values->get(), 0, m.batch * m.steps);
    if (scratch.capacity() > kScratchElements) scratch.Free();
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
      m->factors[static_cast<size_t>(m->rows[begin])] = m->weights.empty()
                                                            ? static_cast<float>(mean ? 1.0 / n : 1.0 / std::sqrt(n))
                                                        : mean ? sum
                                                               : std::sqrt(sum);
    }
  }

  // Where the keys of a piece are collected. A piece is a whole unit or a part of one.
  GroupPlan::Unit* UniqueOf(size_t i, GroupPlan::Piece* piece) {
    const bool whole = members_[i].units.size() > 1 || cut_[i] == 0;
    return whole ? &plan_->units_[static_cast<size_t>(piece->unit)] : &piece->part;
  }

  Status DedupPiece(size_t i, size_t p) {
    const GroupMember& m = members_[i];
    GroupPlan::Member& to = plan_->members_[i];
    GroupPlan::Piece& piece = to.pieces[p];
    const bool routed = !to.routed.begins.empty();
    const int64_t* keys = (routed ? to.routed.keys.data() : m.keys.data()) + piece.first;
    const int32_t* positions = routed ? to.routed.positions.data() + piece.first : nullptr;
    GroupPlan::Unit* const unique = UniqueOf(i, &piece);
    MT_RETURN_IF_ERROR(Allocate(m.name, piece.entries, &unique->keys));
    MT_RETURN_IF_ERROR(Allocate(m.name, piece.entries, &unique->counts));
    MT_RETURN_IF_ERROR(Allocate(m.name, piece.entries, &unique->places));
    unique->size = piece.distinct = Dedup(keys, positions, piece, to.index.get(), unique);
    return OkStatus();
  }

  // Reads and clips the values of a piece's keys. values: the member's
  Status ReadPiece(size_t i, size_t p, float* values) {
    const GroupMember& m = members_[i];
    GroupPlan::Member& to = plan_->members_[i];
    GroupPlan::Piece& piece = to.pieces[p];
    GroupPlan::Unit* const unique = UniqueOf(i, &piece);
    const size_t at = piece.first * static_cast<size_t>(m.dim);
    values += at;
    const GroupUnit& unit = m.units[static_cast<size_t>(piece.unit - to.first_unit)];
    const Span<const int64_t> keys(unique->keys.get(), unique->size);
    MT_RETURN_IF_ERROR(ReadUnit(m, unit, keys, values, unique->places.get(), m.dim));
    if (m.max_norm < 0.0f) return OkStatus();
    std::memcpy(to.unclipped.get() + at, values, unique->size * static_cast<size_t>(m.dim) * sizeof(float));
    ClipByNorm(values, static_cast<int64_t>(unique->size), m.dim, m.max_norm);
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
    int64_t* const counts = unique->counts.get();
    uint32_t size = 0;
    for (size_t i = 0; i < piece.entries; ++i) {
      const int64_t key = keys[i];
      // Does not use the low bits, which are equal for all keys of a partition, nor the bits by which Route cuts.
      size_t slot = (HashKey(key) >> 10) & (slots - 1);
      while (seen[slot] != kEmpty && found[seen[slot]] != key) slot = (slot + 1) & (slots - 1);
      uint32_t which = seen[slot];
      if (which == kEmpty) {
        which = seen[slot] = size++;
        found[which] = key;
        counts[which] = 0;
      }
      ++counts[which];
      index[positions != nullptr ? positions[i] : static_cast<int32_t>(i)] = static_cast<int32_t>(piece.first + which);
    }
    return size;
  }

  void PoolInto(size_t i, const float* values, int64_t row_begin, int64_t row_end) {
    const GroupMember& m = members_[i];
    const GroupPlan::Member& from = plan_->members_[i];
    if (from.rows.empty()) {
      if (m.keys.empty()) return ZeroRows(m, row_begin, row_end);
      CopyPlaces(values, from.index.get() + row_begin, static_cast<size_t>(row_end - row_begin), m.dim,
                 m.out + row_begin * m.row_stride(), m.row_stride());
      return;
    }
    const auto first = std::lower_bound(from.rows.begin(), from.rows.end(), row_begin);
    const size_t entry = static_cast<size_t>(first - from.rows.begin());
    PoolRange(from.sparse_batch(m.row_stride()), EntryValues{values, from.index.get()}, row_begin, row_end, entry, m.out);
  }

  // Frees the values that the gradient does not need.
  static void DropValues(GroupPlan::Member* m) {
    if (m->weights.empty()) m->values.Free();
  }

  void AddPieces(std::vector<Task>* tasks) {
    for (size_t i = 0; i < members_.size(); ++i) {
      for (size_t p = 0; p < cut_[i]; ++p) {
        const size_t which = later_.size();
        later_.emplace_back();
        tasks->push_back(Task{plan_->members_[i].pieces[p].entries, [this, i, p, which] {
                                later_[which] = DedupPiece(i, p);
                                if (later_[which].ok()) later_[which] = ReadPiece(i, p, plan_->members_[i].values.get());
                              }});
      }
    }
  }

  // Joins the pieces of a unit that was cut.
  Status JoinPieces(size_t i) {
    GroupPlan::Member& m = plan_->members_[i];
    if (members_[i].units.size() > 1) return OkStatus();
    GroupPlan::Unit& unit = plan_->units_[FirstUnit(i)];
    for (GroupPlan::Piece& piece : m.pieces) {
      piece.unit_offset = unit.size;
      unit.size += piece.distinct;
    }
    MT_RETURN_IF_ERROR(Allocate(members_[i].name, unit.size, &unit.keys));
    MT_RETURN_IF_ERROR(Allocate(members_[i].name, unit.size, &unit.counts));
    MT_RETURN_IF_ERROR(Allocate(members_[i].name, unit.size, &unit.places));
    for (const GroupPlan::Piece& piece : m.pieces) {
      const GroupPlan::Unit& from = piece.part;
      std::copy_n(from.keys.get(), from.size, unit.keys.get() + piece.unit_offset);
      std::copy_n(from.counts.get(), from.size, unit.counts.get() + piece.unit_offset);
      std::copy_n(from.places.get(), from.size, unit.places.get() + piece.unit_offset);
    }
    return OkStatus();
  }

  void AddPooling(size_t i, std::vector<Task>* tasks) {
    const GroupMember& m = members_[i];
    const int64_t rows = m.batch * m.steps;
    const size_t work = m.keys.size() + static_cast<size_t>(rows);
    const int64_t ranges = std::clamp<int64_t>(static_cast<int64_t>(work / kSliceEntries), 1, 64);
    auto left = std::make_shared<std::atomic<int64_t>>(ranges);
    for (int64_t r = 0; r < ranges; ++r) {
      tasks->push_back(Task{work / static_cast<size_t>(ranges), [this, i, r, ranges, rows, left] {
                              PoolInto(i, plan_->members_[i].values.get(), rows * r / ranges, rows * (r + 1) / ranges);
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
      ZeroRows(m, row_begin, row_end);
      return OkStatus();
    }
    const bool in_order = rows.empty();
    const size_t begin = in_order ? static_cast<size_t>(row_begin)
                                  : static_cast<size_t>(std::lower_bound(rows.begin(), rows.end(), row_begin) - rows.begin());
    const size_t end = in_order ? static_cast<size_t>(row_end)
                                : static_cast<size_t>(std::lower_bound(rows.begin(), rows.end(), row_end) - rows.begin());
    const size_t n = end - begin;
    const bool clips = m.max_norm >= 0.0f;
    if (in_order && m.units.size() == 1 && (!clips || m.row_stride() == m.dim)) {
      float* out = m.out + row_begin * m.row_stride();
      MT_RETURN_IF_ERROR(ReadUnit(m, m.units[0], m.keys.subspan(begin, n), out, nullptr, m.row_stride()));
      if (clips) ClipByNorm(out, static_cast<int64_t>(n), m.dim, m.max_norm);
      return OkStatus();
    }
    static thread_local ReusedArray<float> scratch;
    ReusedArray<float> large;
    ReusedArray<float>* const room = n * dim <= kScratchElements ? &scratch : &large;
    MT_RETURN_IF_ERROR(Allocate(m.name, n * dim, room));
    float* const values = room->get();
    std::vector<int32_t> places;
    if (m.units.size() == 1) {
      MT_RETURN_IF_ERROR(ReadUnit(m, m.units[0], m.keys.subspan(begin, n), values, nullptr, m.dim));
    } else {
      PartitionedKeys routed;
      MT_RETURN_IF_ERROR(Route(m, begin, end, m.units.size(), &routed));
      for (size_t u = 0; u < m.units.size(); ++u) {
        const Span<const int64_t> keys = routed.keys_of(static_cast<int>(u));
        if (keys.empty()) continue;
        MT_RETURN_IF_ERROR(ReadUnit(m, m.units[u], keys, values + routed.begins[u] * dim, nullptr, m.dim));
      }
      places.resize(n);
      for (size_t p = 0; p < n; ++p) places[static_cast<size_t>(routed.positions[p])] = static_cast<int32_t>(p);
    }
    if (clips) ClipByNorm(values, static_cast<int64_t>(n), m.dim, m.max_norm);
    if (in_order) {
      if (places.empty()) {
        places.resize(n);
        std::iota(places.begin(), places.end(), 0);
      }
      CopyPlaces(values, places.data(), n, m.dim, m.out + row_begin * m.row_stride(), m.row_stride());
      return OkStatus();
    }
    // The entries of the slice as a batch of their own, whose rows keep their numbers.
    SparseBatch batch;
    batch.indices = Span<const int64_t>(rows.data() + begin, n);
    batch.weights = m.weights.empty() ? m.weights : m.weights.subspan(begin, n);
    batch.batch = m.batch * m.steps;
    batch.dim = m.dim;
    batch.combiner = m.combiner;
    batch.stride = m.row_stride();
    PoolRange(batch, EntryValues{values, places.empty() ? nullptr : places.data()}, row_begin, row_end, 0, m.out);
    return OkStatus();
  }

  const Span<const GroupMember> members_;
  GroupPlan* const plan_;
  Executor* const executor_;
  std::vector<Status> statuses_;            // [members]
  std::vector<Status> later_;               // by piece or slice
  std::vector<std::vector<int64_t>> rows_;  // [members], without a plan
  std::vector<size_t> cut_;                 // [members] pieces, where cut; without a plan: whether
};

Status LookupGroup(Span<const GroupMember> members, GroupPlan* plan, Executor* executor) {
  // Of the standard containers of all members; the rest is asked for by Allocate.
  constexpr size_t kScratchBytes = size_t{1} << 20, kScratchBytesOfMember = 4096, kScratchBytesOfKey = 64;
  size_t bytes = kScratchBytes;
  for (const GroupMember& member : members) bytes += kScratchBytesOfMember + member.keys.size() * kScratchBytesOfKey;
  const MemoryLease lease(bytes);
  if (!lease.ok()) return lease.Refusal("grouped lookup");
  return GroupLookup(members, plan, executor).Run();
}

}  // namespace multitier
