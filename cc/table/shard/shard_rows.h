// ShardRows: owns the keys of one shard, its index, its slab of rows and its marks, and makes every step of a row's life. Its
// callers hold the shard's lock: they reach it through Shard::Locked or Shard::Shared.
//
//                 CreateUncommitted                Commit                   MoveToRecord
//     absent -----------------------> uncommitted --------> row in DRAM <----------------> record below
//        ^                                |                  |       ^      Install            |    ^
//        +-- Unpin (an apply is undone) --+                  |       |                         |    | EndRead
//        +-- Erase, Drop ------------------------------------+       |              BeginRead  v    |
//        +-- EraseRecord, DropRecord --------------------------------+------------------ being read
//
// A key under a counter filter may first be counted: it has an entry of 24 bytes and no row (CreateCounted, Count), until
// CreateFromCounted makes a row of it. A row in DRAM may have a clean copy: a record of the last tier with
// the same bytes (from Install or EndWrite until FinishChange or DetachCopy). A record may go from one tier to the next
// (MoveDown), or be moved by its tier (Relocate).
//
// Each step does all that belongs to it: the index word, the slab, the counts of rows, the orders of demotion, counters, and
// what a snapshot that is being taken needs. Records that no index word names afterwards are returned in FreedRecords:
// the caller gives them to their tiers once it holds no lock.
//
// Not thread-safe: the caller holds the shard's lock. Shard::Locked gives all methods, Shard::Shared the const ones. Never does
// I/O.

#ifndef CC_TABLE_SHARD_SHARD_ROWS_H_
#define CC_TABLE_SHARD_SHARD_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/base/hash.h"
#include "cc/policy/victim_order.h"
#include "cc/row/row_slab.h"
#include "cc/table/api/key_batch.h"
#include "cc/table/marks/counted_keys.h"
#include "cc/table/marks/snapshot_marks.h"
#include "cc/table/shard/event.h"
#include "cc/table/shard/pending_words.h"
#include "cc/table/shard/prefetch_pins.h"
#include "cc/table/shard/shard_common.h"

namespace multitier {

// A word of the index. Valid until a key is created. Only ShardRows can read it.
class KeyWord {
 public:
  KeyWord() = default;
  explicit operator bool() const { return word_ != nullptr; }

 private:
  friend class ShardRows;
  explicit KeyWord(uint64_t* word) : word_(word) {}
  uint64_t* word_ = nullptr;
};

// What a probe found in memory. At most one of row and counted is set.
struct Found {
  RowHeader* row = nullptr;
  CountedKey* counted = nullptr;
  uint32_t slot = kNoLocation;  // of the row or counted key
  bool maybe_below = false;     // a word with the key's tag names a record, or is being read
  KeyWord word;
};

// What BeginRead found.
struct ReadProbe {
  enum Where { kMemory, kBegun, kReadByOthers } where = kMemory;
  Found found;    // kMemory
  int level = 0;  // kBegun: of the record to read
  uint32_t location = 0;
  uint32_t id = 0;  // for EndRead
};

class ShardRows {
 public:
  // `resolved` happens when a record is no longer being read.
  ShardRows(ShardCommon* common, std::shared_ptr<const RowLayout> layout, ShardIndex::Limits limits,
            std::shared_ptr<RowMemory> memory, Event* resolved);
  ShardRows(const ShardRows&) = delete;
  ShardRows& operator=(const ShardRows&) = delete;

  ShardCounters counters;

  // --- Probes.
  void Prefetch(uint64_t hash) const { index_.Prefetch(hash); }
  // Slot of the first row whose tag matches in the key's home bucket; ShardIndex::kNone where there is none. This finds
  // nearly every key that is present. The caller compares the row's key, and calls Find if it is another key.
  uint32_t FindHomeRow(uint64_t hash) const { return index_.FindHomeDram(hash); }
  // The key's row in DRAM or its counted entry, verified.
  Found Find(int64_t key, uint64_t hash) const;
  RowHeader* row(uint32_t slot) const { return dram_.Header(slot); }
  const CountedKey& counted(uint32_t slot) const { return *counted_.at(slot); }
  uint32_t row_slots() const { return dram_.end(); }  // ever used
  uint32_t counted_slots() const { return counted_.end(); }
  const std::shared_ptr<const RowLayout>& layout() const { return dram_.layout(); }
  // Its first 512 bytes: the hardware fetches the rest.
  void PrefetchRow(uint32_t slot) const { dram_.Prefetch(slot, std::min<size_t>(dram_.layout()->stride(), 512)); }
  // A lookup has ended the prefetch pin of a row (NoteUse). Several lookups may call this at once.
  void NotePinUsed() const { prefetch_pins_->Used(); }
  // True if the record at `location` is the row of `key`, or the clean copy of its row in DRAM. The record may be being read.
  bool Names(int level, int64_t key, uint32_t location) const;

  // --- Rows of an apply.
  // Room for n words of the index, n rows, n counted keys. ResourceExhausted where memory is short.
  Status ReserveWords(size_t n);
  Status ReserveRows(size_t n) { return dram_.Reserve(n); }
  bool ReserveCounted(size_t n) { return counted_.Reserve(n); }
  // Makes a pinned row with its initial value for each of the batch's `entries`, in rows[entry]. *created: the
  // number of rows made, less than entries.size() only after an error. Lookups may read the rows before they are committed.
  // REQUIRES: the keys are absent; ReserveWords, ReserveRows; the caller has added the rows to ShardCommon::dram_rows
  Status CreateUncommitted(const KeyBatch& batch, const std::vector<uint32_t>& entries, uint64_t clock, RowHeader** rows,
                           size_t* created);
  // Makes a pinned row, which the caller writes whole before it gives the lock up. Null: its index word finds no place.
  // REQUIRES: the key is absent; ReserveRows; the caller has added the row to ShardCommon::dram_rows
  RowHeader* Create(int64_t key, uint64_t hash, uint64_t clock);
  // A counted key becomes a row with its initial value. The row remembers the entry, so that Unpin can restore it, and
  // takes over its pins. REQUIRES: as CreateUncommitted
  RowHeader* CreateFromCounted(const Found& found, uint64_t clock);
  void Pin(RowHeader* row) { ++row->pins; }
  // Removes one pin. If it was the last pin of an uncommitted row, removes the row.
  void Unpin(RowHeader* row);
  // Call it before the row's data or header change. Returns the data. slot: of the row; kNoLocation where the caller does not
  // know it: then the index is asked. REQUIRES: the row is pinned
  uint8_t* BeginChange(RowHeader* row, uint64_t hash, uint32_t slot = kNoLocation) {
    if (!marks_.ignores_rows()) marks_.RowChanges(slot != kNoLocation ? slot : SlotOf(row->key, hash));
    return RowSlab::Data(row);
  }
  // Whether BeginChange also looks at what PrefetchChange fetches.
  bool notes_changes() const { return !marks_.ignores_rows(); }
  void PrefetchChange(uint64_t hash, uint32_t slot) const {
    slot != kNoLocation ? marks_.PrefetchRow(slot) : index_.Prefetch(hash);
  }
  // An uncommitted row becomes a row of the table.
  void Commit(RowHeader* row) {
    if (row->has(kRowUncommitted)) CommitNew(row);
  }
  // Call it after a change. Records a use at access `touched` by a batch of `batch` keys; touched 0: no use. Frees the row's
  // clean copy and removes one pin. REQUIRES: BeginChange, Commit
  void FinishChange(RowHeader* row, uint64_t touched, size_t batch, FreedRecords* freed);
  // A row's frequency, version or recency may have become less.
  void Reorder(RowHeader* row, uint64_t hash, uint64_t clock);
  // Takes a row out of the table. A row that an apply holds becomes uncommitted again. The caller counts it
  // as removed, expired or dropped.
  void Erase(const Found& found, FreedRecords* freed);

  // --- Counted keys.
  // An entry with a count of 0. REQUIRES: the key is absent; ReserveWords, ReserveCounted
  Status CreateCounted(int64_t key, uint64_t hash, uint32_t pins);
  void PinCounted(const Found& found) { ++found.counted->pins; }
  void UnpinCounted(int64_t key, uint64_t hash);
  void SetCount(const Found& found, uint32_t frequency, int64_t version);
  // Removes the count. Also removes the entry, unless an apply holds it.
  void EraseCount(const Found& found);

  // --- Demotion.
  // Up to n rows that may leave DRAM, the coldest first. Ends prefetch pins whose time is over.
  std::vector<uint32_t> ChooseVictims(size_t n);
  // See VictimOrder::Coldest.
  Rank ColdestRow() { return dram_order_.Coldest(common_->accesses.load()); }
  void PrefetchWordOf(uint32_t slot) const { index_.Prefetch(HashKey(dram_.Header(slot)->key)); }
  // Takes rows out of the table for good.
  void Drop(const std::vector<uint32_t>& slots);
  // Removes a row from DRAM. Its clean copy in the tier directly below becomes the row.
  void MoveToCopy(uint32_t slot);
  // Copies the row into `row_data`, for a write to a tier. The row itself stays readable and writable. Returns the record's
  // header.
  RecordHeader BeginWrite(uint32_t slot, int level, uint8_t* row_data);
  enum class Written {
    kStale,   // the row changed or left since BeginWrite, or must stay and its tier keeps no copies: the record is free
    kCopied,  // the record is the row's clean copy
    kMoved,   // the record is the row
  };
  // The copy was written to `location`. keep: the row stays in DRAM in any case.
  Written EndWrite(const RecordHeader& header, int level, uint32_t location, bool keep);
  // It could not be written.
  void CancelWrite(int64_t key);

  // --- Records that are read.
  // Looks for a key. If it is not in memory: marks the first record with a matching tag as being read. Skips records at the
  // places in `excluded`.
  ReadProbe BeginRead(int64_t key, uint64_t hash, const std::vector<uint64_t>& excluded);
  // Ends the read: restores the index word that BeginRead replaced. REQUIRES: the caller's id
  KeyWord EndRead(uint64_t hash, uint32_t id);
  // Whether some record is being read.
  bool reading() const { return pending_.any(); }
  // Copies a record into DRAM as a row. touched != 0: the row counts as used at that access. touched == 0: it is as cold as its
  // record says, or coldest if its tier does not store that. `idle`: see RowUse. REQUIRES: ReserveRows
  RowHeader* Install(KeyWord word, int level, uint32_t location, const RecordHeader& header, const uint8_t* row_data,
                     uint64_t touched, uint64_t idle, FreedRecords* freed);
  // Frees the clean copy of a row, because the two differ.
  void DetachCopy(KeyWord word, FreedRecords* freed);
  // Takes a key whose row is a record out of the table. row_data: of the record; null where it cannot be read, or no snapshot
  // is being taken.
  void EraseRecord(KeyWord word, int level, uint32_t location, const RecordHeader& header, uint8_t* row_data,
                   FreedRecords* freed);

  // --- Moving the coldest records out of a bounded tier.
  struct Leaving {
    RecordHeader header;
    uint32_t location = 0;
    uint32_t id = 0;
    Rank rank;
  };
  // Up to n entries of the order. Some may be stale.
  std::vector<LowerOrder::Entry> PopColdest(int level, size_t n);
  enum class Leave {
    kBegun,      // *leaving; its word is pending
    kReadNow,    // an operation is reading it: try again later
    kNotColdest  // stale, or warmer than the order knew
  };
  // header: of the record, or null where it is damaged. clock: ShardCommon::accesses when the choice began.
  Leave BeginLeave(int level, const LowerOrder::Entry& entry, const RecordHeader* header, uint64_t clock, Leaving* leaving);
  void PutBack(int level, const LowerOrder::Entry& entry) { lower_order_[level].Push(entry); }
  void CancelLeave(int level, const Leaving& leaving);
  // The record is in tier `to` now.
  void MoveDown(int level, const Leaving& leaving, const RecordHeader& header, int to, uint32_t location, FreedRecords* freed);
  // The key leaves the table. row_data: as in EraseRecord. Needed only if wants_record() is true.
  void DropRecord(int level, const Leaving& leaving, const RecordHeader& header, uint8_t* row_data, FreedRecords* freed);
  // Puts a record into the order of its tier.
  void Order(int level, const RecordHeader& header, uint32_t location);

  // --- Records that are copied, moved by their tier, or found in it.
  // Locations of all records of a level; false where some are being read now.
  bool RecordsOf(int level, std::vector<uint32_t>* locations) const;
  // The number of these locations at which the index names a record. REQUIRES: they are sorted
  int64_t CountNamed(int level, const std::vector<uint32_t>& locations) const;
  enum class Attached { kDone, kReadNow, kNotThere };
  // Makes record `copy` of the last tier the clean copy of the record at `location` of the middle tier.
  Attached AttachCopy(int64_t key, uint32_t location, uint32_t copy);
  void Relocate(int level, Relocation* relocation);
  // Adds an index word for a record that the tier recovered. REQUIRES: ReserveWords
  Status Adopt(uint64_t hash, int level, uint32_t location);

  // --- Scans: see scan.cc.
  // Calls visit with each row or counted key at the slots below *left, from the highest down, while go_on() is true, for at
  // most `looked` slots. *left: the slots that are left; false if there is none. `ahead`: bytes of a row that are fetched into
  // the processor's cache before.
  template <typename GoOn, typename Visit>
  bool VisitRows(uint32_t* left, uint32_t looked, size_t ahead, GoOn go_on, Visit visit) const;
  template <typename GoOn, typename Visit>
  bool VisitCounted(uint32_t* left, uint32_t looked, GoOn go_on, Visit visit) const;
  int log2_homes() const { return index_.log2_buckets(); }
  bool ReadingAt(uint32_t home) const;
  // Visits the keys of one home bucket of the index. Calls on_row(const RowHeader&), on_counted(const CountedKey&), or
  // on_record(level, location, id) for each. A record is marked as being read first; one for which wants(level, location) is
  // false is left out. REQUIRES: !ReadingAt(home)
  template <typename OnRow, typename OnCounted, typename Wants, typename OnRecord>
  void VisitHome(uint32_t home, OnRow on_row, OnCounted on_counted, Wants wants, OnRecord on_record);
  // For a home that will be visited soon: fetch its words, then the first bytes of its rows in memory, into the processor's
  // cache.
  void PrefetchHome(uint32_t home) const { index_.PrefetchHome(home); }
  void PrefetchRowsAt(uint32_t home, size_t bytes) const;
  // As EndRead, for a record that VisitHome marked at `home` when the index had 2^log2 homes.
  void EndReadAt(uint32_t home, int log2, uint32_t id);

  // --- Snapshots.
  void BeginSnapshot(std::shared_ptr<SnapshotState> state) { marks_.Begin(std::move(state)); }
  bool BeginDelta(std::shared_ptr<SnapshotState> state) { return marks_.BeginDelta(std::move(state)); }
  void EndSnapshot() { marks_.End(); }
  // Start and stop noting changes for the next BeginDelta.
  void TrackChanges() { marks_.TrackChanges(); }
  void ForgetChanges() { marks_.ForgetChanges(); }
  // The copies of rows that changed and wait for the snapshot, which gives them now.
  std::vector<Rows> TakeCopies() { return marks_.TakeCopies(); }
  // For a delta: up to n keys that it must still look up and give: their rows were removed, or are or were in lower tiers.
  std::vector<int64_t> KeysToGive(size_t n) const {
    std::vector<int64_t> keys;
    for (auto key = marks_.keys().begin(); key != marks_.keys().end() && keys.size() < n; ++key) keys.push_back(*key);
    return keys;
  }
  bool TakeKeyToGive(int64_t key) { return marks_.TakeKey(key); }
  bool wants_record(int level, uint32_t location) const { return marks_.wants_record(level, location); }
  // Looks at slots from *slot on. Calls visit for each row that the snapshot has still to give. Stops after `most` rows or
  // `looked` slots. False if there are no more slots. The same for counted keys.
  template <typename Visit>
  bool GiveRows(uint32_t* slot, size_t most, uint32_t looked, Visit visit);
  template <typename Visit>
  bool GiveCounted(uint32_t* slot, size_t most, uint32_t looked, Visit visit);
  // Whether the snapshot has still to give the record, as its key's row or as the clean copy of it. If true, it counts as
  // given, and the caller gives it. `mark`: from before it was read.
  bool GiveRecord(int level, const ReadRecord& record, const SnapshotState::MoveMark& mark);
  // For an unreadable record: true if the snapshot still needs its row. If the row is also in DRAM, copies it from there and
  // returns false.
  bool NeedsRecord(int level, int64_t key, uint32_t location, const SnapshotState::MoveMark& mark);

  // --- Prefetch pins: see PrefetchPins.
  bool PinPrefetched(RowHeader* row, uint64_t until, bool room) { return prefetch_pins_->Pin(row, until, room, row_of()); }
  void SweepPrefetched(uint64_t now) { prefetch_pins_->Sweep(now, row_of()); }
  int64_t prefetched() const { return prefetch_pins_->pinned(); }

  // --- All of it.
  // Removes every key. `freed` gets the keys of rows in DRAM that may have records in durable tiers.
  void Clear(FreedRecords* freed);
  // To add columns: RoomFor makes a wider slab with room for every row. MoveInto moves the rows there and cannot fail.
  Result<std::unique_ptr<RowSlab>> RoomFor(std::shared_ptr<const RowLayout> layout) const {
    return dram_.RoomFor(std::move(layout));
  }
  void MoveInto(std::unique_ptr<RowSlab> room) { dram_.MoveInto(std::move(room)); }
  int64_t rows() const { return rows_; }                        // keys that have a row, over all tiers
  int64_t rows_in(int level) const { return rows_in_[level]; }  // of those, as records of a lower tier
  // Rows in DRAM that have a clean copy in the last tier.
  int64_t copies() const { return copies_; }
  size_t dram_rows() const { return dram_.rows(); }       // uncommitted ones included
  int64_t counted_rows() const { return counted_rows_; }  // counted keys with a count
  size_t index_bytes() const { return index_.bytes(); }
  size_t counted_bytes() const { return counted_.bytes(); }
  size_t resident_bytes() const { return dram_.resident_bytes(); }

 private:
  ShardIndex::HashOfWord hash_of() const {
    return [this](WordState state, uint32_t slot) {
      return HashKey(state == WordState::kDram ? dram_.Header(slot)->key : counted_.at(slot)->key);
    };
  }
  PrefetchPins::RowOf row_of() const {
    return [this](int64_t key) { return Find(key, HashKey(key)).row; };
  }
  uint32_t SlotOf(int64_t key, uint64_t hash) const { return Find(key, hash).slot; }
  // A slot of the slab with its place in the order.
  uint32_t AllocateRow(uint64_t clock, uint32_t frequency, uint64_t idle);
  void ReleaseRow(uint32_t slot);
  void ResetRow(RowHeader* row);  // the initial value and slots
  void CommitNew(RowHeader* row);
  // Takes a row that no operation holds out of the index and the slab.
  void EraseRow(uint64_t* word);
  // Takes a counted entry that no apply holds out of the index.
  void EraseCounted(uint64_t* word);
  // A row becomes a record.
  void MoveToRecord(uint64_t* word, int level, uint32_t location);
  // The word of the record that an entry says, or null: the row left, or another one is at its location.
  uint64_t* RecordWord(int level, const LowerOrder::Entry& entry);
  void Push(int level, const LowerOrder::Entry& entry);
  // Keeps what a snapshot, and a copy of the table, need of a row or a record that is about to leave the table.
  void RowGoes(uint32_t slot);
  void RecordGoes(int level, uint32_t location, int64_t key, const RecordHeader& header, uint8_t* row_data);
  // Whether the record is the key's row or its copy, and has still to be given. *slot: of the row that it is a copy of.
  bool IsToGive(int level, int64_t key, uint32_t location, const SnapshotState::MoveMark& mark, uint32_t* slot);
  Rank RankOfRecord(const RecordHeader& header) const {
    return RankOf(common_->strategy, header.version, header.frequency, header.recency, common_->accesses.load());
  }

  ShardCommon* const common_;
  const TierLevels& levels_;
  Event* const resolved_;
  ShardIndex index_;
  RowSlab dram_;
  CountedKeys counted_;
  VictimOrder dram_order_;                  // of tables whose rows leave DRAM
  LowerOrder lower_order_[kMaxLowerTiers];  // of bounded tiers
  PendingWords pending_;
  const std::unique_ptr<PrefetchPins> prefetch_pins_;  // lookups count there under the shared side of the lock
  SnapshotMarks marks_;
  int64_t rows_ = 0;
  int64_t rows_in_[kMaxLowerTiers] = {};
  int64_t copies_ = 0;
  int64_t counted_rows_ = 0;
};

}  // namespace multitier

#include "cc/table/shard/shard_rows_inline.h"

#endif  // CC_TABLE_SHARD_SHARD_ROWS_H_
