// What the inner loops of lookups and applies call of ShardRows, and its templates. Include shard_rows.h.

#ifndef CC_TABLE_SHARD_SHARD_ROWS_INLINE_H_
#define CC_TABLE_SHARD_SHARD_ROWS_INLINE_H_

#include <algorithm>
#include <cstdint>

#include "cc/table/shard/shard_rows.h"

namespace multitier {

inline uint32_t ShardRows::AllocateRow(uint64_t clock, uint32_t frequency, uint64_t idle) {
  const uint32_t slot = dram_.Allocate();
  marks_.RowCreated(slot);
  dram_.Header(slot)->recency = static_cast<uint32_t>(clock);
  if (common_->evicts) dram_order_.Insert(RowUse{slot, frequency, idle}, clock, common_->newest_version.load());
  return slot;
}

inline void ShardRows::ReleaseRow(uint32_t slot) {
  if (common_->evicts) dram_order_.Erase(slot);
  if (dram_.Header(slot)->has(kRowPrefetched)) prefetch_pins_->Used();
  dram_.Release(slot);
}

inline void ShardRows::MoveToRecord(uint64_t* word, int level, uint32_t location) {
  const uint32_t slot = ShardIndex::location(*word);
  marks_.RowDemoted(slot, level, location);
  copies_ -= dram_.Header(slot)->below != kNoLocation;
  ReleaseRow(slot);
  ShardIndex::Switch(word, LowerState(level), location);
  ++rows_in_[level];
  ++counters.lower[level].demotions;
  --common_->dram_rows;
}

inline KeyWord ShardRows::EndRead(uint64_t hash, uint32_t id) {
  uint64_t* word = index_.Find(hash, [&](uint64_t w) { return PendingWords::IsPending(w, id); });
  MT_CHECK(word != nullptr);
  pending_.Restore(word, id);
  resolved_->Happen();
  return KeyWord(word);
}

inline void ShardRows::CommitNew(RowHeader* row) {
  ++rows_;
  ++counters.created;
  row->flags &= static_cast<uint16_t>(~kRowUncommitted);
  if (row->below == kNoLocation) return;
  counted_.Release(row->below);  // the counted entry it was
  row->below = kNoLocation;
}

inline Found ShardRows::Find(int64_t key, uint64_t hash) const {
  Found found;
  found.word = KeyWord(index_.Find(hash, [&](uint64_t word) {
    const uint32_t slot = ShardIndex::location(word);
    switch (ShardIndex::state(word)) {
      case WordState::kDram: {
        RowHeader* row = dram_.Header(slot);
        if (row->key != key) return false;
        found.row = row;
        found.slot = slot;
        return true;
      }
      case WordState::kCounted: {
        CountedKey* counted_key = counted_.at(slot);
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
    freed->at[levels_.last()].push_back(KeyLocation{row->key, row->below, /*newest=*/true});
    row->below = kNoLocation;
    --copies_;
  }
  --row->pins;
}

inline void ShardRows::PrefetchRowsAt(uint32_t home, size_t bytes) const {
  index_.ForEachIn(home, [&](uint64_t word) {
    if (ShardIndex::state(word) == WordState::kDram) dram_.Prefetch(ShardIndex::location(word), bytes);
  });
}

template <typename GoOn, typename Visit>
bool ShardRows::VisitRows(uint32_t* left, uint32_t looked, size_t ahead, GoOn go_on, Visit visit) const {
  constexpr uint32_t kSlotsAhead = 32;
  *left = std::min(*left, dram_.end());
  for (; *left > 0 && looked > 0 && go_on(); --looked) {
    const uint32_t slot = --*left;
    if (slot >= kSlotsAhead) dram_.Prefetch(slot - kSlotsAhead, ahead);
    const RowHeader& row = *dram_.Header(slot);
    if (!row.has(kRowFree | kRowUncommitted)) visit(row);
  }
  return *left > 0;
}

template <typename GoOn, typename Visit>
bool ShardRows::VisitCounted(uint32_t* left, uint32_t looked, GoOn go_on, Visit visit) const {
  *left = std::min(*left, counted_.end());
  for (; *left > 0 && looked > 0 && go_on(); --looked) visit(static_cast<const CountedKey&>(*counted_.at(--*left)));
  return *left > 0;
}

template <typename OnRow, typename OnCounted, typename Wants, typename OnRecord>
void ShardRows::VisitHome(uint32_t home, OnRow on_row, OnCounted on_counted, Wants wants, OnRecord on_record) {
  index_.ForEachAtHome(home, [&](uint64_t& word) {
    const uint32_t location = ShardIndex::location(word);
    switch (ShardIndex::state(word)) {
      case WordState::kDram:
        if (!dram_.Header(location)->has(kRowUncommitted)) on_row(static_cast<const RowHeader&>(*dram_.Header(location)));
        break;
      case WordState::kCounted:
        on_counted(static_cast<const CountedKey&>(*counted_.at(location)));
        break;
      default: {
        const int level = LevelOf(word);
        if (wants(level, location)) on_record(level, location, pending_.Add(&word));
      }
    }
  });
}

template <typename Visit>
bool ShardRows::GiveRows(uint32_t* slot, size_t most, uint32_t looked, Visit visit) {
  const uint32_t end = std::min(dram_.end(), marks_.rows_end());
  constexpr uint32_t kSlotsAhead = 16;
  for (; *slot < end && most > 0 && looked > 0; ++*slot, --looked) {
    const uint32_t ahead = *slot + kSlotsAhead;
    if (ahead < end && marks_.is_marked(ahead)) PrefetchRow(ahead);
    if (!marks_.TakeRow(*slot)) continue;
    const RowHeader* row = dram_.Header(*slot);
    if (row->has(kRowFree | kRowUncommitted)) continue;
    if (row->below != kNoLocation) marks_.TakeRecord(levels_.last(), row->below);
    visit(*row);
    --most;
  }
  return *slot < end;
}

template <typename Visit>
bool ShardRows::GiveCounted(uint32_t* slot, size_t most, uint32_t looked, Visit visit) {
  const uint32_t end = std::min(counted_.end(), marks_.counted_end());
  for (; *slot < end && most > 0 && looked > 0; ++*slot, --looked) {
    if (!marks_.TakeCounted(*slot)) continue;
    visit(*counted_.at(*slot));
    --most;
  }
  return *slot < end;
}

}  // namespace multitier

#endif  // CC_TABLE_SHARD_SHARD_ROWS_INLINE_H_
