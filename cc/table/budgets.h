// Budgets: how many rows each tier of a table may hold. The Demoter (demoter.h) enforces them by demoting or dropping rows;
// apply_gather.cc, by refusing new rows.
//
// Owns the DRAM budget, which may change at run time; the other budgets are options. Thread-safe.

#ifndef CC_TABLE_BUDGETS_H_
#define CC_TABLE_BUDGETS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "cc/row/row_layout.h"
#include "cc/table/embedding_table.h"
#include "cc/table/shard_set.h"
#include "cc/table/tier_levels.h"

namespace multitier {

class Budgets {
 public:
  // What it points to outlives it; `levels` and `shards` are complete before a method of a lower tier is called.
  Budgets(const TableOptions* options, const TierLevels* levels, const ShardSet* shards)
      : options_(*options), levels_(*levels), shards_(*shards), dram_bytes_(options->dram_budget_bytes) {}

  // 0: no bound, or DRAM is no tier.
  uint64_t dram_bytes() const { return dram_bytes_.load(); }
  void set_dram_bytes(uint64_t bytes) { dram_bytes_ = bytes; }
  // Rows of DRAM, over all shards. 0 where DRAM is no tier; 2^63 - 1 where it has no bound.
  uint64_t dram_rows(const RowLayout& layout) const {
    if (!options_.dram_named) return 0;
    const uint64_t bytes = dram_bytes();
    return bytes == 0 ? ~uint64_t{0} >> 1 : bytes / layout.row_bytes();
  }
  // Rows that one shard may have in a lower tier; 2^63 - 1 where the tier has no bound.
  size_t lower_share(int level, const RowLayout& layout) const {
    const uint64_t bytes = options_.lower_tiers[static_cast<size_t>(level)].budget_bytes;
    if (bytes == 0) return kNoBound;
    return std::max<size_t>(1, bytes / layout.row_bytes() >> shards_.log2());
  }
  // Rows that one shard may have in all tiers, DRAM holding `dram_rows` of all shards. 2^63 - 1 where the last tier has no
  // bound or drops its coldest rows.
  size_t share(uint64_t dram_rows, const RowLayout& layout) const {
    if (levels_.count == 0 || !levels_.bounded[levels_.last()] || options_.drop_coldest) return kNoBound;
    size_t rows = dram_rows >> shards_.log2();
    for (int level = 0; level < levels_.count; ++level) rows += lower_share(level, layout);
    return rows;
  }

 private:
  static constexpr size_t kNoBound = ~size_t{0} >> 1;

  const TableOptions& options_;
  const TierLevels& levels_;
  const ShardSet& shards_;
  std::atomic<uint64_t> dram_bytes_;
};

}  // namespace multitier

#endif  // CC_TABLE_BUDGETS_H_
