// Shard: a part of the table's keys with everything they need, behind one lock.

#ifndef CC_TABLE_SHARD_H_
#define CC_TABLE_SHARD_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cc/base/hash.h"
#include "cc/base/shared_mutex.h"
#include "cc/env/env.h"
#include "cc/index/shard_index.h"
#include "cc/table/counted_keys.h"
#include "cc/table/demotion_pool.h"
#include "cc/table/snapshot_marks.h"
#include "cc/table/tier_levels.h"
#include "cc/table/victim_order.h"
#include "cc/tier/dram/dram_tier.h"

namespace multitier {

// What a probe found in memory. At most one of row and counted is set.
struct Found {
  uint64_t* word = nullptr;
  RowHeader* row = nullptr;
  CountedKey* counted = nullptr;
  bool maybe_below = false;  // a word of the same tag points below memory or is pending
};

inline WordState LowerState(int level) { return level == 0 ? WordState::kLower1 : WordState::kLower2; }
inline int LevelOf(WordState state) { return state == WordState::kLower1 ? 0 : 1; }
inline int LevelOf(uint64_t word) { return LevelOf(ShardIndex::state(word)); }

// Counters of one shard, summed by Stats().
struct ShardCounters {
  int64_t hits_dram = 0, updates = 0, created = 0, removed = 0, expired = 0, dropped = 0, corrupt = 0, false_matches = 0;
  struct Lower {
    int64_t hits = 0, promotions = 0, demotions = 0, reads = 0, writes = 0;
  } lower[kMaxLowerTiers];
};

// Records that nobody names any more, by tier. kNoLocation: only that the key is gone for good is to be told.
struct GoneRecords {
  std::vector<KeyLocation> at[kMaxLowerTiers];
};

// A condition of what the shard's lock guards, told with the lock held: next to nothing where nobody waits.
class Signal {
 public:
  template <typename Condition>
  void wait(std::unique_lock<SharedMutex>& lock, Condition condition) {
    ++waiting_;
    changed_.wait(lock, condition);
    --waiting_;
  }
  void notify_all() {
    if (waiting_ > 0) changed_.notify_all();
  }

 private:
  std::condition_variable_any changed_;
  int waiting_ = 0;  // guarded by the lock
};

struct alignas(64) Shard {
  Shard(Env* env, const TierLevels* levels, std::shared_ptr<const RowLayout> layout, bool evicts, uint64_t max_words,
        Replacement strategy, bool exact, std::shared_ptr<RowMemory> memory)
      : index(env, levels->count > 0, max_words),
        dram(env, std::move(layout), std::move(memory)),
        counted(env),
        orders_dram(evicts),
        dram_order(&dram, strategy, exact),
        marks(levels, &dram, &counted) {}

  SharedMutex mutex;  // guards all below; lookups read under the shared side
  Signal resolved;                   // a pending word was resolved, or a trim ended
  uint64_t resolutions = 0;          // how often
  std::unique_ptr<DemotionPool::Job> demotion;  // in tables that demote in the background
  bool demoting = false;             // that job is between slices; its own
  bool trimming = false;             // a thread holds the shard's trim: see TrimHold
  GoneRecords owed;                  // removals that are still to be told to the tiers
  ShardIndex index;
  DramTier dram;
  CountedKeys counted;
  const bool orders_dram;            // rows of DRAM may be demoted or dropped
  VictimOrder dram_order;
  LowerOrder lower_order[kMaxLowerTiers];  // of bounded tiers
  std::vector<uint64_t> pending;       // by id: the word as it was
  std::vector<uint32_t> free_pending;  // ids
  struct PrefetchedKey {
    int64_t key;
    uint64_t until;  // of Env's clock, in us
  };
  std::unordered_map<int64_t, uint64_t> pin_ends;  // by key, of rows that were used, too: see prefetch.cc
  std::vector<PrefetchedKey> prefetches;           // a heap of these ends and of some that are past, the next on top
  std::atomic<int64_t> prefetched{0};    // rows with kRowPrefetched; lookups take from it under the shared side
  SnapshotMarks marks;                   // what a snapshot that is being taken has still to give
  int64_t rows = 0;                    // keys that have a row (newborns excluded), over all tiers
  int64_t rows_lower[kMaxLowerTiers] = {};  // of those, in each lower tier
  int64_t counted_rows = 0;            // counted entries with a count
  ShardCounters counters;

  ShardIndex::HashOfWord hash_of() {
    return [this](WordState state, uint32_t location) {
      return HashKey(state == WordState::kDram ? dram.Header(location)->key : counted.at(location)->key);
    };
  }

  // The key's row in DRAM or its counted entry, verified.
  Found Find(int64_t key, uint64_t hash) {
    Found found;
    found.word = index.Find(hash, [&](uint64_t word) {
      const uint32_t location = ShardIndex::location(word);
      switch (ShardIndex::state(word)) {
        case WordState::kDram: {
          RowHeader* row = dram.Header(location);
          if (row->key != key) return false;
          found.row = row;
          return true;
        }
        case WordState::kCounted: {
          CountedKey* counted_key = counted.at(location);
          if (counted_key->key != key) return false;
          found.counted = counted_key;
          return true;
        }
        default:
          found.maybe_below = true;
          return false;
      }
    });
    if (found.word != nullptr) found.maybe_below = false;
    return found;
  }

  // Keeps a word while an operation reads what it names; gives the id that stands in for its location.
  uint32_t AddPending(uint64_t word) {
    if (free_pending.empty()) {
      free_pending.push_back(static_cast<uint32_t>(pending.size()));
      pending.push_back(0);
    }
    const uint32_t id = free_pending.back();
    free_pending.pop_back();
    pending[id] = word;
    return id;
  }
  // The word of a pending id, put back as it was. REQUIRES: the caller holds the id.
  uint64_t* TakePending(uint64_t hash, uint32_t id) {
    uint64_t* word = index.Find(hash, [&](uint64_t w) {
      return ShardIndex::state(w) == WordState::kPending && ShardIndex::location(w) == id;
    });
    MT_CHECK(word != nullptr);
    ShardIndex::Switch(word, ShardIndex::state(pending[id]), ShardIndex::location(pending[id]));
    ResolvePending(id);
    return word;
  }
  // The same where the key is not known: of a word that was at `home` among 2^log2 buckets.
  void TakePendingAt(uint32_t home, int log2, uint32_t id) {
    uint64_t* found = nullptr;
    for (uint64_t at = home; at >> index.log2_buckets() == 0; at += uint64_t{1} << log2) {  // the index may have grown
      index.ForEachAtHome(static_cast<uint32_t>(at), [&](uint64_t& w) {
        if (ShardIndex::state(w) == WordState::kPending && ShardIndex::location(w) == id) found = &w;
      });
    }
    MT_CHECK(found != nullptr);
    ShardIndex::Switch(found, ShardIndex::state(pending[id]), ShardIndex::location(pending[id]));
    ResolvePending(id);
  }
  void ResolvePending(uint32_t id) {
    free_pending.push_back(id);
    ++resolutions;
    resolved.notify_all();
  }

  // A slot of the slab with its place in the order. REQUIRES: dram.Reserve
  // `frequency` and `idle`: see RowUse.
  uint32_t AllocateRow(uint64_t clock, uint32_t frequency, uint64_t idle) {
    const uint32_t location = dram.Allocate();
    marks.RowCreated(location);
    dram.Header(location)->recency = static_cast<uint32_t>(clock);
    if (orders_dram) dram_order.Insert(RowUse{location, frequency, idle}, clock);
    return location;
  }
  void ReleaseRow(uint32_t location) {
    if (orders_dram) dram_order.Erase(location);
    if (dram.Header(location)->has(kRowPrefetched)) --prefetched;
    dram.Release(location);
  }

  // The record of a DRAM row in a lower tier becomes the row.
  void MoveBelow(uint64_t* word, int level, uint32_t below) {
    ReleaseRow(ShardIndex::location(*word));
    ShardIndex::Switch(word, LowerState(level), below);
    ++rows_lower[level];
    ++counters.lower[level].demotions;
  }

  // Takes a row that nobody holds out of the table.
  void EraseRow(uint64_t* word) {
    const uint32_t location = ShardIndex::location(*word);
    if (!dram.Header(location)->has(kRowNewborn)) --rows;
    ReleaseRow(location);
    index.Erase(word);
  }

  // REQUIRES: counted.Reserve
  uint32_t AllocateCounted(int64_t key) {
    const uint32_t location = counted.Allocate(key);
    marks.CountedCreated(location);
    return location;
  }

  // REQUIRES: no apply holds the entry.
  void EraseCounted(uint64_t* word) {
    const uint32_t location = ShardIndex::location(*word);
    if (counted.at(location)->frequency > 0) --counted_rows;
    counted.Release(location);
    index.Erase(word);
  }
};

}  // namespace multitier

#endif  // CC_TABLE_SHARD_H_
