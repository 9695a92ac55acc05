// TableBase: what all parts of a table stand on: its options, shards, tiers, layout and gate, the snapshot that is being taken,
// and its count of steps.
//
// Locks, outermost first; whatever is not named here takes none of these inside:
//   CurrentSnapshot::one_at_a_time   a snapshot, from its beginning to its end
//   gate                             entered by every operation; closed by AddSlots, Clear, a split of the only shard, and for
//                                    the moment of a snapshot
//   ShardWriter                      one thread a shard, over I/O (tier_stack.h)
//   Shard::Locked, Shard::Shared     no I/O while held (shard.h)
//   locks of a tier                  those that Free, SwitchBelow and MayReach take: a tier holds none of them over I/O or when
//                                    it calls the relocator
// Under a shard's lock no other method of a tier is called: from most of them a tier may call the relocator, which takes
// shards' locks (tier.h).

#ifndef CC_TABLE_TIERING_TABLE_BASE_H_
#define CC_TABLE_TIERING_TABLE_BASE_H_

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "cc/base/gate.h"
#include "cc/base/mutex.h"
#include "cc/base/process_id.h"
#include "cc/policy/counting_bloom_filter.h"
#include "cc/table/api/embedding_table.h"
#include "cc/table/marks/current_snapshot.h"
#include "cc/table/tiering/table_score.h"
#include "cc/table/tiering/tier_budgets.h"
#include "cc/table/tiering/tier_stack.h"

namespace multitier {

struct TableBase {
  explicit TableBase(TableOptions o)
      : options(std::move(o)),
        env(options.env != nullptr ? options.env : Env::Posix()),
        budgets(&options, &common.levels, &shards),
        tiers(options.name, &common.levels, &shards, [this](Status status) { on_refusal(std::move(status)); }) {
    common.env = env;
    if (removed.notes()) common.removed = &removed;
    common.levels.dram_named = options.dram_named;
    const bool scored = options.cache_strategy == Replacement::kScore;
    common.by_score = scored || options.refuse_colder;  // a large table knows its coldest rows then
    common.strategy = scored && options.score == Score::kFrequency ? Replacement::kLfu : options.cache_strategy;
  }
  TableBase(const TableBase&) = delete;
  TableBase& operator=(const TableBase&) = delete;

  // The layout as of now; replaced only while the gate is closed.
  std::shared_ptr<const RowLayout> layout() const {
    MutexLock lock(layout_mutex);
    return current_layout;
  }
  void SetLayout(std::shared_ptr<const RowLayout> layout) {
    MutexLock lock(layout_mutex);
    current_layout = std::move(layout);
  }
  const char* first_tier_name() const { return options.row_memory == nullptr ? "dram" : options.row_memory->name(); }
  // FailedPrecondition in a process that was forked from the one that made the table.
  Status CheckProcess() const {
    if (ProcessId() == pid) return OkStatus();
    return FailedPreconditionError("table '", options.name, "' belongs to process ", pid, "; a forked child (here ",
                                   ProcessId(), ") cannot use it");
  }
  // Whether keys are counted before they may have a row.
  bool filters() const { return !options.filter.admits_all(); }
  // How many rows an operation over many rows takes at a time: some MiB, after which it waits for a snapshot that is behind.
  size_t chunk_rows() const { return std::clamp<size_t>(WaitingCopies::kSliceBytes / layout()->row_bytes(), 1024, 64 * 1024); }
  // The status with "table '<name>': " before its message; OK stays OK.
  Status OfThisTable(const Status& status) const {
    if (status.ok()) return status;
    return Status(status.code(), StrCat("table '", options.name, "': ", status.message()), status.os_error());
  }

  const pid_t pid = ProcessId();
  const TableOptions options;
  Env* const env;
  ShardCommon common;
  RemovedKeys removed{env, options.removed_bytes, options.removed_folder, &common.newest_version};
  ShardSet shards;
  TierBudgets budgets;
  std::function<void(Status)> on_refusal;  // of a removal, by a tier
  TierStack tiers;
  Gate gate;
  CurrentSnapshot snapshot;
  AbsentValues absent;
  std::unique_ptr<CountingBloomFilter> bloom;  // of tables that count keys by one
  std::atomic<int64_t> applies{0};             // the table's own step counter
  std::atomic<int64_t>& newest_step = common.newest_version;
  TableScore score{options.score, &common.newest_version};
  std::atomic<int64_t> changes_since{0};  // the moment since which changes are tracked; 0: they are not
  mutable Mutex layout_mutex;
  std::shared_ptr<const RowLayout> current_layout MT_GUARDED_BY(layout_mutex);
};

}  // namespace multitier

#endif  // CC_TABLE_TIERING_TABLE_BASE_H_
