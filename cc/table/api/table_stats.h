// TableStats: what a table has counted.

#ifndef CC_TABLE_API_TABLE_STATS_H_
#define CC_TABLE_API_TABLE_STATS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/tier/tier.h"

namespace multitier {

// How many rows one update refused and dropped.
struct UpdateCounts {
  int64_t refused = 0;  // new keys that got no row
  int64_t dropped = 0;  // rows that left the table while it ran, to make room
};

// All counts since the table was made, gauges as of now. Cheap.
struct TableStats {
  struct PerTier {
    std::string name;  // "dram" (where it is named), then the lower tiers'
    int64_t rows = 0;
    int64_t row_bytes = 0;       // rows x row_bytes
    int64_t budget_bytes = 0;    // 0: unbounded
    int64_t resident_bytes = 0;  // memory, including unused places for rows (0 for files)
    int64_t hits = 0;            // keys looked up, and unique keys applied, that were found here
    int64_t misses = 0;          // keys looked for here and not found
    int64_t promotions = 0;      // rows moved up out of this tier
    int64_t demotions = 0;       // rows moved down into this tier
    int64_t reads = 0;           // records read
    int64_t writes = 0;          // records written
    TierStats device;            // what the tier says of its files; empty for DRAM
  };
  std::vector<PerTier> tiers;
  int64_t rows = 0;          // keys that have a row, over all tiers
  int64_t counted_keys = 0;  // keys counted but not admitted
  int64_t lookups = 0;       // keys looked up
  int64_t absent = 0;        // of those, how many had no row
  int64_t updates = 0;       // rows updated
  int64_t created = 0;
  int64_t removed = 0;
  int64_t expired = 0;
  int64_t prefetched = 0;    // rows kept for their next use
  int64_t dropped = 0;       // rows that a full last tier dropped
  int64_t dropped_lost = 0;  // of those and of damaged rows that were dropped: not kept for PopDropped
  int64_t refused = 0;       // new keys without a row, by refuse_colder and on_full
  UpdateCounts last_update;
  int64_t corrupt = 0;  // damaged records met
  int64_t applies = 0;
  int64_t false_matches = 0;  // records read whose key was another
  int64_t index_bytes = 0;
  int64_t filter_bytes = 0;
  int64_t snapshot_bytes = 0;    // of copies of rows that changed before a snapshot wrote them
  int64_t snapshot_held_us = 0;  // how long the last snapshot held operations back
  int64_t linked_bytes = 0;      // of files that the last save linked, in place of writing their rows
  int64_t row_bytes = 0;         // of one row
  int64_t stride_bytes = 0;      // of one row with header and padding
  int num_shards = 0;
  Status sticky_error;
};

}  // namespace multitier

#endif  // CC_TABLE_API_TABLE_STATS_H_
