#include "cc/table/tiering/row_mover.h"

#include <algorithm>
#include <memory>

#include "cc/base/can_allocate.h"
#include "cc/base/new_array.h"

namespace multitier {
namespace {

constexpr size_t kAhead = 8;               // rows on their way into the processor's cache while one is worked on
constexpr size_t kFlushRows = 4096;        // a slice of a flush
constexpr uint32_t kLookedAt = 64 * 1024;  // slots looked at for it under one hold of the lock

}  // namespace

// Rows that were copied to be written.
class RowMover::Copies {
 public:
  Copies(size_t most, size_t row_bytes) : row_bytes_(row_bytes), data_(NewArray<uint8_t>(most * row_bytes)) {
    records.reserve(most);
  }
  // False: there is no memory for the copies.
  bool ok() const { return data_ != nullptr; }
  WriteRecord* Add(Shard::Locked& lock, uint32_t slot, int level) {
    uint8_t* const copy = data_.get() + records.size() * row_bytes_;
    records.push_back(WriteRecord{lock->BeginWrite(slot, level, copy), copy});
    return &records.back();
  }

  std::vector<WriteRecord> records;

 private:
  const size_t row_bytes_;
  const ArrayPtr<uint8_t> data_;
};

Status RowMover::Write(const ShardWriter& writer, int level, Copies* copies, bool keep, size_t* moved) {
  const std::vector<WriteRecord>& records = copies->records;
  std::vector<uint32_t> locations(records.size());
  const Status written = tiers_.Write(writer, level, records, locations.data());
  FreedRecords unused;
  {
    Shard::Locked lock(writer.shard());
    if (written.ok()) lock->counters().lower[level].writes += static_cast<int64_t>(records.size());
    for (size_t i = 0; i < std::min(kAhead, records.size()); ++i) lock->Prefetch(HashKey(records[i].header.key));
    for (size_t i = 0; i < records.size(); ++i) {
      const RecordHeader& header = records[i].header;
      if (i + kAhead < records.size()) lock->Prefetch(HashKey(records[i + kAhead].header.key));
      if (!written.ok()) {
        lock->CancelWrite(header.key);
        continue;
      }
      const ShardRows::Written end = lock->EndWrite(header, level, locations[i], keep);
      if (end == ShardRows::Written::kStale) {
        unused.at[level].push_back(KeyLocation{header.key, locations[i], /*newest=*/true});
      }
      *moved += end == ShardRows::Written::kMoved;
    }
  }
  tiers_.Free(&unused);
  return written;
}

Status RowMover::Demote(const ShardWriter& writer, size_t n, size_t* moved) {
  if (!CanAllocate(records_.ScratchBytes(n))) return records_.NoMemory(base_.first_tier_name(), n);
  const TierLevels& levels = base_.common.levels;
  // By recency, what comes is warmer than what is there. By frequency or score it may not be: then it comes first, and the
  // coldest of all go afterwards.
  const bool room_after = MayComeColdest(base_.common.strategy) && levels.count > 0 && levels.bounded[0] &&
                          (levels.count > 1 || base_.options.drop_coldest);
  size_t room = n;
  if (levels.count > 0 && levels.bounded[0]) MT_RETURN_IF_ERROR(records_.MakeRoom(writer, 0, room_after ? 0 : n, &room));
  n = room_after ? std::min(n, base_.budgets.lower_share(0, *base_.layout())) : room;
  std::unique_ptr<Copies> copies;
  {
    Shard::Locked lock(writer.shard());
    const std::vector<uint32_t> victims = lock->ChooseVictims(n);
    if (levels.count == 0) {
      *moved = victims.size();
      const RowLayout& layout = *lock->layout();
      for (const uint32_t slot : victims) {
        const RowHeader* const row = lock->row(slot);
        dropped_.Keep(row->key, row->frequency, row->version, layout.columns().size(), RowSlab::Data(row), layout.row_bytes());
      }
      lock->Drop(victims);
      return OkStatus();
    }
    copies = std::make_unique<Copies>(victims.size(), lock->layout()->row_bytes());
    if (!copies->ok()) return records_.NoMemory(base_.first_tier_name(), victims.size());
    for (size_t i = 0; i < victims.size(); ++i) {
      if (i + kAhead < victims.size()) lock->PrefetchRow(victims[i + kAhead]);
      if (i + kAhead / 2 < victims.size()) lock->Prefetch(HashKey(lock->row(victims[i + kAhead / 2])->key));
      if (levels.count == 1 && lock->row(victims[i])->below != kNoLocation) {
        lock->MoveToCopy(victims[i]);
        ++*moved;
      } else {
        copies->Add(lock, victims[i], /*level=*/0);
      }
    }
  }
  if (copies->records.empty()) return OkStatus();
  const Status written = Write(writer, 0, copies.get(), /*keep=*/false, moved);
  if (written.ok()) return room_after ? records_.MakeRoom(writer, 0, 0, &room) : OkStatus();
  return tiers_.Error(StrCat("demoting ", copies->records.size(), " rows from DRAM (they stay in memory)"), 0, written);
}

Status RowMover::Flush(const ShardWriter& writer, uint32_t* from) {
  if (!CanAllocate(records_.ScratchBytes(kFlushRows))) return records_.NoMemory(base_.first_tier_name(), kFlushRows);
  const int last = base_.common.levels.last();
  std::unique_ptr<Copies> copies;
  {
    Shard::Locked lock(writer.shard());
    const uint32_t end = lock->scan().row_slots();
    copies = std::make_unique<Copies>(std::min<size_t>(kFlushRows, end), lock->layout()->row_bytes());
    if (!copies->ok()) return records_.NoMemory(base_.first_tier_name(), kFlushRows);
    uint32_t slot = *from;
    for (uint32_t looked = 0; slot < end && copies->records.size() < kFlushRows && looked < kLookedAt; ++slot, ++looked) {
      const RowHeader* row = lock->row(slot);
      if (row->has(kRowFree | kRowUncommitted) || row->below != kNoLocation) continue;
      WriteRecord* const record = copies->Add(lock, slot, last);
      record->header.recency = 0;  // of tiers in the middle
      record->header.flags = 0;
    }
    *from = slot < end ? slot : kNoLocation;
  }
  if (copies->records.empty()) return OkStatus();
  size_t moved = 0;
  const Status written = Write(writer, last, copies.get(), /*keep=*/true, &moved);
  if (written.ok()) return written;
  return tiers_.Error(StrCat("flushing ", copies->records.size(), " rows (they stay in memory)"), last, written);
}

}  // namespace multitier
