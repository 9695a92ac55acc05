// EmbeddingTable::Impl: the table's state, and the operations' steps, which live in
//
//   embedding_table.cc   creation, options, slots, statistics, the public methods' checks
//   lookup.cc            Lookup
//   apply.cc             Apply and its update
//   gather.cc            gather: rows into DRAM, pinned, and its undo
//   promote.cc           reads from the lower tier: pending words, verification, installation
//   demote.cc            Trim
//   forget.cc            Frequency, Version, LookupTier, Remove, Expire, Clear
//   transfer.cc          Export, Scan, Import
//
// Locks, outermost first:
//   gate_          entered by every operation; closed by AddSlots, Clear, Export
//   Shard::mutex   exclusive: one at a time, never two; a lookup takes all, shared, in order. No I/O while held
//   trim_mutex_    the sticky error of a failed trim; nothing is taken inside it
// A word is pending only while a running thread holds it: mark, read and install happen in one call (Promote), all own
// words are resolved before others' are waited for, and no room is waited for at all.

#ifndef CC_TABLE_TABLE_IMPL_H_
#define CC_TABLE_TABLE_IMPL_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/base/executor.h"
#include "cc/base/gate.h"
#include "cc/policy/counting_bloom_filter.h"
#include "cc/table/embedding_table.h"
#include "cc/table/key_batch.h"
#include "cc/table/shard.h"

namespace multitier {

class EmbeddingTable::Impl {
 public:
  explicit Impl(TableOptions options);
  ~Impl();

  Status Init();

  Status Lookup(Span<const int64_t> keys, float* out, Executor* executor);
  Status Apply(const ApplyRequest& request, Executor* executor);
  Status AddSlots(Span<const ColumnSpec> slots);
  Status Remove(Span<const int64_t> keys, int64_t* removed);
  Status Expire(int64_t step, int64_t* expired);
  Status Clear();
  Result<Rows> Export(bool all_columns);
  Result<Rows> Scan(uint64_t cursor, int64_t max_rows, bool all_columns, uint64_t* next);
  Status Import(const Rows& rows);
  TableStats Stats();
  Status Drain();
  int64_t TotalCount();
  int64_t NewestStep() const { return newest_step_.load(); }

  Status Frequency(Span<const int64_t> keys, int64_t* out);
  Status Version(Span<const int64_t> keys, int64_t* out);
  Status LookupTier(Span<const int64_t> keys, int32_t* out);

  // What Frequency, Version and LookupTier ask of a key.
  struct KeyFacts {
    int64_t frequency = 0;
    int64_t version = -1;
    int32_t tier = -1;
  };
  template <typename Report>
  Status Facts(Span<const int64_t> keys, Report report);

  // FailedPrecondition in a process forked from the one that made the table.
  Status CheckProcess() const;

  const TableOptions& options() const { return options_; }
  std::shared_ptr<const RowLayout> layout() const;

 private:
  // A key that memory cannot answer: found in the lower tier (or not at all) by Promote.
  struct BelowKey {
    int64_t key = 0;
    uint64_t hash = 0;
    int shard = 0;
    uint32_t entry = 0;               // of the caller's batch
    enum Outcome { kUnresolved, kInDram, kRead, kCounted, kAbsent, kSettled } outcome = kUnresolved;
    RowHeader* row = nullptr;         // kInDram under Promotion::kPin: pinned
    KeyFacts facts;                   // kRead, kInDram, kCounted
    std::vector<uint8_t> data;        // kRead: the row data; kInDram under kCopy: likewise
    std::vector<uint32_t> excluded;   // locations below that hold another key
    uint32_t location = 0;            // of the record being read
    uint32_t pending_id = 0;
    uint64_t seen_resolutions = 0;    // of the shard, when another operation held the word
  };
  enum class Promotion {
    kPin,    // bring the row into DRAM, beyond the budget if need be, and pin it
    kCopy,   // copy the row data; install the row where there is room
    kFacts,  // only frequency, version and tier; nothing moves
  };
  // Takes over a key that memory answers (row, counted entry or nothing), under the lock of its shard.
  using Settle = std::function<Status(Shard*, BelowKey*, const Found&)>;
  // Resolves every key; `settle` may be null. On an error no key is pinned by this call (what settle did is the caller's to
  // undo) and every word is as it was.
  Status Promote(std::vector<BelowKey>* keys, Promotion promotion, const Settle* settle);
  Status MarkPending(std::vector<BelowKey>* keys, const std::vector<size_t>& unresolved, Promotion promotion,
                     const Settle* settle, std::vector<size_t>* mine, std::vector<size_t>* theirs);
  void AnswerFromMemory(BelowKey* key, const Found& found, Promotion promotion);
  Status Install(BelowKey* key, const ReadRecord& record, const Status& read, Promotion promotion);
  void Unpin(BelowKey* key);

  // Entries of a batch as gather leaves them: what update works on. A row (pinned), a counted entry (pinned), or nothing
  // (a key that may only be counted by a filter that keeps no entry).
  struct Gathered {
    enum Kind : uint8_t { kNothing, kRow, kCountedKey };
    std::vector<RowHeader*> rows;      // [n] by entry: kRow
    std::vector<Kind> kinds;           // [n] by entry
  };
  struct ApplyContext {
    KeyBatch* batch = nullptr;
    Span<const int64_t> counts;
    bool admit_all = false;  // Import: what is imported was admitted before
    Status no_room;          // the sticky error: nothing may be created or promoted
    uint32_t stamp = 0;      // recency of this operation; 0 where nothing is ever demoted
    Gathered* gathered = nullptr;
    std::vector<std::vector<uint32_t>> below;  // [shards] entries that memory cannot answer

    int64_t Occurrences(uint32_t entry) const {
      int64_t n = 0;
      for (uint32_t p = batch->first_position(entry); p != KeyBatch::kEnd; p = batch->next(p)) {
        n += counts.empty() ? 1 : counts[p];
      }
      return n;
    }
  };
  struct UpdateContext {
    ApplyContext* gather;
    const ApplyRequest* request;
    const std::vector<uint32_t>& slot_offsets;
    int64_t version;
  };
  Status Gather(ApplyContext* context, Executor* executor);
  Status GatherShard(ApplyContext* context, int shard);
  // The steps of gather for one key of each sort, under the shard's lock.
  Status GatherCounted(ApplyContext* context, Shard* shard, uint32_t entry, const Found& found);
  Status GatherAbsent(ApplyContext* context, Shard* shard, const std::vector<uint32_t>& absent);
  Status GatherBelow(ApplyContext* context);
  // Room for n more rows in DRAM, or the error that says why not.
  Status TakeRoom(ApplyContext* context, Shard* shard, size_t n);
  void ResetRow(Shard* shard, RowHeader* row);          // value and slots as at birth
  void UndoShard(ApplyContext* context, int shard);
  void UpdateShard(const UpdateContext& update, int shard);
  void CountKey(ApplyContext* context, Shard* shard, uint32_t entry, int64_t version);
  // A newborn becomes a row.
  void BearRow(Shard* shard, RowHeader* row);
  // Marks a pinned row as changed, and unpins it.
  void FinishChange(RowHeader* row, uint32_t stamp, std::vector<KeyLocation>* gone_below);
  void UnpinRow(Shard* shard, RowHeader* row);
  void UnpinCounted(Shard* shard, int64_t key, uint64_t hash);

  // Positions of a batch that a slice of a lookup could not answer.
  struct Missed {
    std::vector<size_t> absent;
    std::vector<size_t> below;  // perhaps in the lower tier
  };
  // REQUIRES: every shard's lock is held, shared.
  void LookupSlice(Span<const int64_t> keys, size_t begin, size_t end, uint32_t stamp, float* out, Missed* missed);
  void FillAbsent(Span<const int64_t> keys, const std::vector<size_t>& positions, float* out) const;
  Status LookupBelow(Span<const int64_t> keys, const std::vector<size_t>& below, float* out, size_t dim);

  // Demotes what is beyond the DRAM budget. A failure leaves rows in memory and is returned.
  Status Trim();
  Status TrimShard(Shard* shard, size_t excess);
  // Trim, its error kept as the sticky one.
  void TrimAndRemember();
  // Retries a trim that failed; its error where it fails again.
  Status RetryTrim();
  // Takes a DRAM row out of the shard, wherever operations hold it; frees its copy below. Counts nothing.
  void ForgetRow(Shard* shard, uint64_t* word, std::vector<KeyLocation>* gone_below);
  Status ExpireBelow(int64_t step, int64_t* expired);
  // Takes the key's count out of the Bloom filter, where there is one.
  void ForgetCount(int64_t key);

  // One step of a scan: adds the keys of the shard whose home stands at reversed position *cursor, and moves it on.
  Status ScanBucket(int shard, uint64_t* cursor, bool all_columns, Rows* rows);
  Result<Rows> ScanInside(uint64_t cursor, int64_t max_rows, bool all_columns, uint64_t* next);
  void AppendRow(const RowLayout& layout, bool all_columns, int64_t key, const KeyFacts& facts, const uint8_t* data,
                 Rows* rows) const;
  Status ImportChunk(const Rows& rows, size_t from, size_t to, const std::vector<int>& columns);
  Status ImportCounted(const Rows& rows);

  Shard* shard_of(uint64_t hash) { return shards_[shard_index(hash)].get(); }
  int shard_index(uint64_t hash) const { return log2_shards_ == 0 ? 0 : static_cast<int>(hash >> (64 - log2_shards_)); }
  bool filters() const { return !options_.admission.admits_all(); }
  uint64_t budget_rows(const RowLayout& layout) const;
  // Raises an atomic maximum.
  static void RaiseTo(std::atomic<int64_t>* maximum, int64_t value) {
    int64_t seen = maximum->load();
    while (seen < value && !maximum->compare_exchange_weak(seen, value)) {
    }
  }

  TableOptions options_;
  Env* env_ = nullptr;
  Tier* lower_ = nullptr;
  const pid_t pid_;
  int log2_shards_ = 0;
  std::unique_ptr<Initializer> initializer_;
  std::unique_ptr<CountingBloomFilter> bloom_;
  std::vector<std::unique_ptr<Shard>> shards_;

  Gate gate_;
  mutable std::mutex layout_mutex_;
  std::shared_ptr<const RowLayout> layout_;  // guarded by layout_mutex_; replaced only while the gate is closed

  std::atomic<int64_t> dram_rows_{0};   // rows in DRAM or about to be, over all shards
  std::atomic<uint32_t> operations_{0}; // stamps recency
  std::atomic<int64_t> lookups_{0}, lookups_absent_{0}, lookup_hits_{0};  // keys looked up; without a row; found in DRAM
  std::atomic<int64_t> applies_{0};     // the table's own step counter
  std::atomic<int64_t> newest_step_{-1};
  std::atomic<bool> trim_failed_{false};
  std::mutex trim_mutex_;
  Status trim_error_;  // guarded by trim_mutex_
};

}  // namespace multitier

#endif  // CC_TABLE_TABLE_IMPL_H_
