// Rows and counted keys in memory: how they come, change and go. Records: shard_records.cc. Demotion: shard_demotion.cc.

#include "cc/table/shard/shard_rows.h"

namespace multitier {
namespace {

constexpr size_t kGroup = 32;  // rows whose initial values are drawn together

}  // namespace

ShardRows::ShardRows(ShardCommon* common, std::shared_ptr<const RowLayout> layout, ShardIndex::Limits limits,
                     std::shared_ptr<RowMemory> memory, Event* resolved)
    : common_(common),
      levels_(common->levels),
      resolved_(resolved),
      index_(common->env, levels_.count > 0, limits),
      dram_(common->env, std::move(layout), std::move(memory)),
      counted_(common->env),
      dram_order_(&dram_, common->strategy, common->exact, common->by_score),
      prefetch_pins_(std::make_unique<PrefetchPins>()),
      marks_(&levels_, &dram_, &counted_) {}

Status ShardRows::ReserveWords(size_t n) { return index_.Reserve(n, hash_of()); }

Status ShardRows::CreateUncommitted(const KeyBatch& batch, const std::vector<uint32_t>& entries, uint64_t clock,
                                    RowHeader** rows, size_t* created) {
  int64_t keys[kGroup];
  uint8_t* values[kGroup];
  uint32_t slots[kGroup];
  const ShardIndex::HashOfWord hash_of_word = hash_of();
  auto fetch_buckets = [&](size_t from) {
    for (size_t i = from; i < std::min(entries.size(), from + kGroup); ++i) index_.Prefetch(batch.hash(entries[i]));
  };
  fetch_buckets(0);
  for (size_t i = 0; i < entries.size(); i += kGroup) {
    const size_t n = std::min<size_t>(kGroup, entries.size() - i);
    fetch_buckets(i + kGroup);
    for (size_t j = 0; j < n; ++j) {
      keys[j] = batch.key(entries[i + j]);
      slots[j] = AllocateRow(clock, 1, 0);
      RowHeader* row = dram_.Header(slots[j]);
      values[j] = RowSlab::Data(row);
      row->key = keys[j];
      row->version = -1;
      row->pins = 1;
      row->flags = kRowUncommitted;
      dram_.layout()->FillSlots(RowSlab::Data(row), 1);
    }
    if (common_->initializer != nullptr) common_->initializer->FillRows(keys, nullptr, n, values);
    for (size_t j = 0; j < n; ++j) {
      const uint32_t entry = entries[i + j];
      const Status inserted = index_.Insert(batch.hash(entry), WordState::kDram, slots[j], hash_of_word);
      if (!inserted.ok()) {
        for (size_t k = j; k < n; ++k) ReleaseRow(slots[k]);
        *created = i + j;
        return inserted;
      }
      rows[entry] = dram_.Header(slots[j]);
    }
  }
  *created = entries.size();
  return OkStatus();
}

RowHeader* ShardRows::Create(int64_t key, uint64_t hash, uint64_t clock) {
  const uint32_t slot = AllocateRow(clock, 1, 0);
  RowHeader* const row = dram_.Header(slot);
  row->key = key;
  row->version = -1;
  row->pins = 1;
  row->flags = kRowUncommitted;
  if (index_.Insert(hash, WordState::kDram, slot, hash_of()).ok()) return row;
  ReleaseRow(slot);
  return nullptr;
}

RowHeader* ShardRows::CreateFromCounted(const Found& found, uint64_t clock) {
  const CountedKey* counted = found.counted;
  marks_.CountedChanges(found.slot);
  const uint32_t slot = AllocateRow(clock, counted->frequency + 1, 0);
  RowHeader* row = dram_.Header(slot);
  row->key = counted->key;
  row->flags = kRowUncommitted;
  ResetRow(row);
  row->pins = static_cast<uint16_t>(1 + counted->pins);
  row->frequency = counted->frequency;
  row->below = found.slot;
  if (counted->frequency > 0) --counted_rows_;
  ShardIndex::Switch(found.word.word_, WordState::kDram, slot);
  return row;
}

void ShardRows::ResetRow(RowHeader* row) {
  row->version = -1;
  row->frequency = 0;
  uint8_t* const data = RowSlab::Data(row);
  if (common_->initializer != nullptr) common_->initializer->FillRows(&row->key, nullptr, 1, &data);
  dram_.layout()->FillSlots(RowSlab::Data(row), 1);
}

void ShardRows::Unpin(RowHeader* row) {
  if (--row->pins != 0 || !row->has(kRowUncommitted)) return;
  uint64_t* word = Find(row->key, HashKey(row->key)).word.word_;
  --common_->dram_rows;
  const uint32_t entry = row->below;
  if (entry == kNoLocation) return EraseRow(word);
  CountedKey* counted = counted_.at(entry);
  *counted = CountedKey{row->key, counted->version, row->frequency, 0};
  if (row->frequency == 0) {
    counted_.Release(entry);
    return EraseRow(word);
  }
  ReleaseRow(ShardIndex::location(*word));
  ShardIndex::Switch(word, WordState::kCounted, entry);
  ++counted_rows_;
}

void ShardRows::Reorder(RowHeader* row, uint64_t hash, uint64_t clock) {
  if (common_->evicts) dram_order_.Refresh(SlotOf(row->key, hash), clock);
}

void ShardRows::EraseRow(uint64_t* word) {
  const uint32_t slot = ShardIndex::location(*word);
  if (!dram_.Header(slot)->has(kRowUncommitted)) --rows_;
  ReleaseRow(slot);
  index_.Erase(word);
}

void ShardRows::RowGoes(uint32_t slot) {
  marks_.RowGoes(slot);
  if (common_->removed != nullptr) common_->removed->Note(dram_.Header(slot)->key);
}

void ShardRows::Erase(const Found& found, FreedRecords* freed) {
  RowHeader* row = found.row;
  if (!row->has(kRowUncommitted)) {
    RowGoes(found.slot);
    const bool ever_below = row->has(kRowEverBelow) || common_->any_key_below;
    for (int level = 0; level < levels_.count; ++level) {
      const uint32_t location = level == levels_.last() ? row->below : kNoLocation;
      if (location != kNoLocation || (levels_.needs_removal[level] && ever_below)) {
        freed->at[level].push_back(KeyLocation{row->key, location});
      }
    }
    copies_ -= row->below != kNoLocation;
    row->below = kNoLocation;
    if (row->pins == 0) {
      EraseRow(found.word.word_);
      --common_->dram_rows;
      return;
    }
    --rows_;
    if (row->has(kRowPrefetched)) prefetch_pins_->Used();
    row->flags = static_cast<uint16_t>((row->flags & kRowEverBelow) | kRowUncommitted);
  }
  // An apply holds it: it trains a key that is absent again.
  ResetRow(row);
  if (common_->evicts) dram_order_.Refresh(found.slot, common_->accesses.load());
}

Status ShardRows::CreateCounted(int64_t key, uint64_t hash, uint32_t pins) {
  const uint32_t slot = counted_.Allocate(key);
  marks_.CountedCreated(slot);
  const Status inserted = index_.Insert(hash, WordState::kCounted, slot, hash_of());
  if (!inserted.ok()) {
    counted_.Release(slot);
    return inserted;
  }
  counted_.at(slot)->pins = pins;
  return inserted;
}

void ShardRows::SetCount(const Found& found, uint32_t frequency, int64_t version) {
  marks_.CountedChanges(found.slot);
  if (found.counted->frequency == 0 && frequency > 0) ++counted_rows_;
  found.counted->frequency = frequency;
  found.counted->version = version;
}

void ShardRows::UnpinCounted(int64_t key, uint64_t hash) {
  const Found found = Find(key, hash);
  if (found.row != nullptr) return Unpin(found.row);  // it became a row, which took our pin over
  if (--found.counted->pins == 0 && found.counted->frequency == 0) EraseCounted(found.word.word_);
}

void ShardRows::EraseCount(const Found& found) {
  marks_.CountedGoes(found.slot);
  if (found.counted->pins == 0) {
    EraseCounted(found.word.word_);
  } else if (found.counted->frequency > 0) {
    --counted_rows_;
    found.counted->frequency = 0;
  }
}

void ShardRows::EraseCounted(uint64_t* word) {
  const uint32_t slot = ShardIndex::location(*word);
  if (counted_.at(slot)->frequency > 0) --counted_rows_;
  counted_.Release(slot);
  index_.Erase(word);
}

void ShardRows::Clear(FreedRecords* freed) {
  for (uint32_t slot = 0; slot < dram_.end() && levels_.count > 0; ++slot) {
    const RowHeader* row = dram_.Header(slot);
    if (row->has(kRowFree) || !(row->has(kRowEverBelow) || common_->any_key_below)) continue;
    for (int level = 0; level < levels_.count; ++level) {
      if (levels_.needs_removal[level]) freed->at[level].push_back(KeyLocation{row->key, kNoLocation});
    }
  }
  marks_.ForgetChanges();
  index_.Clear();
  dram_.Clear();
  counted_.Clear();
  dram_order_.Clear();
  prefetch_pins_->Clear();
  counters.removed += rows_;
  rows_ = counted_rows_ = copies_ = 0;
  for (int level = 0; level < levels_.count; ++level) {
    rows_in_[level] = 0;
    lower_order_[level].Clear();
  }
}

}  // namespace multitier
