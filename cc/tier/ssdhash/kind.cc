// The kind of tier SSDHASH: what the rest of the engine knows of it.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "cc/options/tier_kind.h"
#include "cc/tier/ssdhash/segment_format.h"
#include "cc/tier/ssdhash/ssdhash_tier.h"

namespace multitier {
namespace {

// Selects whether SSDHASH compacts on its own thread: 1: yes; 0, empty or unset: no.
constexpr char kAsyncCompactionVariable[] = "TF_SSDHASH_ASYNC_COMPACTION";

Result<bool> AsyncCompactionFromEnvironment() {
  const char* value = std::getenv(kAsyncCompactionVariable);
  if (value == nullptr || *value == '\0' || std::strcmp(value, "0") == 0) return false;
  if (std::strcmp(value, "1") == 0) return true;
  return InvalidArgumentError("environment variable ", kAsyncCompactionVariable, ": expected 0 or 1, found '", value, "'");
}

Result<std::unique_ptr<Tier>> OpenSsdHash(const TierOpening& opening) {
  SsdHashOptions options;
  MT_ASSIGN_OR_RETURN(options.async_compaction, AsyncCompactionFromEnvironment());
  options.directory = opening.folder;
  options.keep = opening.keep;
  options.recover = opening.recover;
  options.read_only = opening.read_only;
  MT_ASSIGN_OR_RETURN(std::unique_ptr<Tier> tier, SsdHashTier::Open(std::move(options)));
  return tier;
}

// See docs/formats/ssdhash.md: 1.5 times the records and footers, plus four segments.
TierBytes SsdHashBytes(int64_t rows, int64_t row_bytes) {
  constexpr int64_t kKib = 1 << 10, kMib = 1 << 20, kBlock = 4096, kFooter = 31;
  const SsdHashOptions defaults;
  int64_t record = row_bytes + static_cast<int64_t>(kRecordHeaderBytes);
  const int64_t in_block = kBlock / record;
  if (in_block > 0 && (kBlock - in_block * record) * 10 < kBlock) record = (kBlock + in_block - 1) / in_block;
  const int64_t live = rows * (record + kFooter);
  const int64_t segment =
      std::clamp(live / 64, static_cast<int64_t>(defaults.min_segment_bytes), static_cast<int64_t>(defaults.max_segment_bytes));
  TierBytes bytes;
  bytes.disk = live * 3 / 2 + 4 * segment + 4 * kKib * (6 + live / segment);
  // Two open segments, and one behind each of them, keep 32 bytes per record. Smaller segments wait in memory until they are
  // written. Three threads may be writing footers.
  const int64_t buffers =
      2 * std::min(segment, 4 * kMib) + 4 * 32 * segment / record + std::min(live, 8 * kMib) + 3 * kFooter * segment / record;
  bytes.memory = bytes.disk / record / 4 + buffers;
  return bytes;
}

const RegisterTierKind registered([](TierKind* kind) {
  kind->name = "SSDHASH";
  kind->types = {{"SSDHASH", 4},
                 {"DRAM_SSDHASH", 12},
                 {"DRAM_PMEM_SSDHASH", 101},
                 {"HBM_DRAM_SSDHASH", 102},
                 {"HBM_DRAM_PMEM_SSDHASH", 106}};
  kind->has_files = true;
  kind->read_in_place = true;
  kind->check_environment = [] { return AsyncCompactionFromEnvironment().status(); };
  kind->open = OpenSsdHash;
  kind->bytes = SsdHashBytes;
});

}  // namespace
}  // namespace multitier
