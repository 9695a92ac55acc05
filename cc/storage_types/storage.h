// Storage: makes the tiers of a table from a user's specification (a type by name, a path, sizes).
//
//   "DRAM_PMEM_SSDHASH", "/data", {1 GiB, 8 GiB}
//        |  the name is split into its parts: no combination has code of its own
//        v
//   dram_budget_bytes = 1 GiB    lower_tiers = { PmemTier, 8 GiB }, { SsdHashTier, unbounded }
//                                /data/<encoded table name>/instance-<pid>-<number>/pmem/ and .../ssdhash/
//
// The tiers of one table share one instance directory (env/instance_dir.h). It is deleted with the last of them. In C++, only
// this folder knows the kinds of tiers. A table uses the interface Tier. Code that makes tables uses StorageSpec. Python lists
// the kinds in config_pb2.py and sizing.py. The recipe for a new one is in CONTRIBUTING.md.
//
// HBM is above the table of the other tiers (table/table_above.h), on a Device. It is inclusive: its rows are copies of rows
// below it, or newer.
//
// PMEM alone is not a lower tier. Its files are the memory of the rows, which are read and updated in place (row/row_memory.h).
// Its size is a hard bound, as for DRAM alone.
//
// To recover a kept instance, compose the same spec again with `recover`. The last tier finds its records, and the table adopts
// them. The tiers above it begin empty. An instance with PMEM as the last tier cannot be kept, because its files do not record
// which slots are in use.

#ifndef CC_STORAGE_TYPES_STORAGE_H_
#define CC_STORAGE_TYPES_STORAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/env/instance_dir.h"
#include "cc/policy/replacement_kind.h"
#include "cc/table/embedding_table.h"

namespace multitier {

namespace hbm {
struct MemorySource;  // cc/hbm/device_memory.h
}  // namespace hbm

struct StorageSpec {
  // One of StorageTypes().
  std::string type = "DRAM";
  // Directory for the files of file tiers. It is created if its parent exists. Required for types with such tiers, otherwise
  // ignored.
  std::string path;
  // Bytes of row data, fastest tier first, each > 0. A missing size means 1 GiB; for the last tier, no bound; for HBM on the
  // emulated device, 1 MiB.
  std::vector<int64_t> sizes;
  // Rows of each tier in place of `sizes`; the number stays when slots are added. A missing one is as a missing size.
  std::vector<int64_t> rows;
  // See TableOptions. Of HBM alone, too.
  int64_t initial_rows = 0;
  Replacement cache_strategy = Replacement::kDefault;
  // If the last tier has a size and is full: true drops its coldest rows, false refuses updates that need room.
  bool drop_coldest = false;
  KeepDropped keep_dropped = KeepDropped::kKeys;
  int64_t dropped_bytes = static_cast<int64_t>(kDroppedBytes);
  int64_t removed_bytes = static_cast<int64_t>(kRemovedBytes);
  // Of updates whose new keys have no room. "drop" is drop_coldest: ParseOnFull.
  OnFull on_full = OnFull::kError;
  // See TableOptions. Needs drop_coldest, and kScore.
  bool refuse_colder = false;
  // When the table is destroyed, writes all rows to the files and keeps the files. The last tier must be LEVELDB or SSDHASH.
  bool keep = false;
  // The instance to take over, of a table with the same type. Null: a new instance below `path`.
  std::shared_ptr<InstanceDirectory> recover;
  // With `recover`, of an instance that was opened for reading: the table reads its files, with any number of other processes,
  // and changes none. It has the values alone, no slots, and no bound of the last tier. The last tier must be SSDHASH, and the
  // only one with files.
  bool read_only = false;
  OnCorruption on_corruption = OnCorruption::kError;
  // The device that HBM is on. "emulated": an emulated one, for tests, far slower than a GPU. Empty: what the
  // environment variable kDeviceVariable names, and else the GPU, which this build does not have.
  std::string device;
  // Where the memory of HBM comes from, of that device. Null: the device.
  std::shared_ptr<const hbm::MemorySource> hbm_memory;
};

// The environment variable that selects whether SSDHASH compacts on its own thread: 1: yes; 0, empty or unset: no.
inline constexpr const char* kAsyncCompactionVariable = "TF_SSDHASH_ASYNC_COMPACTION";

// The environment variable with the device of specs that name none. For tests.
inline constexpr const char* kDeviceVariable = "TF_MULTITIER_DEVICE";

// The names of all storage types, including those that need a GPU.
const std::vector<std::string>& StorageTypes();

// "DEFAULT", "LRU", "LFU", "SCORE"
Result<Replacement> ParseCacheStrategy(const std::string& name);

// Checks a spec without access to a disk. Reads the environment. InvalidArgument, with the field, what was expected and what
// was found. Unimplemented for a type with an HBM tier if there is no device for it.
Status ValidateStorage(const StorageSpec& spec);

// "error", "warn", "drop": sets on_full, and drop_coldest where it is "drop".
Status ParseOnFull(const std::string& name, StorageSpec* spec);

// "none", "keys", "rows"
Result<KeepDropped> ParseKeepDropped(const std::string& name);

// "error", "reinit", "drop"
Result<OnCorruption> ParseOnCorruption(const std::string& name);

// Makes the tiers and sets budgets, lower tiers and strategy in `options`. options->name is the name of the directory. Reads
// the environment. After an error no file or directory is left.
//
// instance (may be null) receives the instance directory, or null if the type has no files. If it is given, a new instance is
// not yet marked as kept: the caller may write files into it, and then must call SetKeep.
Status ComposeStorage(const StorageSpec& spec, TableOptions* options, std::shared_ptr<InstanceDirectory>* instance = nullptr);

}  // namespace multitier

#endif  // CC_STORAGE_TYPES_STORAGE_H_
