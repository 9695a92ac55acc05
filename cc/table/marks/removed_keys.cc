#include "cc/table/marks/removed_keys.h"

#include <algorithm>
#include <utility>

#include "cc/base/can_allocate.h"

namespace multitier {
namespace {

constexpr size_t kReadEntries = 4096;

}  // namespace

void RemovedKeys::Note(int64_t key) {
  if (most_ == 0) return;
  MutexLock lock(mutex_);
  const bool spills = spills_.load(std::memory_order_relaxed);
  if (!spills && entries_.size() - first_ >= most_) {
    ForgetUpTo(entries_[first_].version);
    ++first_;
    if (first_ > most_ / 4) {  // their memory is used again, in one move for many
      entries_.erase(entries_.begin(), entries_.begin() + static_cast<ptrdiff_t>(first_));
      first_ = 0;
    }
  }
  entries_.push_back(Entry{key, newest_version_.load()});
  if (spills && entries_.size() - first_ >= (most_ + 1) / 2) due_.store(true, std::memory_order_relaxed);
}

void RemovedKeys::ForgetUpTo(int64_t version) { forgotten_ = std::max(forgotten_, version); }

void RemovedKeys::Forget() {
  std::shared_ptr<PositionedFile> closed;  // outside of the locks: that may take long
  MutexLock file_lock(file_mutex_);
  MutexLock lock(mutex_);
  entries_.clear();
  first_ = 0;
  ForgetUpTo(newest_version_.load());
  closed = std::move(file_);
  file_ = nullptr;
  file_bytes_ = 0;
  lock.Unlock();
  file_lock.Unlock();
}

void RemovedKeys::SpillNow() {
  MutexLock file_lock(file_mutex_);
  std::vector<Entry> spilled;
  {
    MutexLock lock(mutex_);
    due_.store(false, std::memory_order_relaxed);
    if (!spills_.load(std::memory_order_relaxed)) return;
    entries_.erase(entries_.begin(), entries_.begin() + static_cast<ptrdiff_t>(std::exchange(first_, 0)));
    spilled.swap(entries_);
  }
  if (spilled.empty() || Append(spilled).ok()) return;
  file_ = nullptr;
  file_bytes_ = 0;
  MutexLock lock(mutex_);
  spills_.store(false, std::memory_order_relaxed);
  ForgetUpTo(spilled.back().version);
}

Status RemovedKeys::Append(const std::vector<Entry>& entries) {
  if (file_ == nullptr) {
    const std::string path = folder_ + "/removed_keys";
    (void)env_->DeleteFile(path);  // of a process that died between the next two calls
    MT_ASSIGN_OR_RETURN(file_, env_->OpenPositionedFile(path, Env::OpenMode::kCreate, /*direct=*/false));
    MT_RETURN_IF_ERROR(env_->DeleteFile(path));
  }
  const size_t bytes = entries.size() * sizeof(Entry);
  MT_RETURN_IF_ERROR(file_->Write(static_cast<uint64_t>(file_bytes_), entries.data(), bytes));
  file_bytes_ += static_cast<int64_t>(bytes);
  return OkStatus();
}

Result<std::vector<int64_t>> RemovedKeys::Since(int64_t version) {
  if (most_ == 0)
    return FailedPreconditionError("removed keys: expected removed_bytes of at least ", sizeof(Entry), ", found less");
  std::shared_ptr<PositionedFile> file;
  std::vector<Entry> in_memory;
  uint64_t in_file = 0;
  {
    MutexLock file_lock(file_mutex_);
    MutexLock lock(mutex_);
    if (forgotten_ != kNothingForgotten && version <= forgotten_) {
      return FailedPreconditionError("keys removed since version ", version, ": expected a version above ", forgotten_,
                                     ": older removals are not known any more");
    }
    file = file_;
    in_file = static_cast<uint64_t>(file_bytes_) / sizeof(Entry);
    in_memory.assign(entries_.begin() + static_cast<ptrdiff_t>(first_), entries_.end());
  }
  // Entry i of both, the file's first.
  const auto entry_at = [&](uint64_t i) -> Result<Entry> {
    if (i >= in_file) return in_memory[i - in_file];
    Entry entry;
    MT_RETURN_IF_ERROR(file->Read(i * sizeof(Entry), sizeof(Entry), &entry));
    return entry;
  };
  const uint64_t n = in_file + in_memory.size();
  // The first entry of this version or a newer one.
  const auto first_of = [&](int64_t least) -> Result<uint64_t> {
    uint64_t from = 0;
    for (uint64_t end = n; from < end;) {
      const uint64_t middle = from + (end - from) / 2;
      MT_ASSIGN_OR_RETURN(const Entry entry, entry_at(middle));
      entry.version < least ? from = middle + 1 : end = middle;
    }
    return from;
  };
  MT_ASSIGN_OR_RETURN(uint64_t from, first_of(version));
  if (from > 0) {
    MT_ASSIGN_OR_RETURN(const Entry before, entry_at(from - 1));
    MT_ASSIGN_OR_RETURN(from, first_of(before.version));
  }
  const size_t bytes = (n - from) * sizeof(int64_t);
  if (!CanAllocate(bytes)) {
    return ResourceExhaustedError("keys removed since version ", version, ": no memory for ", bytes, " bytes");
  }
  std::vector<int64_t> keys;
  keys.reserve(n - from);
  std::vector<Entry> entries;
  for (; from < in_file; from += entries.size()) {
    entries.resize(std::min<uint64_t>(kReadEntries, in_file - from));
    MT_RETURN_IF_ERROR(file->Read(from * sizeof(Entry), entries.size() * sizeof(Entry), entries.data()));
    for (const Entry& entry : entries) keys.push_back(entry.key);
  }
  for (; from < n; ++from) keys.push_back(in_memory[from - in_file].key);
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

}  // namespace multitier
