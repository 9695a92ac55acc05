// A group lookup has three phases. Each phase is one list of tasks, the costliest first; the executor's threads take tasks from
// it:
//
//   1. one task for each member: check it and find its rows; if the member is not cut, do all its work while its values are in
//      the processor cache
//   2. for the members that are cut: one task for each piece (with a plan) or for each slice of rows (without a plan)
//   3. with a plan, for the members that are cut: pooling, one task for each range of rows

#include "cc/group_lookup/group_lookup.h"

#include <algorithm>
#include <numeric>

#include "cc/group_lookup/group_member.h"
#include "cc/group_lookup/group_planner.h"
#include "cc/group_lookup/group_tasks.h"

namespace multitier {
using namespace group_internal;  // NOLINT: of this file alone

// One call of LookupGroup.
class GroupLookup {
 public:
  GroupLookup(Span<const GroupMember> members, GroupPlan* plan, Executor* executor)
      : members_(members), plan_(plan), executor_(executor), planner_(members, plan), statuses_(members.size()) {}

  Status Run() {
    const size_t n = members_.size();
    size_t total = 0;
    for (const GroupMember& m : members_) total += m.keys.size();
    if (plan_ != nullptr) planner_.Lay();
    rows_.resize(n);
    std::vector<Task> tasks;
    for (size_t i = 0; i < n; ++i) {
      const size_t entries = members_[i].keys.size();
      // The first entry of a key chooses its table: slices do not know of each other.
      sliced_.push_back(plan_ == nullptr && members_[i].tables.empty() && IsLarge(entries, total));
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
      if (planner_.cut(i) == 0) continue;
      MT_RETURN_IF_ERROR(planner_.Join(i));
      GroupPlanner::AddPooling(&plan_->members_[i], members_[i].out, members_[i].row_stride(), &tasks);
    }
    if (!tasks.empty()) RunAll(&tasks, executor_);
    return OkStatus();
  }

 private:
  Status FirstError() const {
    for (const Status& status : statuses_) MT_RETURN_IF_ERROR(status);
    return OkStatus();
  }

  // The first task of a member.
  Status First(size_t i) {
    const GroupMember& m = members_[i];
    if (plan_ == nullptr) {
      MT_RETURN_IF_ERROR(FindRows(m, &rows_[i]));
      if (sliced_[i]) return OkStatus();
      if (!PoolsFromMemory(i)) return ReadRange(i, 0, m.batch * m.steps);
      Status status;
      ForSlices(i, [&](int64_t begin, int64_t end) {
        if (status.ok()) status = ReadRange(i, begin, end);
      });
      return status;
    }
    MT_RETURN_IF_ERROR(planner_.Begin(i));
    if (planner_.cut(i) == 0) return ReadWhole(i);
    return GroupPlanner::MakeRoom(m.name, m.keys.size(), &plan_->members_[i], &plan_->members_[i].values);
  }

  // Does all the work of a member that is not cut.
  Status ReadWhole(size_t i) {
    const GroupMember& m = members_[i];
    GroupPlan::Member& to = plan_->members_[i];
    MT_RETURN_IF_ERROR(planner_.Dedup(i, 0));
    return GroupPlanner::PoolWhole(m.name, &to, m.out, m.row_stride(), [&](float* values) { return ReadPiece(i, 0, values); });
  }

  // Reads and clips the values of a piece's keys. values: the member's
  Status ReadPiece(size_t i, size_t p, float* values) {
    const GroupMember& m = members_[i];
    GroupPlan::Member& to = plan_->members_[i];
    GroupPlan::Piece& piece = to.pieces[p];
    GroupPlan::Unit* const unique = planner_.UniqueOf(i, &piece);
    values += piece.first * static_cast<size_t>(m.dim);
    const GroupUnit& unit = m.units[static_cast<size_t>(piece.unit - to.first_unit)];
    const Span<const int64_t> keys(unique->keys.get(), unique->size);
    MT_RETURN_IF_ERROR(ReadUnit(m, unit, keys, unique->TablesOfKeys(), values, unique->places.get(), m.dim));
    GroupPlanner::Clip(&to, piece, values);
    return OkStatus();
  }

  void AddPieces(std::vector<Task>* tasks) {
    for (size_t i = 0; i < members_.size(); ++i) {
      for (size_t p = 0; p < planner_.cut(i); ++p) {
        const size_t which = later_.size();
        later_.emplace_back();
        tasks->push_back(Task{plan_->members_[i].pieces[p].entries, [this, i, p, which] {
                                later_[which] = planner_.Dedup(i, p);
                                if (later_[which].ok()) later_[which] = ReadPiece(i, p, plan_->members_[i].values.get());
                              }});
      }
    }
  }

  // ---- Without a plan.

  void AddSlices(std::vector<Task>* tasks) {
    for (size_t i = 0; i < members_.size(); ++i) {
      if (!sliced_[i]) continue;
      ForSlices(i, [&](int64_t begin, int64_t end) {
        const size_t which = later_.size();
        later_.emplace_back();
        tasks->push_back(Task{SliceEntries(i), [this, i, begin, end, which] { later_[which] = ReadRange(i, begin, end); }});
      });
    }
  }

  // Whether a member's values are pooled, and all its rows are in DRAM. A table with others gets as many keys at once as there
  // are: they are read together, and how often a row was used depends on the calls.
  bool PoolsFromMemory(size_t i) const {
    if (rows_[i].empty() || !members_[i].tables.empty()) return false;
    return std::all_of(members_[i].units.begin(), members_[i].units.end(), [](const GroupUnit& unit) {
      if (unit.table == nullptr) return true;
      const TableOptions& options = unit.table->options();
      return options.lower_tiers.empty() && !options.is_below && !options.dram_budget().bounded();
    });
  }

  size_t SliceEntries(size_t i) const {
    if (!PoolsFromMemory(i)) return kSliceEntries;
    return std::clamp<size_t>(kSliceElements / static_cast<size_t>(members_[i].dim), kMinSliceEntries, kSliceEntries);
  }

  // Calls body(row_begin, row_end) for ranges that cover a member's rows, of as many entries each as whole rows allow.
  template <typename Body>
  void ForSlices(size_t i, const Body& body) const {
    const int64_t rows = members_[i].batch * members_[i].steps;
    const size_t entries = members_[i].keys.size();
    const int64_t slices = std::clamp<int64_t>(static_cast<int64_t>(entries / SliceEntries(i)), 1, std::max<int64_t>(rows, 1));
    int64_t row = 0;
    for (int64_t s = 1; s <= slices; ++s) {
      const size_t upto = entries * static_cast<size_t>(s) / static_cast<size_t>(slices);
      int64_t end = s == slices ? rows : rows_[i].empty() ? static_cast<int64_t>(upto) : rows_[i][upto - 1] + 1;
      end = std::max(end, row);
      if (end == row) continue;
      body(row, end);
      row = end;
    }
  }

  // Reads and pools the rows [row_begin, row_end) of a member.
  Status ReadRange(size_t i, int64_t row_begin, int64_t row_end) {
    const GroupMember& m = members_[i];
    const std::vector<int64_t>& rows = rows_[i];
    const size_t dim = static_cast<size_t>(m.dim);
    if (m.keys.empty()) {
      ZeroRows(m.out, m.dim, m.row_stride(), row_begin, row_end);
      return OkStatus();
    }
    const bool in_order = rows.empty();
    const size_t begin = in_order ? static_cast<size_t>(row_begin)
                                  : static_cast<size_t>(std::lower_bound(rows.begin(), rows.end(), row_begin) - rows.begin());
    const size_t end = in_order ? static_cast<size_t>(row_end)
                                : static_cast<size_t>(std::lower_bound(rows.begin(), rows.end(), row_end) - rows.begin());
    const size_t n = end - begin;
    const Span<const uint16_t> tables = m.tables.empty() ? m.tables : m.tables.subspan(begin, n);
    const bool clips = m.max_norm >= 0.0f;
    if (in_order && m.units.size() == 1 && (!clips || m.row_stride() == m.dim)) {
      float* out = m.out + row_begin * m.row_stride();
      MT_RETURN_IF_ERROR(ReadUnit(m, m.units[0], m.keys.subspan(begin, n), tables, out, nullptr, m.row_stride()));
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
      MT_RETURN_IF_ERROR(ReadUnit(m, m.units[0], m.keys.subspan(begin, n), tables, values, nullptr, m.dim));
    } else {
      PartitionedKeys routed;
      MT_RETURN_IF_ERROR(Route(m, begin, end, m.units.size(), &routed));
      std::vector<uint16_t> routed_tables(tables.size());
      for (size_t p = 0; p < tables.size(); ++p) routed_tables[p] = tables[static_cast<size_t>(routed.positions[p])];
      for (size_t u = 0; u < m.units.size(); ++u) {
        const Span<const int64_t> keys = routed.keys_of(static_cast<int>(u));
        if (keys.empty()) continue;
        const Span<const uint16_t> all(routed_tables);
        const Span<const uint16_t> its = all.empty() ? all : all.subspan(routed.begins[u], keys.size());
        MT_RETURN_IF_ERROR(ReadUnit(m, m.units[u], keys, its, values + routed.begins[u] * dim, nullptr, m.dim));
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
  GroupPlanner planner_;
  std::vector<Status> statuses_;            // [members]
  std::vector<Status> later_;               // by piece or slice
  std::vector<std::vector<int64_t>> rows_;  // [members], without a plan
  std::vector<bool> sliced_;                // [members], without a plan: read in slices
};

Status LookupGroup(Span<const GroupMember> members, GroupPlan* plan, Executor* executor) {
  MT_RETURN_IF_ERROR(CheckMemory("group lookup", members));
  return GroupLookup(members, plan, executor).Run();
}

}  // namespace multitier
