// Lookup: the read path of rows in DRAM. It takes every shard's lock once, shared, and then goes through the batch in its own
// order, so that outputs are written front to back and nothing is sorted. A large batch is cut into slices that run at the same
// time. Keys go through a pipeline a block of 32 deep, so that the misses of the processor's cache overlap: while one block's
// rows are copied, the rows of the next block and the buckets of the block after it are being fetched. Rows in lower tiers are
// read afterwards, by LookupBelow with TierReader (tier_reader.h).

#include <algorithm>
#include <cstring>

#include "cc/base/hash.h"
#include "cc/base/ieee.h"
#include "cc/base/prefetch.h"
#include "cc/row/value_column.h"
#include "cc/table/host/host_table.h"

namespace multitier {
namespace {

constexpr size_t kBlock = 32;
constexpr size_t kSliceKeys = 4096;
constexpr int kMaxSlices = 64;

#if defined(__x86_64__)
const bool is_intel = [] {
  __builtin_cpu_init();
  return __builtin_cpu_is("intel") != 0;
}();
#else
constexpr bool is_intel = false;
#endif

// A row is read once and would only push the index out of the cache, so the prefetch is non-temporal. Intel's processors fetch
// few non-temporal lines at a time. There it goes to the second level (40 ns a key in place of 62, at 1 M keys of 128 bytes).
inline void PrefetchRow(const RowHeader* row, size_t bytes, bool to_second_level) {
  if (to_second_level) {
    PrefetchBytes<PrefetchTo::kSecondLevel>(row, bytes);
  } else {
    PrefetchBytes<PrefetchTo::kNonTemporal>(row, bytes);
  }
}

// Rows end on 16 bytes, outputs do not: whole vectors where the value is a multiple of 16 bytes.
inline void CopyValue(DType dtype, const uint8_t* from, float* to, size_t dim) {
  if (dtype != DType::kFloat32 || dim % 4 != 0) return ReadColumn(dtype, from, dim, to);
  for (size_t i = 0; i < dim; i += 4) std::memcpy(to + i, from + i * sizeof(float), 16);
}

}  // namespace

Status HostTable::Lookup(Span<const int64_t> keys, float* out, Executor* executor, uint32_t* places, int64_t stride,
                         ReadFor reason, Span<const uint16_t> tables) {
  MT_RETURN_IF_ERROR(CheckTables(tables, keys.size()));
  MT_RETURN_IF_ERROR(CheckMemory(keys.size()));
  if (keys.empty()) return base_.CheckProcess();
  MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::Enter(&base_));
  const size_t n = keys.size();
  const OutRows rows{out, static_cast<size_t>(stride != 0 ? stride : options_.dim)};
  const int slices = static_cast<int>(std::clamp<size_t>(n / kSliceKeys, 1, kMaxSlices));
  const uint64_t stamp = common_.evicts ? common_.accesses.fetch_add(n) : 0;
  std::vector<Missed> missed(static_cast<size_t>(slices));
  {
    const std::vector<Shard::Shared> shards = shards_.ShareAll();
    ParallelFor(executor, slices, [&](int s) {
      const size_t from = n * static_cast<size_t>(s) / static_cast<size_t>(slices);
      const size_t to = n * static_cast<size_t>(s + 1) / static_cast<size_t>(slices);
      LookupSlice(shards.data(), keys, from, to, stamp, rows, reason, places, &missed[static_cast<size_t>(s)]);
    });
  }

  std::vector<size_t> below;
  int64_t absent = 0;
  for (const Missed& m : missed) {
    absent += static_cast<int64_t>(m.absent.size());
    below.insert(below.end(), m.below.begin(), m.below.end());
  }
  lookups_ += static_cast<int64_t>(n);
  lookups_absent_ += absent;
  lookup_hits_ += static_cast<int64_t>(n - below.size()) - absent;
  if (absent > 0) {
    if (base_.absent.have_tables()) FindTables(keys, tables, Span<Missed>(missed.data(), missed.size()));
    ParallelFor(executor, slices, [&](int s) {
      const ScopedIeeeArithmetic ieee;
      const Missed& m = missed[static_cast<size_t>(s)];
      FillAbsent(keys, m.absent, m.tables, rows, reason);
    });
  }
  if (below.empty()) return OkStatus();
  MT_RETURN_IF_ERROR(LookupBelow(keys, below, stamp, rows, reason, /*promotes=*/true, tables));
  demoter_.TrimAndRemember();
  return OkStatus();
}

Status HostTable::Peek(Span<const int64_t> keys, float* out, Span<const uint16_t> tables) {
  MT_RETURN_IF_ERROR(CheckTables(tables, keys.size()));
  MT_RETURN_IF_ERROR(CheckMemory(keys.size()));
  if (keys.empty()) return base_.CheckProcess();
  MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::Enter(&base_));
  const OutRows rows{out, static_cast<size_t>(options_.dim)};
  Missed missed;
  LookupSlice(shards_.ShareAll().data(), keys, 0, keys.size(), /*stamp=*/0, rows, ReadFor::kTraining, /*places=*/nullptr,
              &missed);
  {
    const ScopedIeeeArithmetic ieee;
    if (base_.absent.have_tables()) FindTables(keys, tables, Span<Missed>(&missed, 1));
    FillAbsent(keys, missed.absent, missed.tables, rows, ReadFor::kTraining);
  }
  if (missed.below.empty()) return OkStatus();
  return LookupBelow(keys, missed.below, /*stamp=*/0, rows, ReadFor::kTraining, /*promotes=*/false, tables);
}

void HostTable::LookupSlice(const Shard::Shared* shards, Span<const int64_t> keys, size_t begin, size_t end, uint64_t stamp,
                            OutRows out, ReadFor reason, uint32_t* places, Missed* missed) {
  const size_t dim = static_cast<size_t>(options_.dim);
  const DType dtype = options_.value_dtype;
  const size_t read_bytes = sizeof(RowHeader) + dim * DTypeSize(dtype);  // of what is read of a row
  const bool uncommitted_is_absent =
      !base_.absent.are_initial(reason) || base_.absent.have_tables();  // else it holds what an absent key reads
  const bool to_second_level = is_intel;
  uint64_t hashes[4][kBlock];
  RowHeader* rows[2][kBlock];
  uint32_t locations[2][kBlock];
  auto fetch_buckets = [&](size_t from) {
    uint64_t* to = hashes[from / kBlock % 4];
    for (size_t i = from; i < std::min(end, from + kBlock); ++i) {
      const uint64_t hash = HashKey(keys[i]);
      to[i - from] = hash;
      shards[shards_.index(hash)]->Prefetch(hash);
    }
  };
  auto fetch_rows = [&](size_t from) {
    const uint64_t* hash = hashes[from / kBlock % 4];
    RowHeader** to = rows[from / kBlock % 2];
    uint32_t* at = locations[from / kBlock % 2];
    for (size_t i = from; i < std::min(end, from + kBlock); ++i, ++hash) {
      const Shard::Shared& shard = shards[shards_.index(*hash)];
      const uint32_t location = shard->FindHomeRow(*hash);
      RowHeader* row = location == ShardIndex::kNone ? nullptr : shard->row(location);
      to[i - from] = row;
      at[i - from] = location;
      if (row == nullptr) continue;
      PrefetchRow(row, read_bytes, to_second_level);
    }
  };
  // Blocks are numbered from the first key of the slice.
  const size_t base = begin;
  const uint32_t step = static_cast<uint32_t>(2 * keys.size());
  keys = keys.subspan(base, end - base);
  out.data = out.row(base);
  if (places != nullptr) places += base;
  end -= base;
  fetch_buckets(0);
  fetch_buckets(kBlock);
  fetch_rows(0);
  for (size_t from = 0; from < end; from += kBlock) {
    fetch_buckets(from + 2 * kBlock);
    fetch_rows(from + kBlock);
    for (size_t i = from; i < std::min(end, from + kBlock); ++i) {
      RowHeader* row = rows[from / kBlock % 2][i - from];
      if (row == nullptr || row->key != keys[i]) {
        const uint64_t hash = hashes[from / kBlock % 4][i - from];
        const Found found = shards[shards_.index(hash)]->Find(keys[i], hash);
        row = found.row;
        locations[from / kBlock % 2][i - from] = row == nullptr ? kNoPlace : found.slot;
        if (found.maybe_below) {
          if (places != nullptr) places[i] = kNoPlace;
          missed->below.push_back(base + i);
          continue;
        }
      }
      if (places != nullptr) places[i] = locations[from / kBlock % 2][i - from];
      if (row == nullptr ||
          (uncommitted_is_absent && (__atomic_load_n(&row->flags, __ATOMIC_RELAXED) & kRowUncommitted) != 0)) {
        missed->absent.push_back(base + i);
        continue;
      }
      if (stamp != 0) {  // other lookups may, too
        const auto use = static_cast<uint32_t>(stamp + base + i);
        if (NoteUse(row, use, step, notes_lazily_)) shards[shards_.index(HashKey(row->key))]->pins().Used();
      }
      CopyValue(dtype, RowSlab::Data(row), out.row(i), dim);
    }
  }
}

void HostTable::FindTables(Span<const int64_t> keys, Span<const uint16_t> tables, Span<Missed> missed) const {
  std::vector<int64_t> wanted;
  std::vector<uint16_t> found;
  for (const Missed& m : missed) {
    for (const size_t position : m.absent) {
      wanted.push_back(keys[position]);
      found.push_back(tables[position]);
    }
  }
  BorrowedKeyBatch unique;
  unique->SortByShard(wanted, /*log2_shards=*/0);
  unique->PrepareDedup();
  unique->Dedup(0);
  for (uint32_t e = unique->begin(0); e < unique->end(0); ++e) {
    const uint32_t first = unique->first_position(e);
    for (uint32_t p = unique->next(first); p != KeyBatch::kEnd; p = unique->next(p)) found[p] = found[first];
  }
  auto from = found.begin();
  for (Missed& m : missed) {
    m.tables.assign(from, from + static_cast<int64_t>(m.absent.size()));
    from += static_cast<int64_t>(m.absent.size());
  }
}

void HostTable::FillAbsent(Span<const int64_t> keys, const std::vector<size_t>& positions, const std::vector<uint16_t>& tables,
                           OutRows out, ReadFor reason) const {
  int64_t block[kBlock];
  float* to[kBlock];
  for (size_t p = 0; p < positions.size(); p += kBlock) {
    const size_t n = std::min(kBlock, positions.size() - p);
    for (size_t j = 0; j < n; ++j) {
      block[j] = keys[positions[p + j]];
      to[j] = out.row(positions[p + j]);
    }
    base_.absent.Fill(reason, block, tables.empty() ? nullptr : tables.data() + p, n, to);
  }
}

namespace {

// Copies rows, from wherever they are. A lookup brings them up where DRAM has room; a peek moves nothing.
class LookupVisitor : public RecordVisitor {
 public:
  LookupVisitor(TierKeys* keys, const TableBase* base, const Demoter* demoter, bool promotes)
      : keys_(keys), base_(*base), demoter_(demoter), promotes_(promotes) {}
  bool NeedsRow() const override { return true; }
  Status OnMemory(Shard::Locked& lock, TierKey* key, const Found& found) override {
    if (found.row == nullptr || found.row->has(kRowUncommitted)) return OkStatus();
    const size_t row_bytes = lock->layout()->row_bytes();
    keys_->MakeRow(key, row_bytes);
    std::memcpy(key->row.data(), RowSlab::Data(found.row), row_bytes);
    key->has_row = true;
    return OkStatus();
  }
  Answer OnRecord(Shard::Locked& lock, TierKey* key, const RecordHeader& header) override {
    ++lock->counters().lower[key->level].hits;
    key->has_row = true;
    const uint64_t rows = base_.budgets.dram_rows(*lock->layout());
    const bool room = promotes_ && rows > 0 && !demoter_->failed() && !WouldLeave(lock, header, rows);
    return room ? Answer::kInstall : Answer::kKeep;
  }

 private:
  // Whether the trim at the end would take the row at once, back to where it is now, because DRAM is full of rows with higher
  // scores. budget: rows.
  bool WouldLeave(Shard::Locked& lock, const RecordHeader& header, uint64_t budget) const {
    if (base_.options.cache_strategy != Replacement::kScore || base_.common.levels.count > 1) return false;
    if (static_cast<uint64_t>(base_.common.dram_rows.load()) < budget) return false;
    if (lock->dram_rows() == 0 || lock->dram_rows() < budget >> base_.shards.log2()) return false;
    const Rank rank = RankOf(base_.common.strategy, header.version, header.frequency, header.recency, /*clock=*/0);
    return rank.first < lock->ColdestRow().first;
  }

  TierKeys* const keys_;
  const TableBase& base_;
  const Demoter* const demoter_;
  const bool promotes_;
};

}  // namespace

Status HostTable::LookupBelow(Span<const int64_t> keys, const std::vector<size_t>& below, uint64_t stamp, OutRows out,
                              ReadFor reason, bool promotes, Span<const uint16_t> tables) {
  const auto dim = static_cast<size_t>(options_.dim);
  snapshot_.Await();  // rows that come up may have to be copied for it
  // Repeated keys are read once.
  std::vector<int64_t> wanted_keys;
  wanted_keys.reserve(below.size());
  for (const size_t i : below) wanted_keys.push_back(keys[i]);
  BorrowedKeyBatch unique;
  unique->SortByShard(wanted_keys, shards_.log2());
  unique->PrepareDedup();
  TierKeys wanted;
  wanted.reserve(unique->num_keys());
  for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
    unique->Dedup(s);
    for (uint32_t e = unique->begin(s); e < unique->end(s); ++e) {
      uint32_t last = unique->first_position(e);
      for (uint32_t p = last; p != KeyBatch::kEnd; p = unique->next(p)) last = p;
      wanted.Add(*unique, e, s).touched = stamp == 0 ? 0 : stamp + below[last];
    }
  }
  LookupVisitor visitor(&wanted, &base_, &demoter_, promotes);
  MT_RETURN_IF_ERROR(reader_.Read(&wanted, &visitor));
  std::vector<size_t> absent;
  std::vector<uint16_t> its_tables;
  for (const TierKey& key : wanted) {
    for (uint32_t p = unique->first_position(key.entry); p != KeyBatch::kEnd; p = unique->next(p)) {
      if (key.has_row) {
        CopyValue(options_.value_dtype, key.row.data(), out.row(below[p]), dim);
      } else {
        absent.push_back(below[p]);
        if (base_.absent.have_tables()) its_tables.push_back(tables[below[unique->first_position(key.entry)]]);
      }
    }
  }
  if (promotes) lookups_absent_ += static_cast<int64_t>(absent.size());
  const ScopedIeeeArithmetic ieee;
  FillAbsent(keys, absent, its_tables, out, reason);
  return OkStatus();
}

}  // namespace multitier
