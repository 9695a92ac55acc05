// Flush: every row that is only in memory, or only in a tier that does not survive, gets a record in the last tier.
//
// Rows come down only while a thread holds the shard's writer. Above one tier each slice takes the writer for itself: a row
// that is demoted between two slices has a record in the last tier then. Above two tiers it could stop in the first one, which
// the flush has passed. There the writer is held for the whole shard: first for the records of the first tier, then for DRAM,
// where rows that were promoted meanwhile have arrived. A row that changes during the call changed after it: its record is
// freed.
//
// A last tier whose size is given holds no copies: there all rows are moved, with the gate closed.

#include "cc/table/tiering/demoter.h"

namespace multitier {
namespace {

constexpr size_t kFlushedRecords = 4096;  // records of the first tier that are moved at a time

}  // namespace

Status Demoter::FlushShard(Shard* shard) {
  uint32_t from = 0;
  if (levels_.count > 1) {
    const ShardWriter writer(shard);
    MT_RETURN_IF_ERROR(tiers_.RetryRemovals(writer));
    MT_RETURN_IF_ERROR(records_.CopyToLast(writer));
    while (from != kNoLocation) MT_RETURN_IF_ERROR(rows_.Flush(writer, &from));
  }
  while (from != kNoLocation) {
    const ShardWriter writer(shard);
    MT_RETURN_IF_ERROR(tiers_.RetryRemovals(writer));
    MT_RETURN_IF_ERROR(rows_.Flush(writer, &from));
  }
  return OkStatus();
}

Status Demoter::MoveAllToLast() {
  const int last = levels_.last();
  const size_t share = base_.budgets.lower_share(last, *layout());
  for (auto& shard : shards_) {
    size_t rows = 0;
    {
      Shard::Locked lock(shard);
      rows = static_cast<size_t>(lock->counts().rows);
      lock->pins().Sweep(~uint64_t{0});
    }
    if (rows > share) {
      return ResourceExhaustedError("table '", options_.name, "': flush: expected at most ", share, " rows in each of ",
                                    shards_.size(), " shards, because tier ", tiers_.name(last), " has ",
                                    base_.budgets.lower(last).text(), ", found ", rows, " in one");
    }
    size_t above = ~size_t{0};  // rows that are not there yet
    for (bool progress = true; above > 0 && progress;) {
      // The tier between is emptied first: what DRAM holds goes through it.
      if (last > 0) {
        const ShardWriter writer(shard);
        MT_RETURN_IF_ERROR(tiers_.RetryRemovals(writer));
        MT_RETURN_IF_ERROR(records_.Demote(writer, 0, kFlushedRecords));
      }
      MT_RETURN_IF_ERROR(TrimShard(shard.get(), 0, 1));
      Shard::Locked lock(shard);
      const size_t left = static_cast<size_t>(lock->counts().rows - lock->counts().rows_in[last]);
      progress = left < above;
      above = left;
    }
    if (above > 0) {
      return InternalError("table '", options_.name, "': flush: expected all rows of a shard to move to tier ",
                           tiers_.name(last), ", found ", above, " that cannot be moved");
    }
  }
  return OkStatus();
}

}  // namespace multitier
