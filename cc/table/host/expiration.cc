// Expire: removes the rows that cc/policy/expiry.h says have expired. Called by `expire` of a variable or an engine table, and
// by a Saver before it writes. First those in memory, a slice of a shard at a time, with the keys that a counter filter counts.
// Then those below: a scan of each tier gives candidates, and each is looked at again under its shard's lock.

#include <algorithm>

#include "cc/row/value_column.h"
#include "cc/table/host/host_table.h"

namespace multitier {
namespace {

constexpr uint32_t kExpireSlice = 4096;  // rows looked at under one hold of a shard's lock

// The value of a row as Expired reads it, in `floats` unless the row has floats.
const float* FloatsOf(const TableOptions& options, const uint8_t* row_data, std::vector<float>* floats) {
  if (options.value_dtype == DType::kFloat32) return reinterpret_cast<const float*>(row_data);
  if (options.expiry.l2_weight_threshold < 0.0f) return nullptr;
  floats->resize(static_cast<size_t>(options.dim));
  ReadColumn(options.value_dtype, row_data, floats->size(), floats->data());
  return floats->data();
}

}  // namespace

struct HostTable::ExpiredRows {
  int64_t n = 0;
  std::vector<int64_t>* keys;  // or null

  void Add(int64_t key) {
    ++n;
    if (keys != nullptr) keys->push_back(key);
  }
};

// Takes rows out of the table that are expired at a step.
class HostTable::ExpireVisitor : public RecordVisitor {
 public:
  ExpireVisitor(HostTable* table, int64_t step, bool by_weight, ExpiredRows* expired)
      : table_(table), step_(step), expired_(expired), needs_row_(by_weight || table->snapshot_.taken()) {}
  bool NeedsRow() const override { return needs_row_; }
  Damage OnDamage() const override { return Damage::kError; }
  FreedRecords* removed() override { return &freed_; }
  Status OnMemory(Shard::Locked& lock, TierKey*, const Found& found) override {  // it came up since
    if (found.row == nullptr || found.row->pins != 0 || found.row->has(kRowUncommitted)) return OkStatus();
    if (IsExpired(found.row->key, found.row->version, RowSlab::Data(found.row))) lock->Erase(found, &freed_);
    return OkStatus();
  }
  Answer OnRecord(Shard::Locked&, TierKey* key, const RecordHeader& header) override {
    return IsExpired(header.key, header.version, key->row.data()) ? Answer::kErase : Answer::kKeep;
  }

 private:
  // Counts it, and takes its count out of the filter.
  bool IsExpired(int64_t key, int64_t version, const uint8_t* row_data) {
    const TableOptions& options = table_->options_;
    if (!Expired(options.expiry, step_, version, FloatsOf(options, row_data, &floats_), options.dim)) return false;
    table_->ForgetCount(key);
    expired_->Add(key);
    return true;
  }

  HostTable* const table_;
  const int64_t step_;
  ExpiredRows* const expired_;
  const bool needs_row_;
  FreedRecords freed_;
  std::vector<float> floats_;
};

Status HostTable::ExpireKeys(int64_t step, int64_t* expired, std::vector<int64_t>* keys) {
  MT_RETURN_IF_ERROR(CheckMemory(kChunkKeys));
  if (expired != nullptr) *expired = 0;
  if (!options_.expiry.enabled()) return base_.CheckProcess();
  MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::Enter(&base_));
  ExpiredRows rows{0, keys};
  Status status;
  for (auto& shard : shards_) ExpireInMemory(shard.get(), step, &rows);
  for (int level = 0; level < levels_.count; ++level) {
    const Status one = ExpireBelow(level, step, &rows);
    if (status.ok()) status = one;
  }
  if (expired != nullptr) *expired = rows.n;
  return status;
}

void HostTable::ExpireInMemory(Shard* shard, int64_t step, ExpiredRows* expired) {
  std::vector<float> floats;
  for (uint32_t from = 0, end = 1; from < end; from += kExpireSlice) {
    snapshot_.Await();
    const ShardWriter writer(shard);
    FreedRecords freed;
    {
      Shard::Locked lock(shard);
      end = lock->scan().row_slots();
      const uint32_t to = std::min<uint32_t>(end, from + kExpireSlice);
      for (uint32_t location = from; location < to; ++location) {
        const RowHeader* row = lock->row(location);
        if (row->has(kRowFree | kRowUncommitted) || row->pins != 0) continue;
        const float* const value = FloatsOf(options_, RowSlab::Data(row), &floats);
        if (!Expired(options_.expiry, step, row->version, value, options_.dim)) continue;
        const int64_t key = row->key;
        ForgetCount(key);
        lock->Erase(lock->Find(key, HashKey(key)), &freed);
        expired->Add(key);
        ++lock->counters().expired;
      }
    }
    (void)tiers_.Remove(writer, &freed);  // a refused removal is repeated
    base_.removed.Spill();
  }
  const bool counts = options_.expiry.steps_to_live != 0 && options_.filter.kind == AdmissionKind::kCounter;
  for (uint32_t from = 0, end = counts ? 1 : 0; from < end; from += kExpireSlice) {
    snapshot_.Await();
    Shard::Locked lock(shard);
    end = lock->scan().counted_slots();
    for (uint32_t location = from; location < std::min(end, from + kExpireSlice); ++location) {
      const CountedKey counted = lock->counted(location);
      if (counted.frequency == 0 || counted.pins != 0 || !ExpiredBySteps(step, counted.version)) continue;
      const Found found = lock->Find(counted.key, HashKey(counted.key));
      if (found.counted == nullptr) continue;  // about to be a row
      lock->EraseCount(found);
    }
  }
}

bool HostTable::ExpiredBySteps(int64_t step, int64_t version) const {
  ExpirySpec by_steps = options_.expiry;
  by_steps.l2_weight_threshold = -1.0f;
  return Expired(by_steps, step, version, nullptr, 0);
}

Status HostTable::ExpireBelow(int level, int64_t step, ExpiredRows* expired) {
  const bool by_weight = options_.expiry.l2_weight_threshold >= 0.0f;
  std::vector<int64_t> candidates;
  Status status = tiers_.Scan(level, [&](const RecordHeader& record, uint32_t) {
    if (by_weight || ExpiredBySteps(step, record.version)) candidates.push_back(record.key);
    return OkStatus();
  });
  if (!status.ok()) status = tiers_.Error("looking for expired rows", level, status);
  const size_t chunk = base_.chunk_rows();
  for (size_t from = 0; from < candidates.size(); from += chunk) {
    snapshot_.Await();
    BorrowedKeyBatch batch;
    batch->SortByShard(Span<const int64_t>(candidates).subspan(from, std::min(chunk, candidates.size() - from)),
                       shards_.log2());
    batch->PrepareDedup();
    for (int s = 0; s < static_cast<int>(shards_.size()); ++s) {
      if (batch->begin(s) == batch->end(s)) continue;
      batch->Dedup(s);
      const Status one = ExpireBelowOf(*batch, s, step, by_weight, expired);
      if (status.ok()) status = one;
    }
  }
  return status;
}

Status HostTable::ExpireBelowOf(const KeyBatch& batch, int s, int64_t step, bool by_weight, ExpiredRows* expired) {
  Shard* shard = shards_[s].get();
  const ShardWriter writer(shard);
  TierKeys keys;
  for (uint32_t e = batch.begin(s); e < batch.end(s); ++e) keys.Add(batch, e, s);
  const int64_t before = expired->n;
  ExpireVisitor visitor(this, step, by_weight, expired);
  const Status status = reader_.Read(&keys, &visitor);
  Shard::Locked(shard)->counters().expired += expired->n - before;
  (void)tiers_.Remove(writer, visitor.removed());  // a refused removal is repeated
  base_.removed.Spill();
  return status;
}

}  // namespace multitier
