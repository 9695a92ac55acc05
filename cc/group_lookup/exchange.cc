// The side of the asker.

#include "cc/group_lookup/exchange.h"

#include <algorithm>

#include "cc/group_lookup/group_planner.h"
#include "cc/group_lookup/group_tasks.h"
#include "cc/row/value_column.h"

namespace multitier {
namespace exchange_internal {

constexpr int64_t kMostBytes = (int64_t{1} << 31) - 1;  // of a message between processes

Status CheckMessage(const char* what, int home, int64_t bytes) {
  if (bytes <= kMostBytes) return OkStatus();
  return InvalidArgumentError("exchange with home ", home, ": expected ", what, " below 2 GiB, found ", bytes,
                              " bytes: use smaller batches, or more homes");
}

}  // namespace exchange_internal

using namespace exchange_internal;  // NOLINT: of this file alone
using namespace group_internal;     // NOLINT

class Exchange {
 public:
  static Status Plan(Span<const GroupMember> members, Executor* executor, ExchangePlan* plan) {
    GroupPlan* const group = &plan->group_;
    GroupPlanner planner(members, group);
    planner.Lay();
    const size_t n = members.size();
    std::vector<Status> statuses(n), of_pieces;
    std::vector<Task> tasks;
    for (size_t i = 0; i < n; ++i) {
      tasks.push_back(Task{members[i].keys.size() + 1, [&planner, &status = statuses[i], i] {
                             status = planner.Begin(i);
                             if (status.ok() && planner.cut(i) == 0) status = planner.Dedup(i, 0);
                           }});
    }
    RunAll(&tasks, executor);
    for (const Status& status : statuses) MT_RETURN_IF_ERROR(status);
    tasks.clear();
    size_t pieces = 0;
    for (size_t i = 0; i < n; ++i) pieces += planner.cut(i);
    of_pieces.resize(pieces);
    for (size_t i = 0; i < n; ++i) {
      for (size_t p = 0; p < planner.cut(i); ++p) {
        tasks.push_back(Task{group->members_[i].pieces[p].entries,
                             [&planner, &status = of_pieces[tasks.size()], i, p] { status = planner.Dedup(i, p); }});
      }
    }
    RunAll(&tasks, executor);
    for (const Status& status : of_pieces) MT_RETURN_IF_ERROR(status);
    for (size_t i = 0; i < n; ++i) MT_RETURN_IF_ERROR(planner.Join(i));
    return OkStatus();
  }

  static Status Split(Span<const GroupMember> members, Span<const int> homes, int num_homes, DType wire, ExchangePlan* plan) {
    plan->homes_.resize(static_cast<size_t>(num_homes));
    for (ExchangePlan::Home& home : plan->homes_) home.parts.clear();
    plan->parts_.resize(homes.size());
    for (size_t u = 0; u < homes.size(); ++u) {
      ExchangePlan::Part& part = plan->parts_[u];
      part.home = homes[u];
      const size_t member = static_cast<size_t>(plan->group_.units_[u].member);
      part.shape = ShapeOf(members[member], plan->group_, u, wire);
      plan->homes_[static_cast<size_t>(part.home)].parts.push_back(static_cast<int>(u));
    }
    for (int h = 0; h < num_homes; ++h) {
      ExchangePlan::Home& home = plan->homes_[static_cast<size_t>(h)];
      home.words = RequestWords(ShapesOf(*plan, home));
      home.elements = 0;
      for (const int u : home.parts) {
        plan->parts_[static_cast<size_t>(u)].first_element = home.elements;
        home.elements += plan->parts_[static_cast<size_t>(u)].shape.elements();
      }
      MT_RETURN_IF_ERROR(CheckMessage("a request", h, home.words * static_cast<int64_t>(sizeof(int64_t))));
      MT_RETURN_IF_ERROR(CheckMessage("rows", h, home.elements * static_cast<int64_t>(DTypeSize(wire))));
    }
    plan->state_ = ExchangePlan::kRouted;
    return OkStatus();
  }

  static void Write(const ExchangePlan& plan, Span<int64_t* const> requests, Executor* executor) {
    std::vector<std::vector<RequestPart<int64_t>>> written;
    std::vector<Task> tasks;
    for (size_t h = 0; h < plan.homes_.size(); ++h) {
      const ExchangePlan::Home& home = plan.homes_[h];
      written.push_back(BeginRequest(ShapesOf(plan, home), requests[h]));
      for (size_t p = 0; p < home.parts.size(); ++p) {
        const size_t unit = static_cast<size_t>(home.parts[p]);
        tasks.push_back(Task{plan.group_.units_[unit].size,
                             [&plan, unit, part = written.back()[p]] { WritePart(plan.group_, unit, part); }});
      }
    }
    RunAll(&tasks, executor);
  }

  static Status Pool(const WireIn& rows, Span<const PooledValues> values, ExchangePlan* plan, Executor* executor) {
    ExchangePlan::State routed = ExchangePlan::kRouted;
    if (!plan->state_.compare_exchange_strong(routed, ExchangePlan::kPooling)) {
      return InternalError("exchange: expected a plan whose rows are not pooled yet, found one that is");
    }
    std::vector<GroupPlan::Member>& members = plan->group_.members_;
    std::vector<Status> statuses(members.size());
    std::vector<Task> reads, pools;
    for (size_t i = 0; i < members.size(); ++i) {
      GroupPlan::Member* const m = &members[i];
      const PooledValues& to = values[i];
      if (m->pieces.size() == 1) {
        reads.push_back(Task{m->entries + 1, [&rows, &to, plan, m, i, &status = statuses[i]] {
                               status = PoolOne(rows, *plan, StrCat("member ", i), to, m);
                             }});
        continue;
      }
      if (plan->parts_[static_cast<size_t>(m->first_unit)].shape.pooled) {
        reads.push_back(Task{m->entries, [&rows, &to, plan, m] { TakePooled(rows, *plan, *m, to); }});
        continue;
      }
      MT_RETURN_IF_ERROR(GroupPlanner::MakeRoom(StrCat("member ", i), m->entries, m, &m->values));
      for (const GroupPlan::Piece& piece : m->pieces) {
        reads.push_back(Task{piece.entries, [&rows, plan, m, &piece] { Take(rows, *plan, piece, m, m->values.get()); }});
      }
      GroupPlanner::AddPooling(m, to.out, to.stride, &pools);
    }
    RunAll(&reads, executor);
    for (const Status& status : statuses) MT_RETURN_IF_ERROR(status);
    RunAll(&pools, executor);
    plan->state_ = ExchangePlan::kPooled;
    return OkStatus();
  }

  static Status Gradient(const ExchangePlan& plan, const GroupGradients& gradients, const WireOut& sums, Executor* executor) {
    // Sums are float32; of another type of wire they are converted when they are whole.
    const bool converts = sums.dtype != DType::kFloat32;
    ReusedArray<float> room;
    std::vector<float*> of_homes;
    int64_t total = 0;
    for (const ExchangePlan::Home& home : plan.homes_) total += home.elements;
    if (converts) MT_RETURN_IF_ERROR(Allocate("sums for all homes", static_cast<size_t>(total), &room));
    total = 0;
    for (size_t h = 0; h < plan.homes_.size(); ++h) {
      of_homes.push_back(converts ? room.get() + total : reinterpret_cast<float*>(sums.data[h]));
      total += plan.homes_[h].elements;
    }
    std::vector<float*> of_units(plan.parts_.size(), nullptr);
    std::vector<Task> tasks;
    for (size_t u = 0; u < plan.parts_.size(); ++u) {
      const ExchangePlan::Part& part = plan.parts_[u];
      float* const to = of_homes[static_cast<size_t>(part.home)] + part.first_element;
      const size_t member = static_cast<size_t>(plan.group_.units_[u].member);
      const float* const grad = gradients.grads[member];
      const int64_t elements = part.shape.elements(), dim = part.shape.dim;
      if (grad == nullptr) {
        tasks.push_back(Task{static_cast<size_t>(part.shape.rows()), [to, elements] { std::fill_n(to, elements, 0.0f); }});
      } else if (part.shape.pooled) {
        const int64_t stride = gradients.strides.empty() ? dim : gradients.strides[member];
        tasks.push_back(Task{static_cast<size_t>(part.shape.rows()), [grad, stride, to, dim, rows = part.shape.rows()] {
                               for (int64_t row = 0; row < rows; ++row) std::copy_n(grad + row * stride, dim, to + row * dim);
                             }});
      } else {
        of_units[u] = to;
      }
    }
    GroupGradients own = gradients;
    own.sums = Span<float* const>(of_units.data(), of_units.size());
    own.entries_gradients = {};
    RunAll(&tasks, executor);
    GradientOfGroup(plan.group_, own, executor);
    tasks.clear();
    for (size_t h = 0; converts && h < plan.homes_.size(); ++h) {
      const size_t n = static_cast<size_t>(plan.homes_[h].elements);
      if (n == 0) continue;
      tasks.push_back(Task{n, [&sums, from = of_homes[h], n, h] { WriteColumn(sums.dtype, from, n, sums.data[h]); }});
    }
    RunAll(&tasks, executor);
    return OkStatus();
  }

 private:
  static RequestShape ShapeOf(const GroupMember& m, const GroupPlan& group, size_t unit, DType wire) {
    const GroupPlan::Member& of = group.members_[static_cast<size_t>(group.units_[unit].member)];
    size_t entries = 0;
    for (const GroupPlan::Piece& piece : of.pieces) entries += piece.unit == static_cast<int>(unit) ? piece.entries : 0;
    RequestShape shape;
    shape.dim = m.dim;
    shape.keys = static_cast<int64_t>(group.units_[unit].size);
    shape.counted = static_cast<int64_t>(entries) > shape.keys;
    shape.tabled = !group.units_[unit].TablesOfKeys().empty();
    const bool pools = m.form == GroupForm::kSparse || m.form == GroupForm::kRagged;
    if (!pools || m.units.size() > 1 || !m.weights.empty() || m.max_norm >= 0.0f || of.batch >= shape.keys) return shape;
    RequestShape pooled = shape;
    pooled.pooled = true;
    pooled.counted = false;
    pooled.combiner = m.combiner;
    pooled.entries = static_cast<int64_t>(entries);
    pooled.pooled_rows = of.batch;
    const auto bytes = [wire](const RequestShape& of_shape) {  // there and back
      return of_shape.words() * static_cast<int64_t>(sizeof(int64_t)) +
             2 * of_shape.elements() * static_cast<int64_t>(DTypeSize(wire));
    };
    return bytes(pooled) < bytes(shape) ? pooled : shape;
  }

  static std::vector<RequestShape> ShapesOf(const ExchangePlan& plan, const ExchangePlan::Home& home) {
    std::vector<RequestShape> shapes;
    for (const int u : home.parts) shapes.push_back(plan.parts_[static_cast<size_t>(u)].shape);
    return shapes;
  }

  static void WritePart(const GroupPlan& group, size_t unit, const RequestPart<int64_t>& part) {
    const GroupPlan::Unit& of = group.units_[unit];
    std::copy_n(of.keys.get(), of.size, part.key_words);
    for (int64_t k = 0; k < part.counts.size(); ++k) part.counts.Put(k, of.counts.get()[k]);
    for (int64_t k = 0; k < part.tables.size(); ++k) part.tables.Put(k, of.tables.get()[k]);
    if (!part.pooled) return;
    const GroupPlan::Member& m = group.members_[static_cast<size_t>(of.member)];
    const bool routed = !m.routed.begins.empty();
    for (const GroupPlan::Piece& piece : m.pieces) {
      for (size_t e = 0; e < piece.entries; ++e) {
        const int64_t entry = routed ? m.routed.positions[piece.first + e] : static_cast<int64_t>(e);
        const size_t place = static_cast<size_t>(m.index.get()[entry]) - piece.first + piece.unit_offset;
        part.index.Put(entry, static_cast<int64_t>(place));
      }
    }
    size_t end = 0;
    for (int64_t row = 0; row < part.ends.size(); ++row) {
      while (end < m.rows.size() && m.rows[end] <= row) ++end;
      part.ends.Put(row, static_cast<int64_t>(end));
    }
  }

  // The rows of a part, as they came.
  static const uint8_t* RowsOf(const WireIn& rows, const ExchangePlan::Part& part) {
    return rows.data[static_cast<size_t>(part.home)] + part.first_element * static_cast<int64_t>(DTypeSize(rows.dtype));
  }

  // Takes the values of a piece's distinct keys. values: the member's
  static void Take(const WireIn& rows, const ExchangePlan& plan, const GroupPlan::Piece& piece, GroupPlan::Member* m,
                   float* values) {
    if (piece.distinct == 0) return;
    const size_t dim = static_cast<size_t>(m->dim);
    const uint8_t* const from = RowsOf(rows, plan.parts_[static_cast<size_t>(piece.unit)]);
    values += piece.first * dim;
    ReadColumn(rows.dtype, from + piece.unit_offset * dim * DTypeSize(rows.dtype), piece.distinct * dim, values);
    GroupPlanner::Clip(m, piece, values);
  }

  static void TakePooled(const WireIn& rows, const ExchangePlan& plan, const GroupPlan::Member& m, const PooledValues& to) {
    const ExchangePlan::Part& part = plan.parts_[static_cast<size_t>(m.first_unit)];
    const uint8_t* from = RowsOf(rows, part);
    const size_t dim = static_cast<size_t>(m.dim);
    for (int64_t row = 0; row < part.shape.pooled_rows; ++row, from += dim * DTypeSize(rows.dtype)) {
      ReadColumn(rows.dtype, from, dim, to.out + row * to.stride);
    }
  }

  // A member that has one piece.
  static Status PoolOne(const WireIn& rows, const ExchangePlan& plan, const std::string& name, const PooledValues& to,
                        GroupPlan::Member* m) {
    const ExchangePlan::Part& part = plan.parts_[static_cast<size_t>(m->first_unit)];
    if (part.shape.pooled) {
      TakePooled(rows, plan, *m, to);
      return OkStatus();
    }
    if (rows.dtype == DType::kFloat32 && m->weights.empty() && m->max_norm < 0.0f) {
      GroupPlanner::Pool(*m, reinterpret_cast<const float*>(RowsOf(rows, part)), to.out, to.stride, 0, m->batch);
      return OkStatus();
    }
    return GroupPlanner::PoolWhole(name, m, to.out, to.stride, [&](float* values) {
      Take(rows, plan, m->pieces[0], m, values);
      return OkStatus();
    });
  }
};

Status RouteGroup(Span<const GroupMember> members, Span<const int> homes, int num_homes, DType wire, ExchangePlan* plan,
                  Executor* executor) {
  size_t units = 0;
  for (const GroupMember& member : members) units += member.units.size();
  if (homes.size() != units) return InvalidArgumentError("exchange: expected ", units, " homes, found ", homes.size());
  for (const int home : homes) {
    if (home >= 0 && home < num_homes) continue;
    return InvalidArgumentError("exchange: expected homes in [0, ", num_homes, "), found ", home);
  }
  MT_RETURN_IF_ERROR(CheckMemory("exchange", members));
  MT_RETURN_IF_ERROR(Exchange::Plan(members, executor, plan));
  return Exchange::Split(members, homes, num_homes, wire, plan);
}

void WriteRequests(const ExchangePlan& plan, Span<int64_t* const> requests, Executor* executor) {
  Exchange::Write(plan, requests, executor);
}

Status PoolGroup(const WireIn& rows, Span<const PooledValues> values, ExchangePlan* plan, Executor* executor) {
  return Exchange::Pool(rows, values, plan, executor);
}

Status GradientForHomes(const ExchangePlan& plan, const GroupGradients& gradients, const WireOut& sums, Executor* executor) {
  return Exchange::Gradient(plan, gradients, sums, executor);
}

}  // namespace multitier
