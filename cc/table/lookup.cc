// Lookup: the read path. A shard's keys go through a pipeline a block of 32 deep, so that the misses of the processor's
// cache overlap: while one block's rows are copied, the next block's rows and the one after's buckets are on their way.

#include <cstring>

#include "cc/base/ieee.h"
#include "cc/table/table_impl.h"

namespace multitier {
namespace {

constexpr uint32_t kBlock = 32;

// Rows end on 16 bytes, outputs do not: whole vectors where the value is a multiple of 16 bytes.
inline void CopyValue(const uint8_t* from, float* to, size_t dim) {
  if (dim % 4 != 0) {
    std::memcpy(to, from, dim * sizeof(float));
    return;
  }
  for (size_t i = 0; i < dim; i += 4) std::memcpy(to + i, from + i * sizeof(float), 16);
}

}  // namespace

Status EmbeddingTable::Impl::Lookup(Span<const int64_t> keys, float* out, Executor* executor) {
  MT_RETURN_IF_ERROR(CheckProcess());
  if (keys.empty()) return OkStatus();
  InsideGate inside(&gate_);
  BorrowedKeyBatch batch;
  batch->Partition(keys, log2_shards_);
  std::vector<std::vector<uint32_t>> below(shards_.size());
  ParallelFor(executor, static_cast<int>(shards_.size()), [&](int s) {
    const ScopedIeeeArithmetic ieee;
    LookupShard(*batch, s, out, &below[s]);
  });
  if (lower_ == nullptr) return OkStatus();
  MT_RETURN_IF_ERROR(LookupBelow(*batch, below, out));
  TrimAndRemember();
  return OkStatus();
}

void EmbeddingTable::Impl::LookupShard(const KeyBatch& batch, int s, float* out, std::vector<uint32_t>* below) {
  const uint32_t begin = batch.begin(s), end = batch.end(s);
  if (begin == end) return;
  Shard* const shard = shards_[s].get();
  const size_t dim = static_cast<size_t>(options_.dim);
  const bool newborn_is_absent = filters();  // else a newborn holds what an absent key reads
  const uint32_t stamp = lower_ != nullptr ? ++operations_ : 0;
  std::vector<uint32_t> absent;
  {
    std::lock_guard<std::mutex> lock(shard->mutex);
    const ShardIndex& index = shard->index;
    const size_t row_end = sizeof(RowHeader) + dim * sizeof(float) - 1;  // of what is read of a row
    RowHeader* rows[2][kBlock];
    auto fetch_buckets = [&](uint32_t from) {
      for (uint32_t e = from; e < std::min(end, from + kBlock); ++e) index.Prefetch(batch.hash(e));
    };
    auto fetch_rows = [&](uint32_t from, RowHeader** to) {
      for (uint32_t e = from; e < std::min(end, from + kBlock); ++e) {
        const uint32_t location = index.FindHomeDram(batch.hash(e));
        RowHeader* row = location == ShardIndex::kNone ? nullptr : shard->dram.Header(location);
        to[e - from] = row;
        if (row == nullptr) continue;
        const char* const first = reinterpret_cast<const char*>(row);
        // Non-temporal: a row is read once and would only push the index out of the cache (31 ns a key instead of 35).
        for (const char* line = first; line < first + row_end; line += 64) __builtin_prefetch(line, 0, 0);
        __builtin_prefetch(first + row_end, 0, 0);
      }
    };
    fetch_buckets(begin);
    fetch_buckets(begin + kBlock);
    fetch_rows(begin, rows[0]);
    int64_t hits = 0;
    int current = 0;
    for (uint32_t from = begin; from < end; from += kBlock, current ^= 1) {
      if (from + 2 * kBlock < end) fetch_buckets(from + 2 * kBlock);
      if (from + kBlock < end) fetch_rows(from + kBlock, rows[current ^ 1]);
      for (uint32_t e = from; e < std::min(end, from + kBlock); ++e) {
        RowHeader* row = rows[current][e - from];
        if (row == nullptr || row->key != batch.key(e)) {
          const Found found = shard->Find(batch.key(e), batch.hash(e));
          row = found.row;
          if (found.maybe_below) {
            below->push_back(e);
            continue;
          }
        }
        if (row == nullptr || (newborn_is_absent && row->has(kRowNewborn))) {
          absent.push_back(e);
          continue;
        }
        if (stamp != 0) row->recency = stamp;
        CopyValue(DramTier::Data(row), out + batch.first_position(e) * dim, dim);
        ++hits;
      }
    }
    shard->counters.lookups += end - begin;
    shard->counters.absent += static_cast<int64_t>(absent.size());
    shard->counters.hits_dram += hits;
  }
  FillAbsent(batch, absent, out);
}

void EmbeddingTable::Impl::FillAbsent(const KeyBatch& batch, const std::vector<uint32_t>& entries, float* out) const {
  const size_t dim = static_cast<size_t>(options_.dim);
  if (filters()) {
    for (uint32_t e : entries) {
      std::fill_n(out + batch.first_position(e) * dim, dim, options_.default_value_no_permission);
    }
    return;
  }
  int64_t keys[kBlock];
  float* to[kBlock];
  for (size_t i = 0; i < entries.size(); i += kBlock) {
    const size_t n = std::min<size_t>(kBlock, entries.size() - i);
    for (size_t j = 0; j < n; ++j) {
      keys[j] = batch.key(entries[i + j]);
      to[j] = out + batch.first_position(entries[i + j]) * dim;
    }
    initializer_->FillBatch(keys, n, to);
  }
}

Status EmbeddingTable::Impl::LookupBelow(const KeyBatch& batch, const std::vector<std::vector<uint32_t>>& below,
                                         float* out) {
  const size_t dim = static_cast<size_t>(options_.dim);
  // Repeated keys are read once.
  std::vector<int64_t> keys;
  std::vector<uint32_t> entries;
  for (const auto& shard_entries : below) {
    for (uint32_t e : shard_entries) {
      keys.push_back(batch.key(e));
      entries.push_back(e);
    }
  }
  if (keys.empty()) return OkStatus();
  BorrowedKeyBatch unique;
  unique->Partition(keys, log2_shards_);
  unique->PrepareDedup();
  std::vector<BelowKey> wanted;
  for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
    unique->Dedup(s);
    for (uint32_t e = unique->begin(s); e < unique->end(s); ++e) {
      BelowKey key;
      key.key = unique->key(e);
      key.hash = unique->hash(e);
      key.shard = s;
      key.entry = e;
      wanted.push_back(std::move(key));
    }
  }
  MT_RETURN_IF_ERROR(Promote(&wanted, Promotion::kCopy, nullptr));
  std::vector<uint32_t> absent;
  for (const BelowKey& key : wanted) {
    const bool has_row = key.outcome == BelowKey::kRead || key.outcome == BelowKey::kInDram;
    for (uint32_t p = unique->first_position(key.entry); p != KeyBatch::kEnd; p = unique->next(p)) {
      if (has_row) {
        CopyValue(key.data.data(), out + batch.first_position(entries[p]) * dim, dim);
      } else {
        absent.push_back(entries[p]);
      }
    }
  }
  FillAbsent(batch, absent, out);
  return OkStatus();
}

}  // namespace multitier
