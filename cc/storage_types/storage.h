// Storage: makes the tiers of a table from its options (storage_type, storage_path, storage_size, ...).
//
//   "DRAM_PMEM_SSDHASH", "/data", {1 GiB, 8 GiB}
//        |  the name is split into its parts: no combination has code of its own
//        v
//   dram_budget_bytes = 1 GiB    lower_tiers = { PmemTier, 8 GiB }, { SsdHashTier, unbounded }
//                                /data/<encoded table name>/instance-<pid>-<number>/pmem/ and .../ssdhash/
//
// The tiers of one table share one instance directory (env/instance_dir.h). It is deleted with the last of them. A tier
// registers its kind in its own folder (cc/options/tier_kind.h). A table uses the interface Tier. The recipe for a new one is
// in CONTRIBUTING.md.
//
// HBM is above the table of the other tiers (table/host/table_below.h), on a Device. It is inclusive: its rows are copies of
// rows below it, or newer.
//
// PMEM alone is not a lower tier. Its files are the memory of the rows, which are read and updated in place (row/row_memory.h).
// Its size is a hard bound, as for DRAM alone.
//
// EXTERNAL is a store that a user registered (tier/external). A table whose store lists keys starts with their rows. It has no
// instance, unless PMEM is above.
//
// To recover a kept instance, compose the same options again with `recover`. The last tier finds its records, and the table
// adopts them. The tiers above it begin empty. An instance with PMEM as the last tier cannot be kept, because its files do not
// record which slots are in use.

#ifndef CC_STORAGE_TYPES_STORAGE_H_
#define CC_STORAGE_TYPES_STORAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/env/instance_dir.h"
#include "cc/options/options.h"
#include "cc/table/api/embedding_table.h"

namespace multitier {

namespace hbm {
struct MemorySource;  // cc/hbm/device_memory.h
}  // namespace hbm

// How a table comes to its tiers, besides its options.
struct Opening {
  // The instance to take over, of a table with the same type. Null: a new instance below `storage_path`.
  std::shared_ptr<InstanceDirectory> recover;
  // With `recover`, of an instance that was opened for reading: the table reads its files, with any number of other processes,
  // and changes none. It has the values alone, no slots, and no bound of the last tier. The last tier must be SSDHASH, and the
  // only one with files.
  bool read_only = false;
  // Where the memory of HBM comes from, of its device. Null: the device.
  std::shared_ptr<const hbm::MemorySource> hbm_memory;
};

// The environment variable with the device of specs that name none. For tests.
inline constexpr const char* kDeviceVariable = "TF_MULTITIER_DEVICE";

// Whether this machine and the environment have the tiers. InvalidArgument for a bad environment variable. Unimplemented for a
// type with an HBM tier if there is no device for it. InvalidArgument for an external storage that the process does not have.
Status CheckTiersExist(const Options& options);

// Makes the tiers of a table with these options, and sets its budgets. options->name is the name of the directory. Reads the
// environment. After an error no file or directory is left. REQUIRES: ParseOptions or ValidateOptions has accepted the options
//
// instance (may be null) receives the instance directory, or null if the type has no files. If it is given, a new instance is
// not yet marked as kept: the caller may write files into it, and then must call SetKeep.
Status ComposeStorage(const Opening& opening, TableOptions* options, std::shared_ptr<InstanceDirectory>* instance = nullptr);

}  // namespace multitier

#endif  // CC_STORAGE_TYPES_STORAGE_H_
