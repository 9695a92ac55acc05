// VictimOrder: which rows of a shard's DRAM are demoted first; and LowerOrder, the same for a bounded tier below.
//
// A row carries its recency itself. A lookup stores it there, under the shared side of the shard's lock, and changes nothing
// else. An order therefore learns of a use only when it looks at the row:
//
//   exact (small shards)  a heap by recency (LFU: by frequency, then recency), with the values of the last look. Values only
//                         grow. If the row on top has been used since, it sinks to its new place, and the next top is looked
//                         at. Costs O(log rows) for each victim and each use; rows are not scanned.
//   policy (large ones)   cc/policy/probation_clock.h. Two bits of the row count its uses (see NoteUse). The policy takes them
//                         when it asks whether the row may leave.
//   windows (large ones   a hand walks over the slab and looks at four slots for each victim; the coldest quarter leaves. Needs
//   with LRU or LFU)      no memory.
//
// Needs the shard's lock.

#ifndef CC_POLICY_VICTIM_ORDER_H_
#define CC_POLICY_VICTIM_ORDER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/policy/probation_clock.h"
#include "cc/policy/replacement.h"
#include "cc/row/row_slab.h"

namespace multitier {

// A row's rank: smaller is colder. `clock` is the table's count of accesses, of which rows keep the low 32 bits.
inline uint64_t RankOf(Replacement strategy, uint32_t frequency, uint32_t recency, uint64_t clock) {
  if (strategy == Replacement::kLfu) return static_cast<uint64_t>(frequency) << 32 | recency;
  uint64_t age = static_cast<uint32_t>(static_cast<uint32_t>(clock) - recency);
  if (age >= 0xf0000000u) age = 0;  // touched by an operation that began after the clock was read
  return clock - (age < clock ? age : clock);
}

// A row was used at access `now`. It counts as used again only where its last use is more than `step` accesses ago: the lookup
// and the update of one training step are one use. True where that ended a prefetch's pin. Under the shared side of the shard's
// lock, too. `lazily`: where demotion depends on collected uses alone, a row that has all it can have is not written to, so
// that lookups of hot rows leave their lines clean.
inline bool NoteUse(RowHeader* row, uint32_t now, uint32_t step, bool lazily = false) {
  if (lazily && (__atomic_load_n(&row->flags, __ATOMIC_RELAXED) & (kRowUses | kRowPrefetched)) == kRowUses) return false;
  const uint32_t before = __atomic_load_n(&row->recency, __ATOMIC_RELAXED);
  __atomic_store_n(&row->recency, now, __ATOMIC_RELAXED);
  uint16_t flags = __atomic_load_n(&row->flags, __ATOMIC_RELAXED);
  const bool was_kept =
      (flags & kRowPrefetched) != 0 &&
      (__atomic_fetch_and(&row->flags, static_cast<uint16_t>(~kRowPrefetched), __ATOMIC_RELAXED) & kRowPrefetched) != 0;
  if (now - before <= step) return was_kept;
  flags &= static_cast<uint16_t>(~kRowPrefetched);
  while ((flags & kRowUses) != kRowUses &&
         !__atomic_compare_exchange_n(&row->flags, &flags, static_cast<uint16_t>(flags + kRowUse), true, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
  }
  return was_kept;
}

class VictimOrder {
 public:
  VictimOrder(const RowSlab* dram, Replacement strategy, bool exact)
      : dram_(dram),
        strategy_(strategy),
        exact_(exact),
        policy_(!exact && strategy == Replacement::kDefault ? new ProbationClock : nullptr) {}

  // A row came into the slab. What its header says may still be unset: uncommitted and pinned rows are never chosen.
  void Insert(const RowUse& row, uint64_t clock);
  void Erase(uint32_t location);
  // A row's values may have become smaller.
  void Refresh(uint32_t location, uint64_t clock);
  void Clear();
  // Up to n rows that may be demoted, the coldest first. They stay in the order.
  std::vector<uint32_t> Choose(size_t n, uint64_t clock);

 private:
  struct Entry {
    uint64_t rank;
    uint32_t location;
  };
  static bool Evictable(const RowHeader& row) { return !row.has(kRowFree | kRowUncommitted | kRowPrefetched) && row.pins == 0; }
  uint64_t Rank(uint32_t location, uint64_t clock) const {
    const RowHeader* row = dram_->Header(location);
    return RankOf(strategy_, row->frequency, __atomic_load_n(&row->recency, __ATOMIC_RELAXED), clock);
  }
  static bool Less(const Entry& a, const Entry& b) { return a.rank != b.rank ? a.rank < b.rank : a.location < b.location; }
  void Put(size_t at, const Entry& entry) {
    heap_[at] = entry;
    place_[entry.location] = static_cast<uint32_t>(at);
  }
  void Rise(size_t at, const Entry& entry);
  void Sink(size_t at, const Entry& entry);
  std::vector<uint32_t> ChooseExact(size_t n, uint64_t clock);
  std::vector<uint32_t> ChooseByPolicy(size_t n);
  std::vector<uint32_t> ChooseFromWindows(size_t n, uint64_t clock);

  const RowSlab* const dram_;
  const Replacement strategy_;
  const bool exact_;
  const std::unique_ptr<ProbationClock> policy_;
  std::vector<Entry> heap_;
  std::vector<uint32_t> place_;  // by location: in heap_; kNoLocation where it is not there
  uint32_t hand_ = 0;
};

// Rows of one shard in a bounded tier, coldest first. A record's values do not change while it is there, so an entry is
// valid as long as its record. The owner recognises an entry without a record when it pops it.
class LowerOrder {
 public:
  struct Entry {
    uint64_t rank;
    int64_t key;
    uint32_t location;
  };
  void Push(const Entry& entry);
  // REQUIRES: not empty.
  Entry Pop();
  bool empty() const { return heap_.empty(); }
  void Clear() { heap_.clear(); }
  // Whether most entries are stale, and Keep is due.
  bool wants_keep(size_t rows) const { return heap_.size() > threshold_ && heap_.size() > 2 * rows; }
  // Drops the entries of other locations, and of each location all but the highest. `locations` are sorted.
  void Keep(const std::vector<uint32_t>& locations);

 private:
  std::vector<Entry> heap_;
  size_t threshold_ = 1024;
};

}  // namespace multitier

#endif  // CC_POLICY_VICTIM_ORDER_H_
