// Prefetch: rows come up ahead of the batch that will use them, and stay until it does.
//
//   pinned -- used by a lookup or an apply, demotion is free to take it again (it is the most recent row then)
//          -- its time is over: seen by the next trim of its shard, by the next prefetch, and by statistics
//          -- ReleasePrefetched()
//
// PrefetchPins remembers until when each row is pinned.
//
// Pins take a quarter of the DRAM budget at most, also those of prefetches that run together (PrefetchRoom). A prefetch of more
// brings up what fits. No operation waits for a pin to end.

#include <algorithm>

#include "cc/table/host/host_table.h"

namespace multitier {

namespace {

// Brings rows up and pins them, so that they stay until the prefetch pins are set.
class PrefetchVisitor : public RecordVisitor {
 public:
  explicit PrefetchVisitor(const ShardSet* shards) : shards_(*shards) {}
  bool NeedsRow() const override { return true; }
  bool MustInstall() const override { return true; }
  Status OnMemory(Shard::Locked& lock, TierKey* key, const Found& found) override {
    if (found.row != nullptr) OnInstalled(lock, key, found.row);
    return OkStatus();
  }
  Answer OnRecord(Shard::Locked& lock, TierKey* key, const RecordHeader&) override {
    ++lock->counters().lower[key->level].hits;
    return Answer::kInstall;
  }
  void OnInstalled(Shard::Locked& lock, TierKey* key, RowHeader* row) override {
    lock->Pin(row);
    pinned_.push_back({key->shard, row});
  }
  // Calls visit(lock, row) for each row and gives its pin up.
  template <typename Visit>
  void Release(Visit visit) {
    for (const Pinned& pinned : pinned_) {
      Shard::Locked lock(shards_[static_cast<size_t>(pinned.shard)]);
      visit(lock, pinned.row);
      lock->Unpin(pinned.row);
    }
  }

 private:
  struct Pinned {
    int shard;
    RowHeader* row;
  };
  const ShardSet& shards_;
  std::vector<Pinned> pinned_;
};

}  // namespace

Status HostTable::Prefetch(Span<const int64_t> keys, uint64_t timeout_us, int64_t* pinned) {
  MT_RETURN_IF_ERROR(CheckMemory(keys.size()));
  int64_t n = 0;
  if (pinned == nullptr) pinned = &n;
  *pinned = 0;
  if (levels_.count == 0 || keys.empty()) return base_.CheckProcess();
  MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::EnterToChange(&base_));
  MT_RETURN_IF_ERROR(demoter_.Retry());
  const uint64_t now = base_.env->NowMicros();
  const PrefetchRoom::Reservation room(&prefetch_room_, static_cast<int64_t>(keys.size()),
                                       static_cast<int64_t>(base_.budgets.dram_rows(*layout()) / 4), [&] {
                                         int64_t in_use = 0;
                                         for (auto& shard : shards_) {
                                           Shard::Locked lock(shard);
                                           lock->pins().Sweep(now);
                                           in_use += lock->pins().pinned();
                                         }
                                         return in_use;
                                       });
  const uint64_t until = now + std::min(timeout_us, ~uint64_t{0} - now);
  const uint64_t stamp = common_.accesses.fetch_add(keys.size());
  BorrowedKeyBatch batch;
  batch->SortByShard(keys, shards_.log2());
  batch->PrepareDedup();
  TierKeys below;
  for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
    batch->Dedup(s);
    Shard::Locked lock(shards_[s]);
    for (uint32_t e = batch->begin(s); e < batch->end(s); ++e) {
      const bool fits = *pinned + static_cast<int64_t>(below.size()) < room.rows();
      const Found found = lock->Find(batch->key(e), batch->hash(e));
      if (found.row != nullptr) {
        *pinned += lock->pins().Pin(found.row, until, fits);
      } else if (found.maybe_below && fits) {
        below.Add(*batch, e, s).touched = stamp + batch->first_position(e);
      }
    }
  }
  PrefetchVisitor visitor(&shards_);
  const Status status = reader_.Read(&below, &visitor);
  visitor.Release([&](Shard::Locked& lock, RowHeader* row) {
    if (status.ok()) *pinned += lock->pins().Pin(row, until, /*room=*/true);
  });
  MT_RETURN_IF_ERROR(status);
  demoter_.TrimAndRemember();
  return OkStatus();
}

void HostTable::ReleasePrefetched() {
  const Result<OperationScope> inside = OperationScope::Enter(&base_);
  if (!inside.ok()) return;
  for (auto& shard : shards_) {
    Shard::Locked(shard)->pins().Sweep(~uint64_t{0});
  }
  demoter_.TrimAndRemember();
}

}  // namespace multitier
