// The side of the home: one lookup for all askers, whose rows follow one another.

#include <algorithm>

#include "cc/group_lookup/exchange.h"
#include "cc/group_lookup/group_planner.h"
#include "cc/group_lookup/group_tasks.h"
#include "cc/row/value_column.h"

namespace multitier {
namespace {

using group_internal::Allocate;
using group_internal::RunAll;
using group_internal::Task;

// The entries that a part's keys of all askers are, as a member of a group: an entry for each key; of parts that are pooled
// here, one for each occurrence.
struct PartEntries {
  GroupUnit unit;
  ReusedArray<int64_t> keys, splits;
  ReusedArray<int32_t> counts;
  ReusedArray<uint16_t> tables;

  Status Fill(Span<const Request> requests, size_t u, bool with_counts, GroupMember* member) {
    int64_t entries = 0;
    bool pooled = false, counted = false, tabled = false;
    for (const Request& request : requests) {
      const ReadPart& part = request.parts[u];
      entries += part.pooled ? part.entries : part.keys;
      counted |= part.counted && with_counts;
      tabled |= part.tabled;
      if (!part.pooled) continue;
      pooled = true;
      member->combiner = part.combiner;
    }
    const size_t n = static_cast<size_t>(entries), rows = static_cast<size_t>(RowsOfPart(requests, u));
    member->form = pooled ? GroupForm::kRagged : GroupForm::kDense;
    member->batch = static_cast<int64_t>(rows);
    if (counted) {
      MT_RETURN_IF_ERROR(Allocate(member->name, n, &counts));
      member->counts = Span<const int32_t>(counts.get(), n);
    }
    if (tabled) {
      MT_RETURN_IF_ERROR(Allocate(member->name, n, &tables));
      member->tables = Span<const uint16_t>(tables.get(), n);
    }
    if (requests.size() == 1 && !pooled) {
      member->keys = Span<const int64_t>(requests[0].parts[u].key_words, n);
    } else {
      MT_RETURN_IF_ERROR(Allocate(member->name, n, &keys));
      member->keys = Span<const int64_t>(keys.get(), n);
    }
    if (pooled) {
      MT_RETURN_IF_ERROR(Allocate(member->name, rows + 1, &splits));
      member->indices = Span<const int64_t>(splits.get(), rows + 1);
      splits.get()[0] = 0;
    }
    size_t entry = 0, row = 0;
    for (const Request& request : requests) {
      const ReadPart& part = request.parts[u];
      const int64_t of_part = part.pooled ? part.entries : part.keys;
      if (keys.get() != nullptr) {
        for (int64_t e = 0; e < of_part; ++e) {
          keys.get()[entry + static_cast<size_t>(e)] = part.key_words[part.pooled ? part.index[e] : e];
        }
      }
      for (int64_t e = 0; counted && e < of_part; ++e) {
        counts.get()[entry + static_cast<size_t>(e)] = part.counted ? part.counts[e] : 1;
      }
      for (int64_t e = 0; tabled && e < of_part; ++e) {
        tables.get()[entry + static_cast<size_t>(e)] = !part.tabled ? kNoTable : part.tables[part.pooled ? part.index[e] : e];
      }
      for (int64_t r = 0; pooled && r < part.rows(); ++r) {
        splits.get()[++row] = static_cast<int64_t>(entry) + (part.pooled ? part.ends[r] : r + 1);
      }
      entry += static_cast<size_t>(of_part);
    }
    return OkStatus();
  }
};

// Calls body(asker, part, its first element at the asker, its first row in the part) for all parts that cross and have rows.
template <typename Body>
void ForEachPart(Span<const Request> requests, const Body& body) {
  std::vector<int64_t> rows;
  for (size_t a = 0; a < requests.size(); ++a) {
    int64_t element = 0;
    rows.resize(requests[a].parts.size(), 0);
    for (size_t u = 0; u < requests[a].parts.size(); ++u) {
      if (requests[a].parts[u].rows() > 0) body(a, u, element, rows[u]);
      element += requests[a].parts[u].elements();
      rows[u] += requests[a].parts[u].rows();
    }
  }
}

}  // namespace

int64_t RowsOfPart(Span<const Request> requests, size_t part) {
  int64_t rows = 0;
  for (const Request& request : requests) rows += request.parts[part].rows();
  return rows;
}

Status ServeLookup(Span<const ServedPart> parts, Span<const Request> requests, ReadFor reason, GroupPlan* plan,
                   const WireOut& rows, Executor* executor) {
  const bool direct = requests.size() == 1 && rows.dtype == DType::kFloat32;
  std::vector<PartEntries> entries(parts.size());
  std::vector<GroupMember> members(parts.size());
  int64_t elements = 0;
  for (const Request& request : requests) elements += request.elements();
  ReusedArray<float> room;
  if (!direct) MT_RETURN_IF_ERROR(Allocate("rows of all askers", static_cast<size_t>(elements), &room));
  float* out = direct ? reinterpret_cast<float*>(rows.data[0]) : room.get();
  for (size_t u = 0; u < parts.size(); ++u) {
    GroupMember& member = members[u];
    entries[u].unit.table = parts[u].table;
    member.name = parts[u].name;
    member.units = Span<const GroupUnit>(&entries[u].unit, 1);
    member.dim = static_cast<int>(requests[0].parts[u].dim);
    member.reason = reason;
    MT_RETURN_IF_ERROR(entries[u].Fill(requests, u, plan != nullptr, &member));
    member.out = out;
    out += member.batch * member.dim;
  }
  MT_RETURN_IF_ERROR(LookupGroup(members, plan, executor));
  if (direct) return OkStatus();
  std::vector<Task> tasks;
  ForEachPart(requests, [&](size_t a, size_t u, int64_t element, int64_t row) {
    const size_t n = static_cast<size_t>(requests[a].parts[u].elements());
    const float* const from = members[u].out + row * members[u].dim;
    uint8_t* const to = rows.data[a] + element * static_cast<int64_t>(DTypeSize(rows.dtype));
    tasks.push_back(Task{n, [from, n, to, &rows] { WriteColumn(rows.dtype, from, n, to); }});
  });
  RunAll(&tasks, executor);
  return OkStatus();
}

void GradientsOfParts(Span<const Request> requests, const WireIn& sums, Span<float* const> gradients, Executor* executor) {
  std::vector<Task> tasks;
  ForEachPart(requests, [&](size_t a, size_t u, int64_t element, int64_t row) {
    const ReadPart& part = requests[a].parts[u];
    const size_t n = static_cast<size_t>(part.elements());
    const uint8_t* const from = sums.data[a] + element * static_cast<int64_t>(DTypeSize(sums.dtype));
    float* const to = gradients[u] + row * part.dim;
    tasks.push_back(Task{n, [from, n, to, &sums] { ReadColumn(sums.dtype, from, n, to); }});
  });
  RunAll(&tasks, executor);
}

}  // namespace multitier
