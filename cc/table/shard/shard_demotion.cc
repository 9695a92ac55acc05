// How the rows and records of a shard go down: a row of DRAM becomes a record, and a record of a bounded tier goes to the next
// tier. Or they leave the table for good.

#include <cstring>

#include "cc/table/shard/shard_rows.h"

namespace multitier {

// --- Rows that leave DRAM.

std::vector<uint32_t> ShardRows::ChooseVictims(size_t n) {
  if (!prefetch_pins_->empty()) prefetch_pins_->Sweep(common_->env->NowMicros(), row_of());
  return dram_order_.Choose(n, common_->accesses.load());
}

void ShardRows::Drop(const std::vector<uint32_t>& slots) {
  for (const uint32_t slot : slots) {
    const int64_t key = dram_.Header(slot)->key;
    RowGoes(slot);
    EraseRow(Find(key, HashKey(key)).word.word_);
    --common_->dram_rows;
  }
  counters.dropped += static_cast<int64_t>(slots.size());
}

void ShardRows::MoveToCopy(uint32_t slot) {
  const RowHeader* row = dram_.Header(slot);
  MoveToRecord(Find(row->key, HashKey(row->key)).word.word_, levels_.last(), row->below);
}

RecordHeader ShardRows::BeginWrite(uint32_t slot, int level, uint8_t* row_data) {
  RowHeader* row = dram_.Header(slot);
  // Even a write that fails may leave a record behind.
  row->flags |= levels_.needs_removal[level] ? kRowDemoting | kRowEverBelow : kRowDemoting;
  std::memcpy(row_data, RowSlab::Data(row), dram_.layout()->row_bytes());
  RecordHeader header;
  header.key = row->key;
  header.version = row->version;
  header.frequency = row->frequency;
  header.num_columns = static_cast<uint32_t>(dram_.layout()->columns().size());
  header.below = row->below;
  header.recency = row->recency;
  header.flags = row->flags & kRowEverBelow;
  return header;
}

ShardRows::Written ShardRows::EndWrite(const RecordHeader& header, int level, uint32_t location, bool keep) {
  const Found found = Find(header.key, HashKey(header.key));
  RowHeader* row = found.row;
  if (row == nullptr || !row->has(kRowDemoting)) return Written::kStale;
  row->flags &= static_cast<uint16_t>(~kRowDemoting);
  if (!keep && row->pins == 0) {
    MoveToRecord(found.word.word_, level, location);
    if (levels_.bounded[level]) Order(level, header, location);
    return Written::kMoved;
  }
  if (!levels_.keeps_copies(level)) return Written::kStale;
  marks_.RowCopied(found.slot, location);
  copies_ += row->below == kNoLocation;
  row->below = location;
  return Written::kCopied;
}

void ShardRows::CancelWrite(int64_t key) {
  RowHeader* row = Find(key, HashKey(key)).row;
  if (row != nullptr) row->flags &= static_cast<uint16_t>(~kRowDemoting);
}

// --- Records that leave their tier.

uint64_t* ShardRows::RecordWord(int level, const LowerOrder::Entry& entry) {
  return index_.Find(HashKey(entry.key),
                     [&](uint64_t word) { return IsRecord(pending_.Original(word), level, entry.location); });
}

void ShardRows::Push(int level, const LowerOrder::Entry& entry) {
  LowerOrder& order = lower_order_[level];
  order.Push(entry);
  if (!order.wants_keep(static_cast<size_t>(rows_in_[level]))) return;
  order.Keep([&](const LowerOrder::Entry& each) {
    if (each.key == entry.key && each.location == entry.location) return true;  // it may come into the index after this
    return RecordWord(level, each) != nullptr;
  });
}

void ShardRows::Order(int level, const RecordHeader& header, uint32_t location) {
  Push(level, {RankOfRecord(header), location, header.key});
}

std::vector<LowerOrder::Entry> ShardRows::PopColdest(int level, size_t n) {
  std::vector<LowerOrder::Entry> entries;
  while (entries.size() < n && !lower_order_[level].empty()) entries.push_back(lower_order_[level].Pop());
  return entries;
}

ShardRows::Leave ShardRows::BeginLeave(int level, const LowerOrder::Entry& entry, const RecordHeader* header, uint64_t clock,
                                       Leaving* leaving) {
  uint64_t* word = RecordWord(level, entry);
  if (word == nullptr) return Leave::kNotColdest;
  if (ShardIndex::state(*word) == WordState::kPending) return Leave::kReadNow;
  // A warmer row may be where that one was, or Relocate, which does not know frequency and version, ranked it: not yet. While
  // the recency is the entry's own it is not asked: what it says is over after 2^32 accesses, the rank is not.
  const uint32_t ranked = entry.rank.recency;
  const uint32_t recency = header != nullptr && levels_.middle[level] ? header->recency : ranked;
  if (header != nullptr && (recency != ranked || MayComeColdest(common_->strategy))) {
    const Rank rank = RankOf(common_->strategy, header->version, header->frequency, recency, clock);
    if (rank > entry.rank) {
      lower_order_[level].Push({rank, entry.location, entry.key});
      return Leave::kNotColdest;
    }
  }
  if (header != nullptr) leaving->header = *header;
  leaving->header.key = entry.key;
  leaving->location = entry.location;
  leaving->rank = entry.rank;
  leaving->id = pending_.Add(word);
  return Leave::kBegun;
}

void ShardRows::CancelLeave(int level, const Leaving& leaving) {
  EndRead(HashKey(leaving.header.key), leaving.id);
  Push(level, {leaving.rank, leaving.location, leaving.header.key});
}

void ShardRows::MoveDown(int level, const Leaving& leaving, const RecordHeader& header, int to, uint32_t location,
                         FreedRecords* freed) {
  const KeyWord word = EndRead(HashKey(header.key), leaving.id);
  ShardIndex::Switch(word.word_, LowerState(to), location);
  marks_.RecordCopied(level, leaving.location, to, location);
  --rows_in_[level];
  ++rows_in_[to];
  ++counters.lower[to].demotions;
  if (levels_.bounded[to]) Order(to, header, location);
  freed->at[level].push_back(KeyLocation{header.key, leaving.location});
}

void ShardRows::DropRecord(int level, const Leaving& leaving, const RecordHeader& header, uint8_t* row_data,
                           FreedRecords* freed) {
  RecordGoes(level, leaving.location, leaving.header.key, header, row_data);
  index_.Erase(EndRead(HashKey(leaving.header.key), leaving.id).word_);
  --rows_in_[level];
  --rows_;
  ++counters.dropped;
  for (int other = 0; other < levels_.count; ++other) {
    if (other != level && !levels_.needs_removal[other]) continue;
    freed->at[other].push_back(KeyLocation{leaving.header.key, other == level ? leaving.location : kNoLocation});
  }
}

}  // namespace multitier
