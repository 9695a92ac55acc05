// What concerns all of a table: slots, budgets, statistics, drain, flush.

#include "cc/table/host/host_table.h"

#include <algorithm>
#include <cmath>

namespace multitier {

Status HostTable::CheckSlotTypes(Span<const ColumnSpec> slots) const {
  for (const ColumnSpec& slot : slots) {
    if (slot.dtype == DType::kFloat32) continue;
    return UnimplementedError("table '", options_.name, "': expected slot '", slot.name, "' of dtype float32, found ",
                              DTypeName(slot.dtype));
  }
  return OkStatus();
}

Status HostTable::CheckBudgets(const RowLayout& layout) const {
  auto check = [&](const char* tier, Budget budget) -> Status {
    if (budget.rows(layout.row_bytes()) > 0) return OkStatus();
    return InvalidArgumentError("table '", options_.name, "': expected a budget of tier ", tier, " of at least one row (",
                                layout.row_bytes(), " bytes), found ", budget.bytes(layout.row_bytes()));
  };
  MT_RETURN_IF_ERROR(check("dram", base_.budgets.dram()));
  for (const LowerTierOptions& lower : options_.lower_tiers) MT_RETURN_IF_ERROR(check(lower.tier->name(), lower.budget()));
  return OkStatus();
}

Status HostTable::AddSlots(Span<const ColumnSpec> slots) {
  MT_RETURN_IF_ERROR(base_.CheckProcess());
  MT_RETURN_IF_ERROR(CheckSlotTypes(slots));
  auto widened = [&](const RowLayout& from) -> Result<RowLayout> {
    RowLayout to = from;
    for (const ColumnSpec& slot : slots) {
      const int column = to.Find(slot.name);
      if (column < 0) {
        MT_ASSIGN_OR_RETURN(to, to.WithColumn(slot));
      } else if (to.columns()[column].dim != slot.dim) {
        return AlreadyExistsError("table '", options_.name, "': slot '", slot.name, "' exists: expected dim ",
                                  to.columns()[column].dim, ", found ", slot.dim);
      }
    }
    return to;
  };
  const std::shared_ptr<const RowLayout> before = layout();
  const bool all_there = std::all_of(slots.begin(), slots.end(), [&](const ColumnSpec& slot) {
    const int column = before->Find(slot.name);
    return column >= 0 && before->columns()[column].dim == slot.dim;
  });
  if (all_there) return OkStatus();  // the usual call of every step
  // No snapshot until the end: trimming may copy many rows for it, and does not wait in between.
  MT_ASSIGN_OR_RETURN(ExclusiveScope alone, ExclusiveScope::Enter(&base_));
  const std::shared_ptr<const RowLayout> now = layout();
  MT_ASSIGN_OR_RETURN(RowLayout wide, widened(*now));
  if (wide.columns().size() == now->columns().size()) return OkStatus();
  MT_RETURN_IF_ERROR(CheckBudgets(wide));
  auto layout = std::make_shared<const RowLayout>(std::move(wide));
  std::vector<std::unique_ptr<RowSlab>> rooms;
  for (auto& shard : shards_) {
    MT_ASSIGN_OR_RETURN(rooms.emplace_back(), Shard::Locked(shard)->RoomFor(layout));
  }
  MT_RETURN_IF_ERROR(tiers_.SetLayout(layout));
  // From here on nothing fails: either every shard is widened or none.
  for (size_t s = 0; s < shards_.size(); ++s) {
    Shard::Locked(shards_[s])->MoveInto(std::move(rooms[s]));
  }
  if (split_at_ != kNeverSplits) split_at_ = options_.one_shard_bytes / layout->stride();
  base_.SetLayout(std::move(layout));
  alone.OpenGate();
  const InsideGate inside(&base_.gate);
  if (common_.evicts) demoter_.Remember(demoter_.TrimLower());  // wider rows: fewer of them fit
  return OkStatus();
}

Result<Rows> HostTable::PopDroppedRows() {
  if (!demoter_.dropped().wants_rows()) {
    return FailedPreconditionError("table '", options_.name, "': rows of dropped keys: expected dropped='rows', found ",
                                   options_.dropped == KeepDropped::kKeys ? "'keys'" : "'none'");
  }
  MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::Enter(&base_));
  return demoter_.dropped().PopRows(*layout());
}

namespace {

// Adds what a shard has to the statistics of the table, of DRAM, and of each lower tier.
void AddShard(const ShardRows& shard, int levels, TableStats* stats, TableStats::PerTier* dram, TableStats::PerTier* below) {
  const ShardCounters& c = shard.counters();
  stats->rows += shard.counts().rows;
  stats->counted_keys += shard.counts().counted_rows;
  stats->updates += c.updates;
  stats->created += c.created;
  stats->removed += c.removed;
  stats->expired += c.expired;
  stats->dropped += c.dropped;
  stats->refused += c.refused;
  stats->corrupt += c.corrupt;
  stats->prefetched += shard.pins().pinned();
  stats->false_matches += c.false_matches;
  stats->index_bytes += static_cast<int64_t>(shard.bytes().index);
  stats->filter_bytes += static_cast<int64_t>(shard.bytes().counted);
  dram->rows += shard.counts().rows;
  dram->resident_bytes += static_cast<int64_t>(shard.bytes().resident);
  dram->hits += c.hits_dram;
  for (int level = 0; level < levels; ++level) {
    const ShardCounters::Lower& from = c.lower[level];
    TableStats::PerTier& to = below[level];
    dram->rows -= shard.counts().rows_in[level];
    to.rows += shard.counts().rows_in[level];
    to.hits += from.hits;
    to.promotions += from.promotions;
    to.demotions += from.demotions;
    to.reads += from.reads;
    to.writes += from.writes;
  }
}

// A key is looked for in one tier after the other: a tier misses what a lower one has, and what none has.
void CountMisses(TableStats* stats) {
  int64_t missed = stats->absent;
  for (size_t i = stats->tiers.size(); i-- > 0;) {
    stats->tiers[i].misses = missed;
    missed += stats->tiers[i].hits;
  }
}

}  // namespace

TableStats HostTable::Stats() const {
  TableStats stats;
  const std::shared_ptr<const RowLayout> layout = this->layout();
  TableStats::PerTier dram, below[kMaxLowerTiers];
  const uint64_t now = base_.env->NowMicros();
  dram.name = base_.first_tier_name();
  dram.budget_bytes = static_cast<int64_t>(base_.budgets.dram().bytes(layout->row_bytes()));
  {
    MutexLock hold(shards_.splitting());
    for (auto& shard : shards_) {
      Shard::Locked lock(shard);
      lock->pins().Sweep(now);
      AddShard(*lock, levels_.count, &stats, &dram, below);
    }
    stats.num_shards = static_cast<int>(shards_.size());
  }
  stats.row_bytes = static_cast<int64_t>(layout->row_bytes());
  stats.stride_bytes = static_cast<int64_t>(layout->stride());
  stats.applies = applies_.load();
  stats.lookups = lookups_.load();
  stats.absent = lookups_absent_.load();
  dram.hits += lookup_hits_.load();
  if (bloom_ != nullptr) stats.filter_bytes += static_cast<int64_t>(bloom_->bytes());
  dram.row_bytes = dram.rows * stats.row_bytes;
  if (options_.row_memory != nullptr) {
    const auto bytes = static_cast<int64_t>(options_.row_memory->bytes());
    dram.device.stored_bytes = options_.row_memory->in_files() ? bytes : 0;
    dram.resident_bytes = bytes - dram.device.stored_bytes;
  }
  if (options_.dram_named) stats.tiers.push_back(dram);
  for (int level = 0; level < levels_.count; ++level) {
    TableStats::PerTier& tier = below[level];
    tier.name = tiers_.name(level);
    tier.row_bytes = tier.rows * stats.row_bytes;
    tier.budget_bytes = static_cast<int64_t>(base_.budgets.lower(level).bytes(layout->row_bytes()));
    tier.device = tiers_.stats(level);
    tier.resident_bytes = tier.device.resident_bytes;
    stats.tiers.push_back(tier);
  }
  CountMisses(&stats);
  if (const std::shared_ptr<SnapshotState> state = snapshot_.state(); state != nullptr) {
    stats.snapshot_bytes = static_cast<int64_t>(state->copied.load());
  }
  stats.dropped_lost = demoter_.dropped().lost();
  stats.last_update = LastUpdate();
  stats.snapshot_held_us = snapshot_.held_us();
  stats.linked_bytes = snapshot_.linked_bytes();
  stats.sticky_error = demoter_.sticky_error();
  return stats;
}

int64_t HostTable::TotalCount() const {
  MutexLock hold(shards_.splitting());
  int64_t rows = 0;
  for (auto& shard : shards_) rows += Shard::Locked(shard)->counts().rows;
  return rows;
}

Status HostTable::Drain() {
  MT_RETURN_IF_ERROR(base_.CheckProcess());
  // Not inside the gate: a job enters it, which it cannot do while another operation waits to close it. A snapshot's visitor
  // does not wait either, since a job may wait for it: the visitor demotes what is above the budget itself.
  if (!snapshot_.is_mine()) demoter_.AwaitJobs();
  MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::Enter(&base_));
  return demoter_.Drain();
}

// Drops what is beyond the budgets now, rather than on a thread that demotes. Waits for none of those, as Drain does: the table
// above holds locks that a visitor may need.
std::vector<int64_t> HostTable::TakeGone() {
  if (const auto inside = OperationScope::Enter(&base_); inside.ok()) demoter_.Remember(demoter_.Drain());
  return demoter_.dropped().TakeGone();
}

Status HostTable::SetDramBudget(Budget budget) {
  MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::Enter(&base_));
  return demoter_.SetDramBudget(budget);
}

Status HostTable::Reserve(uint64_t rows) {
  constexpr uint64_t kMostRows = uint64_t{1} << 32;
  if (rows > kMostRows) {
    return InvalidArgumentError("table '", options_.name, "': reserve: expected at most ", kMostRows, " rows, found ", rows);
  }
  SplitIfLarge(rows - std::min(rows, static_cast<uint64_t>(common_.dram_rows.load())));
  MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::Enter(&base_));
  const std::shared_ptr<const RowLayout> layout = this->layout();
  uint64_t in_dram = base_.budgets.dram_rows(*layout), in_all = in_dram;
  for (int level = 0; level < levels_.count; ++level) {
    const uint64_t below = base_.budgets.lower(level).rows(layout->row_bytes());
    in_all = below >= Budget::kNoBound - in_all ? Budget::kNoBound : in_all + below;
  }
  // Shards have unequal shares: the mean and six standard deviations.
  auto share = [&](uint64_t of) -> size_t {
    const double mean = static_cast<double>(std::min(of, rows)) / static_cast<double>(shards_.size());
    return static_cast<size_t>(shards_.size() == 1 ? mean : mean + 6 * std::sqrt(mean));
  };
  const size_t words = share(in_all), slots = share(in_dram);
  for (auto& shard : shards_) {
    Shard::Locked lock(shard);
    const auto keys = static_cast<size_t>(lock->counts().rows + lock->counts().counted_rows);
    if (words > keys) MT_RETURN_IF_ERROR(base_.OfThisTable(lock->ReserveWords(words - keys)));
    if (slots > lock->dram_rows()) MT_RETURN_IF_ERROR(base_.OfThisTable(lock->ReserveRows(slots - lock->dram_rows())));
  }
  return OkStatus();
}

Status HostTable::Flush() { return FlushRows(); }

Status HostTable::FlushRows() {
  const int last = levels_.last();
  if (last < 0 || !levels_.durable[last]) {
    return FailedPreconditionError("table '", options_.name, "': flush: expected a durable last tier, found ",
                                   last < 0 ? base_.first_tier_name() : tiers_.name(last));
  }
  // An external storage keeps the rows of records that are freed: its size bounds the records alone.
  const bool moves = levels_.bounded[last] && (options_.external_storage.empty() || levels_.count > 1);
  if (moves) {
    MT_ASSIGN_OR_RETURN(const ExclusiveScope alone, ExclusiveScope::Enter(&base_));
    MT_RETURN_IF_ERROR(demoter_.MoveAllToLast());
  } else {
    MT_RETURN_IF_ERROR(WriteDown());
  }
  return tiers_.Sync(last);
}

Status HostTable::WriteDown() {
  MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::Enter(&base_));
  for (auto& shard : shards_) MT_RETURN_IF_ERROR(demoter_.FlushShard(shard.get()));
  return OkStatus();
}

// Not inside the gate, as the tiers' own threads are not: records may move at any time.
Status HostTable::Compact() {
  MT_RETURN_IF_ERROR(base_.CheckProcess());
  return tiers_.Compact();
}

}  // namespace multitier
