// Gather, the first step of an apply, and its undo: see apply_operation.h. Refuses new keys where the tiers are full: TakeRoom,
// and NotRefused (apply_refusal.cc) where scores decide.
//
// A counted key that reaches its threshold becomes an uncommitted row at once. The row keeps the entry's slot in `below` and
// its count in `frequency`, so that Undo can put the entry back, and takes over the pins of the applies that hold the entry.
// Undo takes back exactly what Gather did: pins, uncommitted rows that no other apply pinned, entries without a count.

#include <algorithm>

#include "cc/base/ieee.h"
#include "cc/base/prefetch.h"
#include "cc/table/apply/apply_operation.h"

namespace multitier {
namespace {

constexpr uint32_t kGroup = 32;
constexpr size_t kHoldKeys = 512;  // a small batch: it holds the locks of all shards no longer than a large one holds one
constexpr size_t kFirstLevelBytes = 40 << 10;    // for the rows of two groups
constexpr size_t kSecondLevelBytes = 256 << 10;  // for all rows, from Gather to Update

}  // namespace

Status ApplyOperation::Gather(const Keys& keys, Executor* executor) {
  keys_ = keys;
  // Of one shard, the part has the lock of its shard, and no key asks which shard is its own.
  const bool holds =
      keys.may_hold && base_.shards.size() > 1 && keys.keys.size() <= kHoldKeys && base_.tiers.count() == 0 && !refuses();
  batch_->SortByShard(keys.keys, holds ? 0 : base_.shards.log2(), keys.distinct);
  batch_->PrepareDedup();
  const size_t stride = base_.layout()->stride();
  rows_stay_cached_ = keys.keys.size() * stride <= kSecondLevelBytes && 2 * kGroup * stride <= kFirstLevelBytes;
  rows_.resize(batch_->num_keys());
  slots_.assign(batch_->num_keys(), kNoLocation);
  states_.assign(batch_->num_keys(), State::kNothing);
  below_.resize(base_.shards.size());
  if (base_.common.evicts) {
    no_room_ = demoter_.Retry();
    stamp_ = keys.stamp != 0 ? keys.stamp : base_.common.accesses.fetch_add(batch_->num_keys());
  }
  refused_.assign(base_.shards.size(), 0);
  if (refuses()) MT_RETURN_IF_ERROR(FindColdestBelow());
  if (holds) held_ = base_.shards.LockAll();
  // A Bloom filter shares counters between keys: all counts of the batch are in before any key is tested. Undo takes them out
  // again, except from a counter that is saturated, which stays so.
  const bool counts_first = base_.bloom != nullptr && !keys.admits_all;
  if (counts_first) {
    ParallelFor(executor, parts(), [&](int p) {
      batch_->Dedup(p);
      CountInFilter(p, /*add=*/true);
    });
  }
  std::vector<Status> statuses(static_cast<size_t>(parts()));
  ParallelFor(executor, parts(), [&](int p) {
    const ScopedIeeeArithmetic ieee;
    if (!counts_first) batch_->Dedup(p);
    statuses[static_cast<size_t>(p)] = GatherPart(p);
  });
  Status status;
  for (Status& s : statuses) {
    if (status.ok() && !s.ok()) status = std::move(s);
  }
  if (status.ok() && base_.tiers.count() > 0) status = GatherBelow();
  if (status.ok()) return status;
  for (int p = 0; p < parts(); ++p) {
    UndoPart(p);
    if (counts_first) CountInFilter(p, /*add=*/false);
  }
  held_.clear();
  return status;
}

void ApplyOperation::Abandon() {
  for (int p = 0; p < parts(); ++p) UndoPart(p);
}

void ApplyOperation::CountInFilter(int part, bool add) {
  for (uint32_t e = batch_->begin(part); e < batch_->end(part); ++e) {
    const int64_t n = Occurrences(e);
    add ? base_.bloom->Add(batch_->key(e), n) : base_.bloom->Subtract(batch_->key(e), n);
  }
}

Status ApplyOperation::GatherPart(int part) {
  const uint32_t begin = batch_->begin(part), end = batch_->end(part);
  if (begin == end) return OkStatus();
  return WithLocks(part, [&](auto lock_of, auto rows_of) { return GatherEntries(begin, end, lock_of, rows_of); });
}

template <typename LockOf, typename RowsOf>
Status ApplyOperation::GatherEntries(uint32_t begin, uint32_t end, LockOf lock_of, RowsOf rows_of) {
  const KeyBatch& batch = *batch_;
  std::vector<uint32_t> absent;
  RowHeader* rows[2][kGroup];
  uint32_t slots[4][kGroup];  // of a group whose buckets are fetched: the caller's places
  const bool has_places = !keys_.places.empty();
  const size_t row_bytes = RowBytesAhead(*rows_of(begin).layout());
  auto place_of = [&](uint32_t e) {
    if (!has_places) return EmbeddingTable::kNoPlace;
    const uint32_t place = keys_.places[batch.first_position(e)];
    return place < rows_of(e).scan().row_slots() ? place : EmbeddingTable::kNoPlace;  // the table may be another one since
  };
  const auto of = [begin](uint32_t from) { return (from - begin) / kGroup; };  // the number of a group
  auto fetch_buckets = [&](uint32_t from) {
    for (uint32_t e = from; e < std::min(end, from + kGroup); ++e) {
      const uint32_t place = place_of(e);
      slots[of(from) % 4][e - from] = place;
      if (place == EmbeddingTable::kNoPlace) rows_of(e).Prefetch(batch.hash(e));
    }
  };
  auto fetch_rows = [&](uint32_t from) {
    for (uint32_t e = from; e < std::min(end, from + kGroup); ++e) {
      const ShardRows& shard = rows_of(e);
      uint32_t& slot = slots[of(from) % 4][e - from];
      if (slot == EmbeddingTable::kNoPlace) slot = shard.FindHomeRow(batch.hash(e));
      RowHeader* const row = slot == ShardIndex::kNone ? nullptr : shard.row(slot);
      rows[of(from) % 2][e - from] = row;
      if (row == nullptr) continue;
      if (rows_stay_cached_) {
        PrefetchBytes(row, row_bytes);
      } else {
        PrefetchLine<PrefetchTo::kSecondLevel>(row);
      }
    }
  };
  fetch_buckets(begin);
  fetch_buckets(begin + kGroup);
  fetch_rows(begin);
  int64_t hits = 0;
  for (uint32_t from = begin; from < end; from += kGroup) {
    fetch_buckets(from + 2 * kGroup);
    fetch_rows(from + kGroup);
    for (uint32_t e = from; e < std::min(end, from + kGroup); ++e) {
      RowHeader* row = rows[of(from) % 2][e - from];
      uint32_t slot = slots[of(from) % 4][e - from];
      if (row == nullptr || row->key != batch.key(e) || row->has(kRowFree)) {
        const Found found = rows_of(e).Find(batch.key(e), batch.hash(e));
        row = found.row;
        slot = found.slot;
        if (found.maybe_below) {
          below_[static_cast<size_t>(ShardOf(e))].push_back(e);
          continue;
        }
        if (row == nullptr) {
          if (found.counted == nullptr) {
            absent.push_back(e);
          } else {
            MT_RETURN_IF_ERROR(GatherCounted(lock_of(e), ShardOf(e), e, found));
          }
          continue;
        }
      }
      ShardRows::Pin(row);
      rows_[e] = row;
      slots_[e] = slot;
      states_[e] = State::kRow;
      ++hits;
    }
  }
  rows_of(begin).counters().hits_dram += hits;
  while (!absent.empty()) {  // those of one shard at a time
    const int s = ShardOf(absent.front());
    const auto others = std::stable_partition(absent.begin(), absent.end(), [&](uint32_t e) { return ShardOf(e) == s; });
    const std::vector<uint32_t> rest(others, absent.end());
    absent.erase(others, absent.end());
    MT_RETURN_IF_ERROR(GatherAbsent(lock_of(absent.front()), s, absent));
    absent = rest;
  }
  return OkStatus();
}

Status ApplyOperation::CheckTable(uint32_t entry) const {
  if (!base_.absent.differ_by_table() || keys_.admits_all) return OkStatus();  // an import writes the value itself
  if (!keys_.tables.empty() && keys_.tables[batch_->first_position(entry)] != kNoTable) return OkStatus();
  return UnknownTable(base_.options.name, base_.absent.initial().tables(), batch_->key(entry));
}

Status ApplyOperation::GatherCounted(Shard::Locked& lock, int s, uint32_t entry, const Found& found) {
  MT_RETURN_IF_ERROR(CheckTable(entry));
  const int64_t n = keys_.admits_all ? 0 : Occurrences(entry);
  const uint64_t count = found.counted->frequency + static_cast<uint64_t>(n);
  bool stays_counted = !keys_.admits_all && count < base_.options.filter.filter_freq;
  if (!stays_counted && refuses() && IsRefused(lock, s, static_cast<int64_t>(count), 0)) {
    stays_counted = true;
    ++refused_[s];
  }
  if (stays_counted) {
    lock->PinCounted(found);
    states_[entry] = State::kCountedKey;
    return OkStatus();
  }
  size_t taken = 0;
  MT_RETURN_IF_ERROR(TakeRoom(lock, 1, &taken));
  if (taken == 0) {
    ++refused_[s];
    lock->PinCounted(found);
    states_[entry] = State::kCountedKey;
    return OkStatus();
  }
  rows_[entry] = lock->CreateFromCounted(found, stamp_);
  states_[entry] = State::kRow;
  return OkStatus();
}

void ApplyOperation::Admit(const std::vector<uint32_t>& absent, std::vector<uint32_t>* admitted,
                           std::vector<uint32_t>* counted) const {
  const AdmissionSpec& admission = base_.options.filter;
  for (const uint32_t e : absent) {
    bool admit = false;
    if (admission.kind == AdmissionKind::kCounter) {
      admit = Occurrences(e) >= static_cast<int64_t>(admission.filter_freq);
      if (!admit) counted->push_back(e);
    } else if (admission.kind == AdmissionKind::kBloom) {
      admit = base_.bloom->Estimate(batch_->key(e)) >= static_cast<int64_t>(admission.filter_freq);
    } else {
      admit = AdmitProbabilistic(admission.seed, batch_->key(e), static_cast<uint64_t>(base_.applies.load()), Occurrences(e),
                                 admission.probability);
    }
    if (admit) admitted->push_back(e);
  }
}

Status ApplyOperation::GatherAbsent(Shard::Locked& lock, int s, const std::vector<uint32_t>& absent) {
  if (absent.empty()) return OkStatus();
  for (const uint32_t e : absent) MT_RETURN_IF_ERROR(CheckTable(e));
  const KeyBatch& batch = *batch_;
  const std::vector<uint32_t>* create = &absent;
  std::vector<uint32_t> admitted, count;
  if (base_.filters() && !keys_.admits_all) {
    Admit(absent, &admitted, &count);
    create = &admitted;
  }
  std::vector<uint32_t> not_refused;
  if (refuses()) {
    not_refused = NotRefused(lock, s, *create);
    create = &not_refused;
  }
  MT_RETURN_IF_ERROR(base_.OfThisTable(lock->ReserveWords(create->size() + count.size())));
  if (!count.empty() && !lock->ReserveCounted(count.size())) {
    return ResourceExhaustedError("table '", base_.options.name, "': no memory for ", count.size(), " more counted keys");
  }
  for (const uint32_t e : count) {
    MT_RETURN_IF_ERROR(lock->CreateCounted(batch.key(e), batch.hash(e), /*pins=*/1));
    states_[e] = State::kCountedKey;
  }
  if (create->empty()) return OkStatus();
  size_t taken = 0;
  MT_RETURN_IF_ERROR(TakeRoom(lock, create->size(), &taken));
  refused_[s] += static_cast<int64_t>(create->size() - taken);
  std::vector<uint32_t> with_room;
  if (taken < create->size()) {
    with_room.assign(create->begin(), create->begin() + static_cast<int64_t>(taken));
    create = &with_room;
  }
  size_t created = 0;
  const Status status = lock->CreateUncommitted(batch, *create, stamp_, rows_.data(), &created);
  for (size_t i = 0; i < created; ++i) states_[(*create)[i]] = State::kRow;
  base_.common.dram_rows -= static_cast<int64_t>(taken - created);
  return status;
}

Status ApplyOperation::NoRoom(const std::string& where, uint64_t rows, uint64_t most, size_t n) const {
  return ResourceExhaustedError(
      "table '", base_.options.name, "': ", where, " ", rows, " of ", most, " rows (", most * base_.layout()->row_bytes(),
      " bytes); no room for ", n,
      " more: remove or expire keys, or use a larger storage_size or storage_rows (OneEmbedding: capacity), a tier below, an "
      "admission filter, drop_coldest=True, or on_full='warn'");
}

Status ApplyOperation::TakeRoom(Shard::Locked& lock, size_t n, size_t* taken) {
  if (!no_room_.ok()) return no_room_;
  const RowLayout& layout = *lock->layout();
  size_t rows = lock->dram_rows();
  for (int level = 0; level < base_.common.levels.count; ++level) rows += static_cast<size_t>(lock->counts().rows_in[level]);
  const size_t most = base_.budgets.share(base_.budgets.dram_rows(layout), layout);
  *taken = std::min(n, most - std::min(rows, most));
  if (*taken < n && !refuses_without_room()) {
    return NoRoom(StrCat("its tiers are full: one of ", base_.shards.size(), " shards holds"), rows, most, n);
  }
  if (base_.common.evicts || !base_.budgets.dram().bounded()) {
    base_.common.dram_rows += static_cast<int64_t>(*taken);
  } else {
    const auto budget = static_cast<int64_t>(base_.budgets.dram_rows(layout));
    int64_t seen = base_.common.dram_rows.load(), room = 0;
    do {
      room = std::clamp<int64_t>(budget - seen, 0, static_cast<int64_t>(*taken));
      if (room < static_cast<int64_t>(*taken) && !refuses_without_room()) {
        return NoRoom(StrCat("tier ", base_.first_tier_name(), " holds"), static_cast<uint64_t>(seen),
                      static_cast<uint64_t>(budget), n);
      }
    } while (!base_.common.dram_rows.compare_exchange_weak(seen, seen + room));
    *taken = static_cast<size_t>(room);
  }
  const Status reserved = lock->ReserveRows(*taken);
  if (reserved.ok()) return reserved;
  base_.common.dram_rows -= static_cast<int64_t>(*taken);
  return base_.OfThisTable(reserved);
}

// Brings rows up, and pins them.
class ApplyOperation::Visitor : public RecordVisitor {
 public:
  explicit Visitor(ApplyOperation* operation) : operation_(*operation) {}
  bool NeedsRow() const override { return true; }
  bool MustInstall() const override { return true; }
  Status OnMemory(Shard::Locked& lock, TierKey* key, const Found& found) override {
    if (found.counted != nullptr) return operation_.GatherCounted(lock, key->shard, key->entry, found);
    if (found.row == nullptr) return operation_.GatherAbsent(lock, key->shard, {key->entry});
    OnInstalled(lock, key, found.row);
    return OkStatus();
  }
  Answer OnRecord(Shard::Locked& lock, TierKey* key, const RecordHeader&) override {
    ++lock->counters().lower[key->level].hits;
    return Answer::kInstall;
  }
  void OnInstalled(Shard::Locked& lock, TierKey* key, RowHeader* row) override {
    lock->Pin(row);
    operation_.rows_[key->entry] = row;
    operation_.states_[key->entry] = State::kRow;
  }

 private:
  ApplyOperation& operation_;
};

Status ApplyOperation::GatherBelow() {
  TierKeys wanted;
  size_t n = 0;
  for (const std::vector<uint32_t>& entries : below_) n += entries.size();
  wanted.reserve(n);
  for (int s = 0; s < static_cast<int>(base_.shards.size()); ++s) {
    for (const uint32_t e : below_[s]) wanted.Add(*batch_, e, s).touched = Touched(e);
  }
  if (wanted.empty()) return OkStatus();
  if (!no_room_.ok()) return no_room_;
  Visitor visitor(this);
  return reader_.Read(&wanted, &visitor);
}

void ApplyOperation::UndoPart(int part) {
  const KeyBatch& batch = *batch_;
  WithLocks(part, [&](auto, auto rows_of) {
    for (uint32_t e = batch.begin(part); e < batch.end(part); ++e) {
      switch (states_[e]) {
        case State::kNothing:
          break;
        case State::kRow:
          rows_of(e).Unpin(rows_[e]);
          break;
        case State::kCountedKey:
          rows_of(e).UnpinCounted(batch.key(e), batch.hash(e));
          break;
      }
    }
  });
}

}  // namespace multitier
