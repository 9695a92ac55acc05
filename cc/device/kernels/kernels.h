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
// A lookup of a group of tables (group_find.h) has these steps, each one launch for all members but the first, which is two:
//
//   dedup        of the keys of all members; only distinct keys
//   find         as above
//   localize     what a batch of each member alone would have: numbers, counts. Lists the misses of all members
//   entry rows   the row of the output that each entry belongs to, checked
//   scales       what values are divided by
//   values       plain or pooled
//
// If keys miss, find to exchange of all members follow, and their values (group_misses.cc). Then its gradient and update:
//
//   begins, gradients, corrections, update members
//
// Where every row of the table is in HBM and initial values are functions of the key, a miss needs no host: find, compact,
// insert without victims, and
//
//   bear       makes the new rows in their places
//
// Between compact and stage, the host stages one row for each miss: the row of the table below, or initial values. If the
// table has no row for a miss, this operation uses the staged row.
//
// An update continues:
//
//   sum        the gradients and occurrences of each key, added in batch order: see kPieceEntries
//   update     one step of the optimizer on each row; a provisional row becomes a row
//   mark       rows to take out: here the staged rows that changed
//   compact    their list
//   take out   copies them to the outbox
//
// Values of 16 bits lie in rows as they do below (cc/row/row_layout.h), so rows move as bytes. Gather and values widen them to
// floats. An update widens, computes in registers, and rounds once, stochastically with the CPU's random bits. Bear rounds what
// it computes. All but bear have code of their own for such rows: that of float32 stays as small as without them.
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
#include "cc/device/kernels/members.h"
#include "cc/device/kernels/misses.h"
#include "cc/device/kernels/table.h"
#include "cc/device/stream.h"
#include "cc/row/computed_value.h"
#include "cc/row/dtype.h"

namespace multitier::device {

// Scratch of one prefix sum over at most n elements, set to zero before the launch.
struct ScanScratch {
  static constexpr uint32_t kTile = 2048;
  static size_t Words(uint32_t n) { return 1 + (n + kTile - 1) / kTile; }
  uint64_t* words;  // [Words(n)]
};

// Where the keys of one table are.
struct KeySource {
  const void* data;  // int64, or int32
  bool is_int32;
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
  uint32_t* inverse;            // out [n]: the distinct key of each occurrence. Null: nor counts nor entries are wanted
  uint32_t* num_distinct;       // out
  uint64_t* entries = nullptr;  // out [n] or null: distinct key << 32 | position
  // Null: `keys` is given. Else the keys of each table are read from there and copied to `copied`, which is `keys`.
  const KeySource* sources = nullptr;  // [num_tables]
  int64_t* copied = nullptr;           // out [n]
};

// Keys of 32 bits, or counts.
struct WidenArgs {
  const int32_t* from;  // [n]
  int64_t* to;          // out [n]
  uint32_t n;
};

// After dedup and find over members that each have a table of their own: see group.cu.cc.
struct LocalizeArgs {
  DedupArgs dedup;         // of the launch before it, with its inverse, counts and entries
  uint8_t* const* rows;    // [n]
  const uint32_t* missed;  // [n]
  MemberCounts* members;   // in and out [num_tables], zero before, but first_bad
  ScanScratch scan;
  int64_t* listed_keys;        // out [n]: the misses of all members
  uint32_t* list;              // out [n]: their numbers, ascending
  uint32_t* ranks;             // out [n]: the place of each miss in the list
  uint32_t* length = nullptr;  // out, or null: of the list
};

struct FindArgs {
  const Table* tables;
  const int64_t* keys;         // [max_keys] distinct
  const uint32_t* key_tables;  // [max_keys]
  const uint32_t* num_keys;
  uint32_t max_keys;
  uint32_t operation;  // stamped on the slots that are found
  bool stamp;
  uint8_t** rows;           // out [max_keys]: null if the table has no row for the key
  uint32_t* missed;         // out [max_keys]: 1 if the table has no row for the key, else 0
  bool keeps_pins = false;  // a prefetch: is no use of pinned rows
  // Null, or raised by the number of pinned rows that this is the use of: those of table t at used_pins[t * used_pins_stride].
  uint32_t* used_pins = nullptr;
  uint32_t used_pins_stride = 0;
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
  bool insert;              // false: none is placed
  bool insert_provisional;  // false: staged rows of absent keys are not placed
  uint8_t** rows;           // in and out [max_keys]
  uint32_t* missed;         // in and out [max_keys]: 1 for those to place
  // Null, or for several tables [tables]: in place of staged_stride and the two flags.
  const StagedMember* members = nullptr;
  const uint32_t* key_tables = nullptr;  // [max_keys]
  const uint32_t* counts = nullptr;      // [max_keys]
  PlacedCounts* placed = nullptr;        // added to: absent_entries [tables]
};

struct Victim {
  int64_t key;
  uint32_t row;    // kNone: no row is left for this miss
  uint32_t flags;  // of the row that leaves
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
  // By position: which staged row is the key's. Null: that of its place among the misses.
  const uint32_t* staged_ranks = nullptr;
  const StagedMember* staged_members = nullptr;  // as in StageArgs
  PlacedCounts* placed = nullptr;                // null, or [num_tables], zero before; without dirty_victims and absent_entries
  bool evicts = true;                            // false: no row leaves for another
};

// What new rows of a table begin with, where their values are functions of their keys.
struct Birth {
  static constexpr uint32_t kMostColumns = 4;
  uint32_t dim;
  ComputedColumns columns[kMostColumns];  // the last one ends at dim
  DType value_dtype;
  uint8_t* row;  // [row_stride]: header and data of a new row; the value is not read
};

// Makes provisional rows for the misses that insert has placed, in place of an exchange. A key without a place stays missed.
struct BearArgs {
  InsertArgs insert;       // of the launches before it, which evicted none. The staged row of each miss is that of its Birth
  const Birth* births;     // [num_tables]
  const uint32_t* counts;  // by position: occurrences
  uint32_t* missed;        // in and out, by position
  // Of table t at [t * table_stride]:
  uint32_t* born;          // added to: new rows
  uint32_t* born_entries;  // added to: their occurrences
  uint32_t* misses;        // null, or lowered by the new rows
  uint32_t table_stride;
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
  const uint32_t* inverse;  // [n]
  uint32_t n;
  uint32_t dim;  // elements of a value
  float* out;    // [n, dim]
  DType value_dtype = DType::kFloat32;
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
  float* pieces;                     // scratch [LaterPieces(n), dim]
  uint64_t* piece_occurrences;       // scratch [LaterPieces(n)]
};

// Where the entries of each key begin.
struct BeginsArgs {
  const uint64_t* entries;  // [n] of DedupArgs, ascending
  uint32_t n;
  uint32_t* begins;  // out, by distinct key
};

enum class Marked {
  kDirty,  // rows that the table below does not have as they are
  kBorn,   // rows that do not read as absent
  kProvisional,
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

// The list of all rows of a table that the table below does not have as they are, ascending. It stays until a row enters or
// leaves the table: see listed.cu.cc.
struct ListDirtyArgs {
  const Table* table;
  uint32_t capacity;  // of the table
  ScanScratch scan;   // of as many elements
  uint32_t* length;   // out
};

// Rows [first, first + n) of that list. They are clean afterwards, and not new.
struct TakeListedArgs {
  const Table* table;
  uint32_t first;
  uint32_t n;
  uint8_t* outbox_rows;  // out [n, row_stride of the table]
  int64_t* outbox_keys;  // out [n]
};

struct TakeOutArgs {
  const uint32_t* list;  // [max_length] positions
  const uint32_t* length;
  uint32_t max_length;
  uint8_t* const* rows;    // by position
  const int64_t* keys;     // by position
  uint32_t row_bytes;      // header included, a multiple of 16
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
  uint8_t* const* rows;             // by position: rows of the table
  uint32_t* provisional = nullptr;  // null, or added to: provisional rows among them
};

// Makes all rows free. The caller has set digests to 0 and heads to kNone.
struct ResetArgs {
  const Table* table;
  uint32_t capacity;
};

// A table moves to another one, which was reset and has rows of the same stride, or wider ones. Row r becomes row
// r - first_row.
struct MoveArgs {
  const Table* from;
  const Table* to;
  uint32_t from_capacity;
  uint32_t to_buckets;
  uint32_t* left_out;                // added to: keys that have no row in `to`: rows before first_row, or their bucket is full
  const uint8_t* new_row = nullptr;  // [row_stride of to]: what is behind the old row in wider ones
  // Of a table that gets fewer rows. Else 0 and null.
  uint32_t first_row = 0;
  uint32_t* left_provisional = nullptr;  // added to: provisional rows among those that are left out
  uint32_t* free_marks = nullptr;        // out [capacity of to]: 1 for the rows that free_rows is to list
};

// Pins the rows that keys have in the table.
struct PinArgs {
  const Table* table;
  uint8_t* const* rows;  // [max_keys] of distinct keys
  const uint32_t* num_keys;
  uint32_t max_keys;
  uint32_t operation;
  const uint32_t* later;  // [num_later] ascending: operations whose pins end later. Their rows stay theirs
  uint32_t num_later;
  uint32_t* pinned;  // added to: rows that were not pinned
  bool renews;       // true: rows that are not pinned stay so
};

// Releases pinned rows. A released row was last used when it was prefetched.
struct SweepPinsArgs {
  const Table* table;
  uint32_t buckets;
  uint32_t operation;
  const uint32_t* kept;  // [num_kept] ascending: operations whose pins stay
  uint32_t num_kept;
  uint32_t* pinned;  // [num_kept] added to: rows that stay pinned, of each operation
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
  Status (*bear)(Stream stream, const BearArgs& args);  // or this, after reclaim
  Status (*gather)(Stream stream, const GatherArgs& args);
  Status (*stage)(Stream stream, const StageArgs& args);
  Status (*sum)(Stream stream, const SumArgs& args);
  Status (*update)(Stream stream, DeviceRule rule, const UpdateArgs& args);
  Status (*update_members)(Stream stream, DeviceRule rule, const UpdateMembersArgs& args);
  Status (*list_dirty)(Stream stream, const ListDirtyArgs& args);
  Status (*take_listed)(Stream stream, const TakeListedArgs& args);  // after list_dirty
  Status (*mark)(Stream stream, const MarkArgs& args);
  Status (*take_out)(Stream stream, const TakeOutArgs& args);
  Status (*forget)(Stream stream, const ForgetArgs& args);
  Status (*count_forgotten)(Stream stream, const ForgetArgs& args);  // after forget
  Status (*reset)(Stream stream, const ResetArgs& args);
  Status (*move_index)(Stream stream, const MoveArgs& args);
  Status (*move_rows)(Stream stream, const MoveArgs& args);
  Status (*renumber)(Stream stream, const RenumberArgs& args);
  Status (*pin)(Stream stream, const PinArgs& args);
  Status (*sweep_pins)(Stream stream, const SweepPinsArgs& args);
  Status (*widen)(Stream stream, const WidenArgs& args);
  Status (*pieces)(Stream stream, const PiecesArgs& args);
  Status (*localize)(Stream stream, const LocalizeArgs& args);  // after dedup and find
  Status (*entry_rows)(Stream stream, const OutputArgs& args);
  Status (*scales)(Stream stream, const OutputArgs& args);  // after entry_rows
  Status (*values)(Stream stream, const OutputArgs& args);  // after scales
  Status (*begins)(Stream stream, const BeginsArgs& args);
  Status (*gradients)(Stream stream, const GradientArgs& args);    // after begins
  Status (*corrections)(Stream stream, const GradientArgs& args);  // after gradients: of pieces, clipping, and divisors
};

// The kernels compiled by g++, for the emulated device, and the kernels compiled by nvcc.
const DeviceKernels& EmulatedKernels();
const DeviceKernels& CudaKernels();  // only in CUDA builds

}  // namespace multitier::device

#endif  // CC_DEVICE_KERNELS_KERNELS_H_
