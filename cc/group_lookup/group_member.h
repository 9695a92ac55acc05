// The steps of one member of a grouped lookup before pooling: finding the row of each entry, finding the unit that owns each
// key, and reading the values of a unit's keys.

#ifndef CC_GROUP_LOOKUP_GROUP_MEMBER_H_
#define CC_GROUP_LOOKUP_GROUP_MEMBER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/group_lookup/group_lookup.h"
#include "cc/partition/partition_keys.h"

namespace multitier {
namespace group_internal {

// rows: the output row of each entry; empty if entry i is row i. InvalidArgument, with the member's name: sizes differ, rows
// are out of order or range, or a table has another dim.
Status FindRows(const GroupMember& member, std::vector<int64_t>* rows);

// Divides keys [begin, end) of a member into `pieces`: one per unit if it has several units, otherwise by hash. Positions count
// from begin. InvalidArgument if a key is out of range of its matrices.
Status Route(const GroupMember& member, size_t begin, size_t end, size_t pieces, PartitionedKeys* routed);

// Reads the values of a unit's keys: [keys, dim]. stride: the row stride of `values`, in elements. places: see
// EmbeddingTable::Lookup; null if not needed; undefined for a matrix. tables: of the keys, if the member gives them.
Status ReadUnit(const GroupMember& member, const GroupUnit& unit, Span<const int64_t> keys, Span<const uint16_t> tables,
                float* values, uint32_t* places, int64_t stride);

}  // namespace group_internal
}  // namespace multitier

#endif  // CC_GROUP_LOOKUP_GROUP_MEMBER_H_
