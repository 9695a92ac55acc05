// TierLevels: the tiers that a table has below DRAM, by level (0 is the upper one), and what each of them can do.
//
// Owned by the table. Set when the table is made, constant afterwards. Shards read it. They call only Tier::SwitchBelow and
// MayReach, which work on memory alone: no tier does I/O under a shard's lock.

#ifndef CC_TABLE_MARKS_TIER_LEVELS_H_
#define CC_TABLE_MARKS_TIER_LEVELS_H_

#include <cstdint>

#include "cc/tier/tier.h"

namespace multitier {

constexpr int kMaxLowerTiers = 2;

struct TierLevels {
  int count = 0;
  Tier* tier[kMaxLowerTiers] = {};
  bool durable[kMaxLowerTiers] = {};        // records survive the process
  bool needs_removal[kMaxLowerTiers] = {};  // a key that goes must be removed here, also if its record was freed before
  bool middle[kMaxLowerTiers] = {};         // records keep `below`, recency and flags
  bool bounded[kMaxLowerTiers] = {};        // the table limits how many rows are there
  bool dram_named = true;                   // DRAM is a tier of the table

  int last() const { return count - 1; }
  // Whether a record stays as the copy of its row when the row is promoted.
  bool keeps_copies(int level) const { return level == last() && !bounded[level]; }
  // The tier's number in answers of LookupTier.
  int32_t number(int level) const { return level + (dram_named ? 1 : 0); }
};

}  // namespace multitier

#endif  // CC_TABLE_MARKS_TIER_LEVELS_H_
