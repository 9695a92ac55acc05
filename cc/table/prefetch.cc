// Prefetch: rows come up ahead of the batch that will use them, and stay until it does.
//
//   pinned -- used by a lookup or an apply, demotion is free to take it again (it is the most recent row then)
//          -- its time is over: seen by the next trim of its shard, by the next prefetch, and by statistics
//          -- ReleasePrefetched()
//
// A pin is the flag kRowPrefetched of the row; an entry of the shard's heap remembers until when. Pins take a quarter of the
// DRAM budget at most, and a prefetch of more brings up what fits: it is a hint, and no operation ever waits for a pin to end.

#include <algorithm>
#include <unordered_set>

#include "cc/table/table_impl.h"

namespace multitier {
namespace {

constexpr size_t kFewEntries = 64;

bool EndsLater(const Shard::PrefetchedKey& a, const Shard::PrefetchedKey& b) { return a.until > b.until; }

}  // namespace

Status EmbeddingTable::Impl::Prefetch(Span<const int64_t> keys, uint64_t timeout_us, int64_t* pinned) {
  MT_RETURN_IF_ERROR(CheckProcess());
  int64_t n = 0;
  if (pinned == nullptr) pinned = &n;
  *pinned = 0;
  if (levels_ == 0 || keys.empty()) return OkStatus();
  AwaitSnapshot();
  InsideGate inside(&gate_);
  MT_RETURN_IF_ERROR(RetryTrim());
  int64_t room = static_cast<int64_t>(budget_rows(*layout()) / 4);
  const uint64_t now = env_->NowMicros();
  for (auto& shard : shards_) {
    std::lock_guard<SharedMutex> lock(shard->mutex);
    SweepPrefetched(shard.get(), now);
    room -= shard->prefetched.load();
  }
  const uint64_t until = now + timeout_us;
  const uint64_t stamp = accesses_.fetch_add(keys.size());
  BorrowedKeyBatch batch;
  batch->Partition(keys, log2_shards_);
  batch->PrepareDedup();
  BelowKeys below;
  for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
    batch->Dedup(s);
    Shard* shard = shards_[s].get();
    std::lock_guard<SharedMutex> lock(shard->mutex);
    for (uint32_t e = batch->begin(s); e < batch->end(s) && *pinned + static_cast<int64_t>(below.size()) < room; ++e) {
      const Found found = shard->Find(batch->key(e), batch->hash(e));
      if (found.row != nullptr) {
        *pinned += PinPrefetched(shard, found.row, until);
      } else if (found.maybe_below) {
        BelowKey key;
        key.key = batch->key(e);
        key.hash = batch->hash(e);
        key.shard = s;
        key.touched = stamp + batch->first_position(e);
        below.push_back(std::move(key));
      }
    }
  }
  MT_RETURN_IF_ERROR(Promote(&below, Promotion::kPin, nullptr));
  for (const BelowKey& key : below) {
    if (key.row == nullptr) continue;
    Shard* shard = shards_[key.shard].get();
    std::lock_guard<SharedMutex> lock(shard->mutex);
    *pinned += PinPrefetched(shard, key.row, until);
    UnpinRow(shard, key.row);
  }
  TrimAndRemember();
  return OkStatus();
}

bool EmbeddingTable::Impl::PinPrefetched(Shard* shard, RowHeader* row, uint64_t until) {
  if (row->has(kRowNewborn | kRowPrefetched)) return false;
  std::vector<Shard::PrefetchedKey>& entries = shard->prefetches;
  if (entries.size() > kFewEntries + 2 * static_cast<size_t>(shard->prefetched.load())) {
    // Most are of rows that were used: one a pin is kept, the last to end.
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
      return a.key != b.key ? a.key < b.key : EndsLater(a, b);
    });
    const auto same = [](const auto& a, const auto& b) { return a.key == b.key; };
    entries.erase(std::unique(entries.begin(), entries.end(), same), entries.end());
    const auto ended = [&](const Shard::PrefetchedKey& entry) {
      const RowHeader* kept = shard->Find(entry.key, HashKey(entry.key)).row;
      return kept == nullptr || !kept->has(kRowPrefetched);
    };
    entries.erase(std::remove_if(entries.begin(), entries.end(), ended), entries.end());
    std::make_heap(entries.begin(), entries.end(), EndsLater);
  }
  row->flags |= kRowPrefetched;
  ++shard->prefetched;
  entries.push_back(Shard::PrefetchedKey{row->key, until});
  std::push_heap(entries.begin(), entries.end(), EndsLater);
  return true;
}

void EmbeddingTable::Impl::SweepPrefetched(Shard* shard, uint64_t now) {
  std::vector<Shard::PrefetchedKey>& entries = shard->prefetches;
  const auto pinned = [&](int64_t key) {
    RowHeader* const row = shard->Find(key, HashKey(key)).row;
    return row != nullptr && row->has(kRowPrefetched) ? row : nullptr;
  };
  std::unordered_set<int64_t> ended;
  for (; !entries.empty() && entries.front().until <= now; entries.pop_back()) {
    if (pinned(entries.front().key) != nullptr) ended.insert(entries.front().key);
    std::pop_heap(entries.begin(), entries.end(), EndsLater);
  }
  if (ended.empty()) return;
  // One that was used and is kept again has a later entry.
  for (const Shard::PrefetchedKey& entry : entries) ended.erase(entry.key);
  for (const int64_t key : ended) {
    RowHeader* const row = pinned(key);
    row->flags = static_cast<uint16_t>(row->flags & ~kRowPrefetched);
    --shard->prefetched;
  }
}

void EmbeddingTable::Impl::ReleasePrefetched() {
  if (!CheckProcess().ok()) return;
  InsideGate inside(&gate_);
  for (auto& shard : shards_) {
    std::lock_guard<SharedMutex> lock(shard->mutex);
    SweepPrefetched(shard.get(), ~uint64_t{0});
  }
  if (evicts_) TrimAndRemember();
}

}  // namespace multitier
