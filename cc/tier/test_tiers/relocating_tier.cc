#include "cc/tier/test_tiers/relocating_tier.h"

#include <iterator>
#include <utility>

namespace multitier {
namespace {

constexpr size_t kMovesPerWrite = 4;

}  // namespace

std::set<int64_t> RelocatingTier::RecoverableKeys() const {
  MutexLock lock(mu_);
  std::set<int64_t> keys;
  for (const auto& [key, record] : newest_) {
    if (record) keys.insert(key);
  }
  return keys;
}

void RelocatingTier::FailRemove(int64_t n, Status status, int64_t calls) {
  MutexLock lock(mu_);
  remove_skip_ = n - 1;
  remove_failures_ = calls;
  remove_fault_ = std::move(status);
}

int64_t RelocatingTier::relocated() const {
  MutexLock lock(mu_);
  return relocated_;
}

TierCapabilities RelocatingTier::capabilities() const {
  TierCapabilities capabilities = memory_.capabilities();
  capabilities.middle = false;
  capabilities.relocates = true;
  capabilities.durable = true;
  return capabilities;
}

Status RelocatingTier::SetLayout(std::shared_ptr<const RowLayout> layout) {
  {
    MutexLock lock(mu_);
    layout_ = layout;
  }
  return memory_.SetLayout(std::move(layout));
}

void RelocatingTier::SetRelocator(Relocator relocator) {
  std::lock_guard<std::mutex> one(relocation_mu_);
  MutexLock lock(mu_);
  relocator_ = std::move(relocator);
}

Status RelocatingTier::Write(Span<const WriteRecord> records, uint32_t* locations) {
  {
    MutexLock lock(mu_);
    for (const WriteRecord& record : records) newest_[record.header.key] = true;  // even where it fails
    std::vector<WriteRecord> plain(records.begin(), records.end());
    // The fields that only a middle tier stores are lost here, as on a disk.
    for (WriteRecord& record : plain) {
      record.header.below = kNoLocation;
      record.header.recency = 0;
      record.header.flags = 0;
    }
    MT_RETURN_IF_ERROR(memory_.Write(plain, locations));
    for (size_t i = 0; i < records.size(); ++i) MT_CHECK(held_.emplace(locations[i], records[i].header.key).second);
  }
  RelocateSome();
  return OkStatus();
}

std::vector<Relocation> RelocatingTier::Choose(size_t n) {
  std::vector<Relocation> moves;
  std::vector<uint8_t> data(layout_->row_bytes());
  for (size_t i = 0; i < n && !held_.empty(); ++i) {
    auto it = held_.lower_bound(static_cast<uint32_t>(random_() % (held_.rbegin()->first + 1)));
    if (it == held_.end() || leaving_.count(it->first) != 0) continue;
    ReadRecord read;
    read.location = it->first;
    read.row_data = data.data();
    if (!memory_.Read(Span<ReadRecord>(&read, 1)).ok() || !read.status.ok()) continue;
    WriteRecord copy;
    copy.header = read.header;
    copy.row_data = data.data();
    Relocation move;
    move.key = it->second;
    move.from = it->first;
    if (!memory_.Write(Span<const WriteRecord>(&copy, 1), &move.to).ok()) continue;
    leaving_[move.from] = false;
    copies_.insert(move.to);
    moves.push_back(move);
  }
  return moves;
}

void RelocatingTier::RelocateSome() {
  std::unique_lock<std::mutex> one(relocation_mu_, std::try_to_lock);
  if (!one.owns_lock() || relocator_ == nullptr) return;
  std::vector<Relocation> moves;
  {
    MutexLock lock(mu_);
    moves = Choose(kMovesPerWrite);
  }
  if (moves.empty()) return;
  relocator_(moves);
  MutexLock lock(mu_);
  for (const Relocation& move : moves) {
    const bool from_freed = leaving_[move.from];
    leaving_.erase(move.from);
    const KeyLocation from{move.key, move.from}, to{move.key, move.to};
    const bool to_freed = copies_.erase(move.to) == 0;
    if (move.moved) {
      MT_CHECK(!from_freed);
      held_.erase(move.from);
      memory_.Free(Span<const KeyLocation>(&from, 1));
      if (!to_freed) MT_CHECK(held_.emplace(move.to, move.key).second);
      ++relocated_;
    } else {
      MT_CHECK(!to_freed);
      memory_.Free(Span<const KeyLocation>(&to, 1));
      if (from_freed) memory_.Free(Span<const KeyLocation>(&from, 1));
    }
  }
}

void RelocatingTier::Free(Span<const KeyLocation> records) {
  MutexLock lock(mu_);
  for (const KeyLocation& record : records) {
    MT_CHECK(!record.newest || newest_[record.key]);
    const auto leaving = leaving_.find(record.location);
    if (leaving != leaving_.end()) {  // the location is not used again before the move is settled
      MT_CHECK(!leaving->second && held_.erase(record.location) == 1);
      leaving->second = true;
      continue;
    }
    MT_CHECK(held_.erase(record.location) == 1 || copies_.erase(record.location) == 1);
    memory_.Free(Span<const KeyLocation>(&record, 1));
  }
}

Status RelocatingTier::Remove(Span<const KeyLocation> records) {
  {
    MutexLock lock(mu_);
    if (remove_skip_ > 0) {
      --remove_skip_;
    } else if (remove_failures_ > 0) {
      --remove_failures_;
      return remove_fault_;
    }
    for (const KeyLocation& record : records) newest_[record.key] = false;
  }
  for (const KeyLocation& record : records) {
    if (record.location != kNoLocation) Free(Span<const KeyLocation>(&record, 1));
  }
  return OkStatus();
}

Status RelocatingTier::Scan(const std::function<Status(const RecordHeader&, uint32_t location)>& visit) {
  return memory_.Scan([&](const RecordHeader& header, uint32_t location) {
    {
      MutexLock lock(mu_);
      if (held_.count(location) == 0) return OkStatus();
    }
    return visit(header, location);
  });
}

TierStats RelocatingTier::stats() const {
  MutexLock lock(mu_);
  TierStats stats = memory_.stats();
  stats.relocated_rows = relocated_;
  const int64_t not_held = stats.rows - static_cast<int64_t>(held_.size());
  stats.rows -= not_held;
  return stats;
}

}  // namespace multitier
