// Grouped lookup: the lookups of many tables as one call, and the gradients of it.
//
//   member 0   keys, rows, weights, combiner --+                               +--> pooled [batch, dim]
//   member 1   ...                             +--> one list of tasks, all ----+--> ...
//   member n   ...                             |    cores take from it         |
//                                              +-----------> GroupPlan --------+   (where a gradient will be asked for)
//
// A member looks up one variable: a table, the tables of a partitioned one, or matrices of floats (static variables); each of
// these is a *unit* of the group. Members know nothing of each other: a group gives every member the bits that it would get
// alone, whatever else is in the group.
//
// Without a plan (serving, evaluation) keys are read as they come, in slices that end at a row's end, and pooled while their
// values are in the cache. With a plan each unit's keys are deduplicated first and each distinct key is read once; the plan
// keeps
//
//   index    [entries]   which distinct key an entry is
//   keys     [u]         distinct keys of a unit, in the order of their first occurrence
//   counts   [u]         occurrences of each
//   places   [u]         where the table found its row
//
// GroupGradient then adds each entry's gradient to its key's sum, in the order of entries, and ApplyRequest takes keys, counts
// and places as they are: it neither sorts nor probes for what lookup found. A place is a hint that the table checks, so
// rows may be evicted, moved or removed between the two. UpdateGroup does both for many tables: a task sums a table's
// gradients and trains it while the sums are in the cache, so that they never go through memory.
//
// Balance: a member is a task; one with more than its share of the group's keys is cut by key into pieces of some thousand,
// which are tasks, as the units of a partitioned variable are. The order of distinct keys depends on the cut, no value does.
//
// The plan holds 20 bytes a distinct key, 4 to 12 an entry, and the values of distinct keys where weights or max_norm need
// them for the gradient. A plan may be filled again, and then works in the memory it has.
//
// Thread-safe: plain functions over thread-safe tables; a finished plan is immutable.

#ifndef CC_LOOKUP_GROUP_LOOKUP_H_
#define CC_LOOKUP_GROUP_LOOKUP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/executor.h"
#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/lookup/partition_keys.h"
#include "cc/lookup/pooling.h"
#include "cc/lookup/reused_array.h"
#include "cc/table/embedding_table.h"

namespace multitier {

// A table, or a matrix whose keys are its row numbers.
struct GroupUnit {
  EmbeddingTable* table = nullptr;
  const float* matrix = nullptr;  // [rows, dim], where there is no table
  int64_t rows = 0;
};

// Which unit of a member owns a key. Tables: by hash (base/partition.h). Matrices: TensorFlow's partition strategies.
enum class Routing { kHash, kMod, kDiv };

// How the entries of a member are laid out, and what becomes of them.
enum class GroupForm {
  kDense,           // every key is a row of its own: [keys, dim]
  kSparse,          // pooled by row: [batch, dim]
  kSequence,        // not pooled: [batch, steps, dim], entry (b, t) at [b, t]; what has no entry is zeros
  kRagged,          // as kSparse, rows given by their splits
  kRaggedSequence,  // as kSequence
};

struct GroupMember {
  std::string name;  // for messages: "member 3 ('user')"
  Span<const GroupUnit> units;
  Routing routing = Routing::kHash;
  int dim = 0;
  Combiner combiner = Combiner::kSum;
  float max_norm = -1.0f;  // >= 0: values are clipped to this norm before pooling
  GroupForm form = GroupForm::kDense;
  Span<const int64_t> keys;     // [entries]
  Span<const int64_t> indices;  // sparse: [entries, 2], row-major order; ragged: splits [batch + 1]; dense: none
  Span<const float> weights;    // [entries], or empty: all one
  int64_t batch = 0;            // dense: the number of keys
  int64_t steps = 1;            // of a sequence
  float* out = nullptr;         // [batch, steps, dim]
  int64_t stride = 0;           // elements of `out` from one row to the next; 0: dim. More: members write side by side

  int64_t row_stride() const { return stride != 0 ? stride : dim; }
};

// The number of steps of a ragged sequence: its longest row. InvalidArgument where the splits are not those of so many entries.
Result<int64_t> RaggedSteps(const std::string& name, Span<const int64_t> splits, size_t entries);

// What a lookup leaves for its gradient and the update.
class GroupPlan {
 public:
  int num_members() const { return static_cast<int>(members_.size()); }
  int num_units() const { return static_cast<int>(units_.size()); }
  int first_unit(int member) const { return members_[member].first_unit; }
  int dim(int member) const { return members_[member].dim; }
  int dim_of_unit(int unit) const { return units_[unit].dim; }
  int member_of_unit(int unit) const { return units_[unit].member; }
  int64_t entries(int member) const { return static_cast<int64_t>(members_[member].entries); }
  bool weighted(int member) const { return !members_[member].weights.empty(); }
  // Of the member's output, steps included.
  int64_t rows(int member) const { return members_[member].batch; }

  // Of a unit, in one order.
  Span<const int64_t> keys(int unit) const { return Of<const int64_t>(units_[unit].keys, unit); }
  Span<const int64_t> counts(int unit) const { return Of<const int64_t>(units_[unit].counts, unit); }
  Span<const uint32_t> places(int unit) const { return Of<const uint32_t>(units_[unit].places, unit); }

 private:
  friend class GroupLookup;
  friend class GroupGradient;

  struct Unit {
    int dim = 0;
    int member = 0;
    size_t size = 0;
    ReusedArray<int64_t> keys, counts;
    ReusedArray<uint32_t> places;
  };
  // Keys that are deduplicated together: those of a unit, or some of them.
  struct Piece {
    int unit = 0;
    size_t first = 0;        // its first entry, in the order of `routed`; also its first place in `values`
    size_t entries = 0;
    size_t distinct = 0;     // keys
    size_t unit_offset = 0;  // its first key among the unit's
    Unit part;               // its keys, where it is only some of the unit's, until they join those
  };
  struct Member {
    int first_unit = 0, dim = 0;
    Combiner combiner = Combiner::kSum;
    float max_norm = -1.0f;
    size_t entries = 0;
    int64_t batch = 0;                  // rows of the output, steps included
    Span<const float> weights;          // the caller's
    std::vector<int64_t> rows;          // [entries] row of each; empty: entry i is row i
    std::vector<float> factors;         // [batch] what a row's gradient is multiplied by, or divided by where there are weights
    PartitionedKeys routed;             // where there are several pieces
    std::vector<Piece> pieces;
    ReusedArray<int32_t> index;         // [entries] place in `values`
    ReusedArray<float> values;          // of distinct keys, clipped: each piece's from its `first` on
    ReusedArray<float> unclipped;       // the same before clipping; where there is a max_norm

    SparseBatch sparse_batch(int64_t stride) const {
      SparseBatch batch_of;
      batch_of.indices = rows;
      batch_of.weights = weights;
      batch_of.batch = batch;
      batch_of.dim = dim;
      batch_of.combiner = combiner;
      batch_of.stride = stride;
      return batch_of;
    }
  };

  template <typename T, typename U>
  Span<T> Of(const ReusedArray<U>& data, int unit) const {
    return Span<T>(data.get(), units_[unit].size);
  }

  std::vector<Member> members_;
  std::vector<Unit> units_;
};

// Looks all members up. `plan` (may be null): filled for the gradient, new or used before; weights must then live as long as
// it is used.
// InvalidArgument naming the member: sizes that differ, rows out of order or range, ids out of a matrix' range, a table of
// another dim. Other errors are those of EmbeddingTable::Lookup. On an error outputs are undefined and nothing else changed.
Status LookupGroup(Span<const GroupMember> members, GroupPlan* plan, Executor* executor = nullptr);

struct GroupGradients {
  Span<const float* const> grads;        // [members] -> [rows, dim] of the pooled rows; null: the member has no gradient
  Span<float* const> sums;               // [units] -> [u, dim] of each key; null: not wanted, or its member has no gradient
  Span<float* const> weights_gradients;  // [members] -> [entries] of each weight; null: not wanted
  Span<float* const> entries_gradients;  // [members] -> [entries, dim] of each entry's value after clipping; null: not wanted
  Span<const int64_t> strides;           // [members] elements from one row of `grads` to the next; empty: the dims
};

void GradientOfGroup(const GroupPlan& plan, const GroupGradients& gradients, Executor* executor = nullptr);

// The update of a unit that is a table.
struct UnitUpdate {
  int unit = 0;
  EmbeddingTable* table = nullptr;
  // All but keys, counts and places, which are the plan's. grads: sums in the order of the plan's keys; null: they are summed
  // from the gradient of the unit's member, which is then REQUIRED.
  ApplyRequest request;
};

// Trains the tables; of `gradients` only grads and strides are used. A table gets the bits that a GradientOfGroup and an
// EmbeddingTable::Apply of its own would give it, and as there its update happens wholly or not at all; where one fails,
// which is the first error returned, those of other tables still happen. REQUIRES: no table is there twice
Status UpdateGroup(const GroupPlan& plan, const GroupGradients& gradients, std::vector<UnitUpdate>* updates,
                   Executor* executor = nullptr);

}  // namespace multitier

#endif  // CC_LOOKUP_GROUP_LOOKUP_H_
