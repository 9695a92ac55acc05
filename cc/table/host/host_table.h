// HostTable: the operations of a table, and their steps, which live in
//
//   creation.cc          creation, and the end
//   split.cc             the split of the only shard of a small table
//   host_table.cc        slots, budgets, statistics, drain, flush
//   lookup.cc            Lookup, Peek
//   apply.cc             Apply
//   prefetch.cc          Prefetch
//   adopt.cc             rows that a tier recovered
//   inspection.cc        Frequency, Version, LookupTier
//   removal.cc           Remove, Clear
//   counted_bound.cc     the most keys that a counter filter may count
//   expiration.cc        Expire
//   scan.cc              Scan
//   import.cc            Import
//   upsert.cc            Upsert
//   row_batch.cc         CopyOut, PutBack
//   snapshot.cc          PrepareSnapshot
//
// What they stand on: ApplyOperation, TierReader, Demoter, TableBase (the order of locks), TierStack, Shard.

#ifndef CC_TABLE_HOST_HOST_TABLE_H_
#define CC_TABLE_HOST_HOST_TABLE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/base/executor.h"
#include "cc/table/api/key_batch.h"
#include "cc/table/host/prefetch_room.h"
#include "cc/table/host/table_below.h"
#include "cc/table/tiering/operation_scope.h"
#include "cc/table/tiering/tier_reader.h"

namespace multitier {

class ApplyOperation;

class HostTable final : public TableBelow {
 public:
  explicit HostTable(TableOptions options);
  ~HostTable() override;
  Status Init();

  const TableOptions& options() const override { return options_; }
  std::shared_ptr<const RowLayout> layout() const override { return base_.layout(); }
  Status Lookup(Span<const int64_t> keys, float* out, Executor* executor, uint32_t* places, int64_t stride, ReadFor reason,
                Span<const uint16_t> tables) override;
  Status Peek(Span<const int64_t> keys, float* out, Span<const uint16_t> tables) override;
  const AbsentValues& absent_values() const override { return base_.absent; }
  Status Prefetch(Span<const int64_t> keys, uint64_t timeout_us, int64_t* pinned) override;
  void ReleasePrefetched() override;
  Status Apply(const ApplyRequest& request, Executor* executor) override;
  Status AddSlots(Span<const ColumnSpec> slots) override;
  Status Frequency(Span<const int64_t> keys, int64_t* out) override;
  Status Version(Span<const int64_t> keys, int64_t* out) override;
  Status SetScore(int64_t score, bool* decreased) override { return base_.OfThisTable(base_.score.Set(score, decreased)); }
  Status LookupTier(Span<const int64_t> keys, int32_t* out) override;
  Status Remove(Span<const int64_t> keys, int64_t* removed) override;
  Status Expire(int64_t step, int64_t* expired) override { return ExpireKeys(step, expired, nullptr); }
  Status ExpireKeys(int64_t step, int64_t* expired, std::vector<int64_t>* keys) override;
  Status Clear() override;
  Result<std::unique_ptr<TableSnapshot>> PrepareSnapshot(SnapshotRequest request) override;
  int64_t ChangesSince() const override { return base_.changes_since.load(); }
  Result<Rows> Scan(const ScanRequest& request, uint64_t* next) override;
  Status Import(const Rows& rows, Executor* executor) override;
  Result<int64_t> Upsert(const UpsertRequest& request) override;
  std::vector<int64_t> PopDropped() override { return demoter_.PopDropped(); }
  Result<Rows> PopDroppedRows() override;
  Result<std::vector<int64_t>> RemovedSince(int64_t version) override;
  UpdateCounts LastUpdate() const override { return UpdateCounts{last_refused_, last_dropped_}; }
  int64_t TotalCount() const override;
  int64_t NewestStep() const override { return newest_step_.load(); }
  TableStats Stats() const override;
  Status Drain() override;
  Status Flush() override;
  Status SetDramBudget(Budget budget) override;
  Status Reserve(uint64_t rows) override;
  Status Compact() override;

  Status CopyOut(const RowBatch& rows, CopyOutAs as) override;
  Status PutBack(const RowBatch& rows) override;
  Status CheckApply(const ApplyRequest& request, std::vector<uint32_t>* slot_offsets) const override;
  NotedApply NoteApply(int64_t global_step) override;
  void NoteRemoved(Span<const int64_t> keys) override;
  std::vector<int64_t> TakeGone() override;
  bool AnyGone() const override { return demoter_.dropped().any_gone(); }
  void TakeBackDropped(Span<const int64_t> keys) override { demoter_.dropped().TakeBack(keys); }
  void CountInFilter(Span<const int64_t> keys, Span<const int64_t> counts, bool take_back) override;
  void AwaitSnapshot() const override { snapshot_.Await(); }

 private:
  // What operations do with keys that memory does not answer (tier_reader.h).
  class RemoveVisitor;
  class ExpireVisitor;

  template <typename Report>
  Status Facts(Span<const int64_t> keys, Report report);
  Status FlushRows();
  // Demoter::FlushShard of all shards. REQUIRES: a last tier without a size
  Status WriteDown();
  // Splits the only shard of a table that will be large with `coming` more rows, or that is lent threads for an update.
  // REQUIRES: the thread is outside of the gate
  void SplitIfLarge(uint64_t coming, bool lends_threads = false);
  bool MaySplit() const;  // see TableOptions::one_shard_bytes

  // Positions of a batch that a slice of a lookup could not answer.
  struct Missed {
    std::vector<size_t> absent;
    std::vector<uint16_t> tables;  // of absent, where there are several tables
    std::vector<size_t> below;     // perhaps in the lower tier
  };
  // Where values are written; `stride`: elements from one value to the next.
  struct OutRows {
    float* data;
    size_t stride;
    float* row(size_t i) const { return data + i * stride; }
  };
  void LookupSlice(const Shard::Shared* shards, Span<const int64_t> keys, size_t begin, size_t end, uint64_t stamp, OutRows out,
                   ReadFor reason, uint32_t* places, Missed* missed);
  // tables: of the positions, or empty.
  void FillAbsent(Span<const int64_t> keys, const std::vector<size_t>& positions, const std::vector<uint16_t>& tables,
                  OutRows out, ReadFor reason) const;
  // Gives each absent key the table of its first occurrence among them.
  void FindTables(Span<const int64_t> keys, Span<const uint16_t> tables, Span<Missed> missed) const;
  // Answers the keys at `below` from the lower tiers; rows come up where it `promotes`, else nothing moves and stamp is 0.
  Status LookupBelow(Span<const int64_t> keys, const std::vector<size_t>& below, uint64_t stamp, OutRows out, ReadFor reason,
                     bool promotes, Span<const uint16_t> tables);

  // The batch's keys of one shard.
  Status RemoveOf(const KeyBatch& batch, int shard, int64_t* removed);
  bool ExpiredBySteps(int64_t step, int64_t version) const;
  struct ExpiredRows;
  void ExpireInMemory(Shard* shard, int64_t step, ExpiredRows* expired);
  Status ExpireBelow(int level, int64_t step, ExpiredRows* expired);
  Status ExpireBelowOf(const KeyBatch& batch, int shard, int64_t step, bool by_weight, ExpiredRows* expired);

  // Unimplemented unless all of them are float32.
  Status CheckSlotTypes(Span<const ColumnSpec> slots) const;
  // InvalidArgument: a budget that is given holds at least one row.
  Status CheckBudgets(const RowLayout& layout) const;
  // The layout to begin with: what the last tier recovered, and the slots of the options.
  Result<RowLayout> FirstLayout() const;
  Status Adopt();
  // Takes the key's count out of the Bloom filter, where there is one.
  void ForgetCount(int64_t key);

  class Snapshot;
  Status ChangesNotKnown(int64_t since) const;

  // A number that the cursors of one table have, and those of others of the process have not: one of 8,191, in turn.
  static constexpr uint64_t kMostCursorTag = (1 << 13) - 1;
  static uint64_t NewCursorTag();
  class Scanner;
  // Indexes of the columns named; all, if none is. InvalidArgument where the table lacks one.
  Result<std::vector<int>> ColumnsNamed(const char* operation, const std::vector<std::string>& names) const;
  Status CheckUpsert(const UpsertRequest& request) const;
  // InvalidArgument, AlreadyExists: entries that the request does not allow. REQUIRES: they are gathered; so below
  Status CheckEntries(const UpsertRequest& request, ApplyOperation* operation);
  // Writes the entries of one shard. Returns their number.
  // touched: when each entry counts as used.
  int64_t UpsertShard(const UpsertRequest& request, int shard, const std::vector<uint64_t>& touched, ApplyOperation* operation);
  struct ImportedChunk;
  Status ImportChunk(ImportedChunk chunk, Executor* executor);
  // Whether the tiers have room for all keys of the batch, were they all new; and memory for them.
  bool MayLoad(const KeyBatch& batch);
  bool ReserveToLoad(const KeyBatch& batch);
  // The entries of a shard that are counted or may be below.
  void NotInMemory(const KeyBatch& batch, int shard, std::vector<uint32_t>* entries) const;
  size_t RowsOf(const ShardRows& shard) const;  // in all tiers
  // Room for n more rows in DRAM, which count as there from now on; or nothing.
  bool TakeRoomToLoad(ShardRows* shard, size_t n);
  // Writes the entries of a shard that are not skipped. Adds to `rest` those that need more than memory, or find no room.
  void LoadShard(const ImportedChunk& chunk, const KeyBatch& batch, int shard, const std::vector<uint32_t>& skipped,
                 std::vector<uint32_t>* rest);
  // Writes these entries, which are given by shard: all of them, or none and an error.
  Status ImportLeft(const ImportedChunk& chunk, const KeyBatch& of_chunk, const std::vector<std::vector<uint32_t>>& entries,
                    Executor* executor);
  Status ImportCounted(const Rows& rows);
  // Takes counted keys out until there are no more than admission.max_keys allows (counted_bound.cc).
  void BoundCounted();
  // Calls visit(lock, entry) with the counted keys that no operation holds; it may erase the one that it is given.
  template <typename Visit>
  void VisitCounted(Visit visit);
  // The entries of one shard; `from`: where the batch begins in rows.
  Status ImportCountedOf(const KeyBatch& batch, int shard, const Rows& rows, size_t from);

  Status CheckRowBatch(const char* operation, const RowBatch& rows) const;
  void FillAbsentRows(const RowBatch& rows) const;
  bool filters() const { return base_.filters(); }

  TableBase base_;
  const TableOptions& options_ = base_.options;
  ShardCommon& common_ = base_.common;
  const TierLevels& levels_ = base_.common.levels;
  const ShardSet& shards_ = base_.shards;
  TierStack& tiers_ = base_.tiers;
  CurrentSnapshot& snapshot_ = base_.snapshot;
  std::unique_ptr<CountingBloomFilter>& bloom_ = base_.bloom;
  std::atomic<int64_t>& applies_ = base_.applies;
  std::atomic<int64_t>& newest_step_ = base_.newest_step;
  Demoter demoter_;
  std::atomic<int64_t> last_refused_{0}, last_dropped_{0};  // of the last apply
  Mutex bounding_counted_;                                  // held by the one that bounds
  TierReader reader_{&base_, &demoter_};
  PrefetchRoom prefetch_room_;
  const uint64_t cursor_tag_ = NewCursorTag();
  static constexpr int kDefaultLog2Shards = 3;
  static constexpr uint64_t kNeverSplits = ~uint64_t{0};
  std::atomic<uint64_t> split_at_{kNeverSplits};                          // rows with which the table is large
  bool ready_ = false;                                                    // Init succeeded
  bool notes_lazily_ = false;                                             // see NoteUse
  std::atomic<int64_t> lookups_{0}, lookups_absent_{0}, lookup_hits_{0};  // keys looked up; without a row; found in DRAM
};

}  // namespace multitier

#endif  // CC_TABLE_HOST_HOST_TABLE_H_
