// One member of a grouped lookup before anything is pooled: which row an entry belongs to, which unit owns its key, and the
// values of a unit's keys.

#ifndef CC_LOOKUP_GROUP_MEMBER_H_
#define CC_LOOKUP_GROUP_MEMBER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/lookup/group_lookup.h"
#include "cc/lookup/partition_keys.h"

namespace multitier {
namespace group_internal {

// rows: the output row of each entry; empty where entry i is row i. InvalidArgument naming the member: sizes that differ, rows
// out of order or range, a table of another dim.
Status FindRows(const GroupMember& member, std::vector<int64_t>* rows);

// Sorts keys [begin, end) of a member into `pieces`: its units where it has several, else by hash. Positions count from begin.
// InvalidArgument where a key is out of its matrices' range.
Status Route(const GroupMember& member, size_t begin, size_t end, size_t pieces, PartitionedKeys* routed);

// The values of a unit's keys: [keys, dim], so many elements from one to the next. places: see EmbeddingTable::Lookup; null:
// not wanted; undefined for a matrix.
Status ReadUnit(const GroupMember& member, const GroupUnit& unit, Span<const int64_t> keys, float* values, uint32_t* places,
                int64_t stride);

}  // namespace group_internal
}  // namespace multitier

#endif  // CC_LOOKUP_GROUP_MEMBER_H_
