// The steps of a grouped lookup with a plan that read no table. The lookup (group_lookup.cc) reads between them; an exchange
// (exchange.h) asks others to read.
//
//   Lay      the numbers of units                                     once
//   Begin    rows and factors; divides the keys of a cut member       each member
//   Dedup    the distinct keys of a piece                             each piece
//   Join     the pieces of a unit that was cut                        each member
//   Pool     rows of a member from the values of its distinct keys    any ranges of rows

#ifndef CC_GROUP_LOOKUP_GROUP_PLANNER_H_
#define CC_GROUP_LOOKUP_GROUP_PLANNER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/group_lookup/group_lookup.h"
#include "cc/group_lookup/group_tasks.h"
#include "cc/group_lookup/reused_array.h"

namespace multitier {
namespace group_internal {

constexpr size_t kSliceEntries = 4096;  // at most, that a task reads or pools
// Values that are read to be pooled: 128 KiB, which stay in the second-level cache.
constexpr size_t kSliceElements = size_t{1} << 15;
constexpr size_t kMinSliceEntries = 64;
constexpr size_t kPieceEntries = 8192;  // a member is cut into pieces of about this number of entries
constexpr size_t kMaxPieces = 16;
constexpr size_t kCutShare = 8;                       // if it has more than an eighth of the group's entries
constexpr size_t kScratchElements = size_t{1} << 20;  // that a thread keeps for its next task

template <typename T>
Status Allocate(const std::string& name, size_t n, ReusedArray<T>* data) {
  if (data->Reset(n)) return OkStatus();
  return ResourceExhaustedError("group lookup, ", name, ": no memory for ", n, " elements of ", sizeof(T), " bytes");
}

// Whether a member with this number of entries is worth several tasks, in a group of `total` entries.
inline bool IsLarge(size_t entries, size_t total) { return entries > kPieceEntries && entries * kCutShare > total; }

// ResourceExhausted if there is no memory for the standard containers of all members; the rest is asked for by Allocate.
Status CheckMemory(const char* operation, Span<const GroupMember> members);

// Row i of `out` becomes values[places[i]]; a row has `dim` elements.
void CopyPlaces(const float* values, const int32_t* places, size_t n, int dim, float* out, int64_t stride);

// Rows [row_begin, row_end) of a member that has no entry.
void ZeroRows(float* out, int dim, int64_t stride, int64_t row_begin, int64_t row_end);

}  // namespace group_internal

class GroupPlanner {
 public:
  // REQUIRES: `members` and `plan` outlive the planner
  GroupPlanner(Span<const GroupMember> members, GroupPlan* plan);

  void Lay();
  // The pieces of a member; 0: it is not cut, and has one.
  size_t cut(size_t member) const { return cut_[member]; }
  Status Begin(size_t member);
  Status Dedup(size_t member, size_t piece);
  // Where the keys of a piece are collected. A piece is a whole unit or a part of one.
  GroupPlan::Unit* UniqueOf(size_t member, GroupPlan::Piece* piece) const;
  Status Join(size_t member);

  // Room for the values of `keys` keys, and for those before clipping.
  static Status MakeRoom(const std::string& name, size_t keys, GroupPlan::Member* member, ReusedArray<float>* values);
  // Clips the values of a piece's distinct keys, if the member has a max_norm.
  static void Clip(GroupPlan::Member* member, const GroupPlan::Piece& piece, float* values);
  // Reads and pools a member that has one piece. Its values are in scratch memory of the thread, unless the gradient needs
  // them. read: gives the clipped values of the distinct keys
  static Status PoolWhole(const std::string& name, GroupPlan::Member* member, float* out, int64_t stride,
                          const std::function<Status(float* values)>& read);
  // values: of the distinct keys of the whole member
  static void Pool(const GroupPlan::Member& member, const float* values, float* out, int64_t stride, int64_t row_begin,
                   int64_t row_end);
  // The tasks that pool all rows of a member from its own values. The last one frees what the gradient does not need.
  static void AddPooling(GroupPlan::Member* member, float* out, int64_t stride, std::vector<group_internal::Task>* tasks);

 private:
  static Status FindFactors(const std::string& name, GroupPlan::Member* member);

  const Span<const GroupMember> members_;
  GroupPlan* const plan_;
  std::vector<size_t> cut_;  // [members]
};

}  // namespace multitier

#endif  // CC_GROUP_LOOKUP_GROUP_PLANNER_H_
