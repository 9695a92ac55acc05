#include "cc/tier/external/external_tier.h"

#include <algorithm>
#include <cstring>

#include "cc/base/new_array.h"

namespace multitier {
namespace {

constexpr uint32_t kScanned = 4096;  // slots under one hold of the lock
constexpr size_t kAhead = 16;        // slots on their way into the processor's cache

size_t BytesOfColumns(const RowLayout& layout, uint32_t num_columns) {
  const Column& last = layout.columns()[num_columns - 1];
  return last.offset + last.bytes;
}

// The first of n rows if they lie one after another, as the store wants them; else null: they need memory of their own.
template <typename RowOf>
auto Adjacent(size_t n, size_t row_bytes, RowOf row_of) -> decltype(row_of(0)) {
  const auto first = row_of(0);
  for (size_t i = 1; i < n; ++i) {
    if (row_of(i) != first + i * row_bytes) return nullptr;
  }
  return first;
}

Status NoMemory(size_t n, size_t row_bytes) {
  return ResourceExhaustedError("external tier: no memory for ", n, " rows of ", row_bytes, " bytes");
}

// What adding or finding the keys reads, for the one that comes kAhead later.
template <typename KeyOf>
void PrefetchAhead(const KeySlots& slots, size_t i, size_t n, KeyOf key_of) {
  if (i + 2 * kAhead < n) slots.PrefetchKey(key_of(i + 2 * kAhead));
  if (i + kAhead < n) slots.PrefetchChain(key_of(i + kAhead));
}

// Calls run(from, to) for runs of entries with the same number of columns, of entries that are sorted by it.
template <typename Entries, typename ColumnsOf, typename Run>
Status ForEachWidth(const Entries& entries, ColumnsOf columns_of, Run run) {
  for (size_t from = 0, to = 0; from < entries.size(); from = to) {
    while (to < entries.size() && columns_of(entries[to]) == columns_of(entries[from])) ++to;
    MT_RETURN_IF_ERROR(run(from, to));
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<ExternalTier>> ExternalTier::Open(const std::string& storage, const std::string& table) {
  MT_ASSIGN_OR_RETURN(std::unique_ptr<ExternalStore> store, ExternalStore::Open(storage, table));
  std::vector<int64_t> keys;
  MT_RETURN_IF_ERROR(store->Keys(&keys));
  std::unique_ptr<ExternalTier> tier(new ExternalTier(std::move(store)));
  MutexLock lock(tier->mutex_);
  for (const int64_t key : keys) {
    if (tier->slots_.Find(key) != KeySlots::kNone) {
      return InvalidArgumentError(storage, ".keys: expected each key once, found ", key, " twice");
    }
    RecordHeader header;
    header.key = key;
    tier->slots_.Add(header);
  }
  return tier;
}

TierCapabilities ExternalTier::capabilities() const {
  TierCapabilities capabilities;
  capabilities.durable = true;
  capabilities.keyed = true;
  return capabilities;
}

std::shared_ptr<const RowLayout> ExternalTier::layout() const {
  MutexLock lock(mutex_);
  return layout_;
}

Status ExternalTier::SetLayout(std::shared_ptr<const RowLayout> layout) {
  MutexLock lock(mutex_);
  layout_ = std::move(layout);
  return OkStatus();
}

ExternalTier::Hidden ExternalTier::Hide(const std::vector<int64_t>& keys) {
  Hidden hidden;
  MutexLock lock(mutex_);
  for (size_t i = 0; i < keys.size(); ++i) {
    PrefetchAhead(slots_, i, keys.size(), [&](size_t at) { return keys[at]; });
    const uint32_t location = slots_.Find(keys[i]);
    if (location == KeySlots::kNone) continue;
    hidden.emplace_back(location, slots_.held(location)->number);
    slots_.Hide(location);
  }
  return hidden;
}

void ExternalTier::Show(const Hidden& hidden) {
  MutexLock lock(mutex_);
  for (const auto& [location, number] : hidden) slots_.Show(location, number);
}

Status ExternalTier::InsertAlike(const RowLayout& layout, Span<const WriteRecord> records, const std::vector<uint32_t>& which) {
  const uint32_t num_columns = records[which[0]].header.num_columns;
  const size_t row_bytes = BytesOfColumns(layout, num_columns);
  const uint8_t* rows = Adjacent(which.size(), row_bytes, [&](size_t i) { return records[which[i]].row_data; });
  ArrayPtr<uint8_t> copies;
  if (rows == nullptr) {
    copies = NewArray<uint8_t>(which.size() * row_bytes);
    if (copies == nullptr) return NoMemory(which.size(), row_bytes);
    for (size_t i = 0; i < which.size(); ++i) {
      std::memcpy(copies.get() + i * row_bytes, records[which[i]].row_data, row_bytes);
    }
    rows = copies.get();
  }
  std::vector<int64_t> keys;
  keys.reserve(which.size());
  for (const uint32_t i : which) keys.push_back(records[i].header.key);
  return store_->Insert(keys, layout, num_columns, rows);
}

Status ExternalTier::Insert(const RowLayout& layout, Span<const WriteRecord> records) {
  std::vector<uint32_t> order(records.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto columns_of = [&](uint32_t i) { return records[i].header.num_columns; };
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return std::make_pair(columns_of(a), a) < std::make_pair(columns_of(b), b); });
  return ForEachWidth(order, columns_of, [&](size_t from, size_t to) {
    return InsertAlike(layout, records,
                       std::vector<uint32_t>(order.begin() + static_cast<std::ptrdiff_t>(from),
                                             order.begin() + static_cast<std::ptrdiff_t>(to)));
  });
}

Status ExternalTier::Write(Span<const WriteRecord> records, uint32_t* locations) {
  const std::shared_ptr<const RowLayout> layout = this->layout();
  if (layout == nullptr) return FailedPreconditionError("external tier: write before SetLayout");
  std::vector<int64_t> keys;
  for (const WriteRecord& record : records) {
    keys.push_back(record.header.key);
    if (record.header.num_columns >= 1 && record.header.num_columns <= layout->columns().size()) continue;
    return InvalidArgumentError("external tier: write of key ", record.header.key, ": expected 1 to ", layout->columns().size(),
                                " columns, found ", record.header.num_columns);
  }
  if (records.empty()) return OkStatus();
  if (location_end() + records.size() >= kNoLocation) {
    return ResourceExhaustedError("external tier: it holds fewer than 2^32 rows; partition the table");
  }
  const Hidden hidden = Hide(keys);
  const Status inserted = Insert(*layout, records);
  if (!inserted.ok()) {
    Show(hidden);
    return inserted;
  }
  MutexLock lock(mutex_);
  for (size_t i = 0; i < records.size(); ++i) {
    PrefetchAhead(slots_, i, records.size(), [&](size_t at) { return records[at].header.key; });
    locations[i] = slots_.Add(records[i].header);
  }
  return OkStatus();
}

RecordHeader ExternalTier::HeaderOf(const KeySlots::Slot& slot) const {
  RecordHeader header;
  header.key = slot.key;
  header.version = slot.version;
  header.frequency = slot.frequency;
  const uint32_t all = layout_ == nullptr ? 1 : static_cast<uint32_t>(layout_->columns().size());
  header.num_columns = slot.num_columns == 0 ? all : static_cast<uint32_t>(slot.num_columns);
  return header;
}

Status ExternalTier::Read(Span<ReadRecord> records) {
  std::vector<Wanted> wanted;
  std::shared_ptr<const RowLayout> layout;
  {
    MutexLock lock(mutex_);
    layout = layout_;
    for (uint32_t i = 0; i < records.size(); ++i) {
      if (i + kAhead < records.size()) slots_.Prefetch(records[i + kAhead].location);
      ReadRecord& record = records[i];
      const KeySlots::Slot* const slot = slots_.held(record.location);
      if (slot == nullptr) {
        record.status = NotFoundError("external tier: no record at location ", record.location, OfKey(record));
        continue;
      }
      record.header = HeaderOf(*slot);
      record.status = OkStatus();
      if (std::exchange(record.any_key, false)) record.key = slot->key;
      if (record.row_data != nullptr) wanted.push_back(Wanted{i, slot->number, record.header.num_columns});
    }
  }
  const auto columns_of = [](const Wanted& each) { return each.num_columns; };
  std::sort(wanted.begin(), wanted.end(), [&](const Wanted& a, const Wanted& b) {
    return std::make_pair(columns_of(a), a.record) < std::make_pair(columns_of(b), b.record);
  });
  return ForEachWidth(wanted, columns_of, [&](size_t from, size_t to) {
    return ReadAlike(*layout, records, Span<const Wanted>(wanted).subspan(from, to - from));
  });
}

Status ExternalTier::ReadAlike(const RowLayout& layout, Span<ReadRecord> records, Span<const Wanted> wanted) {
  const uint32_t num_columns = wanted[0].num_columns;
  const size_t row_bytes = BytesOfColumns(layout, num_columns);
  std::vector<int64_t> keys;
  keys.reserve(wanted.size());
  for (const Wanted& each : wanted) keys.push_back(records[each.record].header.key);
  std::vector<uint8_t> found(keys.size());
  uint8_t* rows = Adjacent(keys.size(), row_bytes, [&](size_t i) { return records[wanted[i].record].row_data; });
  ArrayPtr<uint8_t> copies;
  if (rows == nullptr) {
    copies = NewArray<uint8_t>(keys.size() * row_bytes);
    if (copies == nullptr) return NoMemory(keys.size(), row_bytes);
    rows = copies.get();
  }
  std::memset(rows, 0, keys.size() * row_bytes);
  MT_RETURN_IF_ERROR(store_->Find(keys, layout, num_columns, found.data(), rows));
  MutexLock lock(mutex_);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (i + kAhead < wanted.size()) slots_.Prefetch(records[wanted[i + kAhead].record].location);
    ReadRecord& record = records[wanted[i].record];
    const KeySlots::Slot* const slot = slots_.held(record.location);
    if (slot == nullptr || slot->number != wanted[i].number) {  // written, removed or freed meanwhile
      record.status = NotFoundError("external tier: no record at location ", record.location, OfKey(record));
    } else if (found[i] == 0) {
      record.status =
          DataLossError(store_->name(), ".find: expected the row of key ", keys[i], ", which is in the store, found none");
    } else {
      if (copies != nullptr) std::memcpy(record.row_data, rows + i * row_bytes, row_bytes);
      slots_.SetColumns(record.location, num_columns);
    }
  }
  return OkStatus();
}

bool ExternalTier::MayReach(uint32_t location, int64_t min_version, int64_t min_frequency) const {
  MutexLock lock(mutex_);
  const KeySlots::Slot* const slot = slots_.held(location);
  return slot == nullptr || (slot->version >= min_version && slot->frequency >= min_frequency);
}

void ExternalTier::Free(Span<const KeyLocation> records) {
  MutexLock lock(mutex_);
  for (size_t i = 0; i < records.size(); ++i) {
    if (i + kAhead < records.size()) slots_.Prefetch(records[i + kAhead].location);
    PrefetchAhead(slots_, i, records.size(), [&](size_t at) { return records[at].key; });
    MT_CHECK(slots_.Has(records[i].location, records[i].key));
    slots_.Release(records[i].location);
  }
}

Status ExternalTier::Remove(Span<const KeyLocation> records) {
  if (records.empty()) return OkStatus();
  std::vector<int64_t> keys;
  for (const KeyLocation& record : records) keys.push_back(record.key);
  const Hidden hidden = Hide(keys);
  const Status erased = store_->Erase(keys);
  if (!erased.ok()) {
    Show(hidden);
    return erased;
  }
  MutexLock lock(mutex_);
  for (const KeyLocation& record : records) {
    if (record.location == kNoLocation) continue;
    MT_CHECK(slots_.Has(record.location, record.key));
    slots_.Release(record.location);
  }
  return OkStatus();
}

Status ExternalTier::Scan(const std::function<Status(const RecordHeader&, uint32_t location)>& visit) {
  std::vector<std::pair<RecordHeader, uint32_t>> slice;
  for (uint32_t from = 0;; from += kScanned) {
    slice.clear();
    {
      MutexLock lock(mutex_);
      if (from >= slots_.end()) return OkStatus();
      for (uint32_t location = from; location < from + std::min(kScanned, slots_.end() - from); ++location) {
        const KeySlots::Slot* const slot = slots_.held(location);
        if (slot != nullptr) slice.emplace_back(HeaderOf(*slot), location);
      }
    }
    for (const auto& [header, location] : slice) MT_RETURN_IF_ERROR(visit(header, location));
  }
}

uint64_t ExternalTier::location_end() const {
  MutexLock lock(mutex_);
  return slots_.end();
}

Status ExternalTier::Sync() { return store_->Flush(); }

TierStats ExternalTier::stats() const {
  MutexLock lock(mutex_);
  TierStats stats;
  stats.rows = slots_.used();
  stats.row_bytes = layout_ == nullptr ? 0 : stats.rows * static_cast<int64_t>(layout_->row_bytes());
  stats.stored_bytes = stats.row_bytes;
  stats.resident_bytes = static_cast<int64_t>(slots_.resident_bytes());
  return stats;
}

}  // namespace multitier
