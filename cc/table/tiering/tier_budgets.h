// TierBudgets: how many rows each tier of a table may hold. The Demoter (demoter.h) enforces them by demoting or dropping rows;
// apply_gather.cc, by refusing new rows.
//
// Owns the DRAM budget, which may change at run time; the other budgets are options. What a budget is: budget.h. Thread-safe.

#ifndef CC_TABLE_TIERING_TIER_BUDGETS_H_
#define CC_TABLE_TIERING_TIER_BUDGETS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "cc/row/row_layout.h"
#include "cc/table/api/budget.h"
#include "cc/table/api/table_options.h"
#include "cc/table/marks/tier_levels.h"
#include "cc/table/shard/shard_set.h"

namespace multitier {

class TierBudgets {
 public:
  // What it points to outlives it; `levels` and `shards` are complete before a method of a lower tier is called.
  TierBudgets(const TableOptions* options, const TierLevels* levels, const ShardSet* shards)
      : options_(*options), levels_(*levels), shards_(*shards), dram_(options->dram_budget()) {}

  // Without a bound, too, where DRAM is no tier.
  Budget dram() const { return dram_.load(); }
  void set_dram(Budget budget) { dram_ = budget; }
  // Rows of DRAM, over all shards. 0 where DRAM is no tier; 2^63 - 1 where it has no bound.
  uint64_t dram_rows(const RowLayout& layout) const {
    if (!options_.dram_named) return 0;
    return dram().rows(layout.row_bytes());
  }
  Budget lower(int level) const { return options_.lower_tiers[static_cast<size_t>(level)].budget(); }
  // Rows that one shard may have in a lower tier; 2^63 - 1 where the tier has no bound.
  size_t lower_share(int level, const RowLayout& layout) const {
    const Budget budget = lower(level);
    if (!budget.bounded()) return kNoBound;
    return std::max<size_t>(1, budget.rows(layout.row_bytes()) >> shards_.log2());
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
  std::atomic<Budget> dram_;
};

}  // namespace multitier

#endif  // CC_TABLE_TIERING_TIER_BUDGETS_H_
