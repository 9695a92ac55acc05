// ShardParts: what the classes of one shard work on together: ShardRows, and next to it ShardRecords, ShardScan and
// ShardSnapshot.
//
// Owned by ShardRows. Not thread-safe: see ShardRows.

#ifndef CC_TABLE_SHARD_SHARD_PARTS_H_
#define CC_TABLE_SHARD_SHARD_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "cc/row/row_slab.h"
#include "cc/table/marks/counted_keys.h"
#include "cc/table/marks/snapshot_marks.h"
#include "cc/table/shard/event.h"
#include "cc/table/shard/pending_words.h"
#include "cc/table/shard/shard_common.h"

namespace multitier {

struct ShardParts {
  ShardParts(ShardCommon* common_parts, std::shared_ptr<const RowLayout> layout, ShardIndex::Limits limits,
             std::shared_ptr<RowMemory> memory, Event* read_resolved, double ahead)
      : common(common_parts),
        levels(common_parts->levels),
        resolved(read_resolved),
        index(common->env, levels.count > 0, limits),
        dram(common->env, std::move(layout), std::move(memory), ahead),
        counted(common->env),
        marks(&levels, &dram, &counted) {}
  ShardParts(const ShardParts&) = delete;
  ShardParts& operator=(const ShardParts&) = delete;

  // Its first 512 bytes: the hardware fetches the rest.
  void PrefetchRow(uint32_t slot) const { dram.Prefetch(slot, std::min<size_t>(dram.layout()->stride(), 512)); }

  ShardCommon* const common;
  const TierLevels& levels;
  Event* const resolved;  // happens when a record is no longer being read
  ShardIndex index;
  RowSlab dram;
  CountedKeys counted;
  PendingWords pending;
  SnapshotMarks marks;
  ShardCounts counts;
  ShardCounters counters;
};

// A word of the index. Valid until a key is created. Only the classes of a shard can read it.
class KeyWord {
 public:
  KeyWord() = default;
  explicit operator bool() const { return word_ != nullptr; }

 private:
  friend class ShardRecords;
  friend class ShardRows;
  explicit KeyWord(uint64_t* word) : word_(word) {}
  uint64_t* word_ = nullptr;
};

// What a probe found in memory. At most one of row and counted is set.
struct Found {
  RowHeader* row = nullptr;
  CountedKey* counted = nullptr;
  uint32_t slot = kNoLocation;  // of the row or counted key
  bool maybe_below = false;     // a word with the key's tag names a record, or is being read
  KeyWord word;
};

}  // namespace multitier

#endif  // CC_TABLE_SHARD_SHARD_PARTS_H_
