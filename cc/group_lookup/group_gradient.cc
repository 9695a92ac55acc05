// The gradient of a grouped lookup: one list of tasks. A task computes one piece of keys, or the weights and entries of one
// member. This file also has the updates that use the gradient: one task for each table. Two exceptions: the gradient of a
// table that was cut is first summed piece by piece; and a table with a large share of all keys uses the whole executor alone.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "cc/base/ieee.h"
#include "cc/base/multiversion.h"
#include "cc/base/prefetch.h"
#include "cc/group_lookup/group_lookup.h"
#include "cc/group_lookup/group_planner.h"
#include "cc/group_lookup/group_tasks.h"
#include "cc/table/snapshot/snapshot_together.h"

namespace multitier {
namespace group_internal {

// The inputs of the gradient of a piece's entries.
struct PieceGradient {
  const float* grad;         // [rows, dim]
  int64_t stride;            // from one row to the next
  const int32_t* positions;  // [n] its entries in the member; null: 0 ... n - 1
  const int32_t* index;      // by entry
  const int64_t* rows;       // by entry; null: the entry
  const float* weights;      // by entry; null: all one
  const float* factors;      // by row; null: all one
  size_t n;
  int32_t first;  // of its places
  int dim;
  float* sums;  // [u, dim]
};

constexpr size_t kWorthThreads = 8192;  // several threads update a table with at least this number of keys, if it has
constexpr size_t kLargeShare = 8;       // more than an eighth of all keys

enum class Scale { kNone, kFactor, kWeight };

// The terms are those of PoolGradient, in float32: grad x factor, or (grad / divisor) x weight.
template <Scale kScale, int kDim>
MT_ALWAYS_INLINE void SumTerms(const PieceGradient& piece) {
  const int64_t dim = kDim > 0 ? kDim : piece.dim;
  constexpr size_t kAhead = 8;  // rows that are far apart come from beyond the cache
  const bool far = piece.stride > dim;
  auto entry_of = [&](size_t i) { return piece.positions != nullptr ? piece.positions[i] : static_cast<int64_t>(i); };
  auto row_of = [&](int64_t entry) { return piece.rows != nullptr ? piece.rows[entry] : entry; };
  int32_t seen = 0;  // distinct keys are numbered in the order of their first occurrence
  for (size_t i = 0; i < piece.n; ++i) {
    if (far && i + kAhead < piece.n) PrefetchLine(piece.grad + row_of(entry_of(i + kAhead)) * piece.stride);
    const int64_t entry = entry_of(i);
    const int64_t row = row_of(entry);
    const int32_t place = piece.index[entry] - piece.first;
    const float* const g = piece.grad + row * piece.stride;
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
    case 8:
      return SumTerms<kScale, 8>(piece);
    case 16:
      return SumTerms<kScale, 16>(piece);
    case 32:
      return SumTerms<kScale, 32>(piece);
    default:
      return SumTerms<kScale, 0>(piece);
  }
}

MT_MULTIVERSION void SumPlain(const PieceGradient& piece) { SumTermsOf<Scale::kNone>(piece); }
MT_MULTIVERSION void SumScaled(const PieceGradient& piece) { SumTermsOf<Scale::kFactor>(piece); }
MT_MULTIVERSION void SumWeighted(const PieceGradient& piece) { SumTermsOf<Scale::kWeight>(piece); }

}  // namespace group_internal

using namespace group_internal;  // NOLINT: of this file alone

class GroupGradient {
 public:
  static void Run(const GroupPlan& plan, const GroupGradients& gradients, Executor* executor) {
    std::vector<Task> tasks;
    for (size_t i = 0; i < plan.members_.size(); ++i) {
      const GroupPlan::Member& m = plan.members_[i];
      const float* const grad = gradients.grads[i];
      if (grad == nullptr) continue;
      const int64_t stride = gradients.strides.empty() ? m.dim : gradients.strides[i];
      for (int unit = m.first_unit; unit <= m.pieces.back().unit; ++unit) {
        float* const sums = gradients.sums[static_cast<size_t>(unit)];
        if (sums != nullptr) AddPieces(plan, gradients, unit, sums, &tasks);
      }
      float* const entries_gradient = gradients.entries_gradients.empty() ? nullptr : gradients.entries_gradients[i];
      if (entries_gradient != nullptr) {
        tasks.push_back(Task{m.entries, [&m, grad, stride, entries_gradient] {
                               for (size_t e = 0; e < m.entries && m.rows.empty(); ++e) {
                                 const int64_t at = static_cast<int64_t>(e);
                                 std::copy_n(grad + at * stride, m.dim, entries_gradient + at * m.dim);
                               }
                               if (!m.rows.empty()) PoolGradient(m.sparse_batch(stride), grad, entries_gradient);
                             }});
      }
      float* const weights_gradient = gradients.weights_gradients.empty() ? nullptr : gradients.weights_gradients[i];
      if (weights_gradient == nullptr) continue;
      tasks.push_back(Task{m.entries, [&m, grad, stride, weights_gradient] {
                             PoolWeightsGradient(m.sparse_batch(stride), EntryValues{m.values.get(), m.index.get()}, grad,
                                                 weights_gradient);
                           }});
    }
    RunAll(&tasks, executor);
  }

  static Status Update(const GroupPlan& plan, const GroupGradients& gradients, std::vector<UnitUpdate>* updates,
                       Executor* executor) {
    size_t total = 0;
    for (const UnitUpdate& update : *updates) total += plan.keys(update.unit).size();
    const size_t n = updates->size();
    std::vector<ReusedArray<float>> sums(n);
    std::vector<Status> statuses(n);
    std::vector<size_t> large;
    std::vector<Task> pieces, tables;
    for (size_t i = 0; i < n; ++i) {
      UnitUpdate& update = (*updates)[i];
      ApplyRequest& request = update.request;
      request.keys = plan.keys(update.unit);
      request.counts = plan.counts(update.unit);
      request.places = plan.places(update.unit);
      request.tables = plan.tables(update.unit);
      request.distinct = true;
      const size_t keys = request.keys.size();
      const GroupPlan::Unit& unit = plan.units_[static_cast<size_t>(update.unit)];
      const GroupPlan::Member& m = plan.members_[static_cast<size_t>(unit.member)];
      const bool is_large = keys >= kWorthThreads && keys * kLargeShare > total;
      const bool is_cut = m.pieces.size() > 1 && m.pieces[0].unit == m.pieces[1].unit;
      if (request.grads == nullptr && (is_large || is_cut)) {
        if (!sums[i].Reset(keys * static_cast<size_t>(m.dim))) {
          statuses[i] = NoMemory(update, keys);
          continue;
        }
        request.grads = sums[i].get();
        AddPieces(plan, gradients, update.unit, sums[i].get(), &pieces);
      }
      if (is_large) {
        large.push_back(i);
      } else {
        tables.push_back(Task{
            keys + 1, [&plan, &gradients, &update, &status = statuses[i]] { status = UpdateTable(plan, gradients, &update); }});
      }
    }
    RunAll(&pieces, executor);
    for (const size_t i : large) statuses[i] = (*updates)[i].table->Apply((*updates)[i].request, executor);
    RunAll(&tables, executor);
    for (Status& status : statuses) MT_RETURN_IF_ERROR(std::move(status));
    return OkStatus();
  }

 private:
  // The tasks that sum a unit's gradients.
  static void AddPieces(const GroupPlan& plan, const GroupGradients& gradients, int unit, float* sums,
                        std::vector<Task>* tasks) {
    const int member = plan.units_[static_cast<size_t>(unit)].member;
    const GroupPlan::Member& m = plan.members_[static_cast<size_t>(member)];
    const float* const grad = gradients.grads[static_cast<size_t>(member)];
    const int64_t stride = gradients.strides.empty() ? m.dim : gradients.strides[static_cast<size_t>(member)];
    for (const GroupPlan::Piece& piece : m.pieces) {
      if (piece.unit != unit) continue;
      float* const to = sums + piece.unit_offset * static_cast<size_t>(m.dim);
      tasks->push_back(Task{piece.entries, [&m, &piece, grad, stride, to] { SumPiece(m, piece, grad, stride, to); }});
    }
  }

  static Status UpdateTable(const GroupPlan& plan, const GroupGradients& gradients, UnitUpdate* update) {
    if (update->request.grads != nullptr) return update->table->Apply(update->request);
    static thread_local ReusedArray<float> scratch;
    const size_t keys = update->request.keys.size();
    if (!scratch.Reset(keys * static_cast<size_t>(plan.dim_of_unit(update->unit)))) return NoMemory(*update, keys);
    std::vector<Task> pieces;
    AddPieces(plan, gradients, update->unit, scratch.get(), &pieces);
    RunAll(&pieces, nullptr);
    update->request.grads = scratch.get();
    const Status status = update->table->Apply(update->request);
    if (scratch.capacity() > kScratchElements) scratch.Free();
    return status;
  }

  static Status NoMemory(const UnitUpdate& update, size_t keys) {
    return ResourceExhaustedError("table '", update.table->options().name, "': no memory for the gradients of ", keys, " keys");
  }

  static void SumPiece(const GroupPlan::Member& m, const GroupPlan::Piece& piece, const float* grad, int64_t stride,
                       float* sums) {
    const ScopedIeeeArithmetic ieee;
    const bool routed = !m.routed.begins.empty();
    PieceGradient g;
    g.grad = grad;
    g.stride = stride;
    g.positions = routed ? m.routed.positions.data() + piece.first : nullptr;
    g.index = m.index.get();
    g.rows = m.rows.empty() ? nullptr : m.rows.data();
    g.weights = m.weights.empty() ? nullptr : m.weights.data();
    g.factors = m.has_factors ? m.factors.get() : nullptr;
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
    const EntryValues values{m.unclipped.get() + piece.first * static_cast<size_t>(m.dim), nullptr};
    ClipByNormGradient(values, static_cast<int64_t>(piece.distinct), m.dim, m.max_norm, sums);
  }
};

void GradientOfGroup(const GroupPlan& plan, const GroupGradients& gradients, Executor* executor) {
  GroupGradient::Run(plan, gradients, executor);
}

Status UpdateGroup(const GroupPlan& plan, const GroupGradients& gradients, std::vector<UnitUpdate>* updates,
                   Executor* executor) {
  const UpdateOfSeveral together;
  return GroupGradient::Update(plan, gradients, updates, executor);
}

}  // namespace multitier
