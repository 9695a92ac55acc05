// Prefetch: rows come up ahead of the batch that will use them, and stay until it does.
//
//   pinned -- used by a lookup or an apply, demotion is free to take it again (it is the most recent row then)
//          -- its time is over: seen by the next trim of its shard, by the next prefetch, and by statistics
//          -- ReleasePrefetched()
//
// A pin is the flag kRowPrefetched of the row; Shard::pin_ends remembers until when. Use takes the flag away and nothing else
// (lookups run beside each other): what is remembered of that pin goes when its time comes, or with the next pin of the key,
// which has an end of its own. A pin that is renewed before its use ends when the latest of its calls says: each of them was
// promised its time. The heap has the ends in order; an entry that is not its key's end says nothing any more.
//
// Pins take a quarter of the DRAM budget at most, and a prefetch of more brings up what fits: it is a hint, and no operation
// ever waits for a pin to end.

#include <algorithm>

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
  const uint64_t until = now + std::min(timeout_us, ~uint64_t{0} - now);
  const uint64_t stamp = accesses_.fetch_add(keys.size());
  BorrowedKeyBatch batch;
  batch->Partition(keys, log2_shards_);
  batch->PrepareDedup();
  BelowKeys below;
  for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
    batch->Dedup(s);
    Shard* shard = shards_[s].get();
    std::lock_guard<SharedMutex> lock(shard->mutex);
    for (uint32_t e = batch->begin(s); e < batch->end(s); ++e) {
      const bool fits = *pinned + static_cast<int64_t>(below.size()) < room;
      const Found found = shard->Find(batch->key(e), batch->hash(e));
      if (found.row != nullptr) {
        *pinned += PinPrefetched(shard, found.row, until, fits);
      } else if (found.maybe_below && fits) {
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
    *pinned += PinPrefetched(shard, key.row, until, /*room=*/true);
    UnpinRow(shard, key.row);
  }
  TrimAndRemember();
  return OkStatus();
}

bool EmbeddingTable::Impl::PinPrefetched(Shard* shard, RowHeader* row, uint64_t until, bool room) {
  const bool kept = row->has(kRowPrefetched);
  if (row->has(kRowNewborn) || !(kept || room)) return false;
  std::vector<Shard::PrefetchedKey>& entries = shard->prefetches;
  uint64_t& end = shard->pin_ends[row->key];
  if (kept && until <= end) return false;
  end = until;
  entries.push_back(Shard::PrefetchedKey{row->key, until});
  std::push_heap(entries.begin(), entries.end(), EndsLater);
  if (!kept) {
    row->flags |= kRowPrefetched;
    ++shard->prefetched;
  }
  if (entries.size() > kFewEntries + 2 * static_cast<size_t>(shard->prefetched.load())) {
    // Most are of rows that were used, or of ends that were put off.
    entries.clear();
    for (auto pin = shard->pin_ends.begin(); pin != shard->pin_ends.end();) {
      const RowHeader* const pinned = shard->Find(pin->first, HashKey(pin->first)).row;
      if (pinned != nullptr && pinned->has(kRowPrefetched)) {
        entries.push_back(Shard::PrefetchedKey{pin->first, pin->second});
        ++pin;
      } else {
        pin = shard->pin_ends.erase(pin);
      }
    }
    std::make_heap(entries.begin(), entries.end(), EndsLater);
  }
  return !kept;
}

void EmbeddingTable::Impl::SweepPrefetched(Shard* shard, uint64_t now) {
  std::vector<Shard::PrefetchedKey>& entries = shard->prefetches;
  for (; !entries.empty() && entries.front().until <= now; entries.pop_back()) {
    const Shard::PrefetchedKey entry = entries.front();
    std::pop_heap(entries.begin(), entries.end(), EndsLater);
    const auto pin = shard->pin_ends.find(entry.key);
    if (pin == shard->pin_ends.end() || pin->second != entry.until) continue;
    shard->pin_ends.erase(pin);
    RowHeader* const row = shard->Find(entry.key, HashKey(entry.key)).row;
    if (row == nullptr || !row->has(kRowPrefetched)) continue;
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
