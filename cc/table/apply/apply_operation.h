// ApplyOperation: a batch on its way through the first two steps of an apply or an import (embedding_table.h).
//
//                     ok                                  Update, or the importer's own writes
//     Gather ---------------> every entry is pinned  -------------------------------------------> rows changed, no pins
//        '---- error -------> everything is as it was before: Undo has taken back what Gather did
//
// After Gather every entry of the batch (a unique key) is in one of three states:
//
//   kRow         a row in DRAM, pinned; uncommitted where the key had none
//   kCountedKey  under the counter filter, below its threshold: a counted entry, pinned
//   kNothing     not admitted by a filter that keeps no entry
//
// Owns the batch, the state and row of each entry, and the pins between Gather and Update. Its callers are Apply, Import,
// PutBack and Upsert, from inside the gate; they hold no shard's lock. One thread calls it; it spreads the shards over the
// executor itself, and takes each shard's lock once a step. A small batch of Apply is too short to be cut by shard: it holds
// the locks of all shards from Gather to the end of Update.

#ifndef CC_TABLE_APPLY_APPLY_OPERATION_H_
#define CC_TABLE_APPLY_APPLY_OPERATION_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/base/executor.h"
#include "cc/optimizer/catch_up.h"
#include "cc/table/api/key_batch.h"
#include "cc/table/tiering/tier_reader.h"

namespace multitier {

class ApplyOperation {
 public:
  ApplyOperation(TableBase* base, Demoter* demoter, TierReader* reader) : base_(*base), demoter_(*demoter), reader_(*reader) {}
  ApplyOperation(const ApplyOperation&) = delete;
  ApplyOperation& operator=(const ApplyOperation&) = delete;

  struct Keys {
    Span<const int64_t> keys;     // [n]
    Span<const int64_t> counts;   // [n] occurrences of each; empty: 1
    Span<const uint32_t> places;  // [n] see ApplyRequest; or empty
    Span<const uint16_t> tables;  // [n] see ApplyRequest; or empty
    bool distinct = false;        // the keys are distinct
    bool admits_all = false;      // no filter is asked: keys that are imported were admitted before
    bool may_hold = false;        // the locks of all shards, until Update has ended
    int64_t version = -1;         // that Update will set: a newcomer's score
    // Where the caller has counted the accesses: the number of the first one, and how many later each key comes. 0: they are
    // counted here, one for each position.
    uint64_t stamp = 0;
    Span<const uint32_t> uses;  // [n]
  };
  // Brings every row of the keys into DRAM and pins it. All I/O and allocation of an apply happen here. ResourceExhausted where
  // there is no room; an error of a tier; nothing has changed then. REQUIRES: called once
  Status Gather(const Keys& keys, Executor* executor);

  // Applies the request's rule to the rows, counts the occurrences, and gives up every pin. Cannot fail.
  // slot_offsets: of the rule's slots in a row. version: the rows' new one. step: for stochastic rounding, the number
  // of the apply. REQUIRES: Gather was OK
  void Update(const ApplyRequest& request, const std::vector<uint32_t>& slot_offsets, int64_t version, int64_t step,
              Executor* executor);

  // New keys that get no row. REQUIRES: Gather was OK
  int64_t refused() const {
    int64_t n = 0;
    for (const int64_t of_shard : refused_) n += of_shard;
    return n;
  }

  // Takes back what Gather did, in place of Update. REQUIRES: Gather was OK, with admits_all
  void Abandon();

  // For an importer, which writes the rows itself. REQUIRES: Gather was OK, with admits_all
  const KeyBatch& batch() { return *batch_; }
  RowHeader* row(uint32_t entry) const { return rows_[entry]; }
  // The access number of an entry's last position; 0 where no row is ever demoted.
  uint64_t Touched(uint32_t entry) const;
  // The access number of the batch's first position; 0 where no row is ever demoted.
  uint64_t stamp() const { return stamp_; }

 private:
  class Visitor;
  enum class State : uint8_t { kNothing, kRow, kCountedKey };

  int64_t Occurrences(uint32_t entry) const;
  // InvalidArgument if a row of the entry cannot be made because its table is not known.
  Status CheckTable(uint32_t entry) const;

  // The keys of the batch in parts: those of one shard, or all of them where it holds the locks of all shards.
  int parts() const { return held_.empty() ? static_cast<int>(base_.shards.size()) : 1; }
  int ShardOf(uint32_t entry) const { return base_.shards.index(batch_->hash(entry)); }
  // Calls visit(lock_of, rows_of): lock_of(entry) is the lock of the entry's shard, rows_of(entry) its rows.
  template <typename Visit>
  auto WithLocks(int part, Visit visit) {
    if (!held_.empty()) {
      Shard::Locked* const locks = held_.data();
      return visit([this, locks](uint32_t entry) -> Shard::Locked& { return locks[ShardOf(entry)]; },
                   [this, locks](uint32_t entry) -> ShardRows& { return *locks[ShardOf(entry)]; });
    }
    Shard::Locked lock(base_.shards[static_cast<size_t>(part)]);
    ShardRows* const rows = &*lock;
    return visit([&lock](uint32_t) -> Shard::Locked& { return lock; }, [rows](uint32_t) -> ShardRows& { return *rows; });
  }
  // Whether a part's rows are asked for before they change. `rows`: of its first shard.
  bool NotesChanges(const ShardRows& rows) const {
    if (held_.empty()) return rows.notes_changes();
    return std::any_of(held_.begin(), held_.end(), [](const Shard::Locked& lock) { return lock->notes_changes(); });
  }

  // What is fetched of a row that is updated; the hardware fetches the rest of a longer one.
  static size_t RowBytesAhead(const RowLayout& layout) {
    return std::min<size_t>(sizeof(RowHeader) + layout.row_bytes(), 2048);
  }

  // --- Gather: apply_gather.cc
  void CountInFilter(int part, bool add);
  Status GatherPart(int part);
  template <typename LockOf, typename RowsOf>
  Status GatherEntries(uint32_t begin, uint32_t end, LockOf lock_of, RowsOf rows_of);
  // The steps of gather for one key of each sort.
  Status GatherCounted(Shard::Locked& lock, int shard, uint32_t entry, const Found& found);
  Status GatherAbsent(Shard::Locked& lock, int shard, const std::vector<uint32_t>& absent);
  Status GatherBelow();
  // Where newcomers are refused. For shards that are full: the coldest record of their lower tiers, in coldest_below_.
  Status FindColdestBelow();
  bool refuses_without_room() const { return base_.options.on_full == OnFull::kRefuse && !keys_.admits_all; }
  // Whether a newcomer may be refused that the trim would drop at once. By frequency that is certain beforehand.
  bool refuses() const {
    const TableOptions& options = base_.options;
    const bool by_frequency = options.drop_coldest && options.cache_strategy == Replacement::kLfu;
    return (options.refuse_colder || by_frequency) && !keys_.admits_all;
  }
  // Whether `n` more rows are more than the tiers hold.
  bool IsFull(const ShardRows& shard, size_t n) const;
  // Whether the shard has no room beyond `coming` rows, and a new row of that frequency would be colder than all of its rows.
  bool IsRefused(Shard::Locked& lock, int shard, int64_t frequency, size_t coming) const;
  // Those of the entries that get a row.
  std::vector<uint32_t> NotRefused(Shard::Locked& lock, int shard, const std::vector<uint32_t>& entries);
  // The entries of `absent` that may have a row now, and those that are only counted.
  void Admit(const std::vector<uint32_t>& absent, std::vector<uint32_t>* admitted, std::vector<uint32_t>* counted) const;
  // Room for n more rows in DRAM, or the error that says why not. *taken: for how many there is room, where keys without room
  // are refused.
  Status TakeRoom(Shard::Locked& lock, size_t n, size_t* taken);
  Status NoRoom(const std::string& where, uint64_t rows, uint64_t most, size_t n) const;
  void UndoPart(int part);

  // --- Update: apply_update.cc
  struct UpdateArguments {
    const ApplyRequest& request;
    const std::vector<uint32_t>& slot_offsets;
    int64_t version;
    int64_t step;
    const CatchUp* catch_up;  // null: the rule does not catch up
  };
  void UpdatePart(const UpdateArguments& update, int part);
  template <typename LockOf, typename RowsOf>
  void UpdateEntries(const UpdateArguments& update, uint32_t begin, uint32_t end, LockOf lock_of, RowsOf rows_of,
                     FreedRecords* freed);
  // Fetches the rows of the entries, and their gradients.
  void FetchRows(const ApplyRequest& request, size_t row_bytes, uint32_t begin, uint32_t end) const;
  // The headers of n rows whose data the rule has changed.
  template <typename RowsOf>
  void FinishRows(const UpdateArguments& update, const uint32_t* entries, size_t n, RowsOf rows_of, FreedRecords* freed);
  void CountKey(Shard::Locked& lock, uint32_t entry, int64_t version);

  TableBase& base_;
  Demoter& demoter_;
  TierReader& reader_;
  BorrowedKeyBatch batch_;
  Keys keys_;
  std::vector<Shard::Locked> held_;  // of all shards; empty where each part takes the lock of its shard
  Status no_room_;                   // the sticky error: no row may be created or promoted
  uint64_t stamp_ = 0;
  bool rows_stay_cached_ = false;             // Gather fetches whole rows, and Update finds them there
  std::vector<RowHeader*> rows_;              // [entries] of kRow
  std::vector<uint32_t> slots_;               // [entries] of rows_; kNoLocation where Gather did not learn it
  std::vector<State> states_;                 // [entries]
  std::vector<std::vector<uint32_t>> below_;  // [shards] entries that memory cannot answer
  std::vector<Rank> coldest_below_;           // [shards] where newcomers are refused
  std::vector<int64_t> refused_;              // [shards] new keys that get no row
};

inline int64_t ApplyOperation::Occurrences(uint32_t entry) const {
  int64_t n = 0;
  for (uint32_t p = batch_->first_position(entry); p != KeyBatch::kEnd; p = batch_->next(p)) {
    n += keys_.counts.empty() ? 1 : keys_.counts[p];
  }
  return n;
}

inline uint64_t ApplyOperation::Touched(uint32_t entry) const {
  if (stamp_ == 0) return 0;
  uint32_t last = batch_->first_position(entry);
  for (uint32_t p = last; p != KeyBatch::kEnd; p = batch_->next(p)) last = p;
  return stamp_ + (keys_.uses.empty() ? last : keys_.uses[last]);
}

}  // namespace multitier

#endif  // CC_TABLE_APPLY_APPLY_OPERATION_H_
