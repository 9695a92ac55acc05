// What is asked of keys outside training: Frequency, Version, LookupTier. Nothing moves.

#include "cc/table/table_impl.h"

namespace multitier {

template <typename Report>
Status EmbeddingTable::Impl::Facts(Span<const int64_t> keys, Report report) {
  MT_RETURN_IF_ERROR(CheckProcess());
  InsideGate inside(&gate_);
  BelowKeys below;
  std::vector<size_t> positions;
  BorrowedKeyBatch batch;
  batch->Partition(keys, shards_.log2());
  for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
    if (batch->begin(s) == batch->end(s)) continue;
    Shard::Locked lock(shards_[s]);
    for (uint32_t e = batch->begin(s); e < batch->end(s); ++e) {
      const Found found = lock->Find(batch->key(e), batch->hash(e));
      KeyFacts facts;
      if (found.row != nullptr) {
        const bool born = !found.row->has(kRowUncommitted);
        facts.frequency = found.row->frequency;
        facts.version = born ? found.row->version : -1;
        facts.tier = born ? 0 : -1;
      } else if (found.counted != nullptr) {
        facts.frequency = found.counted->frequency;
      } else if (found.maybe_below) {
        below.push_back(BelowKeyOf(*batch, e, s));
        positions.push_back(batch->first_position(e));
        continue;
      }
      report(batch->first_position(e), facts);
    }
  }
  MT_RETURN_IF_ERROR(Promote(&below, Promotion::kFacts, nullptr));
  for (size_t j = 0; j < below.size(); ++j) report(positions[j], below[j].facts);
  return OkStatus();
}

Status EmbeddingTable::Impl::Frequency(Span<const int64_t> keys, int64_t* out) {
  return Facts(keys, [out](size_t i, const KeyFacts& facts) { out[i] = facts.frequency; });
}

Status EmbeddingTable::Impl::Version(Span<const int64_t> keys, int64_t* out) {
  return Facts(keys, [out](size_t i, const KeyFacts& facts) { out[i] = facts.version; });
}

Status EmbeddingTable::Impl::LookupTier(Span<const int64_t> keys, int32_t* out) {
  return Facts(keys, [out](size_t i, const KeyFacts& facts) { out[i] = facts.tier; });
}

}  // namespace multitier
