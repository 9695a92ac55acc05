// The kind of tier LEVELDB: what the rest of the engine knows of it.

#include <algorithm>

#include "cc/options/tier_kind.h"
#include "cc/tier/leveldb/leveldb_tier.h"

namespace multitier {
namespace {

Result<std::unique_ptr<Tier>> OpenLevelDb(const TierOpening& opening) {
  LevelDbOptions options;
  options.directory = opening.folder;
  MT_ASSIGN_OR_RETURN(std::unique_ptr<Tier> tier, LevelDbTier::Open(options));
  return tier;
}

// See docs/formats/leveldb.md. Disk: 2.5 times the entries, buffers and a table file, and twice the files of one compaction.
// Memory: write buffers, block cache, filters and locations of entries.
TierBytes LevelDbBytes(int64_t rows, int64_t row_bytes) {
  constexpr int64_t kMib = 1 << 20;
  const int64_t entries = rows * (row_bytes + 24 + 8 + 16);
  TierBytes bytes;
  bytes.disk = 5 * entries / 2 + 96 * kMib + 2 * std::min(entries, 25 * 32 * kMib);
  bytes.memory = (2 * 16 + 8 + 8) * kMib + 28 * rows;
  return bytes;
}

const RegisterTierKind registered([](TierKind* kind) {
  kind->name = "LEVELDB";
  kind->types = {{"LEVELDB", 5},
                 {"DRAM_LEVELDB", 14},
                 {"DRAM_PMEM_LEVELDB", 103},
                 {"HBM_DRAM_LEVELDB", 105},
                 {"HBM_DRAM_PMEM_LEVELDB", 107}};
  kind->has_files = true;
  kind->not_kept = "the files of LEVELDB cannot be opened again";
  kind->not_in_place = "LevelDB opens a database for one process at a time";
  kind->open = OpenLevelDb;
  kind->bytes = LevelDbBytes;
});

}  // namespace
}  // namespace multitier
