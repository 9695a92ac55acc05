// VictimOrder: which rows of a shard's DRAM are demoted first (LRU, LFU, score, the default); and LowerOrder, the same for a
// bounded tier below.
//
// A row carries its recency itself. A lookup stores it there, under the shared side of the shard's lock, and changes nothing
// else. An order therefore learns of a use only when it looks at the row:
//
//   exact (small shards)  a heap by recency (LFU: by frequency, then recency; score: by version, then recency), with the
//                         values of the last look. If the row on top has been used since, it sinks to its new place, and the
//                         next top is looked at. Costs O(log rows) for each victim and each use; rows are not scanned. Values
//                         grow, except for those that the caller reports with Refresh. Where many leave at once, all rows are
//                         looked at; then the entries are in no order, which costs nothing to keep, until few are asked for.
//   policy (large ones)   cc/policy/probation_clock.h. Two bits of the row count its uses (see NoteUse). The policy takes them
//                         when it asks whether the row may leave.
//   windows (large ones   a hand walks over the slab and looks at four slots for each victim; the coldest quarter leaves. Needs
//   with LRU or LFU)      no memory.
//   by score (large ones  a sample of the rows tells what the coldest 1/16 of them are. The hand walks over the slab until it
//   with SCORE)           has seen enough of those. Rows that are new since the last choice are looked at, too: a row that is
//                         colder than most leaves at once, not when the hand comes to it. Needs 4 bytes for each new row.
//
// A score costs no memory in comparison with LRU: a rank has 12 bytes, so that an entry of a heap has 16, as it has with a
// recency alone. A new row has no version before its first update. It is ranked as if it had the newest version of the table,
// which is what it nearly always gets, and keeps its place at the end of the heap. An update that sets an older version calls
// Refresh for its rows; no other update looks at the order.
//
// Needs the shard's lock.

#ifndef CC_POLICY_VICTIM_ORDER_H_
#define CC_POLICY_VICTIM_ORDER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cc/policy/probation_clock.h"
#include "cc/policy/replacement_kind.h"
#include "cc/row/row_slab.h"

namespace multitier {

// A row's rank: smaller is colder.
#pragma pack(push, 4)
struct Rank {
  uint64_t first = 0;    // frequency, version or access number, so that a greater number is warmer
  uint32_t recency = 0;  // of the row; decides between rows that have the same `first`

  friend bool operator==(const Rank& a, const Rank& b) { return a.first == b.first && a.recency == b.recency; }
  friend bool operator!=(const Rank& a, const Rank& b) { return !(a == b); }
  friend bool operator<(const Rank& a, const Rank& b) { return a.first != b.first ? a.first < b.first : a.recency < b.recency; }
  friend bool operator>(const Rank& a, const Rank& b) { return b < a; }
};
#pragma pack(pop)
static_assert(sizeof(Rank) == 12, "an entry of a heap has 16 bytes");

// A version as a number without a sign, in the same order.
inline uint64_t RankOfVersion(int64_t version) {
  return static_cast<uint64_t>(version) ^ uint64_t { 1 } << 63;
}

// `clock` is the table's count of accesses, of which rows keep the low 32 bits.
inline Rank RankOf(Replacement strategy, int64_t version, uint32_t frequency, uint32_t recency, uint64_t clock) {
  if (strategy == Replacement::kLfu) return Rank{frequency, recency};
  if (strategy == Replacement::kScore) return Rank{RankOfVersion(version), recency};
  uint64_t age = static_cast<uint32_t>(static_cast<uint32_t>(clock) - recency);
  if (age >= 0xf0000000u) age = 0;  // touched by an operation that began after the clock was read
  const uint64_t access = clock - (age < clock ? age : clock);
  return Rank{access, static_cast<uint32_t>(access)};
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
  // by_score: see above; has an effect unless exact.
  VictimOrder(const RowSlab* dram, Replacement strategy, bool exact, bool by_score = false)
      : dram_(dram),
        strategy_(strategy),
        exact_(exact),
        by_score_(by_score && !exact),
        by_policy_(!exact && strategy == Replacement::kDefault) {}

  // A row came into the slab. What its header says may still be unset, except for the recency: uncommitted and pinned rows are
  // never chosen. version: at most this, or Refresh is called later.
  void Insert(const RowUse& row, uint64_t clock, int64_t version = 0);
  void Erase(uint32_t location);
  // A row's values may have become smaller.
  void Refresh(uint32_t location, uint64_t clock);
  void Clear();
  // Up to n rows that may be demoted, the coldest first. They stay in the order.
  std::vector<uint32_t> Choose(size_t n, uint64_t clock);
  // The coldest rank of all rows. Unless exact: of the rows that the last choice left, as far as it saw them. Never more than
  // there is: the lowest possible rank where nothing is known.
  Rank Coldest(uint64_t clock);

 private:
  struct Entry {
    Rank rank;
    uint32_t location;
  };
  static_assert(sizeof(Entry) == 16, "of each row in small tables");
  static bool Evictable(const RowHeader& row) { return !row.has(kRowFree | kRowUncommitted | kRowPrefetched) && row.pins == 0; }
  Rank RankAt(uint32_t location, uint64_t clock) const {
    const RowHeader* row = dram_->Header(location);
    return RankOf(strategy_, row->version, row->frequency, __atomic_load_n(&row->recency, __ATOMIC_RELAXED), clock);
  }
  // The first number nearly always decides.
  static bool Less(const Entry& a, const Entry& b) {
    if (a.rank.first != b.rank.first) return a.rank.first < b.rank.first;
    return a.rank.recency != b.rank.recency ? a.rank.recency < b.rank.recency : a.location < b.location;
  }
  void Put(size_t at, const Entry& entry) {
    heap_[at] = entry;
    place_[entry.location] = static_cast<uint32_t>(at);
  }
  // Puts all entries in order, unless they are.
  void MakeHeap();
  void Rise(size_t at, const Entry& entry);
  void Sink(size_t at, const Entry& entry);
  // Sorts the n coldest rows to the front, and adds them to the victims. REQUIRES: n <= rows->size()
  static void TakeColdest(size_t n, std::vector<Entry>* rows, std::vector<uint32_t>* victims);
  std::vector<uint32_t> ChooseExact(size_t n, uint64_t clock);
  std::vector<uint32_t> ChooseByPolicy(size_t n);
  std::vector<uint32_t> ChooseFromWindows(size_t n, uint64_t clock);
  std::vector<uint32_t> ChooseByScore(size_t n, uint64_t clock);
  // Sets threshold_ from a sample of the rows: that share of them is colder.
  void Sample(double share, uint64_t clock);
  // Adds up to n rows that the hand comes to, and that are not warmer than `warmest`.
  void Walk(size_t n, const Rank& warmest, uint64_t clock, std::vector<Entry>* window);
  // Moves the rows that are new since the last choice into the window, which has some of them already.
  void AddNewRows(std::vector<Entry>* window, uint64_t clock);

  const RowSlab* const dram_;
  const Replacement strategy_;
  const bool exact_;
  const bool by_score_;
  const bool by_policy_;
  std::unique_ptr<ProbationClock> policy_;  // null until the first row: an empty one takes half a KiB
  std::vector<Entry> heap_;
  std::vector<uint32_t> place_;  // by location: in heap_; kNoLocation where it is not there
  bool is_heap_ = true;          // false: entries may be anywhere
  uint32_t hand_ = 0;
  // Of orders by score in large tables.
  std::vector<uint32_t> new_;  // locations of new rows; some may hold no row, or another one
  Rank threshold_;             // of the last sample
  double share_ = 0.0;         // of the rows that were colder then
  size_t since_sample_ = 0;    // rows chosen since then
  uint64_t random_ = 1;        // state of a linear congruential generator
  Rank left_;                  // the warmest row that the last choice took, or a colder one that was refreshed since
};

// Rows of one shard in a bounded tier, coldest first. A record's values do not change while it is there, so an entry is
// valid as long as its record. The owner recognises an entry without a record when it pops it.
class LowerOrder {
 public:
  struct Entry {
    Rank rank;
    uint32_t location;
    int64_t key;
  };
  static_assert(sizeof(Entry) == 24, "of each record in bounded tiers");
  void Push(const Entry& entry);
  // REQUIRES: not empty.
  Entry Pop();
  // REQUIRES: not empty.
  const Entry& top() const { return heap_.front(); }
  bool empty() const { return heap_.empty(); }
  void Clear() { heap_.clear(); }
  // Whether most entries are stale, and Keep is due.
  bool wants_keep(size_t rows) const { return heap_.size() > threshold_ && heap_.size() > 2 * rows; }
  // Drops the entries that are not valid, and of each location all valid ones but the highest.
  void Keep(const std::function<bool(const Entry&)>& is_valid);

 private:
  std::vector<Entry> heap_;
  size_t threshold_ = 1024;
};

}  // namespace multitier

#endif  // CC_POLICY_VICTIM_ORDER_H_
