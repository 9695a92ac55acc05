// The kind of tier PMEM: what the rest of the engine knows of it. Alone it is the memory of the rows; below DRAM it is a tier.

#include <algorithm>

#include "cc/options/tier_kind.h"
#include "cc/tier/pmem/pmem_row_memory.h"
#include "cc/tier/pmem/pmem_tier.h"

namespace multitier {
namespace {

constexpr int64_t kKib = 1 << 10, kMib = 1 << 20, kGib = 1 << 30;
constexpr int64_t kHeader = sizeof(RowHeader);

Result<std::unique_ptr<Tier>> OpenPmem(const TierOpening& opening) {
  PmemOptions options;
  options.directory = opening.folder;
  MT_ASSIGN_OR_RETURN(std::unique_ptr<Tier> tier, PmemTier::Open(options));
  return tier;
}

Result<std::unique_ptr<RowMemory>> OpenPmemRowMemory(const std::string& folder) {
  MT_ASSIGN_OR_RETURN(std::unique_ptr<RowMemory> memory, PmemRowMemory::Open(folder));
  return memory;
}

// See docs/formats/pmem.md: file sizes double up to 1 GiB.
TierBytes PmemBytes(int64_t rows, int64_t row_bytes) {
  const int64_t slot = (row_bytes + 32 + 63) / 64 * 64;
  const int64_t data = rows * slot;
  TierBytes bytes;
  bytes.disk = data + std::min(data, kGib) + std::max(data / 8, 1024 * slot) + kMib;
  bytes.memory = 24 * (bytes.disk / slot);
  return bytes;
}

// Rows in pieces of 64 KiB, or of one row, in files whose sizes double up to 1 GiB.
TierBytes PmemRowMemoryBytes(int64_t slots, int64_t row_bytes, int64_t shards) {
  const int64_t row = row_bytes + kHeader;
  int64_t in_piece = 1;
  while (2 * in_piece * row <= 64 * kKib) in_piece *= 2;
  const int64_t piece = (in_piece * row + 4 * kKib - 1) / (4 * kKib) * 4 * kKib;
  const int64_t data = (slots / in_piece + shards) * piece;
  TierBytes bytes;
  bytes.disk = data + std::min(data, kGib) + piece;
  bytes.memory = 64 * (data / piece);
  return bytes;
}

const RegisterTierKind registered([](TierKind* kind) {
  kind->name = "PMEM";
  kind->types = {
      {"PMEM_MEMKIND", 2, "PMEM"}, {"PMEM_LIBPMEM", 3, "PMEM"}, {"PMEM", 7}, {"DRAM_PMEM", 11}, {"HBM_DRAM_PMEM", 104}};
  kind->has_files = true;
  kind->not_kept = "the files of PMEM cannot be opened again";
  kind->open = OpenPmem;
  kind->open_row_memory = OpenPmemRowMemory;
  kind->bytes = PmemBytes;
  kind->row_memory_bytes = PmemRowMemoryBytes;
});

}  // namespace
}  // namespace multitier
