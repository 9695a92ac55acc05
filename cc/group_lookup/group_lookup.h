// Grouped lookup: one call looks up many tables. Also its gradients and updates. The lookup of one table, and its reads of
// lower tiers: cc/table/host/lookup.cc, tier_reader.h.
//
//   member 0   keys, rows, weights, combiner --+                               +--> pooled [batch, dim]
//   member 1   ...                             +--> one list of tasks; --------+--> ...
//   member n   ...                             |    all threads take tasks     |
//                                              +-----------> GroupPlan --------+   (if a gradient is needed)
//
// A member looks up one variable: a table, the tables of a partitioned variable, or matrices of floats (static variables). Each
// table or matrix is a *unit* of the group. Members are independent: each member gets the same bits as in a group of its own.
//
// Without a plan (serving, evaluation), keys are read in order, in slices that end at the end of a row. They are pooled while
// their values are in the cache. With a plan, the keys of each unit are deduplicated first, and each distinct key is read once.
// The plan has
//
//   index    [entries]   the distinct key of each entry
//   keys     [u]         the distinct keys of a unit, in the order of their first occurrence
//   counts   [u]         the number of occurrences of each key
//   tables   [u]         the initializer of each key's first occurrence, if the member gives tables
//   places   [u]         the place where the table found the row
//
// GroupGradient adds each entry's gradient to its key's sum, in the order of entries. ApplyRequest uses the plan's arrays: it
// neither sorts keys nor searches the index for them. A place is a hint that the table checks, so rows may be evicted, moved or
// removed between lookup and apply. UpdateGroup sums and trains many tables: a task sums one table's gradients and trains it
// while the sums are in the cache.
//
// Balance: a member is one task. If a member has more than its share of the group's keys, its keys are split into pieces of
// some thousands, and each piece is a task. The units of a partitioned variable are tasks too. The split affects the order of
// distinct keys, but no value.
//
// A plan takes 20 bytes per distinct key and 4 to 12 bytes per entry. With weights or max_norm, if the gradient needs them, it
// also has the values of distinct keys. A plan can be filled again, and then uses its old memory.
//
// Thread-safe: plain functions over thread-safe tables. A finished plan is immutable.

#ifndef CC_GROUP_LOOKUP_GROUP_LOOKUP_H_
#define CC_GROUP_LOOKUP_GROUP_LOOKUP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/executor.h"
#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/group_lookup/pooling.h"
#include "cc/group_lookup/reused_array.h"
#include "cc/partition/partition_keys.h"
#include "cc/table/api/embedding_table.h"

namespace multitier {

// A table, or a matrix whose keys are its row numbers.
struct GroupUnit {
  EmbeddingTable* table = nullptr;
  const float* matrix = nullptr;  // [rows, dim], if there is no table
  int64_t rows = 0;
};

// Which unit of a member owns a key. Tables: by hash (partition.h). Matrices: TensorFlow's partition strategies.
enum class Routing { kHash, kMod, kDiv };

// The layout of a member's entries, and whether they are pooled.
enum class GroupForm {
  kDense,           // each key is a row of the output: [keys, dim]
  kSparse,          // pooled by row: [batch, dim]
  kSequence,        // not pooled: [batch, steps, dim], with entry (b, t) at [b, t] and zeros elsewhere
  kRagged,          // kSparse, with row splits
  kRaggedSequence,  // kSequence, with row splits
};

struct GroupMember {
  std::string name;  // for error messages: "member 3 ('user')"
  Span<const GroupUnit> units;
  Routing routing = Routing::kHash;
  int dim = 0;
  Combiner combiner = Combiner::kSum;
  float max_norm = -1.0f;  // >= 0: values are clipped to this norm before pooling
  GroupForm form = GroupForm::kDense;
  ReadFor reason = ReadFor::kTraining;
  Span<const int64_t> keys;     // [entries]
  Span<const int64_t> indices;  // sparse: [entries, 2], row-major order; ragged: splits [batch + 1]; dense: none
  Span<const float> weights;    // [entries], or empty: all weights are 1
  Span<const int32_t> counts;   // [entries] how often each occurs, or empty: once. For the plan
  // [entries] which initializer of its table's list a key without a row gets. For a repeated key, its first entry decides
  Span<const uint16_t> tables;
  int64_t batch = 0;     // dense: the number of keys
  int64_t steps = 1;     // sequences: number of steps
  float* out = nullptr;  // [batch, steps, dim]
  int64_t stride = 0;    // row stride of `out`, in elements; 0: dim. Larger if members share one concatenated output

  int64_t row_stride() const { return stride != 0 ? stride : dim; }
};

// The number of steps of a ragged sequence, which is the length of its longest row. InvalidArgument if the splits do not match
// the number of entries.
Result<int64_t> RaggedSteps(const std::string& name, Span<const int64_t> splits, size_t entries);

// The data that a lookup keeps for its gradient and the update.
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
  // The number of rows of the member's output. Each step of a sequence counts as a row.
  int64_t rows(int member) const { return members_[member].batch; }

  // The arrays of a unit, all in the same order.
  Span<const int64_t> keys(int unit) const { return Of<const int64_t>(units_[unit].keys, unit); }
  Span<const int64_t> counts(int unit) const { return Of<const int64_t>(units_[unit].counts, unit); }
  Span<const uint32_t> places(int unit) const { return Of<const uint32_t>(units_[unit].places, unit); }
  // Empty if the member gave none.
  Span<const uint16_t> tables(int unit) const { return units_[unit].TablesOfKeys(); }

 private:
  friend class GroupLookup;
  friend class GroupPlanner;
  friend class GroupGradient;
  friend class Exchange;

  struct Unit {
    int dim = 0;
    int member = 0;
    size_t size = 0;
    ReusedArray<int64_t> keys, counts;
    ReusedArray<uint32_t> places;
    ReusedArray<uint16_t> tables;
    bool tabled = false;

    Span<const uint16_t> TablesOfKeys() const { return Span<const uint16_t>(tables.get(), tabled ? size : 0); }
  };
  // Keys that are deduplicated together: all or some keys of a unit.
  struct Piece {
    int unit = 0;
    size_t first = 0;  // its first entry, in the order of `routed`; also its first place in `values`
    size_t entries = 0;
    size_t distinct = 0;     // number of distinct keys
    size_t unit_offset = 0;  // position of its first key in the unit's arrays
    Unit part;               // if it has only some keys of the unit: its arrays, until they are copied into the unit's
  };
  struct Member {
    int first_unit = 0, dim = 0;
    Combiner combiner = Combiner::kSum;
    float max_norm = -1.0f;
    size_t entries = 0;
    int64_t batch = 0;           // rows of the output; each step counts as a row
    Span<const float> weights;   // owned by the caller
    std::vector<int64_t> rows;   // [entries] the row of each entry; empty: entry i is row i
    ReusedArray<float> factors;  // [batch] what a row's gradient is multiplied by; with weights, what it is divided by
    bool has_factors = false;
    PartitionedKeys routed;  // if there are several pieces
    std::vector<Piece> pieces;
    ReusedArray<int32_t> index;    // [entries] place in `values`
    ReusedArray<float> values;     // clipped values of distinct keys; those of a piece begin at its `first`
    ReusedArray<float> unclipped;  // the values before clipping, if there is a max_norm

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

// Looks up all members. plan (may be null): is filled for the gradient. It may be new or used before. The weights must live as
// long as the plan is used. InvalidArgument, with the member's name: sizes differ, rows are out of order or range, ids are out
// of a matrix's range, or a table has another dim. Other errors are those of EmbeddingTable::Lookup. After an error, outputs
// are undefined; nothing else changed.
Status LookupGroup(Span<const GroupMember> members, GroupPlan* plan, Executor* executor = nullptr);

struct GroupGradients {
  Span<const float* const> grads;        // in: [members] -> [rows, dim] of the pooled rows; null: the member has no gradient
  Span<float* const> sums;               // out: [units] -> [u, dim] of each key; null: not needed, or no gradient
  Span<float* const> weights_gradients;  // out: [members] -> [entries] of each weight; null: not needed
  Span<float* const> entries_gradients;  // out: [members] -> [entries, dim] of each clipped value; null: not needed
  Span<const int64_t> strides;           // in: [members] row stride of `grads`, in elements; empty: the dims
};

void GradientOfGroup(const GroupPlan& plan, const GroupGradients& gradients, Executor* executor = nullptr);

// The update of a unit that is a table.
struct UnitUpdate {
  int unit = 0;
  EmbeddingTable* table = nullptr;
  // Everything except keys, counts, places and tables, which come from the plan. grads: sums in the order of the plan's keys.
  // Null: the sums are computed from the gradient of the unit's member, which is then REQUIRED.
  ApplyRequest request;
};

// Trains the tables. Only grads and strides of `gradients` are used. A table gets the same bits as from a GradientOfGroup and a
// separate EmbeddingTable::Apply. Each table is updated completely or not at all. If the update of a table fails, the other
// tables are still updated; the first error is returned. A snapshot of several tables (table/snapshot/snapshot_together.h) has
// all updates of a call, or none. REQUIRES: each table occurs once
Status UpdateGroup(const GroupPlan& plan, const GroupGradients& gradients, std::vector<UnitUpdate>* updates,
                   Executor* executor = nullptr);

}  // namespace multitier

#endif  // CC_GROUP_LOOKUP_GROUP_LOOKUP_H_
