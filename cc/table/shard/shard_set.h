// ShardSet: the shards of a table, and which of them a key belongs to: the top bits of its hash say so.
//
// A table may begin with one shard, which Split replaces by several, once, while the gate is closed and no snapshot is being
// taken. So an operation inside the gate and a snapshot see the same shards from beginning to end. Only Stats and TotalCount,
// which are neither, need a lock: splitting().
//
// Owns the shards.

#ifndef CC_TABLE_SHARD_SHARD_SET_H_
#define CC_TABLE_SHARD_SHARD_SET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/table/shard/shard.h"

namespace multitier {

class ShardSet {
 public:
  // A power of two of them. REQUIRES: called once, before all else
  void Make(int log2, ShardCommon* common, std::shared_ptr<const RowLayout> layout, std::shared_ptr<RowMemory> memory) {
    log2_ = log2;
    shards_ = New(log2, common, layout, memory);
  }
  // Moves the rows of the only shard, and its marks of what changed, into 2^log2 new ones. On an error nothing has changed.
  // Returns the old shard, which takes long to destroy. REQUIRES: the gate is closed, no snapshot is being taken, and the table
  // has no lower tiers, filter or row memory, and drops no rows
  Result<std::vector<std::unique_ptr<Shard>>> Split(int log2, ShardCommon* common);
  // While it is held, the shards are not split.
  Mutex& splitting() const { return splitting_; }
  size_t size() const { return shards_.size(); }
  int log2() const { return log2_; }
  const std::unique_ptr<Shard>& operator[](size_t s) const { return shards_[s]; }
  auto begin() const { return shards_.begin(); }
  auto end() const { return shards_.end(); }

  int index(uint64_t hash) const { return log2_ == 0 ? 0 : static_cast<int>(hash >> (64 - log2_)); }
  Shard* of(uint64_t hash) const { return shards_[static_cast<size_t>(index(hash))].get(); }
  // Every shard's lock, taken in order.
  std::vector<Shard::Locked> LockAll() const {
    std::vector<Shard::Locked> all;
    all.reserve(shards_.size());
    for (auto& shard : shards_) all.emplace_back(shard);
    return all;
  }
  // The shared side of every shard's lock, taken in order.
  std::vector<Shard::Shared> ShareAll() const {
    std::vector<Shard::Shared> all;
    all.reserve(shards_.size());
    for (auto& shard : shards_) all.emplace_back(shard.get());
    return all;
  }

 private:
  static std::vector<std::unique_ptr<Shard>> New(int log2, ShardCommon* common, const std::shared_ptr<const RowLayout>& layout,
                                                 const std::shared_ptr<RowMemory>& memory) {
    std::vector<std::unique_ptr<Shard>> shards;
    const int n = 1 << log2;
    for (int s = 0; s < n; ++s) {
      const ShardIndex::Limits limits{(uint64_t{1} << 32) >> log2,
                                      ShardIndex::kMaxLoad + kLoadSpread * (s - (n - 1) / 2.0) / n};
      shards.push_back(std::make_unique<Shard>(common, layout, limits, memory, static_cast<double>(s) / n));
    }
    return shards;
  }

  // A hash spreads keys so evenly that shards of one load cap would all double their indexes in one step of training. Their
  // caps differ, so they double one after the other. So do the places at which their slabs take the next huge page.
  static constexpr double kLoadSpread = 0.08;

  mutable Mutex splitting_;
  int log2_ = 0;
  std::vector<std::unique_ptr<Shard>> shards_;
};

}  // namespace multitier

#endif  // CC_TABLE_SHARD_SHARD_SET_H_
