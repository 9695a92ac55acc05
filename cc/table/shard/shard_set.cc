#include "cc/table/shard/shard_set.h"

#include <cmath>

namespace multitier {

Result<std::vector<std::unique_ptr<Shard>>> ShardSet::Split(int log2, ShardCommon* common) {
  std::vector<std::unique_ptr<Shard>> shards;
  {
    Shard::Locked from(shards_[0]);
    shards = New(log2, common, from->layout(), /*memory=*/nullptr);
    std::vector<Shard::Locked> to;  // no other thread knows these
    to.reserve(shards.size());
    const double mean = static_cast<double>(from->dram_rows()) / static_cast<double>(shards.size());
    const auto share = static_cast<size_t>(mean + 3 * std::sqrt(mean));  // a shard that has more grows
    for (auto& shard : shards) {
      MT_RETURN_IF_ERROR(to.emplace_back(shard)->ReserveWords(share));
      to.back()->BeginTakingOver(*from);
    }
    const auto shard_of = [log2](int64_t key) { return static_cast<size_t>(HashKey(key) >> (64 - log2)); };
    for (uint32_t slot = 0; slot < from->scan().row_slots(); ++slot) {
      if (from->row(slot)->has(kRowFree)) continue;
      MT_RETURN_IF_ERROR(to[shard_of(from->row(slot)->key)]->TakeOver(*from, slot));
    }
    for (const int64_t key : from->snapshot().changed_keys()) to[shard_of(key)]->snapshot().NoteGone(key);
    to[0]->counters() = from->counters();
  }
  MutexLock lock(splitting_);
  log2_ = log2;
  shards_.swap(shards);
  return shards;
}

}  // namespace multitier
