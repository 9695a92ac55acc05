#include "cc/tier/pmem/pmem_tier.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "cc/env/env.h"
#include "cc/tier/pmem/libpmem.h"

namespace multitier {
namespace {

constexpr uint64_t kMaxUnitBytes = 256 << 10;
constexpr int kMaxUnitShift = 10;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 30;

size_t BytesOfColumns(const RowLayout& layout, uint32_t num_columns) {
  const Column& last = layout.columns()[num_columns - 1];
  return last.offset + last.bytes;
}

std::string FileName(const std::string& directory, size_t number) {
  std::string digits = std::to_string(number);
  digits.insert(0, digits.size() < 6 ? 6 - digits.size() : 0, '0');
  return StrCat(directory, "/rows-", digits, ".pmem");
}

}  // namespace

PmemTier::PmemTier(const PmemOptions& options) : options_(options), pid_(::getpid()) {}

Result<std::unique_ptr<PmemTier>> PmemTier::Open(const PmemOptions& options) {
  MT_RETURN_IF_ERROR(Libpmem::Load().status());
  Env* env = Env::Posix();
  MT_ASSIGN_OR_RETURN(const std::vector<std::string> names, env->ListDir(options.directory));
  for (const std::string& name : names) {
    const bool ours = name.rfind("rows-", 0) == 0 && name.size() > 5 && name.substr(name.size() - 5) == ".pmem";
    if (ours) MT_RETURN_IF_ERROR(env->DeleteFile(StrCat(options.directory, "/", name)));
  }
  return std::unique_ptr<PmemTier>(new PmemTier(options));
}

PmemTier::~PmemTier() {
  if (::getpid() != pid_) return;
  for (File& file : files_) {
    if (file.pmem != nullptr) ::unlink(file.pmem->path().c_str());
  }
}

TierCapabilities PmemTier::capabilities() const {
  TierCapabilities capabilities;
  capabilities.middle = true;
  return capabilities;
}

Status PmemTier::CheckProcess() const {
  if (::getpid() == pid_) return OkStatus();
  return FailedPreconditionError("pmem tier '", options_.directory, "': it belongs to process ", pid_,
                                 ", and this is a forked child");
}

// --- Slots.

int PmemTier::FileIndexOf(uint32_t location) const {
  const size_t unit = location >> unit_shift_;
  return unit < file_of_unit_.size() ? file_of_unit_[unit] : -1;
}

PmemTier::Slot PmemTier::SlotOf(uint32_t location) const {
  PmemFile* file = files_[static_cast<size_t>(FileIndexOf(location))].pmem.get();
  return Slot{file, location - file->first_location()};
}

bool PmemTier::IsHeld(uint32_t location) const {
  const int i = FileIndexOf(location);
  if (i < 0) return false;
  const File& file = files_[static_cast<size_t>(i)];
  const uint32_t slot = location - file.pmem->first_location();
  return (file.held[slot / 64] >> (slot % 64) & 1) != 0;
}

void PmemTier::SetHeld(uint32_t location, bool held) {
  File& file = files_[static_cast<size_t>(FileIndexOf(location))];
  const uint32_t slot = location - file.pmem->first_location();
  const uint64_t bit = uint64_t{1} << (slot % 64);
  held ? file.held[slot / 64] |= bit : file.held[slot / 64] &= ~bit;
}

PmemTier::Volatile* PmemTier::VolatileOf(uint32_t location) {
  File& file = files_[static_cast<size_t>(FileIndexOf(location))];
  return &file.in_memory[location - file.pmem->first_location()];
}

void PmemTier::Forget(uint32_t location) {
  MT_CHECK(IsHeld(location));
  SetHeld(location, false);
  limbo_[epoch_ & 1].push_back(location);
  --rows_;
}

bool PmemTier::BeginEpoch() {
  const int previous = (epoch_ + 1) & 1;
  if (reads_[previous] != 0) return false;
  for (const uint32_t location : limbo_[previous]) {
    File& file = files_[static_cast<size_t>(FileIndexOf(location))];
    --file.used;
    if (file.pmem->num_columns() == layout_->columns().size()) {
      free_.push_back(location);
    } else {
      RetireWhereUnused(&file);
    }
  }
  limbo_[previous].clear();
  ++epoch_;
  return true;
}

void PmemTier::LeaveEpoch(int epoch) {
  if (--reads_[epoch & 1] == 0) reads_over_.notify_all();
}

void PmemTier::RetireWhereUnused(File* file) {
  if (file->used != 0) return;
  const size_t first = file->pmem->first_location() >> unit_shift_;
  std::fill_n(file_of_unit_.begin() + static_cast<long>(first), file->pmem->slots() >> unit_shift_, -1);
  retired_.push_back(std::move(file->pmem));
  file->held = {};
  file->in_memory = {};
}

void PmemTier::RemoveRetired() {
  std::vector<std::shared_ptr<PmemFile>> retired;
  {
    MutexLock lock(mutex_);
    retired.swap(retired_);
  }
  for (const auto& file : retired) ::unlink(file->path().c_str());
}

int64_t PmemTier::max_rows() const {
  if (options_.capacity_bytes <= 0) return kNoLocation;
  return std::min<int64_t>(options_.capacity_bytes / static_cast<int64_t>(layout_->row_bytes()), kNoLocation);
}

uint64_t PmemTier::SlotsOfNextFile(uint64_t missing) const {
  const uint64_t unit = uint64_t{1} << unit_shift_;
  const auto round_up = [unit](uint64_t slots) { return (slots + unit - 1) / unit * unit; };
  uint64_t slots = std::max(missing, std::min(slots_, kMaxFileBytes / layout_->stride()));
  if (options_.capacity_bytes > 0) {
    const uint64_t most = round_up(static_cast<uint64_t>(max_rows()) * 9 / 8);
    slots = std::min(slots, most > slots_ ? most - slots_ : 0);
  }
  return round_up(slots);
}

void PmemTier::Adopt(std::shared_ptr<PmemFile> pmem) {
  File file;
  file.held.resize((pmem->slots() + 63) / 64);
  file.in_memory.resize(pmem->slots());
  file_of_unit_.insert(file_of_unit_.end(), pmem->slots() >> unit_shift_, static_cast<int>(files_.size()));
  // The last is taken first: rows fill the file from its beginning.
  for (uint32_t slot = pmem->slots(); slot-- > 0;) free_.push_back(pmem->first_location() + slot);
  slots_ += pmem->slots();
  file.pmem = std::move(pmem);
  files_.push_back(std::move(file));
}

Status PmemTier::Grow(uint64_t slots) {
  const uint64_t first = static_cast<uint64_t>(file_of_unit_.size()) << unit_shift_;
  if (first + slots > kNoLocation) {
    return ResourceExhaustedError("pmem tier: '", options_.directory, "' holds fewer than 2^32 rows; partition the table");
  }
  const std::shared_ptr<const RowLayout> layout = layout_;
  mutex_.unlock();
  const auto create = [&]() MT_REQUIRES(grow_mutex_) {
    return PmemFile::Create(FileName(options_.directory, ++named_), *layout, static_cast<uint32_t>(first),
                            static_cast<uint32_t>(slots));
  };
  Result<std::unique_ptr<PmemFile>> file = create();
  while (file.status().code() == StatusCode::kAlreadyExists) file = create();  // of another process, or left over
  mutex_.lock();
  if (!file.ok()) return Status(file.status().code(), StrCat("pmem tier: ", file.status().message()));
  Adopt(std::shared_ptr<PmemFile>(*std::move(file)));
  return OkStatus();
}

Status PmemTier::Reserve(size_t n, MutexLock* lock, uint32_t* locations) {
  if (rows_ + static_cast<int64_t>(n) > max_rows()) {
    return ResourceExhaustedError("pmem tier: write of ", n, " records in '", options_.directory, "': the tier holds ", rows_,
                                  " of at most ", max_rows(), " rows");
  }
  while (free_.size() < n) {
    while (free_.size() < n && limbo_[0].size() + limbo_[1].size() > 0 && BeginEpoch()) {
    }
    if (free_.size() >= n) break;
    const uint64_t missing = n - free_.size();
    const uint64_t slots = SlotsOfNextFile(missing);
    if (slots < missing && limbo_[0].size() + limbo_[1].size() > 0) {
      lock->Wait(reads_over_, [this]() MT_REQUIRES(mutex_) { return reads_[(epoch_ + 1) & 1] == 0; });
      continue;
    }
    Status grown = Grow(std::max(slots, (missing + (1u << unit_shift_) - 1) >> unit_shift_ << unit_shift_));
    if (!grown.ok() && slots > missing) {  // a smaller one may still fit
      grown = Grow((missing + (1u << unit_shift_) - 1) >> unit_shift_ << unit_shift_);
    }
    MT_RETURN_IF_ERROR(grown);
  }
  for (size_t i = 0; i < n; ++i) {
    locations[i] = free_.back();
    free_.pop_back();
    ++files_[static_cast<size_t>(FileIndexOf(locations[i]))].used;
  }
  rows_ += static_cast<int64_t>(n);
  return OkStatus();
}

// --- Tier.

Status PmemTier::SetLayout(std::shared_ptr<const RowLayout> layout) {
  MT_RETURN_IF_ERROR(CheckProcess());
  MutexLock growing(grow_mutex_);
  {
    MutexLock lock(mutex_);
    const bool first = layout_ == nullptr;
    const bool wider = !first && layout->columns().size() != layout_->columns().size();
    layout_ = std::move(layout);
    if (first) {
      while (unit_shift_ < kMaxUnitShift && layout_->stride() << (unit_shift_ + 1) <= kMaxUnitBytes) ++unit_shift_;
    }
    if (wider) {
      free_.clear();
      slots_ = 0;
      for (File& file : files_) {
        if (file.pmem != nullptr) RetireWhereUnused(&file);
      }
    }
  }
  RemoveRetired();
  return OkStatus();
}

Status PmemTier::Write(Span<const WriteRecord> records, uint32_t* locations) {
  MT_RETURN_IF_ERROR(CheckProcess());
  std::vector<Slot> slots(records.size());
  std::shared_ptr<const RowLayout> layout;
  Status reserved;
  {
    MutexLock growing(grow_mutex_);
    MutexLock lock(mutex_);
    layout = layout_;
    if (layout == nullptr) return FailedPreconditionError("pmem tier: write before SetLayout");
    for (const WriteRecord& record : records) {
      if (record.header.num_columns >= 1 && record.header.num_columns <= layout->columns().size()) continue;
      return InvalidArgumentError("pmem tier: write of key ", record.header.key, ": expected 1 to ", layout->columns().size(),
                                  " columns, found ", record.header.num_columns);
    }
    if (records.empty()) return OkStatus();
    reserved = Reserve(records.size(), &lock, locations);
    for (size_t i = 0; reserved.ok() && i < records.size(); ++i) slots[i] = SlotOf(locations[i]);
  }
  RemoveRetired();
  MT_RETURN_IF_ERROR(reserved);
  for (size_t i = 0; i < records.size(); ++i) {
    slots[i].file->WriteSlot(slots[i].index, records[i], BytesOfColumns(*layout, records[i].header.num_columns));
  }
  slots[0].file->Drain();  // of all files: it concerns the thread
  MutexLock lock(mutex_);
  for (size_t i = 0; i < records.size(); ++i) {
    SetHeld(locations[i], true);
    const RecordHeader& header = records[i].header;
    *VolatileOf(locations[i]) = Volatile{header.below, header.recency, header.flags};
  }
  return OkStatus();
}

Status PmemTier::Read(Span<ReadRecord> records) {
  MT_RETURN_IF_ERROR(CheckProcess());
  std::vector<Slot> slots(records.size());
  std::vector<Volatile> in_memory(records.size());
  std::shared_ptr<const RowLayout> layout;
  int epoch = 0;
  {
    MutexLock lock(mutex_);
    epoch = EnterEpoch();
    layout = layout_;
    for (size_t i = 0; i < records.size(); ++i) {
      if (!IsHeld(records[i].location)) continue;
      slots[i] = SlotOf(records[i].location);
      in_memory[i] = *VolatileOf(records[i].location);
    }
  }
  for (size_t i = 0; i < records.size(); ++i) {
    ReadRecord& record = records[i];
    record.status = slots[i].file != nullptr
                        ? slots[i].file->ReadSlot(slots[i].index, *layout, &record)
                        : NotFoundError("pmem tier: no record at location ", record.location, " for key ", record.key);
    record.header.below = in_memory[i].below;
    record.header.recency = in_memory[i].recency;
    record.header.flags = in_memory[i].flags;
  }
  MutexLock lock(mutex_);
  LeaveEpoch(epoch);
  return OkStatus();
}

void PmemTier::Free(Span<const KeyLocation> records) {
  if (::getpid() != pid_) return;
  MutexLock lock(mutex_);
  for (const KeyLocation& record : records) Forget(record.location);
}

Status PmemTier::Remove(Span<const KeyLocation> records) {
  MT_RETURN_IF_ERROR(CheckProcess());
  MutexLock lock(mutex_);
  for (const KeyLocation& record : records) {
    if (record.location != kNoLocation) Forget(record.location);
  }
  return OkStatus();
}

bool PmemTier::SwitchBelow(const KeyLocation& record, uint32_t from, uint32_t to) {
  MutexLock lock(mutex_);
  if (!IsHeld(record.location) || VolatileOf(record.location)->below != from) return false;
  if (SlotOf(record.location).file->ReadHeader(SlotOf(record.location).index).key != record.key) return false;
  VolatileOf(record.location)->below = to;
  return true;
}

Status PmemTier::Scan(const std::function<Status(const RecordHeader&, uint32_t location)>& visit) {
  MT_RETURN_IF_ERROR(CheckProcess());
  std::vector<std::pair<uint32_t, Slot>> slots;
  std::vector<RecordHeader> headers;
  std::vector<Volatile> in_memory;
  for (size_t i = 0;; ++i) {
    int epoch = 0;
    slots.clear();
    headers.clear();
    in_memory.clear();
    {
      MutexLock lock(mutex_);
      if (i >= file_of_unit_.size()) return OkStatus();
      epoch = EnterEpoch();
      const uint32_t first = static_cast<uint32_t>(i) << unit_shift_;
      for (uint32_t location = first; location < first + (1u << unit_shift_); ++location) {
        if (!IsHeld(location)) continue;
        slots.emplace_back(location, SlotOf(location));
        in_memory.push_back(*VolatileOf(location));
      }
    }
    for (const auto& [location, slot] : slots) headers.push_back(slot.file->ReadHeader(slot.index));
    {
      MutexLock lock(mutex_);
      LeaveEpoch(epoch);
    }
    for (size_t k = 0; k < slots.size(); ++k) {
      headers[k].below = in_memory[k].below;
      headers[k].recency = in_memory[k].recency;
      headers[k].flags = in_memory[k].flags;
      MT_RETURN_IF_ERROR(visit(headers[k], slots[k].first));
    }
  }
}

uint64_t PmemTier::location_end() const {
  MutexLock lock(mutex_);
  return static_cast<uint64_t>(file_of_unit_.size()) << unit_shift_;
}

Status PmemTier::Sync() {
  MT_RETURN_IF_ERROR(CheckProcess());
  std::vector<std::shared_ptr<PmemFile>> files;
  {
    MutexLock lock(mutex_);
    for (const File& file : files_) {
      if (file.pmem != nullptr) files.push_back(file.pmem);
    }
  }
  for (const auto& file : files) MT_RETURN_IF_ERROR(file->Sync());
  return OkStatus();
}

TierStats PmemTier::stats() const {
  TierStats stats;
  MutexLock lock(mutex_);
  stats.rows = rows_;
  stats.row_bytes = layout_ == nullptr ? 0 : rows_ * static_cast<int64_t>(layout_->row_bytes());
  for (const File& file : files_) {
    if (file.pmem == nullptr) continue;
    (file.pmem->is_pmem() ? stats.resident_bytes : stats.stored_bytes) += static_cast<int64_t>(file.pmem->bytes());
    stats.resident_bytes += static_cast<int64_t>(file.held.size() * sizeof(file.held[0]));
    stats.resident_bytes += static_cast<int64_t>(file.in_memory.size() * sizeof(file.in_memory[0]));
  }
  const size_t words = file_of_unit_.capacity() + free_.capacity() + limbo_[0].capacity() + limbo_[1].capacity();
  stats.resident_bytes += static_cast<int64_t>(words * sizeof(uint32_t));
  return stats;
}

}  // namespace multitier
