// EmbeddingTable::Impl: the table's state, and the operations' steps, which live in
//
//   embedding_table.cc   creation, options, slots, statistics, the public methods' checks
//   lookup.cc            Lookup
//   apply.cc             Apply and its update
//   gather.cc            gather: rows into DRAM, pinned, and its undo
//   prefetch.cc          Prefetch and its pins
//   promote.cc           reads from the lower tiers: pending words, verification, installation
//   trim.cc              Trim: when rows leave DRAM, and how many; SetDramBudget
//   demote.cc            how: slices of demotion, drops
//   adopt.cc             rows that a tier recovered
//   flush.cc             Flush
//   forget.cc            Frequency, Version, LookupTier, Remove, Expire, Clear
//   transfer.cc          Scan, Import
//   snapshot.cc          TakeSnapshot, Export
//
// Locks, outermost first:
//   snapshot_mutex_  held by a snapshot from its beginning to its end, and by who must not run beside one
//   gate_          entered by every operation; closed by AddSlots, Clear, and for the moment of a snapshot
//   Shard's lock   exclusive: one at a time, never two; a lookup takes all, shared, in order. No I/O while held
//   trim_mutex_    the sticky error of a failed trim, keys dropped; nothing is taken inside it
//   (SnapshotCut::mutex, cut_mutex_ likewise)
// A shard's ShardWriter (tier_stack.h) is held by one thread at a time, over I/O, by a thread that holds no lock, pin or pending
// word when it begins to wait for it.
// Tiers have locks of their own. Under a shard's lock only what tier.h allows there is called of them (SwitchBelow), because
// a tier calls Relocate, which takes shards' locks, from Write, Sync and Remove.
// A word is pending only while a running thread holds it: mark, read and install happen in one call (Promote), all own
// words are resolved before others' are waited for, and no room is waited for at all.

#ifndef CC_TABLE_TABLE_IMPL_H_
#define CC_TABLE_TABLE_IMPL_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/base/executor.h"
#include "cc/base/gate.h"
#include "cc/policy/counting_bloom_filter.h"
#include "cc/table/embedding_table.h"
#include "cc/table/key_batch.h"
#include "cc/table/tier_stack.h"

namespace multitier {

class EmbeddingTable::Impl {
 public:
  static constexpr uint32_t kNoPlace = EmbeddingTable::kNoPlace;
  explicit Impl(TableOptions options);
  ~Impl();

  Status Init();

  Status Lookup(Span<const int64_t> keys, float* out, Executor* executor, uint32_t* places, int64_t stride);
  Status Peek(Span<const int64_t> keys, float* out);
  Status Apply(const ApplyRequest& request, Executor* executor);
  Status Prefetch(Span<const int64_t> keys, uint64_t timeout_us, int64_t* pinned);
  void ReleasePrefetched();
  Status AddSlots(Span<const ColumnSpec> slots);
  Status Remove(Span<const int64_t> keys, int64_t* removed);
  Status Expire(int64_t step, int64_t* expired);
  Status Clear();
  Result<Rows> Export(bool all_columns);
  Status TakeSnapshot(bool all_columns, int64_t max_rows, const std::function<Status(Rows*)>& visit);
  Result<Rows> Scan(uint64_t cursor, int64_t max_rows, bool all_columns, uint64_t* next);
  Status Import(const Rows& rows);
  TableStats Stats();
  Status Drain();
  Status Flush();
  Status SetDramBudget(uint64_t bytes);
  Status Compact();
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
  std::vector<int64_t> PopDropped();

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
    Span<uint8_t> data;               // kRead: the row data; kInDram under kCopy: likewise. Memory of the BelowKeys
    std::vector<uint64_t> excluded;   // places below (PlaceOf) that hold another key
    int level = 0;                    // lower tier of the record being read
    uint32_t location = 0;            // and its location
    uint64_t touched = 0;             // the access it is read for; 0: none that counts
    uint32_t pending_id = 0;
    uint32_t record = 0;              // of those being read
    uint64_t seen_resolutions = 0;    // of the shard, when another operation held the word
  };
  static BelowKey BelowKeyOf(const KeyBatch& batch, uint32_t entry, int shard) {
    BelowKey key;
    key.key = batch.key(entry);
    key.hash = batch.hash(entry);
    key.shard = shard;
    key.entry = entry;
    return key;
  }
  // Keys of one promotion, in the order of their shards, and the memory that their rows are read into.
  class BelowKeys {
   public:
    void reserve(size_t n) { keys_.reserve(n); }
    void push_back(BelowKey key) { keys_.push_back(std::move(key)); }
    size_t size() const { return keys_.size(); }
    bool empty() const { return keys_.empty(); }
    BelowKey& operator[](size_t i) { return keys_[i]; }
    const BelowKey& operator[](size_t i) const { return keys_[i]; }
    auto begin() { return keys_.begin(); }
    auto end() { return keys_.end(); }
    // Room for a row of each key, taken once.
    void MakeRows(size_t row_bytes) {
      if (rows_ == nullptr) rows_.reset(new uint8_t[keys_.size() * row_bytes]);
    }
    Span<uint8_t> RowOf(size_t i, size_t row_bytes) { return Span<uint8_t>(rows_.get() + i * row_bytes, row_bytes); }

   private:
    std::vector<BelowKey> keys_;
    std::unique_ptr<uint8_t[]> rows_;
  };
  enum class Promotion {
    kForget, // take the key out of the table: see Forgetting
    kPin,    // bring the row into DRAM, beyond the budget if need be, and pin it
    kCopy,   // copy the row data; install the row where there is room
    kPeek,   // copy the row data; nothing moves
    kFacts,  // only frequency, version and tier; nothing moves
  };
  // Takes over a key that memory answers (row, counted entry or nothing), under the lock of its shard.
  using Settle = std::function<Status(Shard::Locked&, BelowKey*, const Found&)>;
  // What kForget does to keys below memory.
  struct Forgetting {
    // Whether a key is to go, from its record; null: it is, even where the record is damaged. Under the shard's lock.
    std::function<bool(const RecordHeader&, const uint8_t* row_data)> doomed;
    bool reads_rows = false;  // doomed looks at row_data
    FreedRecords freed;       // out
    int64_t forgotten = 0;    // out
  };
  // Resolves every key; `settle` may be null. On an error no key is pinned by this call (what settle did is the caller's to
  // undo) and every word is as it was, but that kForget goes through all keys before it returns the first error.
  // REQUIRES for kForget: `forgetting`, and that the caller has the ShardWriters of the keys' shards
  Status Promote(BelowKeys* keys, Promotion promotion, const Settle* settle, Forgetting* forgetting = nullptr);
  // Calls visit(shard, from, to) for runs which[from, to) of keys of one shard.
  template <typename Visit>
  void ForEachRun(const BelowKeys& keys, const std::vector<size_t>& which, Visit visit);
  Status MarkPending(BelowKeys* keys, const std::vector<size_t>& unresolved, Promotion promotion, const Settle* settle,
                     std::vector<size_t>* mine, std::vector<size_t>* theirs);
  Status MarkOne(Shard::Locked& lock, BelowKeys* keys, size_t i, Promotion promotion, const Settle* settle,
                 std::vector<size_t>* mine, std::vector<size_t>* theirs);
  void AnswerFromMemory(Shard::Locked& lock, BelowKey* key, size_t i, const Found& found, Promotion promotion,
                        BelowKeys* keys);
  Status Install(Shard::Locked& lock, BelowKey* key, const ReadRecord& record, const Status& read, Promotion promotion,
                 Forgetting* forgetting, FreedRecords* freed);
  // `whole`: the key's data are those of the record.
  Status ForgetBelow(Shard::Locked& lock, KeyWord word, BelowKey* key, const RecordHeader& header, bool whole,
                     Forgetting* forgetting);
  // Of a damaged record, unless operations are to fail.
  void Reinit(Shard::Locked& lock, BelowKey* key, RecordHeader* header);
  void DropCorrupt(Shard::Locked& lock, KeyWord word, int64_t key, int level, uint32_t location, const RecordHeader& header);
  // Accesses since the last use of a record's row, as far as known.
  uint64_t IdleOf(int level, const RecordHeader& header, uint64_t clock) const;
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
    Span<const uint32_t> places;  // see ApplyRequest
    bool admit_all = false;  // Import: what is imported was admitted before
    Status no_room;          // the sticky error: nothing may be created or promoted
    uint64_t stamp = 0;      // access number of the batch's first position; 0 where nothing is ever demoted
    Gathered* gathered = nullptr;
    std::vector<std::vector<uint32_t>> below;  // [shards] entries that memory cannot answer

    int64_t Occurrences(uint32_t entry) const {
      int64_t n = 0;
      for (uint32_t p = batch->first_position(entry); p != KeyBatch::kEnd; p = batch->next(p)) {
        n += counts.empty() ? 1 : counts[p];
      }
      return n;
    }
    // The access number of an entry's last position; 0 where nothing is ever demoted.
    uint64_t Touched(uint32_t entry) const {
      if (stamp == 0) return 0;
      uint32_t last = batch->first_position(entry);
      for (uint32_t p = last; p != KeyBatch::kEnd; p = batch->next(p)) last = p;
      return stamp + last;
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
  // The steps of gather for one key of each sort.
  Status GatherCounted(ApplyContext* context, Shard::Locked& lock, uint32_t entry, const Found& found);
  Status GatherAbsent(ApplyContext* context, Shard::Locked& lock, const std::vector<uint32_t>& absent);
  Status GatherBelow(ApplyContext* context);
  // Room for n more rows in DRAM, or the error that says why not.
  Status TakeRoom(ApplyContext* context, Shard::Locked& lock, size_t n);
  void UndoShard(ApplyContext* context, int shard);
  void UpdateShard(const UpdateContext& update, int shard);
  void CountKey(ApplyContext* context, Shard::Locked& lock, uint32_t entry, int64_t version);

  // Positions of a batch that a slice of a lookup could not answer.
  struct Missed {
    std::vector<size_t> absent;
    std::vector<size_t> below;  // perhaps in the lower tier
  };
  // Where values go: so many elements from one to the next.
  struct OutRows {
    float* data;
    size_t stride;
    float* row(size_t i) const { return data + i * stride; }
  };
  // The shared side of every shard's lock, taken in order.
  std::vector<Shard::Shared> ShareAll();
  void LookupSlice(const Shard::Shared* shards, Span<const int64_t> keys, size_t begin, size_t end, uint64_t stamp,
                   OutRows out, uint32_t* places, Missed* missed);
  void FillAbsent(Span<const int64_t> keys, const std::vector<size_t>& positions, OutRows out) const;
  // Answers the keys at `below` from the lower tiers. promotion: kCopy, or kPeek (then stamp is 0).
  Status LookupBelow(Span<const int64_t> keys, const std::vector<size_t>& below, uint64_t stamp, OutRows out,
                     Promotion promotion);

  // Demotes what is beyond the DRAM budget. A failure leaves rows in memory and is returned.
  // `percent` of the budget is what may stay.
  Status Trim(int percent = 100);
  // The same, and what is beyond the budgets of the tiers below.
  Status TrimLower();
  // Demotes rows of a shard until it holds no more than target_rows in DRAM, or no more can go.
  // At most max_slices slices of them; *more: there may be others.
  Status TrimShard(Shard* shard, size_t target_rows, size_t slice_rows, int max_slices = 0x7fffffff, bool* more = nullptr);
  // Lets the pool demote. False: it has no thread. REQUIRES: a pool
  bool ScheduleDemotion();
  Status DemoteSlice(const ShardWriter& writer, size_t n, size_t* moved);
  size_t SwitchDemoted(Shard* shard, const std::vector<WriteRecord>& records, const uint32_t* locations, bool written);
  // Makes room for n records of the shard in a lower tier; *room: for how many there is. An error where there is none.
  Status MakeRoom(const ShardWriter& writer, int level, size_t n, size_t* room);
  using Leaving = ShardRows::Leaving;
  Status TakeColdest(Shard* shard, int level, size_t n, std::vector<Leaving>* taken);
  Status DemoteLower(const ShardWriter& writer, int level, size_t n);
  Status DropColdest(const ShardWriter& writer, int level, size_t n);
  void KeepDropped(const std::vector<int64_t>& keys);
  // Trim, its error kept as the sticky one.
  void TrimAndRemember() { Remember(Trim()); }
  // Steps of jobs of the pool: a slice of a shard's rows on the way to the low watermark, and one of what RetryTrim does.
  uint64_t DemoteInBackground(Shard* shard);
  uint64_t RetryInBackground();
  // What the background has come down to.
  void LowerCeiling(int64_t budget);
  void Remember(Status status);
  // Retries a trim that failed; its error where it fails again.
  Status RetryTrim();
  // How many there were, and that what they were of has been done since that number was read: a later one stays.
  uint64_t TrimErrors();
  void ForgetTrimError(uint64_t errors);
  // The batch's keys of one shard.
  Status RemoveOf(const KeyBatch& batch, int shard, int64_t* removed);
  bool ExpiredBySteps(int64_t step, int64_t version) const;
  void ExpireInMemory(Shard* shard, int64_t step, int64_t* expired);
  Status ExpireBelow(int level, int64_t step, int64_t* expired);
  Status ExpireBelowOf(const KeyBatch& batch, int shard, int64_t step, bool by_weight, int64_t* expired);

  // The layout to begin with: what the last tier recovered, and the slots of the options.
  Result<RowLayout> FirstLayout() const;
  Status Adopt();
  // Rows of a shard's DRAM, from slot *from on, that no record of the last tier stands for: written there, one slice. *from:
  // where to go on.
  Status FlushSlice(const ShardWriter& writer, uint32_t* from);
  // Rows of the tier between, likewise, all of them.
  Status FlushMiddle(const ShardWriter& writer);
  // Of locations that read as freed: their rows were promoted, and the shard names none of them; else DataLoss. REQUIRES: the
  // shard's writer was held since they were collected
  Status CheckUnnamed(Shard* shard, int level, std::vector<uint32_t> locations);
  // Where the last tier keeps no copies: all rows move there. REQUIRES: the gate is closed
  Status MoveAllToLast();

  // The status with "table '<name>': " before its message; OK stays OK.
  Status OfThisTable(const Status& status) const;
  // Takes the key's count out of the Bloom filter, where there is one.
  void ForgetCount(int64_t key);

  class Snapshot;

  // What operations do for a snapshot that is being taken (snapshot.cc); the rest is the shard's (SnapshotMarks).
  // Waits while more was handed over than it could take along. REQUIRES: no lock, pin or pending word is held
  void AwaitSnapshot();
  bool MuchIsHandedOver();
  // What an operation over many rows does at a time: it hands over some MiB, and waits before the next.
  size_t ChunkRows() const;
  std::shared_ptr<SnapshotCut> TheCut();
  // Whether this thread takes it: the call is its visitor's.
  bool TakesSnapshot();

  // One step of a scan: adds the keys of some homes of the shard, in the order of their reversed positions from *cursor on,
  // until there are `wanted` or it is time to read, and moves it on.
  Status ScanHomes(int shard, uint64_t* cursor, size_t wanted, bool all_columns, Rows* rows);
  Result<Rows> ScanInside(uint64_t cursor, int64_t max_rows, bool all_columns, uint64_t* next);
  Status ImportChunk(const Rows& rows, size_t from, size_t to, const std::vector<int>& columns);
  Status ImportCounted(const Rows& rows);
  // The entries of one shard; `from`: where the batch begins in rows.
  Status ImportCountedOf(const KeyBatch& batch, int shard, const Rows& rows, size_t from);

  bool filters() const { return !options_.admission.admits_all(); }
  // Rows of DRAM. 0 where DRAM is not named.
  uint64_t budget_rows(const RowLayout& layout) const;
  // Rows that a shard may have in all tiers together, DRAM holding `dram_rows`, where the last has a given size and drops
  // nothing; else no bound.
  size_t capacity(uint64_t dram_rows) const;
  // Rows that a shard may have in a lower tier; ~0 where it is unbounded.
  size_t lower_share(int level) const;
  const char* first_tier_name() const { return options_.row_memory == nullptr ? "dram" : options_.row_memory->name(); }
  // Raises an atomic maximum.
  static void RaiseTo(std::atomic<int64_t>* maximum, int64_t value) {
    int64_t seen = maximum->load();
    while (seen < value && !maximum->compare_exchange_weak(seen, value)) {
    }
  }

  TableOptions options_;
  Env* env_ = nullptr;
  ShardCommon common_;
  const TierLevels& levels_ = common_.levels;
  ShardSet shards_;
  TierStack tiers_;
  DemotionPool* pool_ = nullptr;             // of tables with a lower tier
  bool in_background_ = false;               // the pool demotes; else operations do, exactly at the budget
  std::unique_ptr<DemotionPool::Job> retry_; // of tables with a lower tier
  bool notes_lazily_ = false;                // see NoteUse
  const pid_t pid_;
  bool ready_ = false;                       // Init succeeded
  std::unique_ptr<Initializer> initializer_;
  std::unique_ptr<CountingBloomFilter> bloom_;

  std::mutex snapshot_mutex_;
  std::atomic<bool> saving_{false};          // operations that are inside the gate see it unchanged, but for its end
  std::mutex cut_mutex_;
  std::shared_ptr<SnapshotCut> cut_;         // guarded by cut_mutex_

  Gate gate_;
  mutable std::mutex layout_mutex_;
  std::shared_ptr<const RowLayout> layout_;  // guarded by layout_mutex_; replaced only while the gate is closed

  std::atomic<uint64_t> dram_budget_bytes_;  // see SetDramBudget
  // Rows that operations leave in DRAM while the background comes down to a smaller budget; of no effect below the budget.
  std::atomic<int64_t> ceiling_{0};
  std::atomic<int> demoting_{0};        // shards whose job is between slices
  std::atomic<int64_t> lookups_{0}, lookups_absent_{0}, lookup_hits_{0};  // keys looked up; without a row; found in DRAM
  std::atomic<int64_t> applies_{0};     // the table's own step counter
  std::atomic<int64_t> newest_step_{-1};
  std::atomic<bool> trim_failed_{false};
  std::mutex trim_mutex_;
  // Guarded by trim_mutex_.
  Status trim_error_;
  uint64_t trim_errors_ = 0;       // that were remembered, forgotten ones included
  std::deque<int64_t> dropped_;    // keys, the oldest first
};

}  // namespace multitier

#endif  // CC_TABLE_TABLE_IMPL_H_
