#include "cc/table/shard/shard_records.h"

#include <algorithm>

#include "cc/base/hash.h"

namespace multitier {
namespace {

bool Contains(const std::vector<uint64_t>& places, uint64_t place) {
  return std::find(places.begin(), places.end(), place) != places.end();
}

uint64_t PlaceOfWord(uint64_t word) { return PlaceOf(LevelOf(word), ShardIndex::location(word)); }

}  // namespace

bool ShardRecords::Names(int level, int64_t key, uint32_t location) const {
  return parts_.index.Find(HashKey(key), [&](uint64_t word) {
    word = parts_.pending.Original(word);
    if (ShardIndex::state(word) != WordState::kDram) return IsRecord(word, level, location);
    const RowHeader* row = parts_.dram.Header(ShardIndex::location(word));
    return row->key == key && level == parts_.levels.last() && row->below == location;
  }) != nullptr;
}

// --- Records that are read.

ReadProbe ShardRecords::BeginRead(int64_t key, uint64_t hash, const std::vector<uint64_t>& excluded) {
  ReadProbe probe;
  Found& found = probe.found;
  uint64_t* candidate = nullptr;
  bool read_by_others = false;
  found.word = KeyWord(parts_.index.Find(hash, [&](uint64_t& word) {
    const uint32_t location = ShardIndex::location(word);
    switch (ShardIndex::state(word)) {
      case WordState::kDram:
        if (parts_.dram.Header(location)->key != key) return false;
        found.row = parts_.dram.Header(location);
        found.slot = location;
        return true;
      case WordState::kCounted:
        if (parts_.counted.at(location)->key != key) return false;
        found.counted = parts_.counted.at(location);
        found.slot = location;
        return true;
      case WordState::kPending:
        if (!Contains(excluded, PlaceOfWord(parts_.pending.Original(word)))) read_by_others = true;
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
    probe.id = parts_.pending.Add(candidate);
  } else if (read_by_others) {
    probe.where = ReadProbe::kReadByOthers;
  }
  return probe;
}

KeyWord ShardRecords::EndRead(uint64_t hash, uint32_t id) {
  uint64_t* word = parts_.index.Find(hash, [&](uint64_t w) { return PendingWords::IsPending(w, id); });
  MT_CHECK(word != nullptr);
  parts_.pending.Restore(word, id);
  parts_.resolved->Happen();
  return KeyWord(word);
}

void ShardRecords::RecordGoes(int level, uint32_t location, int64_t key, const RecordHeader& header, uint8_t* row_data) {
  if (row_data != nullptr) {
    parts_.marks.RecordGoes(level, location, header, row_data);
  } else {
    parts_.marks.RecordLost(level, location, key);
  }
  if (parts_.common->removed != nullptr) parts_.common->removed->Note(key);
}

void ShardRecords::EraseRecord(KeyWord word, int level, uint32_t location, const RecordHeader& header, uint8_t* row_data,
                               FreedRecords* freed) {
  RecordGoes(level, location, header.key, header, row_data);
  freed->at[level].push_back(KeyLocation{header.key, location});
  for (int deeper = level + 1; deeper < parts_.levels.count; ++deeper) {
    const bool ever = (header.flags & kRowEverBelow) != 0 || parts_.common->any_key_below;
    if (header.below != kNoLocation || (parts_.levels.needs_removal[deeper] && ever)) {
      freed->at[deeper].push_back(KeyLocation{header.key, header.below});
    }
  }
  parts_.index.Erase(word.word_);
  --parts_.counts.rows_in[level];
  --parts_.counts.rows;
}

// --- Records that are copied, or moved by their tier.

bool ShardRecords::RecordsOf(int level, std::vector<uint32_t>* locations) const {
  bool complete = true;
  locations->clear();
  parts_.index.ForEach([&](uint64_t word) {
    if (ShardIndex::state(parts_.pending.Original(word)) != LowerState(level)) return;
    if (ShardIndex::state(word) == WordState::kPending) {
      complete = false;
    } else {
      locations->push_back(ShardIndex::location(word));
    }
  });
  return complete;
}

ShardRecords::Attached ShardRecords::AttachCopy(int64_t key, uint32_t location, uint32_t copy) {
  const uint64_t* word =
      parts_.index.Find(HashKey(key), [&](uint64_t w) { return IsRecord(parts_.pending.Original(w), /*level=*/0, location); });
  if (word != nullptr && ShardIndex::state(*word) == WordState::kPending) return Attached::kReadNow;
  if (word == nullptr || !parts_.levels.tier[0]->SwitchBelow(KeyLocation{key, location}, kNoLocation, copy)) {
    return Attached::kNotThere;
  }
  parts_.marks.RecordCopied(0, location, parts_.levels.last(), copy);
  return Attached::kDone;
}

void ShardRecords::Relocate(int level, Relocation* relocation) {
  const int64_t key = relocation->key;
  const uint32_t from = relocation->from, to = relocation->to;
  bool moved = false;
  parts_.index.Find(HashKey(key), [&](uint64_t& word) {
    const uint32_t location = ShardIndex::location(word);
    switch (ShardIndex::state(word)) {
      case WordState::kDram: {
        RowHeader* row = parts_.dram.Header(location);
        if (row->key != key) return false;
        // The `below` of an uncommitted row is a counted entry; that of a demoting row has been copied.
        if (level != parts_.levels.last() || row->has(kRowUncommitted | kRowDemoting) || row->below != from) return true;
        row->below = to;
        moved = true;
        return true;
      }
      case WordState::kLower1:
      case WordState::kLower2:
        if (LevelOf(word) != level) {
          moved = parts_.levels.tier[LevelOf(word)]->SwitchBelow(KeyLocation{key, location}, from, to);
          return moved;
        }
        if (location != from) return false;
        ShardIndex::Switch(&word, LowerState(level), to);
        // What it was ranked is not known here: it counts as demoted again, and BeginLeave asks the record for its frequency
        // and version.
        if (parts_.levels.bounded[level]) {
          const uint64_t clock = parts_.common->accesses.load();
          const Rank rank =
              RankOf(parts_.common->strategy, /*version=*/INT64_MIN, /*frequency=*/0, static_cast<uint32_t>(clock), clock);
          lower_order_[level].Push({rank, to, key});
        }
        moved = true;
        return true;
      default:
        return false;  // being read: for later
    }
  });
  relocation->moved = moved;
  if (moved) parts_.marks.RecordRelocated(level, from, to);
}

int64_t ShardRecords::CountNamed(int level, const std::vector<uint32_t>& locations) const {
  int64_t named = 0;
  parts_.index.ForEach([&](uint64_t word) {
    word = parts_.pending.Original(word);
    if (ShardIndex::state(word) != LowerState(level)) return;
    named += std::binary_search(locations.begin(), locations.end(), ShardIndex::location(word));
  });
  return named;
}

// --- Records that leave their tier.

uint64_t* ShardRecords::RecordWord(int level, const LowerOrder::Entry& entry) {
  return parts_.index.Find(HashKey(entry.key),
                           [&](uint64_t word) { return IsRecord(parts_.pending.Original(word), level, entry.location); });
}

void ShardRecords::Push(int level, const LowerOrder::Entry& entry) {
  LowerOrder& order = lower_order_[level];
  order.Push(entry);
  if (!order.wants_keep(static_cast<size_t>(parts_.counts.rows_in[level]))) return;
  order.Keep([&](const LowerOrder::Entry& each) {
    if (each.key == entry.key && each.location == entry.location) return true;  // it may come into the index after this
    return RecordWord(level, each) != nullptr;
  });
}

void ShardRecords::Order(int level, const RecordHeader& header, uint32_t location) {
  Push(level,
       {RankOf(parts_.common->strategy, header.version, header.frequency, header.recency, parts_.common->accesses.load()),
        location, header.key});
}

std::vector<LowerOrder::Entry> ShardRecords::PopColdest(int level, size_t n) {
  std::vector<LowerOrder::Entry> entries;
  while (entries.size() < n && !lower_order_[level].empty()) entries.push_back(lower_order_[level].Pop());
  return entries;
}

ShardRecords::Leave ShardRecords::BeginLeave(int level, const LowerOrder::Entry& entry, const RecordHeader* header,
                                             uint64_t clock, Leaving* leaving) {
  uint64_t* word = RecordWord(level, entry);
  if (word == nullptr) return Leave::kNotColdest;
  if (ShardIndex::state(*word) == WordState::kPending) return Leave::kReadNow;
  // A warmer row may be where that one was, or Relocate, which does not know frequency and version, ranked it: not yet. While
  // the recency is the entry's own it is not asked: what it says is over after 2^32 accesses, the rank is not.
  const uint32_t ranked = entry.rank.recency;
  const uint32_t recency = header != nullptr && parts_.levels.middle[level] ? header->recency : ranked;
  if (header != nullptr && (recency != ranked || MayComeColdest(parts_.common->strategy))) {
    const Rank rank = RankOf(parts_.common->strategy, header->version, header->frequency, recency, clock);
    if (rank > entry.rank) {
      lower_order_[level].Push({rank, entry.location, entry.key});
      return Leave::kNotColdest;
    }
  }
  if (header != nullptr) leaving->header = *header;
  leaving->header.key = entry.key;
  leaving->location = entry.location;
  leaving->rank = entry.rank;
  leaving->id = parts_.pending.Add(word);
  return Leave::kBegun;
}

void ShardRecords::CancelLeave(int level, const Leaving& leaving) {
  EndRead(HashKey(leaving.header.key), leaving.id);
  Push(level, {leaving.rank, leaving.location, leaving.header.key});
}

void ShardRecords::MoveDown(int level, const Leaving& leaving, const RecordHeader& header, int to, uint32_t location,
                            FreedRecords* freed) {
  const KeyWord word = EndRead(HashKey(header.key), leaving.id);
  ShardIndex::Switch(word.word_, LowerState(to), location);
  parts_.marks.RecordCopied(level, leaving.location, to, location);
  --parts_.counts.rows_in[level];
  ++parts_.counts.rows_in[to];
  ++parts_.counters.lower[to].demotions;
  if (parts_.levels.bounded[to]) Order(to, header, location);
  freed->at[level].push_back(KeyLocation{header.key, leaving.location});
}

void ShardRecords::DropRecord(int level, const Leaving& leaving, const RecordHeader& header, uint8_t* row_data,
                              FreedRecords* freed) {
  RecordGoes(level, leaving.location, leaving.header.key, header, row_data);
  parts_.index.Erase(EndRead(HashKey(leaving.header.key), leaving.id).word_);
  --parts_.counts.rows_in[level];
  --parts_.counts.rows;
  ++parts_.counters.dropped;
  for (int other = 0; other < parts_.levels.count; ++other) {
    if (other != level && !parts_.levels.needs_removal[other]) continue;
    freed->at[other].push_back(KeyLocation{leaving.header.key, other == level ? leaving.location : kNoLocation});
  }
}

void ShardRecords::Clear() {
  for (int level = 0; level < parts_.levels.count; ++level) lower_order_[level].Clear();
}

}  // namespace multitier
