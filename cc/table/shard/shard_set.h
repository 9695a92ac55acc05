// ShardSet: the shards of a table, and which of them a key belongs to: the top bits of its hash say so.
//
// Owns the shards. Constant after the table is made, so it needs no lock.

#ifndef CC_TABLE_SHARD_SHARD_SET_H_
#define CC_TABLE_SHARD_SHARD_SET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/table/shard/shard.h"

namespace multitier {

class ShardSet {
 public:
  // A power of two of them. REQUIRES: called once, before all else
  void Make(int log2, ShardCommon* common, std::shared_ptr<const RowLayout> layout, std::shared_ptr<RowMemory> memory) {
    log2_ = log2;
    const int n = 1 << log2;
    for (int s = 0; s < n; ++s) {
      const ShardIndex::Limits limits{(uint64_t{1} << 32) >> log2,
                                      ShardIndex::kMaxLoad + kLoadSpread * (s - (n - 1) / 2.0) / n};
      shards_.push_back(std::make_unique<Shard>(common, layout, limits, memory));
    }
  }
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
  // A hash spreads keys so evenly that shards of one load cap would all double their indexes in one step of training. Their
  // caps differ, so they double one after the other.
  static constexpr double kLoadSpread = 0.08;

  int log2_ = 0;
  std::vector<std::unique_ptr<Shard>> shards_;
};

}  // namespace multitier

#endif  // CC_TABLE_SHARD_SHARD_SET_H_
