// Refusal, a part of gather, where TableOptions::refuse_colder is set, or LFU drops the coldest rows: see
// apply_operation.h.
//
// A new key is refused if its tiers are full and its score is less than that of every row: the trim at the end of the operation
// would drop its row at once, and the place of no other row would change. Its score is the version that the update will set, or
// its occurrences. Of the rows in DRAM the order gives the coldest. Of those in a lower tier the header of the first record in
// the order is read, before any shard's lock is taken, and only where the shard is full: the order alone may have entries whose
// record was freed, or has moved.

#include <algorithm>

#include "cc/table/apply/apply_operation.h"

namespace multitier {
namespace {

constexpr Rank kWarmest{~uint64_t{0}, ~uint32_t{0}};
constexpr uint64_t kStartPercent = 97;  // of the DRAM budget, which large tables do not reach: see demoter.cc

}  // namespace

bool ApplyOperation::IsFull(const ShardRows& shard, size_t n) const {
  const RowLayout& layout = *shard.layout();
  const uint64_t budget = base_.budgets.dram_rows(layout);
  const uint64_t most = base_.common.exact ? budget : budget / 100 * kStartPercent;
  const int levels = base_.common.levels.count;
  if (levels == 0) return static_cast<uint64_t>(base_.common.dram_rows.load()) + n > most;
  size_t room = most >> base_.shards.log2(), rows = shard.dram_rows();
  for (int level = 0; level < levels; ++level) {
    room += base_.budgets.lower_share(level, layout);
    rows += static_cast<size_t>(shard.counts().rows_in[level]);
  }
  return rows + n > room;
}

Status ApplyOperation::FindColdestBelow() {
  coldest_below_.assign(base_.shards.size(), kWarmest);
  if (base_.common.levels.count == 0) return OkStatus();
  for (int s = 0; s < static_cast<int>(base_.shards.size()); ++s) {
    const size_t coming = batch_->end(s) - batch_->begin(s);
    if (coming == 0 || !IsFull(*Shard::Locked(base_.shards[s]), coming)) continue;
    for (int level = 0; level < base_.common.levels.count; ++level) {
      MT_ASSIGN_OR_RETURN(const Rank coldest, demoter_.records().Coldest(base_.shards[s].get(), level));
      coldest_below_[s] = std::min(coldest_below_[s], coldest);
    }
  }
  return OkStatus();
}

bool ApplyOperation::IsRefused(Shard::Locked& lock, int s, int64_t frequency, size_t coming) const {
  const bool by_frequency = base_.common.strategy == Replacement::kLfu;
  const bool is_empty = lock->dram_rows() == 0 && coldest_below_[static_cast<size_t>(s)] == kWarmest;
  // By frequency, others that come with it may be colder: the trim chooses between them.
  if (!IsFull(*lock, by_frequency && base_.common.exact ? 1 : coming + 1) || (by_frequency && is_empty)) return false;
  const uint64_t score = by_frequency ? static_cast<uint64_t>(frequency) : RankOfVersion(keys_.version);
  return score < std::min(coldest_below_[static_cast<size_t>(s)], lock->dram_rows() == 0 ? kWarmest : lock->ColdestRow()).first;
}

std::vector<uint32_t> ApplyOperation::NotRefused(Shard::Locked& lock, int s, const std::vector<uint32_t>& entries) {
  std::vector<uint32_t> rest;
  for (const uint32_t e : entries) {
    int64_t frequency = Occurrences(e);
    if (base_.bloom != nullptr) frequency = std::max(frequency, base_.bloom->Estimate(batch_->key(e)));
    if (IsRefused(lock, s, frequency, rest.size())) {
      ++refused_[static_cast<size_t>(s)];
    } else {
      rest.push_back(e);
    }
  }
  return rest;
}

}  // namespace multitier
