// The split of a small table's only shard (ShardSet::Split).
//
// Shards let threads update one table side by side, and cost a small table speed and memory. So a table is split when an update
// is lent threads, and before moving its rows takes longer than a few ms. An operation that may add rows looks at its start,
// outside of the gate and without a lock, whether that is due. Its thread then closes the gate and moves the rows. While a
// snapshot is being taken, and where memory is short, the split is put off. A scan goes on over it: its cursor names the hashes
// that are left (scan.cc).

#include "cc/table/host/host_table.h"

namespace multitier {

void HostTable::SplitIfLarge(uint64_t coming, bool lends_threads) {
  const auto rows = [&] { return static_cast<uint64_t>(common_.dram_rows.load()) + coming; };
  const auto is_due = [&] {
    const uint64_t at = split_at_.load();
    return at != kNeverSplits && (lends_threads || rows() >= at);
  };
  if (!is_due()) return;
  std::optional<ExclusiveScope> alone = ExclusiveScope::TryEnter(&base_);
  if (!alone.has_value() || !is_due()) return;
  const auto old = base_.shards.Split(kDefaultLog2Shards, &common_);
  split_at_ = old.ok() ? kNeverSplits : 2 * rows();
  alone->OpenGate();
}

}  // namespace multitier
