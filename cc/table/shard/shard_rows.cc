// Rows and counted keys in memory: how they come, change and go. Demotion and promotion: shard_demotion.cc.

#include "cc/table/shard/shard_rows.h"

#include <cstring>

namespace multitier {
namespace {

constexpr size_t kGroup = 32;  // rows whose initial values are drawn together

}  // namespace

ShardRows::ShardRows(ShardCommon* common, std::shared_ptr<const RowLayout> layout, ShardIndex::Limits limits,
                     std::shared_ptr<RowMemory> memory, Event* resolved, double ahead)
    : parts_(common, std::move(layout), limits, std::move(memory), resolved, ahead),
      dram_order_(&parts_.dram, common->strategy, common->exact, common->by_score),
      prefetch_pins_(std::make_unique<PrefetchPins>([this](int64_t key) { return Find(key, HashKey(key)).row; })),
      records_(&parts_),
      scan_(&parts_),
      snapshot_(&parts_) {}

Status ShardRows::ReserveWords(size_t n) { return parts_.index.Reserve(n, hash_of()); }

Status ShardRows::CreateUncommitted(const KeyBatch& batch, const std::vector<uint32_t>& entries, uint64_t clock,
                                    RowHeader** rows, size_t* created) {
  int64_t keys[kGroup];
  uint8_t* values[kGroup];
  uint32_t slots[kGroup];
  const ShardIndex::HashOfWord hash_of_word = hash_of();
  auto fetch_buckets = [&](size_t from) {
    for (size_t i = from; i < std::min(entries.size(), from + kGroup); ++i) parts_.index.Prefetch(batch.hash(entries[i]));
  };
  fetch_buckets(0);
  for (size_t i = 0; i < entries.size(); i += kGroup) {
    const size_t n = std::min<size_t>(kGroup, entries.size() - i);
    fetch_buckets(i + kGroup);
    for (size_t j = 0; j < n; ++j) {
      keys[j] = batch.key(entries[i + j]);
      slots[j] = AllocateRow(clock, 1, 0);
      RowHeader* row = parts_.dram.Header(slots[j]);
      values[j] = RowSlab::Data(row);
      row->key = keys[j];
      row->version = -1;
      row->pins = 1;
      row->flags = kRowUncommitted;
      parts_.dram.layout()->FillSlots(RowSlab::Data(row), 1);
    }
    if (parts_.common->initializer != nullptr) parts_.common->initializer->FillRows(keys, nullptr, n, values);
    for (size_t j = 0; j < n; ++j) {
      const uint32_t entry = entries[i + j];
      const Status inserted = parts_.index.Insert(batch.hash(entry), WordState::kDram, slots[j], hash_of_word);
      if (!inserted.ok()) {
        for (size_t k = j; k < n; ++k) ReleaseRow(slots[k]);
        *created = i + j;
        return inserted;
      }
      rows[entry] = parts_.dram.Header(slots[j]);
    }
  }
  *created = entries.size();
  return OkStatus();
}

RowHeader* ShardRows::Create(int64_t key, uint64_t hash, uint64_t clock) {
  const uint32_t slot = AllocateRow(clock, 1, 0);
  RowHeader* const row = parts_.dram.Header(slot);
  row->key = key;
  row->version = -1;
  row->pins = 1;
  row->flags = kRowUncommitted;
  if (parts_.index.Insert(hash, WordState::kDram, slot, hash_of()).ok()) return row;
  ReleaseRow(slot);
  return nullptr;
}

RowHeader* ShardRows::CreateFromCounted(const Found& found, uint64_t clock) {
  const CountedKey* counted = found.counted;
  parts_.marks.CountedChanges(found.slot);
  const uint32_t slot = AllocateRow(clock, counted->frequency + 1, 0);
  RowHeader* row = parts_.dram.Header(slot);
  row->key = counted->key;
  row->flags = kRowUncommitted;
  ResetRow(row);
  row->pins = static_cast<uint16_t>(1 + counted->pins);
  row->frequency = counted->frequency;
  row->below = found.slot;
  if (counted->frequency > 0) --parts_.counts.counted_rows;
  ShardIndex::Switch(found.word.word_, WordState::kDram, slot);
  return row;
}

void ShardRows::ResetRow(RowHeader* row) {
  row->version = -1;
  row->frequency = 0;
  uint8_t* const data = RowSlab::Data(row);
  if (parts_.common->initializer != nullptr) parts_.common->initializer->FillRows(&row->key, nullptr, 1, &data);
  parts_.dram.layout()->FillSlots(RowSlab::Data(row), 1);
}

void ShardRows::Unpin(RowHeader* row) {
  if (--row->pins != 0 || !row->has(kRowUncommitted)) return;
  uint64_t* word = Find(row->key, HashKey(row->key)).word.word_;
  --parts_.common->dram_rows;
  const uint32_t entry = row->below;
  if (entry == kNoLocation) return EraseRow(word);
  CountedKey* counted = parts_.counted.at(entry);
  *counted = CountedKey{row->key, counted->version, row->frequency, 0};
  if (row->frequency == 0) {
    parts_.counted.Release(entry);
    return EraseRow(word);
  }
  ReleaseRow(ShardIndex::location(*word));
  ShardIndex::Switch(word, WordState::kCounted, entry);
  ++parts_.counts.counted_rows;
}

void ShardRows::Reorder(RowHeader* row, uint64_t hash, uint64_t clock) {
  if (parts_.common->evicts) dram_order_.Refresh(SlotOf(row->key, hash), clock);
}

void ShardRows::EraseRow(uint64_t* word) {
  const uint32_t slot = ShardIndex::location(*word);
  if (!parts_.dram.Header(slot)->has(kRowUncommitted)) --parts_.counts.rows;
  ReleaseRow(slot);
  parts_.index.Erase(word);
}

void ShardRows::RowGoes(uint32_t slot) {
  parts_.marks.RowGoes(slot);
  if (parts_.common->removed != nullptr) parts_.common->removed->Note(parts_.dram.Header(slot)->key);
}

void ShardRows::Erase(const Found& found, FreedRecords* freed) {
  RowHeader* row = found.row;
  if (!row->has(kRowUncommitted)) {
    RowGoes(found.slot);
    const bool ever_below = row->has(kRowEverBelow) || parts_.common->any_key_below;
    for (int level = 0; level < parts_.levels.count; ++level) {
      const uint32_t location = level == parts_.levels.last() ? row->below : kNoLocation;
      if (location != kNoLocation || (parts_.levels.needs_removal[level] && ever_below)) {
        freed->at[level].push_back(KeyLocation{row->key, location});
      }
    }
    parts_.counts.copies -= row->below != kNoLocation;
    row->below = kNoLocation;
    if (row->pins == 0) {
      EraseRow(found.word.word_);
      --parts_.common->dram_rows;
      return;
    }
    --parts_.counts.rows;
    if (row->has(kRowPrefetched)) prefetch_pins_->Used();
    row->flags = static_cast<uint16_t>((row->flags & kRowEverBelow) | kRowUncommitted);
  }
  // An apply holds it: it trains a key that is absent again.
  ResetRow(row);
  if (parts_.common->evicts) dram_order_.Refresh(found.slot, parts_.common->accesses.load());
}

Status ShardRows::CreateCounted(int64_t key, uint64_t hash, uint32_t pins) {
  const uint32_t slot = parts_.counted.Allocate(key);
  parts_.marks.CountedCreated(slot);
  const Status inserted = parts_.index.Insert(hash, WordState::kCounted, slot, hash_of());
  if (!inserted.ok()) {
    parts_.counted.Release(slot);
    return inserted;
  }
  parts_.counted.at(slot)->pins = pins;
  return inserted;
}

void ShardRows::SetCount(const Found& found, uint32_t frequency, int64_t version) {
  parts_.marks.CountedChanges(found.slot);
  if (found.counted->frequency == 0 && frequency > 0) ++parts_.counts.counted_rows;
  found.counted->frequency = frequency;
  found.counted->version = version;
}

void ShardRows::UnpinCounted(int64_t key, uint64_t hash) {
  const Found found = Find(key, hash);
  if (found.row != nullptr) return Unpin(found.row);  // it became a row, which took our pin over
  if (--found.counted->pins == 0 && found.counted->frequency == 0) EraseCounted(found.word.word_);
}

void ShardRows::EraseCount(const Found& found) {
  parts_.marks.CountedGoes(found.slot);
  if (found.counted->pins == 0) {
    EraseCounted(found.word.word_);
  } else if (found.counted->frequency > 0) {
    --parts_.counts.counted_rows;
    found.counted->frequency = 0;
  }
}

void ShardRows::EraseCounted(uint64_t* word) {
  const uint32_t slot = ShardIndex::location(*word);
  if (parts_.counted.at(slot)->frequency > 0) --parts_.counts.counted_rows;
  parts_.counted.Release(slot);
  parts_.index.Erase(word);
}

Status ShardRows::TakeOver(const ShardRows& from, uint32_t from_slot) {
  const RowHeader* const row = from.row(from_slot);
  MT_RETURN_IF_ERROR(ReserveRows(1));
  const uint32_t slot = parts_.dram.Allocate();
  std::memcpy(parts_.dram.Header(slot), row, sizeof(RowHeader) + layout()->row_bytes());
  MT_RETURN_IF_ERROR(parts_.index.Insert(HashKey(row->key), WordState::kDram, slot, hash_of()));
  parts_.marks.TakeOver(from.parts_.marks, from_slot, slot);
  ++parts_.counts.rows;
  return OkStatus();
}

void ShardRows::Clear(FreedRecords* freed) {
  for (uint32_t slot = 0; slot < parts_.dram.end() && parts_.levels.count > 0; ++slot) {
    const RowHeader* row = parts_.dram.Header(slot);
    if (row->has(kRowFree) || !(row->has(kRowEverBelow) || parts_.common->any_key_below)) continue;
    for (int level = 0; level < parts_.levels.count; ++level) {
      if (parts_.levels.needs_removal[level]) freed->at[level].push_back(KeyLocation{row->key, kNoLocation});
    }
  }
  parts_.marks.ForgetChanges();
  parts_.index.Clear();
  parts_.dram.Clear();
  parts_.counted.Clear();
  dram_order_.Clear();
  prefetch_pins_->Clear();
  parts_.counters.removed += parts_.counts.rows;
  parts_.counts = ShardCounts();
  records_.Clear();
}

}  // namespace multitier
