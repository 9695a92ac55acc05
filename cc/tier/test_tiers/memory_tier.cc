#include "cc/tier/test_tiers/memory_tier.h"

#include <cstring>
#include <utility>

namespace multitier {

void MemoryTier::SetMaxRows(int64_t max_rows) {
  MutexLock lock(mu_);
  max_rows_ = max_rows;
}

void MemoryTier::FailWrite(int64_t n, Status status, int64_t calls) {
  MutexLock lock(mu_);
  write_fault_ = Fault{n - 1, calls, std::move(status)};
}

void MemoryTier::FailRead(int64_t n, Status status, int64_t calls) {
  MutexLock lock(mu_);
  read_fault_ = Fault{n - 1, calls, std::move(status)};
}

Status MemoryTier::Corrupt(uint32_t location) {
  MutexLock lock(mu_);
  const auto it = records_.find(location);
  if (it == records_.end()) return NotFoundError("memory tier: corrupt: no record at location ", location);
  it->second.corrupt = true;
  return OkStatus();
}

void MemoryTier::SetHook(Hook hook) {
  MutexLock lock(mu_);
  hook_ = hook == nullptr ? nullptr : std::make_shared<const Hook>(std::move(hook));
}

MemoryTier::Counters MemoryTier::counters() const {
  MutexLock lock(mu_);
  return counters_;
}

Status MemoryTier::Fault::Next() {
  if (skip > 0) {
    --skip;
    return OkStatus();
  }
  if (calls <= 0) return OkStatus();
  --calls;
  return status;
}

void MemoryTier::RunHook(Point point) {
  std::shared_ptr<const Hook> hook;
  {
    MutexLock lock(mu_);
    hook = hook_;
  }
  if (hook != nullptr) (*hook)(point);
}

TierCapabilities MemoryTier::capabilities() const {
  TierCapabilities capabilities;
  capabilities.middle = true;
  return capabilities;
}

Status MemoryTier::SetLayout(std::shared_ptr<const RowLayout> layout) {
  MutexLock lock(mu_);
  layout_ = std::move(layout);
  return OkStatus();
}

Status MemoryTier::Write(Span<const WriteRecord> records, uint32_t* locations) {
  RunHook(Point::kBeforeWrite);
  Status status;
  {
    MutexLock lock(mu_);
    ++counters_.write_calls;
    status = write_fault_.Next();
    if (status.ok()) status = WriteLocked(records, locations);
  }
  RunHook(Point::kAfterWrite);
  return status;
}

Status MemoryTier::WriteLocked(Span<const WriteRecord> records, uint32_t* locations) {
  if (layout_ == nullptr) return FailedPreconditionError("memory tier: write before SetLayout");
  const int64_t held = static_cast<int64_t>(records_.size());
  const int64_t n = static_cast<int64_t>(records.size());
  if (max_rows_ > 0 && n > 0 && held + n > max_rows_) {
    return ResourceExhaustedError("memory tier: write of ", n, " records: the tier holds ", held, " of at most ", max_rows_,
                                  " rows");
  }
  const std::vector<Column>& columns = layout_->columns();
  for (const WriteRecord& record : records) {
    if (record.header.num_columns >= 1 && record.header.num_columns <= columns.size()) continue;
    return InvalidArgumentError("memory tier: write of key ", record.header.key, ": expected 1 to ", columns.size(),
                                " columns, found ", record.header.num_columns);
  }
  for (size_t i = 0; i < records.size(); ++i) {
    if (free_locations_.empty()) free_locations_.push_back(end_++);
    locations[i] = free_locations_.back();
    free_locations_.pop_back();
    const Column& last = columns[records[i].header.num_columns - 1];
    Record& record = records_[locations[i]];
    record.header = records[i].header;
    record.row_data.assign(records[i].row_data, records[i].row_data + last.offset + last.bytes);
    row_bytes_ += static_cast<int64_t>(record.row_data.size());
  }
  counters_.records_written += n;
  return OkStatus();
}

Status MemoryTier::Read(Span<ReadRecord> records) {
  RunHook(Point::kBeforeRead);
  Status status;
  {
    MutexLock lock(mu_);
    ++counters_.read_calls;
    status = read_fault_.Next();
    for (size_t i = 0; status.ok() && i < records.size(); ++i) {
      ReadRecord& out = records[i];
      const auto it = records_.find(out.location);
      if (it == records_.end()) {
        out.status = NotFoundError("memory tier: no record at location ", out.location, " for key ", out.key);
      } else if (it->second.corrupt) {
        out.header.key = it->second.header.key;
        if (std::exchange(out.any_key, false)) out.key = it->second.header.key;
        out.status = DataLossError("memory tier: record of key ", out.key, " at location ", out.location, " is corrupt");
      } else {
        const std::vector<uint8_t>& row_data = it->second.row_data;
        out.header = it->second.header;
        if (out.row_data != nullptr) std::memcpy(out.row_data, row_data.data(), row_data.size());
        out.status = OkStatus();
        ++counters_.records_read;
      }
    }
  }
  RunHook(Point::kAfterRead);
  return status;
}

void MemoryTier::Erase(const KeyLocation& record) {
  const auto it = records_.find(record.location);
  MT_CHECK(it != records_.end());
  // The key of a corrupt record is unknown.
  MT_CHECK(it->second.corrupt || it->second.header.key == record.key);
  row_bytes_ -= static_cast<int64_t>(it->second.row_data.size());
  records_.erase(it);
  free_locations_.push_back(record.location);
}

void MemoryTier::Free(Span<const KeyLocation> records) {
  MutexLock lock(mu_);
  for (const KeyLocation& record : records) Erase(record);
  counters_.records_freed += static_cast<int64_t>(records.size());
}

Status MemoryTier::Remove(Span<const KeyLocation> records) {
  MutexLock lock(mu_);
  for (const KeyLocation& record : records) {
    if (record.location != kNoLocation) Erase(record);
  }
  counters_.records_removed += static_cast<int64_t>(records.size());
  return OkStatus();
}

bool MemoryTier::SwitchBelow(const KeyLocation& record, uint32_t from, uint32_t to) {
  MutexLock lock(mu_);
  const auto it = records_.find(record.location);
  if (it == records_.end() || it->second.header.key != record.key || it->second.header.below != from) return false;
  it->second.header.below = to;
  return true;
}

Status MemoryTier::Scan(const std::function<Status(const RecordHeader&, uint32_t location)>& visit) {
  std::vector<std::pair<RecordHeader, uint32_t>> held;  // so that visit runs without the lock
  {
    MutexLock lock(mu_);
    held.reserve(records_.size());
    for (const auto& [location, record] : records_) held.emplace_back(record.header, location);
  }
  for (const auto& [header, location] : held) MT_RETURN_IF_ERROR(visit(header, location));
  return OkStatus();
}

uint64_t MemoryTier::location_end() const {
  MutexLock lock(mu_);
  return end_;
}

Status MemoryTier::Sync() {
  MutexLock lock(mu_);
  ++counters_.syncs;
  return OkStatus();
}

TierStats MemoryTier::stats() const {
  MutexLock lock(mu_);
  TierStats stats;
  stats.rows = static_cast<int64_t>(records_.size());
  stats.row_bytes = row_bytes_;
  stats.resident_bytes = row_bytes_ + stats.rows * static_cast<int64_t>(sizeof(Record) + sizeof(uint32_t));
  return stats;
}

}  // namespace multitier
