// Trim: which thread demotes how much, and when. How: row_mover.h, record_mover.h.
//
// Tables of less than 64 Ki rows of DRAM do this at the end of each operation, exactly at the budget. Larger ones leave it to
// the pool: above 97 % each shard's job demotes to 95 %, a slice a step. While rows come more slowly than they can be demoted,
// jobs pause after each slice, so that all of the table's together work half of the time at most: operations have the locks,
// the disk and the processor for the rest. From 99 % on it does not pause, and beyond the budget operations demote, too, before
// they end. So the bound holds however far the pool is behind: writers that outpace demotion are throttled.
//
// A smaller budget (SetDramBudget) is for the pool in tables of every size. Until it is reached operations hold DRAM to the
// ceiling, which is what the pool has come down to: each takes away what it adds and no more, and jobs pause as above. A failed
// write ends that: operations try the whole of it then, as after any other.
//
// Where the pool has no thread and none can be started, operations demote at the budget, as in small tables.
//
// A write that failed is tried again a second later, by the pool, and by each operation that needs room. One trim at a time
// works on a shard. A second one waits, holding nothing, so that the bound, which a whole batch may have passed, holds again
// when its operation ends. Between two slices nothing is held. There operations wait if a snapshot is far behind with the
// copies of changed rows (current_snapshot.h), and jobs ask again later.

#include "cc/table/tiering/demoter.h"

#include <algorithm>
#include <cstdio>

namespace multitier {
namespace {

constexpr size_t kTrimmedRows = 4096;
constexpr size_t kBackgroundSliceRows = 1024;  // chosen and copied under one hold of the shard's lock
constexpr int kStartPercent = 97, kStopPercent = 95, kBehindPercent = 99;  // of the budget: demotion in the background
constexpr uint64_t kRetryMicros = 1000000;
constexpr uint64_t kMostBudgetRows = uint64_t{1} << 32;  // of a table

}  // namespace

Demoter::Demoter(TableBase* base)
    : base_(*base),
      options_(base->options),
      levels_(base->common.levels),
      common_(base->common),
      shards_(base->shards),
      tiers_(base->tiers),
      snapshot_(base->snapshot) {
  base->on_refusal = [this](Status status) { Remember(std::move(status)); };
}

Status Demoter::Start(bool in_background) {
  if (levels_.count == 0) return OkStatus();
  MT_ASSIGN_OR_RETURN(pool_, DemotionPool::Get());
  retry_ = std::make_unique<DemotionPool::Job>([this] { return RetryInBackground(); });
  in_background_ = in_background;
  jobs_.resize(shards_.size());
  for (size_t s = 0; s < jobs_.size(); ++s) {
    jobs_[s].job = std::make_unique<DemotionPool::Job>([this, s] { return DemoteInBackground(s); });
  }
  return OkStatus();
}

void Demoter::Stop() {
  if (retry_ != nullptr) pool_->Cancel(retry_.get());
  for (ShardJob& job : jobs_) pool_->Cancel(job.job.get());
}

Status Demoter::SetDramBudget(Budget budget) {
  if (!base_.budgets.dram().bounded()) {
    return FailedPreconditionError("table '", options_.name, "': new budget: expected a table made with a DRAM budget, found ",
                                   options_.dram_named ? "an unbounded one" : "one without DRAM as a tier");
  }
  const std::shared_ptr<const RowLayout> layout = this->layout();
  const uint64_t rows = budget.bounded() ? budget.rows(layout->row_bytes()) : 0;
  if (rows < 1) {
    return InvalidArgumentError("table '", options_.name, "': expected a budget of tier ", base_.first_tier_name(),
                                " of at least one row (", layout->row_bytes(), " bytes), found ", budget.text());
  }
  if (budget.in_rows() && rows > kMostBudgetRows) {
    return InvalidArgumentError("table '", options_.name, "': expected a budget of tier ", base_.first_tier_name(),
                                " of at most ", kMostBudgetRows, " rows, found ", budget.text());
  }
  if (!common_.evicts && common_.dram_rows.load() > static_cast<int64_t>(rows)) {
    return ResourceExhaustedError("table '", options_.name, "': new budget of tier ", base_.first_tier_name(),
                                  ": expected room for ", common_.dram_rows.load(),
                                  " rows, because no tier is below it, found ", budget.text(), ", room for ", rows);
  }
  const size_t most = base_.budgets.share(rows, *layout);
  for (auto& shard : shards_) {
    Shard::Locked lock(shard);
    if (static_cast<size_t>(lock->counts().rows) <= most) continue;
    return ResourceExhaustedError("table '", options_.name, "': new budget of tier ", base_.first_tier_name(), ": ",
                                  budget.text(), " leave room for ", most, " rows in each of ", shards_.size(),
                                  " shards; one shard holds ", lock->counts().rows);
  }
  if (pool_ != nullptr) RaiseTo(&ceiling_, common_.dram_rows.load());
  base_.budgets.set_dram(budget);
  if (pool_ != nullptr && ScheduleDemotion()) return OkStatus();
  ceiling_ = 0;
  Remember(Trim());  // at once: rows are dropped, or nothing demotes them in the background
  return OkStatus();
}

bool Demoter::ScheduleDemotion() {
  bool served = true;
  for (ShardJob& job : jobs_) served = pool_->Schedule(job.job.get()) && served;
  return served;
}

void Demoter::LowerCeiling(int64_t budget) {
  const int64_t rows = common_.dram_rows.load();
  const int64_t low = rows > budget ? rows : 0;
  int64_t seen = ceiling_.load();
  while (seen > low && !ceiling_.compare_exchange_weak(seen, low)) {
  }
}

void Demoter::Remember(Status status) {
  if (status.ok()) return;
  ceiling_ = 0;
  MutexLock lock(mutex_);
  if (!failed_) {
    std::fprintf(stderr, "%s; it is tried again each second, and operations that need room fail until it works\n",
                 status.message().c_str());
  }
  error_ = std::move(status);
  failed_ = true;
  ++errors_;
  if (retry_ != nullptr) pool_->Schedule(retry_.get(), kRetryMicros);
}

Status Demoter::Retry() {
  if (!failed_) return OkStatus();
  const uint64_t errors = error_count();
  // What the pool could not do is tried here. A removal that a tier still refuses holds up the writes to that tier alone.
  const Status removed = tiers_.RetryAllRemovals();
  MT_RETURN_IF_ERROR(TrimTo(in_background_ ? kStartPercent : 100));
  if (removed.ok()) ForgetUpTo(errors);
  return OkStatus();
}

uint64_t Demoter::error_count() const {
  MutexLock lock(mutex_);
  return errors_;
}

void Demoter::ForgetUpTo(uint64_t errors) {
  MutexLock lock(mutex_);
  if (errors_ != errors) return;
  error_ = OkStatus();
  failed_ = false;
}

Status Demoter::Trim() {
  if (!common_.evicts) return OkStatus();
  const Status removed = tiers_.RetryAllRemovals();
  const Status trimmed = TrimTo(100);
  return trimmed.ok() ? removed : trimmed;
}

Status Demoter::TrimTo(int percent) {
  if (!common_.evicts) return OkStatus();
  const int64_t set = static_cast<int64_t>(base_.budgets.dram_rows(*layout()));
  int64_t all = std::max(set, ceiling_.load());
  const bool due = all > set || (in_background_ && common_.dram_rows.load() > set / 100 * kStartPercent);
  if (due && !ScheduleDemotion()) {
    ceiling_ = 0;
    all = set;
  }
  const int64_t budget = percent == 100 ? all : all / 100 * percent;
  if (common_.dram_rows.load() <= budget) return OkStatus();
  for (auto& shard : shards_) {
    for (bool more = true; more;) {
      snapshot_.Await();
      MT_RETURN_IF_ERROR(TrimShard(shard.get(), static_cast<size_t>(budget) >> shards_.log2(), kTrimmedRows, 1, &more));
    }
  }
  return OkStatus();
}

uint64_t Demoter::DemoteInBackground(size_t shard) {
  const uint64_t begun = base_.env->NowMicros();
  bool more = false;
  int64_t budget = 0;
  Status status;
  {
    if (snapshot_.far_behind()) return DemotionPool::kNotNow;
    const MaybeInsideGate gate(&base_.gate);           // a thread that closes it waits for one slice at most
    if (!gate.inside()) return DemotionPool::kNotNow;  // other tables need the thread
    budget = static_cast<int64_t>(base_.budgets.dram_rows(*layout()));
    const size_t low = static_cast<size_t>(in_background_ ? budget / 100 * kStopPercent : budget) >> shards_.log2();
    status = TrimShard(shards_[shard].get(), low, kBackgroundSliceRows, 1, &more);
  }
  LowerCeiling(budget);
  const bool done = !status.ok() || !more;
  Remember(std::move(status));
  ShardJob& job = jobs_[shard];
  if (job.demoting == done) demoting_ += done ? -1 : 1;
  job.demoting = !done;
  if (done) return DemotionPool::kDone;
  if (common_.dram_rows.load() > budget / 100 * kBehindPercent && ceiling_.load() <= budget) return 0;
  // A slice of each of the other shards may come in the pause: it is long enough for all of them and as much again.
  const uint64_t slices = 2 * static_cast<uint64_t>(demoting_.load()) / static_cast<uint64_t>(pool_->threads());
  return (base_.env->NowMicros() - begun) * (slices > 2 ? slices - 1 : 1);
}

uint64_t Demoter::RetryInBackground() {
  const uint64_t begun = base_.env->NowMicros();
  const MaybeInsideGate gate(&base_.gate);
  if (!gate.inside()) return DemotionPool::kNotNow;
  if (!failed_) return DemotionPool::kDone;
  const uint64_t errors = error_count();
  const bool removed = tiers_.RetryAllRemovals().ok();
  const int64_t all = static_cast<int64_t>(base_.budgets.dram_rows(*layout()));
  const int64_t budget = in_background_ ? all / 100 * kStartPercent : all;
  for (auto& shard : shards_) {
    if (common_.dram_rows.load() <= budget) break;
    if (snapshot_.far_behind()) return DemotionPool::kNotNow;
    bool more = false;
    const size_t share = static_cast<size_t>(budget) >> shards_.log2();
    if (!TrimShard(shard.get(), share, kBackgroundSliceRows, 1, &more).ok()) return kRetryMicros;
    if (more) return base_.env->NowMicros() - begun;  // the rest in further steps
  }
  if (!removed) return kRetryMicros;
  ForgetUpTo(errors);
  return DemotionPool::kDone;  // another error has scheduled the job again
}

void Demoter::AwaitJobs() {
  for (ShardJob& job : jobs_) pool_->Wait(job.job.get());
}

Status Demoter::Drain() {
  ceiling_ = 0;
  if (!common_.evicts) return OkStatus();
  MT_RETURN_IF_ERROR(Retry());
  return Trim();
}

Status Demoter::sticky_error() const {
  MutexLock lock(mutex_);
  return error_;
}

void Demoter::Forget() {
  MutexLock lock(mutex_);
  error_ = OkStatus();
  failed_ = false;
}

Status Demoter::TrimLower() {
  for (auto& shard : shards_) {
    const ShardWriter writer(shard);
    for (int level = 0; level < levels_.count; ++level) {
      size_t room = 0;
      MT_RETURN_IF_ERROR(records_.MakeRoom(writer, level, 0, &room));
    }
  }
  return Trim();
}

Status Demoter::TrimShard(Shard* shard, size_t target_rows, size_t slice_rows, int max_slices, bool* more) {
  if (more != nullptr) *more = false;
  if (Shard::Locked(shard)->dram_rows() <= target_rows) return OkStatus();
  const ShardWriter writer(shard);
  Status status;
  size_t moved = 1;
  for (; status.ok() && moved > 0 && max_slices > 0; --max_slices) {
    const size_t rows = Shard::Locked(shard)->dram_rows();
    moved = 0;
    if (rows > target_rows) status = rows_.Demote(writer, std::min(rows - target_rows, slice_rows), &moved);
  }
  if (more != nullptr) *more = moved > 0;
  return status;
}

}  // namespace multitier
