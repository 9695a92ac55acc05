#include "cc/group_lookup/group_planner.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>

#include "cc/base/can_allocate.h"
#include "cc/base/hash.h"
#include "cc/base/ieee.h"
#include "cc/base/multiversion.h"
#include "cc/group_lookup/group_member.h"

namespace multitier {
namespace group_internal {

Status CheckMemory(const char* operation, Span<const GroupMember> members) {
  constexpr size_t kScratchBytesOfMember = 4096, kScratchBytesOfKey = 64;
  size_t bytes = 0;
  for (const GroupMember& member : members) bytes += kScratchBytesOfMember + member.keys.size() * kScratchBytesOfKey;
  return CanAllocate(bytes) ? OkStatus() : ResourceExhaustedError(operation, ": no memory for ", bytes, " bytes");
}

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

void ZeroRows(float* out, int dim, int64_t stride, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) std::fill_n(out + row * stride, dim, 0.0f);
}

size_t DedupKeys(const int64_t* keys, const int32_t* positions, size_t entries, size_t first, int32_t* index, int64_t* found,
                 int64_t* counts) {
  static thread_local std::vector<uint32_t> seen;
  constexpr uint32_t kEmpty = 0xffffffffu;
  size_t slots = 16;
  while (slots < 2 * entries) slots *= 2;
  seen.assign(slots, kEmpty);
  uint32_t size = 0;
  for (size_t i = 0; i < entries; ++i) {
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
    index[positions != nullptr ? positions[i] : static_cast<int32_t>(i)] = static_cast<int32_t>(first + which);
  }
  return size;
}

}  // namespace group_internal

using namespace group_internal;  // NOLINT: of this file alone

GroupPlanner::GroupPlanner(Span<const GroupMember> members, GroupPlan* plan) : members_(members), plan_(plan) {}

void GroupPlanner::Lay() {
  plan_->members_.resize(members_.size());
  cut_.assign(members_.size(), 0);
  size_t total = 0;
  for (const GroupMember& m : members_) total += m.keys.size();
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
    if (m.units.size() > 1) {
      cut_[i] = m.units.size();
    } else if (IsLarge(m.keys.size(), total)) {
      cut_[i] = std::clamp<size_t>(m.keys.size() / kPieceEntries, 2, kMaxPieces);
    }
  }
  plan_->units_.resize(static_cast<size_t>(unit));
  for (size_t i = 0; i < members_.size(); ++i) {
    for (size_t p = 0; p < members_[i].units.size(); ++p) {
      GroupPlan::Unit& of_part = plan_->units_[static_cast<size_t>(plan_->members_[i].first_unit) + p];
      of_part.dim = members_[i].dim;
      of_part.member = static_cast<int>(i);
      of_part.size = 0;
    }
  }
}

Status GroupPlanner::FindFactors(const std::string& name, GroupPlan::Member* m) {
  m->has_factors = !m->rows.empty() && m->combiner != Combiner::kSum;
  if (!m->has_factors) return OkStatus();
  const ScopedIeeeArithmetic ieee;
  MT_RETURN_IF_ERROR(Allocate(name, static_cast<size_t>(m->batch), &m->factors));
  std::fill_n(m->factors.get(), m->batch, 0.0f);
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
    m->factors.get()[m->rows[begin]] = m->weights.empty() ? static_cast<float>(mean ? 1.0 / n : 1.0 / std::sqrt(n))
                                       : mean             ? sum
                                                          : std::sqrt(sum);
  }
  return OkStatus();
}

Status GroupPlanner::Begin(size_t i) {
  const GroupMember& m = members_[i];
  GroupPlan::Member& to = plan_->members_[i];
  MT_RETURN_IF_ERROR(FindRows(m, &to.rows));
  MT_RETURN_IF_ERROR(FindFactors(m.name, &to));
  MT_RETURN_IF_ERROR(Allocate(m.name, m.keys.size(), &to.index));
  to.pieces.resize(std::max<size_t>(1, cut_[i]));
  to.routed.begins.clear();
  if (cut_[i] > 0) MT_RETURN_IF_ERROR(Route(m, 0, m.keys.size(), to.pieces.size(), &to.routed));
  for (size_t p = 0; p < to.pieces.size(); ++p) {
    GroupPlan::Piece& piece = to.pieces[p];
    piece.unit = to.first_unit + (m.units.size() > 1 ? static_cast<int>(p) : 0);
    piece.first = cut_[i] > 0 ? to.routed.begins[p] : 0;
    piece.entries = cut_[i] > 0 ? to.routed.begins[p + 1] - piece.first : m.keys.size();
    piece.unit_offset = 0;
  }
  return OkStatus();
}

GroupPlan::Unit* GroupPlanner::UniqueOf(size_t i, GroupPlan::Piece* piece) const {
  const bool whole = members_[i].units.size() > 1 || cut_[i] == 0;
  return whole ? &plan_->units_[static_cast<size_t>(piece->unit)] : &piece->part;
}

Status GroupPlanner::Dedup(size_t i, size_t p) {
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
  unique->size = piece.distinct =
      DedupKeys(keys, positions, piece.entries, piece.first, to.index.get(), unique->keys.get(), unique->counts.get());
  unique->tabled = !m.tables.empty();
  if (unique->tabled) {
    MT_RETURN_IF_ERROR(Allocate(m.name, unique->size, &unique->tables));
    for (size_t e = piece.entries; e-- > 0;) {  // so that the first occurrence of a key stays
      const size_t entry = positions != nullptr ? static_cast<size_t>(positions[e]) : e;
      unique->tables.get()[static_cast<size_t>(to.index.get()[entry]) - piece.first] = m.tables[entry];
    }
  }
  if (m.counts.empty()) return OkStatus();
  std::fill_n(unique->counts.get(), unique->size, 0);
  for (size_t e = 0; e < piece.entries; ++e) {
    const size_t entry = positions != nullptr ? static_cast<size_t>(positions[e]) : e;
    unique->counts.get()[static_cast<size_t>(to.index.get()[entry]) - piece.first] += m.counts[entry];
  }
  return OkStatus();
}

Status GroupPlanner::Join(size_t i) {
  GroupPlan::Member& m = plan_->members_[i];
  if (members_[i].units.size() > 1 || cut_[i] == 0) return OkStatus();
  GroupPlan::Unit& unit = plan_->units_[static_cast<size_t>(m.first_unit)];
  for (GroupPlan::Piece& piece : m.pieces) {
    piece.unit_offset = unit.size;
    unit.size += piece.distinct;
  }
  MT_RETURN_IF_ERROR(Allocate(members_[i].name, unit.size, &unit.keys));
  MT_RETURN_IF_ERROR(Allocate(members_[i].name, unit.size, &unit.counts));
  MT_RETURN_IF_ERROR(Allocate(members_[i].name, unit.size, &unit.places));
  unit.tabled = !members_[i].tables.empty();
  MT_RETURN_IF_ERROR(Allocate(members_[i].name, unit.tabled ? unit.size : 0, &unit.tables));
  for (const GroupPlan::Piece& piece : m.pieces) {
    const GroupPlan::Unit& from = piece.part;
    std::copy_n(from.keys.get(), from.size, unit.keys.get() + piece.unit_offset);
    std::copy_n(from.counts.get(), from.size, unit.counts.get() + piece.unit_offset);
    std::copy_n(from.places.get(), from.size, unit.places.get() + piece.unit_offset);
    std::copy_n(from.tables.get(), from.TablesOfKeys().size(), unit.tables.get() + piece.unit_offset);
  }
  return OkStatus();
}

Status GroupPlanner::MakeRoom(const std::string& name, size_t keys, GroupPlan::Member* m, ReusedArray<float>* values) {
  const size_t elements = keys * static_cast<size_t>(m->dim);
  MT_RETURN_IF_ERROR(Allocate(name, elements, values));
  return m->max_norm >= 0.0f ? Allocate(name, elements, &m->unclipped) : OkStatus();
}

void GroupPlanner::Clip(GroupPlan::Member* m, const GroupPlan::Piece& piece, float* values) {
  if (m->max_norm < 0.0f) return;
  const size_t dim = static_cast<size_t>(m->dim);
  std::memcpy(m->unclipped.get() + piece.first * dim, values, piece.distinct * dim * sizeof(float));
  ClipByNorm(values, static_cast<int64_t>(piece.distinct), m->dim, m->max_norm);
}

Status GroupPlanner::PoolWhole(const std::string& name, GroupPlan::Member* m, float* out, int64_t stride,
                               const std::function<Status(float* values)>& read) {
  static thread_local ReusedArray<float> scratch;
  ReusedArray<float>* const values = m->weights.empty() ? &scratch : &m->values;
  MT_RETURN_IF_ERROR(MakeRoom(name, m->pieces[0].distinct, m, values));
  MT_RETURN_IF_ERROR(read(values->get()));
  Pool(*m, values->get(), out, stride, 0, m->batch);
  if (scratch.capacity() > kScratchElements) scratch.Free();
  return OkStatus();
}

void GroupPlanner::Pool(const GroupPlan::Member& from, const float* values, float* out, int64_t stride, int64_t row_begin,
                        int64_t row_end) {
  if (from.rows.empty()) {
    if (from.entries == 0) return ZeroRows(out, from.dim, stride, row_begin, row_end);
    CopyPlaces(values, from.index.get() + row_begin, static_cast<size_t>(row_end - row_begin), from.dim,
               out + row_begin * stride, stride);
    return;
  }
  const auto first = std::lower_bound(from.rows.begin(), from.rows.end(), row_begin);
  const size_t entry = static_cast<size_t>(first - from.rows.begin());
  PoolRange(from.sparse_batch(stride), EntryValues{values, from.index.get()}, row_begin, row_end, entry, out);
}

void GroupPlanner::AddPooling(GroupPlan::Member* m, float* out, int64_t stride, std::vector<Task>* tasks) {
  const size_t work = m->entries + static_cast<size_t>(m->batch);
  const int64_t ranges = std::clamp<int64_t>(static_cast<int64_t>(work / kSliceEntries), 1, 64);
  auto left = std::make_shared<std::atomic<int64_t>>(ranges);
  for (int64_t r = 0; r < ranges; ++r) {
    tasks->push_back(Task{work / static_cast<size_t>(ranges), [m, out, stride, r, ranges, left] {
                            Pool(*m, m->values.get(), out, stride, m->batch * r / ranges, m->batch * (r + 1) / ranges);
                            if (left->fetch_sub(1) == 1 && m->weights.empty()) m->values.Free();
                          }});
  }
}

}  // namespace multitier
