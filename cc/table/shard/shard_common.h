// ShardCommon: what the shards of a table share: options, counters, removed keys.
//
// Owned by the table. Constants are set when the table is made. Counters are atomic: shards change them under their own locks.

#ifndef CC_TABLE_SHARD_SHARD_COMMON_H_
#define CC_TABLE_SHARD_SHARD_COMMON_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/env/env.h"
#include "cc/index/shard_index.h"
#include "cc/policy/replacement_kind.h"
#include "cc/row/initializer_set.h"
#include "cc/table/marks/removed_keys.h"
#include "cc/table/marks/tier_levels.h"

namespace multitier {

// What the shards of a table have in common. All but the counts is constant once the first shard is made.
struct ShardCommon {
  Env* env = nullptr;
  TierLevels levels;
  // Null: it depends on a table number, and the update that commits a row writes it (ApplyOperation::Update).
  const InitializerSet* initializer = nullptr;
  RemovedKeys* removed = nullptr;  // null: not noted
  bool evicts = false;             // rows leave DRAM: for a tier below, or dropped
  Replacement strategy = Replacement::kDefault;
  bool by_score = false;  // see VictimOrder
  bool exact = false;     // see VictimOrder
  // Rows in DRAM, and rows about to be: a row is counted before it is created. Rows that go down or come up are counted when
  // the lock of their shard is released (ShardRows::TellMoved).
  std::atomic<int64_t> dram_rows{0};
  std::atomic<uint64_t> accesses{1};        // stamps recency; 0 means none, so it starts at 1
  std::atomic<int64_t> newest_version{-1};  // a maximum: of every update and import
  // Records of rows that do not know of them may exist: every key may have a record in a durable tier.
  std::atomic<bool> any_key_below{false};
};

inline WordState LowerState(int level) { return level == 0 ? WordState::kLower1 : WordState::kLower2; }
inline int LevelOf(WordState state) { return state == WordState::kLower1 ? 0 : 1; }
inline int LevelOf(uint64_t word) { return LevelOf(ShardIndex::state(word)); }
// Whether the word names the record at `location` of a lower tier.
inline bool IsRecord(uint64_t word, int level, uint32_t location) {
  return ShardIndex::state(word) == LowerState(level) && ShardIndex::location(word) == location;
}
// A place below memory, as one number.
inline uint64_t PlaceOf(int level, uint32_t location) { return static_cast<uint64_t>(level) << 32 | location; }

// How many keys of a shard are where.
struct ShardCounts {
  int64_t rows = 0;                      // keys that have a row, over all tiers
  int64_t rows_in[kMaxLowerTiers] = {};  // of those, as records of a lower tier
  int64_t copies = 0;                    // rows in DRAM that have a clean copy in the last tier
  int64_t counted_rows = 0;              // counted keys with a count
};

// Memory of one shard.
struct ShardBytes {
  size_t index = 0;
  size_t counted = 0;
  size_t resident = 0;  // of rows
};

// Counters of one shard, summed by Stats(). Steps count what they do; operations count what they read and found.
struct ShardCounters {
  int64_t hits_dram = 0, updates = 0, created = 0, removed = 0, expired = 0, dropped = 0, refused = 0, corrupt = 0,
          false_matches = 0;
  struct Lower {
    int64_t hits = 0, promotions = 0, demotions = 0, reads = 0, writes = 0;
  } lower[kMaxLowerTiers];
};

// Records that no word and no row names any more, by level. kNoLocation: the key has no record, but its removal must be
// recorded.
struct FreedRecords {
  std::vector<KeyLocation> at[kMaxLowerTiers];
};

}  // namespace multitier

#endif  // CC_TABLE_SHARD_SHARD_COMMON_H_
