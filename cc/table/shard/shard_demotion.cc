// How the rows of a shard go down and come up: a row of DRAM becomes a record, or leaves the table for good; a record becomes a
// row.

#include <cstring>

#include "cc/table/shard/shard_rows.h"

namespace multitier {

// --- Rows that leave DRAM.

std::vector<uint32_t> ShardRows::ChooseVictims(size_t n) {
  if (!prefetch_pins_->empty()) prefetch_pins_->Sweep(parts_.common->env->NowMicros());
  return dram_order_.Choose(n, parts_.common->accesses.load());
}

void ShardRows::Drop(const std::vector<uint32_t>& slots) {
  for (const uint32_t slot : slots) {
    const int64_t key = parts_.dram.Header(slot)->key;
    RowGoes(slot);
    EraseRow(Find(key, HashKey(key)).word.word_);
    --parts_.common->dram_rows;
  }
  parts_.counters.dropped += static_cast<int64_t>(slots.size());
}

void ShardRows::MoveToCopy(uint32_t slot) {
  const RowHeader* row = parts_.dram.Header(slot);
  MoveToRecord(Find(row->key, HashKey(row->key)).word.word_, parts_.levels.last(), row->below);
}

RecordHeader ShardRows::BeginWrite(uint32_t slot, int level, uint8_t* row_data) {
  RowHeader* row = parts_.dram.Header(slot);
  // Even a write that fails may leave a record behind.
  row->flags |= parts_.levels.needs_removal[level] ? kRowDemoting | kRowEverBelow : kRowDemoting;
  std::memcpy(row_data, RowSlab::Data(row), parts_.dram.layout()->row_bytes());
  RecordHeader header;
  header.key = row->key;
  header.version = row->version;
  header.frequency = row->frequency;
  header.num_columns = static_cast<uint32_t>(parts_.dram.layout()->columns().size());
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
    if (parts_.levels.bounded[level]) records_.Order(level, header, location);
    return Written::kMoved;
  }
  if (!parts_.levels.keeps_copies(level)) return Written::kStale;
  parts_.marks.RowCopied(found.slot, location);
  parts_.counts.copies += row->below == kNoLocation;
  row->below = location;
  return Written::kCopied;
}

void ShardRows::CancelWrite(int64_t key) {
  RowHeader* row = Find(key, HashKey(key)).row;
  if (row != nullptr) row->flags &= static_cast<uint16_t>(~kRowDemoting);
}

// --- Records that become rows, or of which a row has a copy.

RowHeader* ShardRows::Install(KeyWord word, int level, uint32_t location, const RecordHeader& header, const uint8_t* row_data,
                              uint64_t touched, uint64_t idle, FreedRecords* freed) {
  const uint64_t clock = parts_.common->accesses.load();
  const uint32_t slot = AllocateRow(clock, header.frequency, idle);
  RowHeader* row = parts_.dram.Header(slot);
  row->key = header.key;
  row->version = header.version;
  row->frequency = header.frequency;
  if (parts_.levels.middle[level]) row->flags = header.flags & kRowEverBelow;
  if (parts_.levels.needs_removal[level] || header.below != kNoLocation) row->flags |= kRowEverBelow;
  if (parts_.levels.keeps_copies(level)) {
    row->below = location;
  } else {
    if (parts_.levels.middle[level]) row->below = header.below;
    freed->at[level].push_back(KeyLocation{header.key, location, /*newest=*/true});
  }
  // Read for no access that counts: as cold as it was, or, where that is not known, as anything can be.
  constexpr uint32_t kColdest = 0x80000000u;
  const uint32_t was = parts_.levels.middle[level] ? header.recency : static_cast<uint32_t>(clock) - kColdest;
  row->recency = touched != 0 ? static_cast<uint32_t>(touched) : was;
  parts_.counts.copies += row->below != kNoLocation;
  if (parts_.common->evicts) dram_order_.Refresh(slot, clock);
  std::memcpy(RowSlab::Data(row), row_data, parts_.dram.layout()->row_bytes());
  ShardIndex::Switch(word.word_, WordState::kDram, slot);
  parts_.marks.RowPromoted(slot, level, location);
  --parts_.counts.rows_in[level];
  ++parts_.counters.lower[level].promotions;
  ++moved_;
  return row;
}

void ShardRows::DetachCopy(KeyWord word, FreedRecords* freed) {
  const uint32_t slot = ShardIndex::location(*word.word_);
  RowHeader* row = parts_.dram.Header(slot);
  if (row->below == kNoLocation) return;
  parts_.marks.RowChanges(slot);
  freed->at[parts_.levels.last()].push_back(KeyLocation{row->key, row->below});
  row->below = kNoLocation;
  --parts_.counts.copies;
}

Status ShardRows::Adopt(uint64_t hash, int level, uint32_t location) {
  MT_RETURN_IF_ERROR(parts_.index.Insert(hash, LowerState(level), location, hash_of()));
  ++parts_.counts.rows;
  ++parts_.counts.rows_in[level];
  return OkStatus();
}

}  // namespace multitier
