// EmbeddingTable: 64-bit keys to rows [value | slot 1 | ... | slot n] over an ordered list of tiers.
//
//              keys [n]
//                 |  partition by shard, dedup (KeyBatch)
//      +----------+-----------+
//   shard 0     shard 1  ... shard s-1       a lock each, taken a constant number of times per batch
//   +-------+
//   | index |  one 8-byte word per key: which tier, which location
//   +-------+
//   | DRAM  |  slab of rows; the only place where rows are read and updated
//   +-------+
//       :         demotion (demoter.h) and promotion (tier_reader.h), batched
//   lower tiers   none, one or two per table, shared by its shards
//
// Life of a batch:
//   Lookup   reads rows or initial values; creates no key and changes nothing but placement.
//   Apply    1. gather: every key of the batch is brought into DRAM and pinned. A key without a row gets an uncommitted row:
//               it holds its initial value and reads as absent. All I/O and all allocation happen here. After an error
//               the uncommitted rows are removed and nothing has changed.
//            2. update: memory only, cannot fail. Sums each key's gradients in batch order, applies the rule once, adds
//               the occurrences to the frequency, sets the version, unpins.
//            3. trim: rows beyond the DRAM budget are demoted to the first lower tier. Rows beyond the budget of that tier
//               are demoted to the second. If a trim fails, the rows stay in memory. Its error is sticky: operations that
//               need room return it until a retry succeeds, and so does Drain().
//
// Copies. If the last tier has no size, it keeps the record of a promoted row until the row changes. So a clean row is demoted
// without a write. Every other tier is exclusive: a record leaves it when its row is promoted.
//
// Life of a table over a durable tier (SSDHASH):
//   adopt      Create takes over what the tier recovered: one record a key, the newest, with frequency, version and columns
//   Flush      writes every row that is only in memory, or in a tier that does not survive, to the last tier, and syncs it.
//              Updates that ended before are then acknowledged. Rows stay where they are, clean
//   keep       a flush when the table is destroyed: a graceful close loses nothing
// A record that the tier wrote and synced by itself (a sealed segment of SSDHASH) is acknowledged, too. After a crash a key
// reads as its newest acknowledged record. It may be older than the row in memory was. It is never torn, and a key that was
// removed before a Flush does not return. A table does not recover recency, the counts of a Bloom filter, and the keys that a
// counter filter has not admitted: durable tiers do not store them. A last tier with a size keeps no copies: a Flush moves all
// rows into it, so they must fit. When a row is promoted afterwards, its record stays for recovery until the row is written
// again. Such records come on top of the tier's size.
//
// This is the interface, and the life of a table in host memory (host_table.h). A table in HBM (hbm/hbm_table.h) stands above
// one and keeps copies of rows.
//
// A table in host memory owns its rows, index, filter and tiers. Two things are not bounded: one batch for each running
// operation, above the DRAM budget; and the entries of the counter filter for keys that are not admitted yet (24 bytes per
// key).
//
// Thread-safe: every method from any thread. These run alone: AddSlots, Clear, and a Flush if the last tier has a size. They
// wait until a snapshot and the running operations have ended, and hold new operations back. A snapshot holds operations back
// only while it marks its moment. Everything else runs concurrently.

#ifndef CC_TABLE_API_EMBEDDING_TABLE_H_
#define CC_TABLE_API_EMBEDDING_TABLE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/executor.h"
#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/optimizer/update_rule.h"
#include "cc/row/row_layout.h"
#include "cc/table/api/absent_values.h"
#include "cc/table/api/table_admin.h"
#include "cc/table/api/table_stats.h"

namespace multitier {

// What an apply is counted as.
struct NotedApply {
  int64_t version = 0;  // that its rows get
  int64_t number = 0;   // among the applies of the table: stochastic rounding depends on it
};

// One apply: rows `keys` are updated once each with the sum of their gradients.
struct ApplyRequest {
  Span<const int64_t> keys;      // [n], repeats allowed
  const float* grads = nullptr;  // [n, dim]
  Span<const int64_t> counts;    // [n] occurrences of each entry, or empty: one each
  // [n] the table of each entry decides what a new row begins with. For a repeated key, its first entry decides. Empty or
  // kNoTable: unknown. If there are several tables, such a key must have a row.
  Span<const uint16_t> tables;
  const UpdateRule* rule = nullptr;
  // Names of the columns that serve as rule->slots(), in that order. REQUIRES: they exist (see AddSlots).
  std::vector<std::string> slot_columns;
  std::vector<float> hyper;  // rule->hyperparameters(), in that order
  // Keys are distinct; skips deduplication. REQUIRES: no duplicates
  bool distinct = false;
  // [n] the places of these keys that Lookup gave, or empty. A hint: if the row at a place is no longer the key's, the index is
  // searched.
  Span<const uint32_t> places;
  int64_t global_step = -1;  // the step. -1: the table's own count of applies. It becomes the version if the score is kStep
  const NotedApply* noted = nullptr;  // null, or of an apply that was noted (TableBelow::NoteApply) and is not counted again
  NotedApply* note = nullptr;         // out, or null: of this apply
  int64_t* refused = nullptr;         // out, or null: new keys that got no row (on_full, refuse_colder)
};

class EmbeddingTable : public TableAdmin {
 public:
  // InvalidArgument if an option is out of range: one message that names expected and found. ResourceExhausted if there is not
  // enough memory. An error leaves nothing behind.
  static Result<std::unique_ptr<EmbeddingTable>> Create(TableOptions options);

  int dim() const { return options().dim; }
  // The layout as of now (columns are only ever appended).
  virtual std::shared_ptr<const RowLayout> layout() const = 0;

  // Writes the value of keys[i] to out + i * stride: the row's, or what AbsentValues gives for a key without a row. Keys may
  // repeat. Errors: InvalidArgument (CheckTables), ResourceExhausted (CheckMemory), a lower tier's I/O. places (may be null)
  // receives where each row was found, for ApplyRequest::places; kNoPlace: not in DRAM.
  static constexpr uint32_t kNoPlace = 0xffffffffu;
  virtual Status Lookup(Span<const int64_t> keys, float* out, Executor* executor = nullptr,  // out: [n, dim]
                        uint32_t* places = nullptr,                                          // places: [n]
                        int64_t stride = 0,                                                  // in elements, >= dim; 0: dim
                        ReadFor reason = ReadFor::kTraining,
                        // [n] the table of each key decides what a key without a row reads. For a repeated key, its first
                        // entry decides. May be empty if there is one table (CheckTables)
                        Span<const uint16_t> tables = {}) = 0;

  // Like Lookup, without its effects: no row moves or counts as used, and no hits and misses are counted.
  virtual Status Peek(Span<const int64_t> keys, float* out, Span<const uint16_t> tables = {}) = 0;  // out: [n, dim]

  // InvalidArgument unless there is a table number, in range, for each of n keys. With one table there may be none. The
  // message names the first that is out of range.
  Status CheckTables(Span<const uint16_t> tables, size_t n) const;

  virtual const AbsentValues& absent_values() const = 0;

  // A hint: brings rows up from lower tiers and keeps them in DRAM until their next lookup or apply, until timeout_us have
  // passed, or until ReleasePrefetched(). If a row is kept already, the later timeout holds. Creates no key. At most a quarter
  // of the DRAM budget is kept in this way. Further rows stay where they are. `pinned` (may be null): how many rows this call
  // keeps that were not kept before.
  virtual Status Prefetch(Span<const int64_t> keys, uint64_t timeout_us, int64_t* pinned) = 0;
  virtual void ReleasePrefetched() = 0;

  // See ApplyRequest and the class comment. InvalidArgument before anything changes: unknown slot column, sizes that differ,
  // hyperparameter out of range, counts < 0. An entry of count 0 trains but adds nothing to the frequency.
  virtual Status Apply(const ApplyRequest& request, Executor* executor = nullptr) = 0;

  // Makes sure that the columns exist. New ones widen every row and hold their initial value. AlreadyExists if a column of that
  // name has another dim. Unimplemented if one is not float32. O(rows) if a column is added.
  virtual Status AddSlots(Span<const ColumnSpec> slots) = 0;

  // Occurrences trained on; 0 where the key has no row (a counted key: its count).
  virtual Status Frequency(Span<const int64_t> keys, int64_t* out) = 0;  // out: [n]
  // Version that the last update set: its step, unless the score is another; -1 where the key has no row.
  virtual Status Version(Span<const int64_t> keys, int64_t* out) = 0;  // out: [n]
  // The score of each key: its frequency or its version (TableOptions::score).
  Status ScoreOf(Span<const int64_t> keys, int64_t* out);  // out: [n]
  // The score that updates set from now on. *decreased: this is the first score below the one before. InvalidArgument
  // unless the score is custom. Updates are FailedPrecondition before the first call.
  virtual Status SetScore(int64_t score, bool* decreased) = 0;
  // 0 the first tier (DRAM where it is named), 1 the next, and so on; -1 where the key has no row.
  virtual Status LookupTier(Span<const int64_t> keys, int32_t* out) = 0;  // out: [n]

  // Removes keys: row, frequency, version, count (of a Bloom filter: its estimate). Absent keys are skipped; keys whose record
  // is damaged are removed, too. `removed` (may be null): how many had a row. A removal that a tier refuses is repeated before
  // any other row of the shard is written. Until it succeeds, its error is the sticky error (Drain), and Flush fails.
  virtual Status Remove(Span<const int64_t> keys, int64_t* removed) = 0;

  // Of the last apply that ended. Zero in a table in HBM.
  virtual UpdateCounts LastUpdate() const = 0;

  virtual int64_t TotalCount() const = 0;
  // The newest version that an apply or import has set; -1 before the first. Expiry at a save takes it as the present step.
  virtual int64_t NewestStep() const = 0;

 protected:
  // Takes out the keys that have a row.
  Status DropPresent(std::vector<int64_t>* keys);
};

}  // namespace multitier

#endif  // CC_TABLE_API_EMBEDDING_TABLE_H_
