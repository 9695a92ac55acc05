// RecordMover: takes records out of a tier below DRAM: to the next tier, out of the table, or as copies to the last tier.
//
//   1. choose   under the shard's lock: the coldest records of the order become pending, so that no other thread moves,
//               frees or reads them
//   2. read     no lock held: their headers, and the rows of those that have no clean copy in the tier below
//   3. write    those rows in one call of the next tier
//   4. switch   under the shard's lock: the word of each points to its new record or to its clean copy; the old one is freed
//
// What cannot be read or written goes back to where it was (CancelLeave). A record that is to be dropped, that a snapshot has
// still to give and that cannot be read now, goes back, too.
//
// Owns no state. Its callers hold the shard's ShardWriter and no lock, pin or pending word; DropCorrupt alone is called under
// the shard's lock. Thread-safe.

#ifndef CC_TABLE_TIERING_RECORD_MOVER_H_
#define CC_TABLE_TIERING_RECORD_MOVER_H_

#include <cstdint>
#include <vector>

#include "cc/table/tiering/dropped_rows.h"
#include "cc/table/tiering/table_base.h"

namespace multitier {

class RecordMover {
 public:
  RecordMover(TableBase* base, DroppedRows* dropped) : base_(*base), tiers_(base->tiers), dropped_(*dropped) {}

  // Makes room for n records of the shard in a tier, where the tier is bounded: its coldest records leave it. *room: for how
  // many there is. ResourceExhausted where there is none. With n = 0 what is beyond the budget leaves.
  Status MakeRoom(const ShardWriter& writer, int level, size_t n, size_t* room);
  // Moves the n coldest records of the shard to the next tier.
  Status Demote(const ShardWriter& writer, int level, size_t n);
  // The rank of the shard's coldest record in a bounded tier: the highest of all where it has none, the lowest where it cannot
  // be read now. Reads headers of records.
  Result<Rank> Coldest(Shard* shard, int level);
  // Gives every record of the shard in the first tier a clean copy in the last one. The records stay.
  Status CopyToLast(const ShardWriter& writer);
  // A key with a damaged record leaves the table. Its caller need not hold the writer.
  void DropCorrupt(Shard::Locked& lock, KeyWord word, int64_t key, int level, uint32_t location, const RecordHeader& header);
  // What the containers for n rows on their way to the next tier need, and the error where there is no such memory.
  size_t ScratchBytes(size_t n) const { return n * (kScratchBytesOfRow + 4 * base_.layout()->row_bytes()); }
  Status NoMemory(const char* from, size_t n) const;

 private:
  static constexpr size_t kScratchBytesOfRow = 512;
  using Leaving = ShardRecords::Leaving;
  // A record on its way to the next tier.
  struct Moving {
    enum State : uint8_t { kStays, kClean, kDirty, kDamaged };
    Leaving leaving;
    State state = kStays;
    const uint8_t* row_data = nullptr;  // of kDirty
    uint32_t to = kNoLocation;          // the location in the next tier
  };

  Status TakeColdest(Shard* shard, int level, size_t n, std::vector<Leaving>* taken);
  Status ReadMoving(int level, std::vector<Moving>* moving, std::vector<uint8_t>* data);
  Status WriteMoving(const ShardWriter& writer, int level, std::vector<Moving>* moving);
  void SwitchMoving(Shard* shard, int level, const std::vector<Moving>& moving);

  Status DropColdest(const ShardWriter& writer, int level, size_t n);
  // Reads those of the records that are kept for PopDropped, or that a snapshot has still to give, in the order of `taken`.
  Status ReadWanted(Shard* shard, int level, const std::vector<Leaving>& taken, std::vector<ReadRecord>* records,
                    std::vector<uint8_t>* data);

  // Of CopyToLast: the records at `locations` that have no copy yet; in `freed` the locations that hold no record any more.
  Status ReadWithoutCopy(Shard* shard, Span<const uint32_t> locations, std::vector<ReadRecord>* records,
                         std::vector<uint8_t>* data, std::vector<uint32_t>* freed);
  Status WriteCopies(const ShardWriter& writer, const std::vector<ReadRecord>& records);
  // Rows whose locations read as freed were promoted, and the shard names none of them; else DataLoss. REQUIRES: the shard's
  // writer was held since they were collected
  Status CheckUnnamed(Shard* shard, int level, std::vector<uint32_t> locations);

  // What comes into the last tier may be colder than what is there: then it comes first, and the coldest of all go afterwards.
  bool room_after(int level) const {
    return level == levels().last() && base_.options.drop_coldest && MayComeColdest(base_.common.strategy);
  }
  const TierLevels& levels() const { return base_.common.levels; }
  size_t lower_share(int level) const { return base_.budgets.lower_share(level, *base_.layout()); }

  TableBase& base_;
  TierStack& tiers_;
  DroppedRows& dropped_;
};

}  // namespace multitier

#endif  // CC_TABLE_TIERING_RECORD_MOVER_H_
