// Shard: a part of the table's keys with everything they need, behind one lock.

#ifndef CC_TABLE_SHARD_H_
#define CC_TABLE_SHARD_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cc/base/hash.h"
#include "cc/base/shared_mutex.h"
#include "cc/env/env.h"
#include "cc/index/shard_index.h"
#include "cc/table/counted_keys.h"
#include "cc/tier/dram/dram_tier.h"

namespace multitier {

// What a probe found in memory. At most one of row and counted is set.
struct Found {
  uint64_t* word = nullptr;
  RowHeader* row = nullptr;
  CountedKey* counted = nullptr;
  bool maybe_below = false;  // a word of the same tag points below memory or is pending
};

// Counters of one shard, summed by Stats().
struct ShardCounters {
  int64_t hits_dram = 0, hits_below = 0, updates = 0, created = 0, removed = 0, expired = 0;
  int64_t promotions = 0, demotions = 0, reads = 0, writes = 0, false_matches = 0;
};

struct alignas(64) Shard {
  Shard(Env* env, std::shared_ptr<const RowLayout> layout, bool has_lower, uint64_t max_words)
      : index(env, has_lower, max_words), dram(env, std::move(layout)), counted(env) {}

  SharedMutex mutex;  // guards all below; lookups read under the shared side
  std::condition_variable_any resolved;  // a pending word was resolved, or a trim ended
  uint64_t resolutions = 0;          // how often
  bool trimming = false;             // a trim works on this shard
  bool trim_again = false;           // and must look again before it stops
  ShardIndex index;
  DramTier dram;
  CountedKeys counted;
  std::vector<uint64_t> pending;       // by id: the word as it was
  std::vector<uint32_t> free_pending;  // ids
  int64_t rows = 0;                    // keys that have a row (newborns excluded), over all tiers
  int64_t rows_below = 0;              // of those, not in DRAM
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
  void ResolvePending(uint32_t id) {
    free_pending.push_back(id);
    ++resolutions;
    resolved.notify_all();
  }

  // The row's copy below becomes the row.
  void MoveBelow(uint64_t* word, uint32_t below) {
    dram.Release(ShardIndex::location(*word));
    ShardIndex::Switch(word, WordState::kLower1, below);
    ++rows_below;
    ++counters.demotions;
  }

  // Takes a row that nobody holds out of the table. `born`: it counted as a row.
  void EraseRow(uint64_t* word) {
    const uint32_t location = ShardIndex::location(*word);
    if (!dram.Header(location)->has(kRowNewborn)) --rows;
    dram.Release(location);
    index.Erase(word);
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
