// ShardRows: owns the keys of one shard, its index, its slab of rows and its marks, and makes every step of a row's life, with
// ShardRecords for those of a record. Its callers hold the shard's lock: they reach it through Shard::Locked or Shard::Shared.
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
// the caller gives them to their tiers (TierStack::Free says under which locks).
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
#include "cc/table/shard/prefetch_pins.h"
#include "cc/table/shard/shard_parts.h"
#include "cc/table/shard/shard_records.h"
#include "cc/table/shard/shard_scan.h"
#include "cc/table/shard/shard_snapshot.h"

namespace multitier {

class ShardRows {
 public:
  // `resolved` happens when a record is no longer being read. ahead: of RowSlab.
  ShardRows(ShardCommon* common, std::shared_ptr<const RowLayout> layout, ShardIndex::Limits limits,
            std::shared_ptr<RowMemory> memory, Event* resolved, double ahead = 0);
  ShardRows(const ShardRows&) = delete;
  ShardRows& operator=(const ShardRows&) = delete;

  // --- The classes next to it.
  ShardRecords& records() { return records_; }
  ShardScan& scan() { return scan_; }
  ShardSnapshot& snapshot() { return snapshot_; }
  PrefetchPins& pins() { return *prefetch_pins_; }
  const PrefetchPins& pins() const { return *prefetch_pins_; }
  ShardCounters& counters() { return parts_.counters; }
  const ShardCounters& counters() const { return parts_.counters; }
  const ShardCounts& counts() const { return parts_.counts; }
  ShardBytes bytes() const { return ShardBytes{parts_.index.bytes(), parts_.counted.bytes(), parts_.dram.resident_bytes()}; }

  // --- Probes.
  void Prefetch(uint64_t hash) const { parts_.index.Prefetch(hash); }
  // Slot of the first row whose tag matches in the key's home bucket; ShardIndex::kNone where there is none. This finds
  // nearly every key that is present. The caller compares the row's key, and calls Find if it is another key.
  uint32_t FindHomeRow(uint64_t hash) const { return parts_.index.FindHomeDram(hash); }
  // The key's row in DRAM or its counted entry, verified.
  Found Find(int64_t key, uint64_t hash) const;
  RowHeader* row(uint32_t slot) const { return parts_.dram.Header(slot); }
  const CountedKey& counted(uint32_t slot) const { return *parts_.counted.at(slot); }
  const std::shared_ptr<const RowLayout>& layout() const { return parts_.dram.layout(); }
  void PrefetchRow(uint32_t slot) const { parts_.PrefetchRow(slot); }

  // --- Rows of an apply.
  // Room for n words of the index, n rows, n counted keys. ResourceExhausted where memory is short.
  Status ReserveWords(size_t n);
  Status ReserveRows(size_t n) { return parts_.dram.Reserve(n); }
  bool ReserveCounted(size_t n) { return parts_.counted.Reserve(n); }
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
  static void Pin(RowHeader* row) { ++row->pins; }
  // Removes one pin. If it was the last pin of an uncommitted row, removes the row.
  void Unpin(RowHeader* row);
  // Call it before the row's data or header change. Returns the data. slot: of the row; kNoLocation where the caller does not
  // know it: then the index is asked. REQUIRES: the row is pinned
  uint8_t* BeginChange(RowHeader* row, uint64_t hash, uint32_t slot = kNoLocation) {
    if (!parts_.marks.ignores_rows()) parts_.marks.RowChanges(slot != kNoLocation ? slot : SlotOf(row->key, hash));
    return RowSlab::Data(row);
  }
  // Whether BeginChange also looks at what PrefetchChange fetches.
  bool notes_changes() const { return !parts_.marks.ignores_rows(); }
  void PrefetchChange(uint64_t hash, uint32_t slot) const {
    slot != kNoLocation ? parts_.marks.PrefetchRow(slot) : parts_.index.Prefetch(hash);
  }
  // An uncommitted row becomes a row of the table.
  void Commit(RowHeader* row) {
    if (row->has(kRowUncommitted)) CommitNew(row);
  }
  // Call it after a change. Records a use at access `touched` by a batch of `batch` keys; touched 0: no use. Frees the row's
  // clean copy and removes one pin. REQUIRES: BeginChange, Commit
  void FinishChange(RowHeader* row, uint64_t touched, size_t batch, FreedRecords* freed);
  // The same for a row that has no copy and no use to record: asks for no shard. False: it is another one, and as it was.
  static bool FinishPlainChange(RowHeader* row, uint64_t touched) {
    if (touched != 0 || row->below != kNoLocation) return false;
    row->flags &= static_cast<uint16_t>(~kRowDemoting);
    --row->pins;
    return true;
  }
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
  Rank ColdestRow() { return dram_order_.Coldest(parts_.common->accesses.load()); }
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

  // --- Records that become rows.
  // Copies a record into DRAM as a row. touched != 0: the row counts as used at that access. touched == 0: it is as cold as its
  // record says, or coldest if its tier does not store that. `idle`: see RowUse. REQUIRES: ReserveRows
  RowHeader* Install(KeyWord word, int level, uint32_t location, const RecordHeader& header, const uint8_t* row_data,
                     uint64_t touched, uint64_t idle, FreedRecords* freed);
  // Frees the clean copy of a row, because the two differ.
  void DetachCopy(KeyWord word, FreedRecords* freed);
  // Adds to the table's count of rows in DRAM what came and went by Install, MoveToCopy and EndWrite. Shard::Locked calls it
  // before it releases the lock: one atomic addition for all, since each would wait for the stores of its row.
  void TellMoved() {
    if (moved_ != 0) parts_.common->dram_rows += std::exchange(moved_, 0);
  }
  // Adds an index word for a record that the tier recovered. REQUIRES: ReserveWords
  Status Adopt(uint64_t hash, int level, uint32_t location);

  // --- All of it.
  // Removes every key. `freed` gets the keys of rows in DRAM that may have records in durable tiers.
  void Clear(FreedRecords* freed);
  // To add columns: RoomFor makes a wider slab with room for every row. MoveInto moves the rows there and cannot fail.
  Result<std::unique_ptr<RowSlab>> RoomFor(std::shared_ptr<const RowLayout> layout) const {
    return parts_.dram.RoomFor(std::move(layout));
  }
  void MoveInto(std::unique_ptr<RowSlab> room) { parts_.dram.MoveInto(std::move(room)); }
  size_t dram_rows() const { return parts_.dram.rows(); }  // uncommitted ones included
  // To split a shard (ShardSet): BeginTakingOver makes this empty shard track changes where `from` does. TakeOver copies a row,
  // with its mark. ResourceExhausted where memory is short; this shard cannot be used then. REQUIRES: no row is pinned
  void BeginTakingOver(const ShardRows& from) {
    if (from.parts_.marks.tracks_changes()) parts_.marks.TrackChanges();
  }
  Status TakeOver(const ShardRows& from, uint32_t slot);

 private:
  ShardIndex::HashOfWord hash_of() const {
    return [this](WordState state, uint32_t slot) {
      return HashKey(state == WordState::kDram ? parts_.dram.Header(slot)->key : parts_.counted.at(slot)->key);
    };
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
  // Keeps what a snapshot, and a copy of the table, need of a row that is about to leave the table.
  void RowGoes(uint32_t slot);

  ShardParts parts_;
  int64_t moved_ = 0;                                  // see TellMoved
  VictimOrder dram_order_;                             // of tables whose rows leave DRAM
  const std::unique_ptr<PrefetchPins> prefetch_pins_;  // lookups count there under the shared side of the lock
  ShardRecords records_;
  ShardScan scan_;
  ShardSnapshot snapshot_;
};

}  // namespace multitier

#include "cc/table/shard/shard_rows_inline.h"

#endif  // CC_TABLE_SHARD_SHARD_ROWS_H_
