// TableOptions: the record of a table's options, and the tiers that are made from it.

#ifndef CC_TABLE_API_TABLE_OPTIONS_H_
#define CC_TABLE_API_TABLE_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/env/env.h"
#include "cc/options/options.h"
#include "cc/row/row_memory.h"
#include "cc/table/api/budget.h"
#include "cc/tier/tier.h"

namespace multitier {

class EmbeddingTable;
class TableBelow;  // table_below.h

// A tier below DRAM.
struct LowerTierOptions {
  std::shared_ptr<Tier> tier;
  // Bytes of row data it may hold. 0: unbounded, of the last tier only.
  uint64_t budget_bytes = 0;
  uint64_t budget_rows = 0;  // in place of budget_bytes

  Budget budget() const { return Budget::Of(budget_bytes, budget_rows); }
};

// The record, and what is made from it (cc/storage_types): of the storage, a table itself reads only that.
struct TableOptions : Options {
  // Bytes of row data in DRAM, without headers and index. 0: unbounded. Without a lower tier the bound is hard: an apply that
  // would exceed it is ResourceExhausted.
  uint64_t dram_budget_bytes = 0;
  uint64_t dram_budget_rows = 0;  // in place of dram_budget_bytes; does not change when slots are added
  Budget dram_budget() const { return Budget::Of(dram_budget_bytes, dram_budget_rows); }
  // Where the rows of the first tier live, which then has that memory's name (PMEM alone: PmemRowMemory). Null: in DRAM.
  std::shared_ptr<RowMemory> row_memory;
  // The tiers below DRAM, fastest first: none, one, or two. The first of two has a budget, the capability `middle`, and
  // does not relocate. REQUIRES: with lower tiers dram_budget_bytes > 0, unless dram_named is false.
  std::vector<LowerTierOptions> lower_tiers;
  // False: DRAM is not a tier of the table (LEVELDB or SSDHASH alone). It holds only the rows of running operations,
  // and LookupTier counts from the first lower tier. REQUIRES: lower tiers, and dram_budget_bytes 0.
  bool dram_named = true;
  // Makes a table over that of the other tiers, for a tier with a device of its own (HbmOver of cc/hbm), which keeps copies of
  // rows and hands those that it evicts down. hbm_budget_bytes: of row data that it may hold. Null and 0: none.
  using MakeAbove = std::function<Result<std::unique_ptr<EmbeddingTable>>(std::unique_ptr<TableBelow> below, Budget budget)>;
  MakeAbove above;
  uint64_t hbm_budget_bytes = 0;
  uint64_t hbm_budget_rows = 0;  // in place of hbm_budget_bytes
  Budget hbm_budget() const { return Budget::Of(hbm_budget_bytes, hbm_budget_rows); }
  bool is_below = false;  // set by Create for the table below `above`: it is not split, and keeps the keys that it drops
  // Memory for RemovedSince is removed_bytes. Further keys go to a file in this folder. Without one, the oldest are forgotten.
  std::string removed_folder;
  // A table of DRAM alone, without a filter, that drops no rows, begins with one shard. It is split when its rows and their
  // headers have this number of bytes, or when an update is lent threads.
  uint64_t one_shard_bytes = uint64_t{2} << 20;
  // Takes over the rows that the last tier recovered. Its other columns are added to `slots`, in their order.
  // FailedPrecondition if its value column differs from the table's. REQUIRES: the last tier is durable, and was opened to
  // recover
  bool adopt = false;
  Env* env = nullptr;  // nullptr: Env::Posix()
};

}  // namespace multitier

#endif  // CC_TABLE_API_TABLE_OPTIONS_H_
