// TierKind: what a folder of cc/tier says of its kind of tier. It registers it, so that no list elsewhere has its name:
//
//   cc/tier/ssdhash/kind.cc    const RegisterTierKind registered([](TierKind* kind) { kind->name = "SSDHASH"; ... });
//        |
//        +--> StorageTypes(), ValidateOptions    the storage types with it, and what they can do
//        +--> ComposeStorage                     opens it
//        +--> tf_multitier.memory                its memory and disk
//
// The linker drops an object that nothing refers to: a target with a kind has alwayslink, and is in //cc/tier:kinds. DRAM and
// HBM are no kinds: a table has them itself.
//
// Thread-safe once the library is loaded.

#ifndef CC_OPTIONS_TIER_KIND_H_
#define CC_OPTIONS_TIER_KIND_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/options/options.h"
#include "cc/row/row_memory.h"

namespace multitier {

class Tier;  // cc/tier/tier.h

struct StorageTypeName {
  const char* name;               // the tiers, fastest first, joined by underscores
  int number;                     // in Python's StorageType. Types of DeepRec have DeepRec's
  const char* same_as = nullptr;  // the name that the record keeps, where it is another one
};

// How a table opens a tier.
struct TierOpening {
  const Options& options;
  std::string folder;  // of its own; empty without files
  bool keep = false;   // the files stay when the tier is destroyed
  bool recover = false;
  bool read_only = false;  // with `recover`: it changes no file
};

// At most.
struct TierBytes {
  int64_t memory = 0;
  int64_t disk = 0;
};

struct TierKind {
  const char* name = nullptr;          // in the names of storage types; in small letters that of its folder
  std::vector<StorageTypeName> types;  // those whose last tier it is
  bool has_files = false;
  const char* not_kept = nullptr;      // why its files cannot be opened again; null: they can
  bool read_in_place = false;          // any number of processes can read files that were kept
  const char* not_in_place = nullptr;  // why not, where that says more

  // What it demands of the options of any table. last: it is the last tier of their storage type. Null: nothing.
  Status (*validate)(const Options&, bool last) = nullptr;
  // Whether this process has what a table with this tier needs. Null: always.
  Status (*check)(const Options&) = nullptr;
  // Whether the environment variables that it reads are good. Called for all kinds, of every table with a lower tier. Null:
  // yes.
  Status (*check_environment)() = nullptr;

  Result<std::unique_ptr<Tier>> (*open)(const TierOpening&) = nullptr;
  // For the storage type that is this tier alone: its folder as the memory of the rows, which are used in place. Null: such a
  // table has it as a lower tier.
  Result<std::unique_ptr<RowMemory>> (*open_row_memory)(const std::string& folder) = nullptr;

  // Of a tier with this number of rows, each with this number of bytes of data.
  TierBytes (*bytes)(int64_t rows, int64_t row_bytes) = nullptr;
  // Of a row memory with this number of slots for rows, in `shards` slabs; without the order of demotion.
  TierBytes (*row_memory_bytes)(int64_t slots, int64_t row_bytes, int64_t shards) = nullptr;
};

// Registers a kind of tier while the library is loaded.
struct RegisterTierKind {
  explicit RegisterTierKind(void (*describe)(TierKind*));
};

// In the order of their names.
const std::vector<TierKind>& TierKinds();
// Null for DRAM, HBM and unknown names.
const TierKind* FindTierKind(const std::string& name);
// For messages: "SSDHASH", or several with "or" between them.
std::string TierNames(bool (*which)(const TierKind&));
// Those whose files can be opened again.
std::string KeptTiers();

// All names of storage types, in the order of their numbers: those of StorageTypes(), and those that are the same as one.
const std::vector<StorageTypeName>& StorageTypeNames();
// The name that the record keeps.
std::string CanonicalStorageType(const std::string& name);

}  // namespace multitier

#endif  // CC_OPTIONS_TIER_KIND_H_
