#include "cc/table/shard/shard_scan.h"

namespace multitier {

bool ShardScan::ReadingAt(uint32_t home) const {
  bool pending = false;
  parts_.index.ForEachAtHome(home, [&](uint64_t word) { pending |= ShardIndex::state(word) == WordState::kPending; });
  return pending;
}

void ShardScan::EndReadAt(uint32_t home, int log2, uint32_t id) {
  uint64_t* found = nullptr;
  for (uint64_t at = home; at >> parts_.index.log2_buckets() == 0; at += uint64_t{1} << log2) {  // the index may have grown
    parts_.index.ForEachAtHome(static_cast<uint32_t>(at), [&](uint64_t& word) {
      if (PendingWords::IsPending(word, id)) found = &word;
    });
  }
  MT_CHECK(found != nullptr);
  parts_.pending.Restore(found, id);
  parts_.resolved->Happen();
}

}  // namespace multitier
