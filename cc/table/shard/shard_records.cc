// Records of a shard's keys in the lower tiers: read, installed as rows, erased, copied, moved by their tier, and given to a
// snapshot. How rows and records go down: shard_demotion.cc.

#include <algorithm>
#include <cstring>

#include "cc/table/shard/shard_rows.h"

namespace multitier {
namespace {

bool Contains(const std::vector<uint64_t>& places, uint64_t place) {
  return std::find(places.begin(), places.end(), place) != places.end();
}

uint64_t PlaceOfWord(uint64_t word) { return PlaceOf(LevelOf(word), ShardIndex::location(word)); }

}  // namespace

bool ShardRows::Names(int level, int64_t key, uint32_t location) const {
  return index_.Find(HashKey(key), [&](uint64_t word) {
    word = pending_.Original(word);
    if (ShardIndex::state(word) != WordState::kDram) return IsRecord(word, level, location);
    const RowHeader* row = dram_.Header(ShardIndex::location(word));
    return row->key == key && level == levels_.last() && row->below == location;
  }) != nullptr;
}

// --- Records that are read.

ReadProbe ShardRows::BeginRead(int64_t key, uint64_t hash, const std::vector<uint64_t>& excluded) {
  ReadProbe probe;
  Found& found = probe.found;
  uint64_t* candidate = nullptr;
  bool read_by_others = false;
  found.word = KeyWord(index_.Find(hash, [&](uint64_t& word) {
    const uint32_t location = ShardIndex::location(word);
    switch (ShardIndex::state(word)) {
      case WordState::kDram:
        if (dram_.Header(location)->key != key) return false;
        found.row = dram_.Header(location);
        found.slot = location;
        return true;
      case WordState::kCounted:
        if (counted_.at(location)->key != key) return false;
        found.counted = counted_.at(location);
        found.slot = location;
        return true;
      case WordState::kPending:
        if (!Contains(excluded, PlaceOfWord(pending_.Original(word)))) read_by_others = true;
        return false;
      default:
        if (candidate == nullptr && !Contains(excluded, PlaceOfWord(word))) candidate = &word;
        return false;
    }
  }));
  if (found.word) return probe;
  if (candidate != nullptr) {
    probe.where = ReadProbe::kBegun;
    probe.level = LevelOf(*candidate);
    probe.location = ShardIndex::location(*candidate);
    probe.id = pending_.Add(candidate);
  } else if (read_by_others) {
    probe.where = ReadProbe::kReadByOthers;
  }
  return probe;
}

bool ShardRows::ReadingAt(uint32_t home) const {
  bool pending = false;
  index_.ForEachAtHome(home, [&](uint64_t word) { pending |= ShardIndex::state(word) == WordState::kPending; });
  return pending;
}

void ShardRows::EndReadAt(uint32_t home, int log2, uint32_t id) {
  uint64_t* found = nullptr;
  for (uint64_t at = home; at >> index_.log2_buckets() == 0; at += uint64_t{1} << log2) {  // the index may have grown
    index_.ForEachAtHome(static_cast<uint32_t>(at), [&](uint64_t& word) {
      if (PendingWords::IsPending(word, id)) found = &word;
    });
  }
  MT_CHECK(found != nullptr);
  pending_.Restore(found, id);
  resolved_->Happen();
}

RowHeader* ShardRows::Install(KeyWord word, int level, uint32_t location, const RecordHeader& header, const uint8_t* row_data,
                              uint64_t touched, uint64_t idle, FreedRecords* freed) {
  const uint64_t clock = common_->accesses.load();
  const uint32_t slot = AllocateRow(clock, header.frequency, idle);
  RowHeader* row = dram_.Header(slot);
  row->key = header.key;
  row->version = header.version;
  row->frequency = header.frequency;
  if (levels_.middle[level]) row->flags = header.flags & kRowEverBelow;
  if (levels_.needs_removal[level] || header.below != kNoLocation) row->flags |= kRowEverBelow;
  if (levels_.keeps_copies(level)) {
    row->below = location;
  } else {
    // It is freed once the lock is given back. Should the row be written again before, the older record counts as its last copy
    // until the next write of the key: that costs its space, and recovery takes the newer one.
    if (levels_.middle[level]) row->below = header.below;
    freed->at[level].push_back(KeyLocation{header.key, location, /*newest=*/true});
  }
  // Read for no access that counts: as cold as it was, or, where that is not known, as anything can be.
  constexpr uint32_t kColdest = 0x80000000u;
  const uint32_t was = levels_.middle[level] ? header.recency : static_cast<uint32_t>(clock) - kColdest;
  row->recency = touched != 0 ? static_cast<uint32_t>(touched) : was;
  copies_ += row->below != kNoLocation;
  if (common_->evicts) dram_order_.Refresh(slot, clock);
  std::memcpy(RowSlab::Data(row), row_data, dram_.layout()->row_bytes());
  ShardIndex::Switch(word.word_, WordState::kDram, slot);
  marks_.RowPromoted(slot, level, location);
  --rows_in_[level];
  ++counters.lower[level].promotions;
  ++common_->dram_rows;
  return row;
}

void ShardRows::DetachCopy(KeyWord word, FreedRecords* freed) {
  const uint32_t slot = ShardIndex::location(*word.word_);
  RowHeader* row = dram_.Header(slot);
  if (row->below == kNoLocation) return;
  marks_.RowChanges(slot);
  freed->at[levels_.last()].push_back(KeyLocation{row->key, row->below});
  row->below = kNoLocation;
  --copies_;
}

void ShardRows::RecordGoes(int level, uint32_t location, int64_t key, const RecordHeader& header, uint8_t* row_data) {
  if (row_data != nullptr) {
    marks_.RecordGoes(level, location, header, row_data);
  } else {
    marks_.RecordLost(level, location, key);
  }
  if (common_->removed != nullptr) common_->removed->Note(key);
}

void ShardRows::EraseRecord(KeyWord word, int level, uint32_t location, const RecordHeader& header, uint8_t* row_data,
                            FreedRecords* freed) {
  RecordGoes(level, location, header.key, header, row_data);
  freed->at[level].push_back(KeyLocation{header.key, location});
  for (int deeper = level + 1; deeper < levels_.count; ++deeper) {
    const bool ever = (header.flags & kRowEverBelow) != 0 || common_->any_key_below;
    if (header.below != kNoLocation || (levels_.needs_removal[deeper] && ever)) {
      freed->at[deeper].push_back(KeyLocation{header.key, header.below});
    }
  }
  index_.Erase(word.word_);
  --rows_in_[level];
  --rows_;
}

// --- Records that are copied, moved by their tier, or found in it.

bool ShardRows::RecordsOf(int level, std::vector<uint32_t>* locations) const {
  bool complete = true;
  locations->clear();
  index_.ForEach([&](uint64_t word) {
    if (ShardIndex::state(pending_.Original(word)) != LowerState(level)) return;
    if (ShardIndex::state(word) == WordState::kPending) {
      complete = false;
    } else {
      locations->push_back(ShardIndex::location(word));
    }
  });
  return complete;
}

ShardRows::Attached ShardRows::AttachCopy(int64_t key, uint32_t location, uint32_t copy) {
  const uint64_t* word =
      index_.Find(HashKey(key), [&](uint64_t w) { return IsRecord(pending_.Original(w), /*level=*/0, location); });
  if (word != nullptr && ShardIndex::state(*word) == WordState::kPending) return Attached::kReadNow;
  if (word == nullptr || !levels_.tier[0]->SwitchBelow(KeyLocation{key, location}, kNoLocation, copy)) {
    return Attached::kNotThere;
  }
  marks_.RecordCopied(0, location, levels_.last(), copy);
  return Attached::kDone;
}

void ShardRows::Relocate(int level, Relocation* relocation) {
  const int64_t key = relocation->key;
  const uint32_t from = relocation->from, to = relocation->to;
  bool moved = false;
  index_.Find(HashKey(key), [&](uint64_t& word) {
    const uint32_t location = ShardIndex::location(word);
    switch (ShardIndex::state(word)) {
      case WordState::kDram: {
        RowHeader* row = dram_.Header(location);
        if (row->key != key) return false;
        // The `below` of an uncommitted row is a counted entry; that of a demoting row has been copied.
        if (level != levels_.last() || row->has(kRowUncommitted | kRowDemoting) || row->below != from) return true;
        row->below = to;
        moved = true;
        return true;
      }
      case WordState::kLower1:
      case WordState::kLower2:
        if (LevelOf(word) != level) {
          moved = levels_.tier[LevelOf(word)]->SwitchBelow(KeyLocation{key, location}, from, to);
          return moved;
        }
        if (location != from) return false;
        ShardIndex::Switch(&word, LowerState(level), to);
        // What it was ranked is not known here: it counts as demoted again, and BeginLeave asks the record for its frequency
        // and version.
        if (levels_.bounded[level]) {
          const uint64_t clock = common_->accesses.load();
          const Rank rank =
              RankOf(common_->strategy, /*version=*/INT64_MIN, /*frequency=*/0, static_cast<uint32_t>(clock), clock);
          lower_order_[level].Push({rank, to, key});
        }
        moved = true;
        return true;
      default:
        return false;  // being read: for later
    }
  });
  relocation->moved = moved;
  if (moved) marks_.RecordRelocated(level, from, to);
}

Status ShardRows::Adopt(uint64_t hash, int level, uint32_t location) {
  MT_RETURN_IF_ERROR(index_.Insert(hash, LowerState(level), location, hash_of()));
  ++rows_;
  ++rows_in_[level];
  return OkStatus();
}

bool ShardRows::IsToGive(int level, int64_t key, uint32_t location, const SnapshotState::MoveMark& mark, uint32_t* slot) {
  if (!marks_.wants_record(level, location)) return false;
  const bool named = index_.Find(HashKey(key), [&](uint64_t word) {
    word = pending_.Original(word);
    if (ShardIndex::state(word) != WordState::kDram) return IsRecord(word, level, location);
    const RowHeader* row = dram_.Header(ShardIndex::location(word));
    if (row->key != key || row->has(kRowUncommitted) || level != levels_.last() || row->below != location) return false;
    *slot = ShardIndex::location(word);
    return true;
  }) != nullptr;
  // It came to stand there since: what was read may be an older record of the key. There will be a look at it: see Moved.
  return named && !marks_.MovedSince(mark, level, location);
}

bool ShardRows::GiveRecord(int level, const ReadRecord& record, const SnapshotState::MoveMark& mark) {
  const int64_t key = record.header.key;
  uint32_t slot = kNoLocation;
  if (!IsToGive(level, key, record.location, mark, &slot)) return false;
  marks_.TakeRecord(level, record.location);
  // Its copy may have moved since the record was read.
  const uint32_t below = record.header.below;
  if (below != kNoLocation && levels_.tier[level]->SwitchBelow(KeyLocation{key, record.location}, below, below)) {
    marks_.TakeRecord(levels_.last(), below);
  }
  if (slot != kNoLocation) (void)marks_.TakeRow(slot);
  return true;
}

bool ShardRows::NeedsRecord(int level, int64_t key, uint32_t location, const SnapshotState::MoveMark& mark) {
  uint32_t slot = kNoLocation;
  if (!IsToGive(level, key, location, mark, &slot)) return false;
  if (slot == kNoLocation || !marks_.wants_row(slot)) return true;
  marks_.KeepRow(slot);
  return false;
}

int64_t ShardRows::CountNamed(int level, const std::vector<uint32_t>& locations) const {
  int64_t named = 0;
  index_.ForEach([&](uint64_t word) {
    word = pending_.Original(word);
    if (ShardIndex::state(word) != LowerState(level)) return;
    named += std::binary_search(locations.begin(), locations.end(), ShardIndex::location(word));
  });
  return named;
}

}  // namespace multitier
