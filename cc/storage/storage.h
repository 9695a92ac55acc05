// Storage: from what a user says of storage (a type by name, a path, sizes) to the tiers of a table.
//
//   "DRAM_PMEM_SSDHASH", "/data", {1 GiB, 8 GiB}
//        |  the name is read as its parts: no code for any combination
//        v
//   dram_budget_bytes = 1 GiB    lower_tiers = { PmemTier, 8 GiB }, { SsdHashTier, unbounded }
//                                /data/<encoded table name>/instance-<pid>-<number>/pmem/ and .../ssdhash/
//
// The tiers of one table share one instance directory (env/instance_dir.h), which goes when the last of them has gone. Only
// this folder knows which tiers there are; a table knows Tier, and who makes tables knows StorageSpec.
//
// PMEM alone is no tier below: its files are the memory of the rows, which are read and updated in place (row/row_memory.h),
// and its size is that of DRAM alone: hard.
//
// A kept instance is recovered by composing the same spec again with `recover`: the last tier finds its records, the table
// adopts them. Tiers above it begin empty. With PMEM as the last tier there is no keeping: its files do not tell which of
// their slots were held.

#ifndef CC_STORAGE_STORAGE_H_
#define CC_STORAGE_STORAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/env/instance_dir.h"
#include "cc/policy/replacement.h"
#include "cc/table/embedding_table.h"

namespace multitier {

struct StorageSpec {
  // One of StorageTypes().
  std::string type = "DRAM";
  // Directory of the tiers that keep files; made where its parent exists. Needed by those, ignored by others.
  std::string path;
  // Bytes of row data, fastest tier first, each > 0. One that is missing is 1 GiB, of the last tier: unbounded.
  std::vector<int64_t> sizes;
  Replacement cache_strategy = Replacement::kDefault;
  // Whether a last tier of a given size drops its coldest rows when it is full, rather than refuse.
  bool drop_coldest = false;
  // Leaves the files when the table goes, everything that was in memory in them. Last tier: LEVELDB or SSDHASH.
  bool keep = false;
  // The instance to take over, of a table with the same type; null: a new one below `path`.
  std::shared_ptr<InstanceDirectory> recover;
  OnCorruption on_corruption = OnCorruption::kError;
};

// The environment variable that says whether SSDHASH compacts on a thread of its own: 1 yes; 0, empty or unset no.
inline constexpr const char* kAsyncCompactionVariable = "TF_SSDHASH_ASYNC_COMPACTION";

// Every storage type by name, those that need a GPU included.
const std::vector<std::string>& StorageTypes();

// "DEFAULT", "LRU", "LFU"
Result<Replacement> ParseCacheStrategy(const std::string& name);

// What can be said of a spec without touching a disk. InvalidArgument naming the field, what was expected and what was found;
// Unimplemented for a type with an HBM tier.
Status ValidateStorage(const StorageSpec& spec);

// "error", "reinit", "drop"
Result<OnCorruption> ParseOnCorruption(const std::string& name);

// Makes the tiers and puts them in `options`: the budgets, the lower tiers, the strategy. options->name names the directory.
// Reads the environment. On an error nothing is left behind.
//
// `instance` (may be null) receives the instance directory, null where the type has no files; a new one is then not marked as
// kept yet: who writes files of its own into it calls SetKeep after that.
Status ComposeStorage(const StorageSpec& spec, TableOptions* options, std::shared_ptr<InstanceDirectory>* instance = nullptr);

}  // namespace multitier

#endif  // CC_STORAGE_STORAGE_H_
