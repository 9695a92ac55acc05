#include "cc/table/api/key_batch.h"

#include <algorithm>
#include <utility>

#include "cc/base/hash.h"

namespace multitier {
namespace {

thread_local std::unique_ptr<KeyBatch> spare_batch;

}  // namespace

void KeyBatch::SortByShard(Span<const int64_t> keys, int log2_shards, bool distinct) {
  const size_t n = keys.size();
  const size_t shards = size_t{1} << log2_shards;
  num_keys_ = n;
  distinct_ = distinct;
  begin_.assign(shards, 0);
  end_.assign(shards, 0);
  if (keys_.size() < n) {
    keys_.resize(n);
    hashes_.resize(n);
    positions_.resize(n);
  }
  if (seen_.size() < shards) seen_.resize(shards);
  if (log2_shards == 0) {
    for (size_t i = 0; i < n; ++i) {
      keys_[i] = keys[i];
      hashes_[i] = HashKey(keys[i]);
      positions_[i] = static_cast<uint32_t>(i);
    }
    end_[0] = static_cast<uint32_t>(n);
    return;
  }
  const int shift = 64 - log2_shards;
  for (size_t i = 0; i < n; ++i) ++end_[HashKey(keys[i]) >> shift];
  uint32_t sum = 0;
  for (size_t s = 0; s < shards; ++s) {
    begin_[s] = sum;
    sum += end_[s];
    end_[s] = begin_[s];
  }
  for (size_t i = 0; i < n; ++i) {
    const uint64_t hash = HashKey(keys[i]);
    const uint32_t entry = end_[hash >> shift]++;
    keys_[entry] = keys[i];
    hashes_[entry] = hash;
    positions_[entry] = static_cast<uint32_t>(i);
  }
}

void KeyBatch::PrepareDedup() {
  if (distinct_ || next_.size() >= num_keys_) return;
  next_.resize(num_keys_);
  last_.resize(num_keys_);
}

void KeyBatch::Dedup(int shard) {
  if (distinct_) return;
  const uint32_t begin = begin_[shard], end = end_[shard];
  std::vector<uint32_t>& seen = seen_[shard];
  size_t slots = 16;
  while (slots < 2 * static_cast<size_t>(end - begin)) slots *= 2;
  seen.assign(slots, kEnd);
  uint32_t unique = begin;
  for (uint32_t i = begin; i < end; ++i) {
    const int64_t key = keys_[i];
    const uint64_t hash = hashes_[i];
    const uint32_t position = positions_[i];
    next_[position] = kEnd;
    size_t slot = hash & (slots - 1);
    while (seen[slot] != kEnd && keys_[seen[slot]] != key) slot = (slot + 1) & (slots - 1);
    if (seen[slot] == kEnd) {
      seen[slot] = unique;
      keys_[unique] = key;
      hashes_[unique] = hash;
      positions_[unique] = position;
      last_[unique] = position;
      ++unique;
    } else {
      const uint32_t entry = seen[slot];
      next_[last_[entry]] = position;
      last_[entry] = position;
    }
  }
  end_[shard] = unique;
}

BorrowedKeyBatch::BorrowedKeyBatch() : batch_(spare_batch != nullptr ? std::move(spare_batch) : std::make_unique<KeyBatch>()) {}

BorrowedKeyBatch::~BorrowedKeyBatch() { spare_batch = std::move(batch_); }

}  // namespace multitier
