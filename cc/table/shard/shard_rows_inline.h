// What the inner loops of lookups and applies call of ShardRows. Include shard_rows.h.

#ifndef CC_TABLE_SHARD_SHARD_ROWS_INLINE_H_
#define CC_TABLE_SHARD_SHARD_ROWS_INLINE_H_

#include <algorithm>
#include <cstdint>

#include "cc/table/shard/shard_rows.h"

namespace multitier {

inline uint32_t ShardRows::AllocateRow(uint64_t clock, uint32_t frequency, uint64_t idle) {
  const uint32_t slot = parts_.dram.Allocate();
  parts_.marks.RowCreated(slot);
  parts_.dram.Header(slot)->recency = static_cast<uint32_t>(clock);
  if (parts_.common->evicts) dram_order_.Insert(RowUse{slot, frequency, idle}, clock, parts_.common->newest_version.load());
  return slot;
}

inline void ShardRows::ReleaseRow(uint32_t slot) {
  if (parts_.common->evicts) dram_order_.Erase(slot);
  if (parts_.dram.Header(slot)->has(kRowPrefetched)) prefetch_pins_->Used();
  parts_.dram.Release(slot);
}

inline void ShardRows::MoveToRecord(uint64_t* word, int level, uint32_t location) {
  const uint32_t slot = ShardIndex::location(*word);
  parts_.marks.RowDemoted(slot, level, location);
  parts_.counts.copies -= parts_.dram.Header(slot)->below != kNoLocation;
  ReleaseRow(slot);
  ShardIndex::Switch(word, LowerState(level), location);
  ++parts_.counts.rows_in[level];
  ++parts_.counters.lower[level].demotions;
  --moved_;
}

inline void ShardRows::CommitNew(RowHeader* row) {
  ++parts_.counts.rows;
  ++parts_.counters.created;
  row->flags &= static_cast<uint16_t>(~kRowUncommitted);
  if (row->below == kNoLocation) return;
  parts_.counted.Release(row->below);  // the counted entry it was
  row->below = kNoLocation;
}

inline Found ShardRows::Find(int64_t key, uint64_t hash) const {
  Found found;
  found.word = KeyWord(parts_.index.Find(hash, [&](uint64_t word) {
    const uint32_t slot = ShardIndex::location(word);
    switch (ShardIndex::state(word)) {
      case WordState::kDram: {
        RowHeader* row = parts_.dram.Header(slot);
        if (row->key != key) return false;
        found.row = row;
        found.slot = slot;
        return true;
      }
      case WordState::kCounted: {
        CountedKey* counted_key = parts_.counted.at(slot);
        if (counted_key->key != key) return false;
        found.counted = counted_key;
        found.slot = slot;
        return true;
      }
      default:
        found.maybe_below = true;
        return false;
    }
  }));
  if (found.word) found.maybe_below = false;
  return found;
}

inline void ShardRows::FinishChange(RowHeader* row, uint64_t touched, size_t batch, FreedRecords* freed) {
  row->flags &= static_cast<uint16_t>(~kRowDemoting);
  if (touched != 0 && NoteUse(row, static_cast<uint32_t>(touched), static_cast<uint32_t>(2 * batch))) prefetch_pins_->Used();
  if (row->below != kNoLocation) {  // the copy below is older than the row now
    freed->at[parts_.levels.last()].push_back(KeyLocation{row->key, row->below, /*newest=*/true});
    row->below = kNoLocation;
    --parts_.counts.copies;
  }
  --row->pins;
}

}  // namespace multitier

#endif  // CC_TABLE_SHARD_SHARD_ROWS_INLINE_H_
