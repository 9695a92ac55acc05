// The launch functions of a device: one for each step of an operation on tables in its memory.
//
// A batch has n keys of several tables, those of table t at [ends[t - 1], ends[t]). A training lookup, step by step:
//
//   dedup      distinct keys in the order in which they first occur, with counts, and the distinct key of each occurrence
//   find       the row of each distinct key; marks keys without a row
//   compact    the list of the marked keys, in batch order: the misses
//   stage      gives each miss its staged row; decides which misses get a row of the table
//   compact    the list of those misses
//   insert     a row for each of them: a free row, or the row of a victim; lists dirty victims
//   exchange   copies dirty victims to the outbox, and staged rows to their rows in the table
//   gather     the values of the batch
//
// Between compact and stage, the host stages one row for each miss: the row of the table below, or initial values. If the
// table has no row for a miss, this operation uses the staged row.
//
// An update continues:
//
//   sum        the gradients and occurrences of each key, added in batch order
//   update     one step of the optimizer on each row; an unborn row becomes a row
//   mark       rows to take out: here the staged rows that changed
//   compact    their list
//   take out   copies them to the outbox
//
// Each result is a function of the tables and the batch: the same bits on every device and in every run.
//
// Pointers are device memory; the length of each array is in brackets. Counts that only the device knows (of distinct keys, of
// misses) are read by pointer, so that no step waits for the host. Every function returns the Status of the launch. A function
// that changes a table is one launch: if it fails, nothing ran.

#ifndef CC_DEVICE_KERNELS_KERNELS_H_
#define CC_DEVICE_KERNELS_KERNELS_H_

#include <cstdint>

#include "cc/base/status.h"
#include "cc/device/kernels/table.h"
#include "cc/device/stream.h"

namespace multitier::device {

// Scratch of one prefix sum over at most n elements, set to zero before the launch.
struct ScanScratch {
  static constexpr uint32_t kTile = 2048;
  static size_t Words(uint32_t n) { return 1 + (n + kTile - 1) / kTile; }
  uint64_t* words;  // [Words(n)]
};

struct DedupArgs {
  const int64_t* keys;   // [n]
  uint32_t n;            // at most 2^31
  const uint32_t* ends;  // [num_tables]
  uint32_t num_tables;
  uint32_t* set;      // [set_size], all kNone: an open-addressing set of positions
  uint32_t set_size;  // a power of two, at least 2 n
  uint32_t* places;   // [n] scratch
  uint32_t* numbers;  // [n] scratch
  ScanScratch scan;
  int64_t* distinct;            // out [n]
  uint32_t* distinct_tables;    // out [n]: the table of each
  uint32_t* counts;             // out [n], zero before: occurrences of each
  uint32_t* inverse;            // out [n]: the distinct key of each occurrence
  uint32_t* num_distinct;       // out
  uint64_t* entries = nullptr;  // out [n] or null: distinct key << 32 | position
};

// Keys of 32 bits, or counts.
struct WidenArgs {
  const int32_t* from;  // [n]
  int64_t* to;          // out [n]
  uint32_t n;
};

// The row of the output of each entry of a sparse batch.
struct EntryRowsArgs {
  const int64_t* indices;  // null: entry i is row i. splits: [batch + 1]. Else [entries, columns]: (row) or (row, step)
  bool splits;
  uint32_t columns;
  uint32_t entries;
  uint32_t batch;       // at least 1
  int64_t steps;        // more than 0: a sequence; the output row is row * steps + step
  int64_t* rows;        // out [entries], all in range
  uint32_t* first_bad;  // lowered to the first entry (splits: or row) that is out of order or range
};

// The keys of many members, one after the other.
struct ConcatArgs {
  struct Keys {
    const void* data;  // int64, or int32
    bool is_int32;
  };
  const Keys* keys;      // [num_members]
  const uint32_t* ends;  // [num_members]
  uint32_t num_members;
  uint32_t n;
  int64_t* out;  // out [n]
};

struct MemberCounts {
  uint32_t first;     // number of its first distinct key
  uint32_t distinct;  // distinct keys
  uint32_t misses;    // of them, without a row
};

// After dedup and find over members that each have a table of their own and at least one key: see group.cu.cc.
struct LocalizeArgs {
  const uint32_t* ends;  // [num_members]
  uint32_t num_members;
  uint32_t n;
  const uint32_t* num_distinct;
  const uint32_t* distinct_members;  // [n]
  const uint32_t* missed;            // [n]
  uint32_t* inverse;                 // in and out [n]
  uint64_t* entries;                 // out [n]: distinct key << 32 | position, both of the member
  MemberCounts* counts;              // out [num_members]
};

struct FindArgs {
  const Table* tables;
  const int64_t* keys;         // [max_keys] distinct
  const uint32_t* key_tables;  // [max_keys]
  const uint32_t* num_keys;
  uint32_t max_keys;
  uint32_t operation;  // stamped on the slots that are found
  bool stamp;
  uint8_t** rows;    // out [max_keys]: null if the table has no row for the key
  uint32_t* missed;  // out [max_keys]: 1 if the table has no row for the key, else 0
};

struct CompactArgs {
  const uint32_t* marked;  // [max_keys] 0 or 1
  const uint32_t* num_keys;
  uint32_t max_keys;
  ScanScratch scan;
  uint32_t* list;    // out [max_keys]: positions that are marked, ascending
  uint32_t* length;  // out
  // May be null. Keys and counts of those listed, and for each position that is marked its place in the list.
  const int64_t* keys = nullptr;      // [max_keys]
  const uint32_t* counts = nullptr;   // [max_keys]
  int64_t* listed_keys = nullptr;     // out [max_keys]
  uint32_t* listed_counts = nullptr;  // out [max_keys]
  uint32_t* ranks = nullptr;          // out [max_keys]
};

// For keys that Find missed: points them to their staged rows, and chooses those that insert is to place.
struct StageArgs {
  const uint32_t* num_keys;
  uint32_t max_keys;
  const uint32_t* ranks;  // [max_keys] places in the list of misses that the host staged rows for
  uint8_t* staged_rows;
  uint32_t staged_stride;
  bool insert;         // false: none is placed
  bool insert_unborn;  // false: staged rows of absent keys are not placed
  uint8_t** rows;      // in and out [max_keys]
  uint32_t* missed;    // in and out [max_keys]: 1 for those to place
};

struct Victim {
  int64_t key;
  uint32_t row;  // kNone: no row is left for this miss
  uint32_t dirty;
};

struct InsertArgs {
  const Table* tables;
  uint32_t num_tables;
  const int64_t* keys;  // distinct
  const uint32_t* key_tables;
  const uint32_t* missed;  // [max_missed]: positions of keys, ascending
  const uint32_t* num_missed;
  uint32_t max_missed;
  uint32_t operation;
  uint32_t floor;        // rows whose last operation is at least this number stay
  uint8_t* staged_rows;  // [misses, staged_stride]: headers and row data
  uint32_t staged_stride;
  uint32_t* begins;    // [num_tables] scratch: where the misses of each table begin
  uint32_t* ends;      // [num_tables] scratch: where they end
  uint32_t* bases;     // [num_tables] scratch: the number of free rows on the stack below the offered ones
  uint32_t* next;      // [max_missed] scratch
  uint32_t* offered;   // [max_missed] scratch: the free row for each miss
  uint32_t* consumed;  // [max_missed] scratch: whether the miss took it
  uint32_t* returned;  // [max_missed] scratch: number of offered rows that earlier misses did not take
  ScanScratch scan;
  uint8_t** rows;       // in and out, by position of the key: where the row of each miss is, on the device or staged
  Victim* victims;      // out [max_missed]
  uint32_t* outbox;     // out [max_missed]: place of a dirty victim's row in the outbox, in batch order; else kNone
  uint32_t* num_dirty;  // out
  const uint32_t* staged_ranks =
      nullptr;                       // by position: which staged row is the key's. Null: that of its place among the misses
  uint32_t* num_unplaced = nullptr;  // added to by exchange, or null: misses without a place
};

// The exchange launch also takes the InsertArgs of the insert launch before it.
struct ExchangeArgs {
  InsertArgs insert;
  uint8_t* outbox_rows;     // out [num_dirty, outbox_stride]: headers and row data
  uint32_t outbox_stride;   // at least the row_stride of each table
  int64_t* outbox_keys;     // out [num_dirty]
  uint32_t* outbox_tables;  // out [num_dirty]
};

struct GatherArgs {
  uint8_t* const* rows;     // by distinct key
  const uint32_t* inverse;  // [n], or null: value i is that of row i
  uint32_t n;
  uint32_t dim;         // floats of a value
  float* out;           // [n, dim]
  uint32_t stride = 0;  // floats from one value of out to the next; 0: dim
};

struct SumArgs {
  const uint64_t* entries;  // [n] of DedupArgs, ascending
  uint32_t n;
  const uint32_t* num_keys;
  uint32_t max_keys;
  const uint32_t* counts;  // [max_keys] entries of each key
  const float* grads;      // [n, dim]
  uint32_t dim;
  const int64_t* entry_occurrences;  // [n] by position, or null: one each
  uint32_t* begins;                  // [max_keys] scratch
  float* sums;                       // out [max_keys, dim]
  uint64_t* occurrences;             // out [max_keys]
  uint32_t stride = 0;               // floats from one gradient to the next; 0: dim
};

enum class PoolCombiner : int { kSum = 0, kMean = 1, kSqrtN = 2 };

// Values of a sparse batch combined to one vector a row.
struct PoolArgs {
  uint8_t* const* rows;  // [max_keys] by distinct key
  const uint32_t* num_keys;
  uint32_t max_keys;
  const uint32_t* inverse;  // [entries] the distinct key of each
  const int64_t* indices;   // [entries] the row of each, nondecreasing, in [0, batch)
  uint32_t entries;
  const float* weights;  // [entries] or null: all one
  uint32_t batch;
  uint32_t dim;
  uint32_t stride;  // floats from one row of out to the next, at least dim
  PoolCombiner combiner;
  float max_norm;    // values are clipped to it, where it is not negative
  float* norms;      // scratch [max_keys]; null where max_norm is negative
  uint32_t* splits;  // scratch [batch + 1], of the gradient too
  float* divisors;   // scratch [batch], of the gradient too
  float* factors;    // scratch [batch], of the gradient too
  float* out;        // out [batch, dim], `stride` apart
};

// The gradient of Pool: the sum over each key's entries. sum.grads: [batch, dim] of the pooled rows, pool.stride apart;
// sum.entry_occurrences is not used. Takes the PoolArgs of the launch before it. The gradient of clipping is not in it.
struct PooledSumArgs {
  PoolArgs pool;
  SumArgs sum;
};

// The gradient of each entry's weight. Takes the PoolArgs of the launch before it.
struct WeightsGradientArgs {
  PoolArgs pool;        // stride: of grads
  const float* grads;   // [batch, dim] of the pooled rows
  const float* values;  // [keys, dim] of distinct keys, before they were clipped
  float* out;           // out [entries]
};

// In place: the sums of gradients of clipped values become those of the values.
struct ClipGradientArgs {
  const float* values;  // [n, dim] before they were clipped
  float* sums;          // in and out [n, dim]
  uint32_t n;
  uint32_t dim;
  float max_norm;
};

enum class DeviceRule {
  kSgd,
  kMomentum,
  kNesterov,
  kAdagrad,
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
  bool skip_unborn;  // true: a key without a row gets none here
  uint32_t* born;    // added to: rows that were unborn
};

enum class Marked {
  kDirty,  // rows that the table below does not have as they are
  kBorn,   // rows that do not read as absent
  kUnborn,
  kAll,
};
struct MarkArgs {
  const uint32_t* num_keys;
  uint32_t max_keys;
  uint8_t* const* rows;  // [max_keys] null where there is none
  const uint8_t* begin;  // only rows in [begin, end) are marked
  const uint8_t* end;
  Marked which;
  uint32_t* marked;  // out [max_keys]
};

// Rows [first, first + n) of a table, with their keys; null for a free row.
struct RangeArgs {
  const Table* table;
  uint32_t first;
  uint32_t n;
  uint8_t** rows;      // out [n]
  int64_t* keys;       // out [n]
  uint32_t* num_keys;  // out: n
};

struct TakeOutArgs {
  const uint32_t* list;  // [max_length] positions
  const uint32_t* length;
  uint32_t max_length;
  uint8_t* const* rows;    // by position
  const int64_t* keys;     // by position
  uint32_t row_bytes;      // header included, a multiple of 16
  bool clean;              // the rows are clean afterwards, and not new
  const uint32_t* before;  // null, or how many rows are in the outbox already
  uint8_t* outbox_rows;    // out [.., row_bytes]
  int64_t* outbox_keys;    // out
};

// Listed rows leave the table without a copy.
struct ForgetArgs {
  const Table* table;
  const uint32_t* list;  // [max_length] positions
  const uint32_t* length;
  uint32_t max_length;
  uint8_t* const* rows;  // by position: rows of the table
};

// Makes all rows free. The caller has set digests to 0 and heads to kNone.
struct ResetArgs {
  const Table* table;
  uint32_t capacity;
};

// Last operations more than 2^30 operations ago become 2^30 operations ago, so that ages compare in 32 bits.
struct RenumberArgs {
  const Table* table;
  uint32_t buckets;
  uint32_t operation;
};

struct DeviceKernels {
  Status (*dedup)(Stream stream, const DedupArgs& args);
  Status (*find)(Stream stream, const FindArgs& args);
  Status (*compact)(Stream stream, const CompactArgs& args);
  Status (*chain)(Stream stream, const InsertArgs& args);  // insert, step by step: see insert.cu.cc
  Status (*place)(Stream stream, const InsertArgs& args);
  Status (*reclaim)(Stream stream, const InsertArgs& args);
  Status (*exchange)(Stream stream, const ExchangeArgs& args);
  Status (*gather)(Stream stream, const GatherArgs& args);
  Status (*stage)(Stream stream, const StageArgs& args);
  Status (*sum)(Stream stream, const SumArgs& args);
  Status (*pool)(Stream stream, const PoolArgs& args);
  Status (*pooled_sum)(Stream stream, const PooledSumArgs& args);
  Status (*update)(Stream stream, DeviceRule rule, const UpdateArgs& args);
  Status (*range)(Stream stream, const RangeArgs& args);
  Status (*mark)(Stream stream, const MarkArgs& args);
  Status (*take_out)(Stream stream, const TakeOutArgs& args);
  Status (*forget)(Stream stream, const ForgetArgs& args);
  Status (*count_forgotten)(Stream stream, const ForgetArgs& args);  // after forget
  Status (*reset)(Stream stream, const ResetArgs& args);
  Status (*renumber)(Stream stream, const RenumberArgs& args);
  Status (*widen)(Stream stream, const WidenArgs& args);
  Status (*concat)(Stream stream, const ConcatArgs& args);
  Status (*localize)(Stream stream, const LocalizeArgs& args);  // after dedup and find
  Status (*entry_rows)(Stream stream, const EntryRowsArgs& args);
  Status (*weights_gradient)(Stream stream, const WeightsGradientArgs& args);
  Status (*clip_gradient)(Stream stream, const ClipGradientArgs& args);
};

// The kernels compiled by g++, for the emulated device, and the kernels compiled by nvcc.
const DeviceKernels& EmulatedKernels();
const DeviceKernels& CudaKernels();  // only in CUDA builds

}  // namespace multitier::device

#endif  // CC_DEVICE_KERNELS_KERNELS_H_
