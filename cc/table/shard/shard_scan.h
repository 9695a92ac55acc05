// ShardScan: visits the keys of one shard: rows and counted keys by their slots, or every key by its home bucket of the index.
//
// Owns nothing. Not thread-safe: see ShardRows.

#ifndef CC_TABLE_SHARD_SHARD_SCAN_H_
#define CC_TABLE_SHARD_SHARD_SCAN_H_

#include <algorithm>
#include <cstdint>

#include "cc/table/shard/shard_parts.h"

namespace multitier {

class ShardScan {
 public:
  explicit ShardScan(ShardParts* parts) : parts_(*parts) {}
  ShardScan(const ShardScan&) = delete;
  ShardScan& operator=(const ShardScan&) = delete;

  uint32_t row_slots() const { return parts_.dram.end(); }  // ever used
  uint32_t counted_slots() const { return parts_.counted.end(); }
  // Calls visit with each row or counted key at the slots below *left, from the highest down, while go_on() is true, for at
  // most `looked` slots. *left: the slots that are left; false if there is none. `ahead`: bytes of a row that are fetched into
  // the processor's cache before.
  template <typename GoOn, typename Visit>
  bool VisitRows(uint32_t* left, uint32_t looked, size_t ahead, GoOn go_on, Visit visit) const;
  template <typename GoOn, typename Visit>
  bool VisitCounted(uint32_t* left, uint32_t looked, GoOn go_on, Visit visit) const;

  int log2_homes() const { return parts_.index.log2_buckets(); }
  // Whether a record of the home is being read.
  bool ReadingAt(uint32_t home) const;
  // Visits the keys of one home bucket of the index. Calls on_row(const RowHeader&), on_counted(const CountedKey&), or
  // on_record(level, location, id) for each. A record is marked as being read first; one for which wants(level, location) is
  // false is left out. REQUIRES: !ReadingAt(home)
  template <typename OnRow, typename OnCounted, typename Wants, typename OnRecord>
  void VisitHome(uint32_t home, OnRow on_row, OnCounted on_counted, Wants wants, OnRecord on_record);
  // For a home that will be visited soon: fetch its words, then the first bytes of its rows in memory, into the processor's
  // cache.
  void PrefetchHome(uint32_t home) const { parts_.index.PrefetchHome(home); }
  void PrefetchRowsAt(uint32_t home, size_t bytes) const;
  // As ShardRecords::EndRead, for a record that VisitHome marked at `home` when the index had 2^log2 homes.
  void EndReadAt(uint32_t home, int log2, uint32_t id);

 private:
  ShardParts& parts_;
};

inline void ShardScan::PrefetchRowsAt(uint32_t home, size_t bytes) const {
  parts_.index.ForEachIn(home, [&](uint64_t word) {
    if (ShardIndex::state(word) == WordState::kDram) parts_.dram.Prefetch(ShardIndex::location(word), bytes);
  });
}

template <typename GoOn, typename Visit>
bool ShardScan::VisitRows(uint32_t* left, uint32_t looked, size_t ahead, GoOn go_on, Visit visit) const {
  constexpr uint32_t kSlotsAhead = 32;
  *left = std::min(*left, parts_.dram.end());
  for (; *left > 0 && looked > 0 && go_on(); --looked) {
    const uint32_t slot = --*left;
    if (slot >= kSlotsAhead) parts_.dram.Prefetch(slot - kSlotsAhead, ahead);
    const RowHeader& row = *parts_.dram.Header(slot);
    if (!row.has(kRowFree | kRowUncommitted)) visit(row);
  }
  return *left > 0;
}

template <typename GoOn, typename Visit>
bool ShardScan::VisitCounted(uint32_t* left, uint32_t looked, GoOn go_on, Visit visit) const {
  *left = std::min(*left, parts_.counted.end());
  for (; *left > 0 && looked > 0 && go_on(); --looked) visit(static_cast<const CountedKey&>(*parts_.counted.at(--*left)));
  return *left > 0;
}

template <typename OnRow, typename OnCounted, typename Wants, typename OnRecord>
void ShardScan::VisitHome(uint32_t home, OnRow on_row, OnCounted on_counted, Wants wants, OnRecord on_record) {
  parts_.index.ForEachAtHome(home, [&](uint64_t& word) {
    const uint32_t location = ShardIndex::location(word);
    switch (ShardIndex::state(word)) {
      case WordState::kDram:
        if (!parts_.dram.Header(location)->has(kRowUncommitted))
          on_row(static_cast<const RowHeader&>(*parts_.dram.Header(location)));
        break;
      case WordState::kCounted:
        on_counted(static_cast<const CountedKey&>(*parts_.counted.at(location)));
        break;
      default: {
        const int level = LevelOf(word);
        if (wants(level, location)) on_record(level, location, parts_.pending.Add(&word));
      }
    }
  });
}

}  // namespace multitier

#endif  // CC_TABLE_SHARD_SHARD_SCAN_H_
