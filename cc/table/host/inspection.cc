// What is asked of keys outside training: Frequency, Version, LookupTier. Nothing moves.

#include "cc/table/host/host_table.h"

namespace multitier {

namespace {

struct KeyFacts {
  int64_t frequency = 0;
  int64_t version = -1;
  int32_t tier = -1;
};

KeyFacts FactsOf(const Found& found) {
  KeyFacts facts;
  if (found.row != nullptr) {
    facts.frequency = found.row->frequency;
    if (found.row->has(kRowUncommitted)) return facts;
    facts.version = found.row->version;
    facts.tier = 0;
  } else if (found.counted != nullptr) {
    facts.frequency = found.counted->frequency;
  }
  return facts;
}

// Looks at headers, where they are.
class FactsVisitor : public RecordVisitor {
 public:
  FactsVisitor(const TierLevels* levels, std::vector<KeyFacts>* facts) : levels_(levels), facts_(facts) {}
  bool NeedsRow() const override { return false; }
  Status OnMemory(Shard::Locked&, TierKey* key, const Found& found) override {
    const bool uncommitted = found.row != nullptr && found.row->has(kRowUncommitted);
    if (!uncommitted) (*facts_)[key->entry] = FactsOf(found);
    return OkStatus();
  }
  Answer OnRecord(Shard::Locked& lock, TierKey* key, const RecordHeader& header) override {
    ++lock->counters().lower[key->level].hits;
    (*facts_)[key->entry] = KeyFacts{header.frequency, header.version, levels_->number(key->level)};
    return Answer::kKeep;
  }

 private:
  const TierLevels* const levels_;
  std::vector<KeyFacts>* const facts_;  // by entry
};

}  // namespace

template <typename Report>
Status HostTable::Facts(Span<const int64_t> keys, Report report) {
  MT_RETURN_IF_ERROR(CheckMemory(keys.size()));
  MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::Enter(&base_));
  TierKeys below;
  BorrowedKeyBatch batch;
  batch->SortByShard(keys, shards_.log2());
  for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
    if (batch->begin(s) == batch->end(s)) continue;
    Shard::Locked lock(shards_[s]);
    for (uint32_t e = batch->begin(s); e < batch->end(s); ++e) {
      const Found found = lock->Find(batch->key(e), batch->hash(e));
      if (found.maybe_below) {
        below.Add(*batch, e, s);
      } else {
        report(batch->first_position(e), FactsOf(found));
      }
    }
  }
  if (below.empty()) return OkStatus();
  std::vector<KeyFacts> facts(batch->num_keys());
  FactsVisitor visitor(&levels_, &facts);
  MT_RETURN_IF_ERROR(reader_.Read(&below, &visitor));
  for (const TierKey& key : below) report(batch->first_position(key.entry), facts[key.entry]);
  return OkStatus();
}

Status HostTable::Frequency(Span<const int64_t> keys, int64_t* out) {
  return Facts(keys, [out](size_t i, const KeyFacts& facts) { out[i] = facts.frequency; });
}

Status HostTable::Version(Span<const int64_t> keys, int64_t* out) {
  return Facts(keys, [out](size_t i, const KeyFacts& facts) { out[i] = facts.version; });
}

Status HostTable::LookupTier(Span<const int64_t> keys, int32_t* out) {
  return Facts(keys, [out](size_t i, const KeyFacts& facts) { out[i] = facts.tier; });
}

}  // namespace multitier
