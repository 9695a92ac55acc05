// What the launches of values, gradients and updates get: the members of a lookup, and the rule that trains their rows.
// kernels.h says when each step runs, and what holds for all pointers.

#ifndef CC_DEVICE_KERNELS_MEMBERS_H_
#define CC_DEVICE_KERNELS_MEMBERS_H_

#include <cstdint>

#include "cc/base/host_device.h"
#include "cc/device/kernels/table.h"
#include "cc/row/dtype.h"

namespace multitier::device {

enum class PoolCombiner : int { kSum = 0, kMean = 1, kSqrtN = 2 };

// One member of a lookup: its keys, the row of each entry, and its output. An entry is a key and its weight.
//
// If `values` is not null, every entry has a value of its own: max_keys is the number of entries, and rows, first, num_keys,
// misses and inverse are null.
struct OutputMember {
  const float* values;       // [entries, dim] or null
  uint8_t* const* rows;      // [first + distinct keys] of the batch
  const uint32_t* first;     // the number of its first distinct key in it; null: 0
  const uint32_t* num_keys;  // distinct keys
  const uint32_t* misses;    // of them, without a row; null: none. If there are any, the member gets no values
  uint32_t max_keys;
  DType value_dtype;        // of the rows
  const uint32_t* inverse;  // [entries] the distinct key of each, from 0
  uint32_t entries;

  bool pooled;  // false: value i is that of entry i, and what follows up to num_rows is not used
  // Null: entry i is row i. splits_given: [batch + 1]. Else [entries, columns]: (row) or (row, step)
  const int64_t* indices;
  bool splits_given;
  uint32_t columns;
  uint32_t batch;
  int64_t steps;         // more than 0: a sequence; the output row is row * steps + step
  uint32_t* first_bad;   // lowered to the first entry (splits_given: or row) out of order or range; then there are no values
  int64_t* entry_rows;   // scratch [entries], all in range
  uint32_t* splits;      // scratch [num_rows + 1]
  float* divisors;       // scratch [num_rows]
  float* factors;        // scratch [num_rows]
  const float* weights;  // [entries] or null: all one
  PoolCombiner combiner;
  float max_norm;  // values are clipped to it, where it is not negative
  float* norms;    // scratch [max_keys]; null where max_norm is negative

  uint32_t num_rows;  // of the output
  uint32_t dim;
  uint32_t stride;   // floats from one row of out to the next, at least dim
  float* out;        // out [num_rows, dim], `stride` apart
  float* unclipped;  // out [max_keys, dim] or null: the values of the distinct keys
};

// Items of work are numbered through all members; those of member m end at ends[m]. How many a member has depends on the step:
// member_items.h.
struct OutputArgs {
  const OutputMember* members;  // [num_members]
  const uint32_t* ends;         // [num_members]
  uint32_t num_members;
  uint32_t items;
  bool halves = false;  // of values: the rows of all members that have items have values of 16 bits; else of 32
};

// Gradients of a key with more entries are summed in pieces of this number, and the sums of the pieces added in order. So no
// chain of additions is long.
constexpr uint32_t kPieceEntries = 256;

// At most, of n entries: the pieces behind the first ones of their keys.
MT_HOST_DEVICE uint32_t LaterPieces(uint32_t n) { return n == 0 ? 0 : (n - 1) / kPieceEntries; }

// The gradients of one member, summed by distinct key. If every entry has a value of its own (`values`), the gradient of each:
// entries, begins, counts and keys are null, and num_keys is the number of entries.
struct GradientMember {
  OutputMember output;      // of the lookup
  const uint64_t* entries;  // of the batch, ascending
  uint32_t first_entry;     // position in the batch of the member's first one
  const uint32_t* begins;   // [num_keys] in entries
  const uint32_t* counts;   // [num_keys]
  const int64_t* keys;      // [num_keys]
  uint32_t num_keys;
  const float* grads;   // [num_rows, dim] of the output, or null: only keys and counts are wanted
  uint32_t stride;      // floats from one row of grads to the next
  float* sums;          // out [num_keys, dim] or null
  int64_t* keys_out;    // out [num_keys] or null
  int64_t* counts_out;  // out [num_keys] or null: occurrences
  float* weight_grads;  // out [entries] or null: the gradient of each weight
  float* pieces;        // scratch [LaterPieces(entries), dim]; null: there are none, or no sums
};
MT_HOST_DEVICE uint32_t LaterPieces(const GradientMember& m) { return m.pieces != nullptr ? LaterPieces(m.output.entries) : 0; }

// As OutputArgs.
struct GradientArgs {
  const GradientMember* members;
  const uint32_t* ends;
  uint32_t num_members;
  uint32_t items;
  bool given_values = false;  // of all members: see GradientMember
  uint32_t most_dim = 0;      // of the members; 0: not known
};

enum class DeviceRule {
  kSgd,
  kMomentum,
  kNesterov,
  kAdagrad,
  kAdagradEpsilon,
  kRowwiseAdagrad,
  kAdam,
  kSparseRmsProp,
  kAdamW,
  kRmsProp,
  kCenteredRmsProp,
  kFtrl,
  kFtrlShrinkage,
  kFtrlPower,
  kFtrlPowerShrinkage,
};

struct UpdateArgs {
  static constexpr int kMaxHyper = 8, kMaxSlots = 3;
  uint8_t* const* rows;  // [max_keys]
  const uint32_t* num_keys;
  uint32_t max_keys;
  const float* sums;            // [max_keys, dim]
  const uint64_t* occurrences;  // [max_keys]
  uint32_t dim;
  uint32_t slot_offsets[kMaxSlots];  // bytes from the row data
  float hyper[kMaxHyper];
  int64_t version;
  bool skip_provisional;             // true: a key without a row gets none here
  uint32_t* created;                 // added to: rows that were provisional
  const uint32_t* counts = nullptr;  // [max_keys] in place of occurrences, where these are null
  const Table* ranked = nullptr;     // the table of the rows, if it has ranks
  DType value_dtype = DType::kFloat32;
  bool stochastic = false;        // values of 16 bits are rounded by the bits of the key and the step
  const int64_t* keys = nullptr;  // [max_keys] where `stochastic`
  int64_t step = 0;
};

// Members of one rule. A member's items are its max_keys; num_keys is not used.
struct UpdateMembersArgs {
  const UpdateArgs* members;
  const uint32_t* ends;
  uint32_t num_members;
  uint32_t items;
  bool halves = false;  // values have 16 bits; else 32
};

}  // namespace multitier::device

#endif  // CC_DEVICE_KERNELS_MEMBERS_H_
