#include "cc/table/removed_keys.h"

#include <algorithm>
#include <utility>

namespace multitier {
namespace {

constexpr size_t kReadEntries = 4096;

}  // namespace

void RemovedKeys::Note(int64_t key) {
  if (most_ == 0) return;
  MutexLock lock(mutex_);
  if (entries_.size() - first_ >= most_) {
    ForgetUpTo(entries_[first_].version);
    ++first_;
    if (first_ > most_) {  // their memory is used again, in one move for many
      entries_.erase(entries_.begin(), entries_.begin() + static_cast<ptrdiff_t>(first_));
      first_ = 0;
    }
  }
  entries_.push_back(Entry{key, newest_version_.load()});
  if (!folder_.empty() && entries_.size() - first_ >= (most_ + 1) / 2) due_.store(true, std::memory_order_relaxed);
}

void RemovedKeys::ForgetUpTo(int64_t version) { forgotten_ = std::max(forgotten_, version); }

void RemovedKeys::Forget() {
  MutexLock file_lock(file_mutex_);
  MutexLock lock(mutex_);
  entries_.clear();
  first_ = 0;
  ForgetUpTo(newest_version_.load());
  file_ = nullptr;
  file_bytes_ = 0;
}

void RemovedKeys::SpillNow() {
  MutexLock file_lock(file_mutex_);
  std::vector<Entry> spilled;
  {
    MutexLock lock(mutex_);
    due_.store(false, std::memory_order_relaxed);
    entries_.erase(entries_.begin(), entries_.begin() + static_cast<ptrdiff_t>(std::exchange(first_, 0)));
    if (failed_) return;  // the memory keeps the newest
    spilled.swap(entries_);
  }
  if (spilled.empty() || Append(spilled).ok()) return;
  failed_ = true;
  MutexLock lock(mutex_);
  ForgetUpTo(spilled.back().version);
}

Status RemovedKeys::Append(const std::vector<Entry>& entries) {
  if (file_ == nullptr) {
    const std::string path = folder_ + "/removed_keys";
    MT_ASSIGN_OR_RETURN(file_, env_->OpenPositionedFile(path, Env::OpenMode::kCreate, /*direct=*/false));
    const Status unnamed = env_->DeleteFile(path);
    if (!unnamed.ok()) {
      file_ = nullptr;
      return unnamed;
    }
  }
  const size_t bytes = entries.size() * sizeof(Entry);
  MT_RETURN_IF_ERROR(file_->Write(static_cast<uint64_t>(file_bytes_), entries.data(), bytes));
  file_bytes_ += static_cast<int64_t>(bytes);
  return OkStatus();
}

Status RemovedKeys::ReadSince(int64_t version, std::vector<int64_t>* keys) {
  if (file_ == nullptr) return OkStatus();
  const auto entry_at = [&](uint64_t i) MT_NO_THREAD_SAFETY_ANALYSIS -> Result<Entry> {  // called with the file's mutex held
    Entry entry;
    MT_RETURN_IF_ERROR(file_->Read(i * sizeof(Entry), sizeof(Entry), &entry));
    return entry;
  };
  const auto n = static_cast<uint64_t>(file_bytes_) / sizeof(Entry);
  uint64_t from = 0;
  for (uint64_t end = n; from < end;) {  // the first entry of the version or a newer one
    const uint64_t middle = from + (end - from) / 2;
    MT_ASSIGN_OR_RETURN(const Entry entry, entry_at(middle));
    entry.version < version ? from = middle + 1 : end = middle;
  }
  std::vector<Entry> entries;
  for (; from < n; from += entries.size()) {
    entries.resize(std::min<uint64_t>(kReadEntries, n - from));
    MT_RETURN_IF_ERROR(file_->Read(from * sizeof(Entry), entries.size() * sizeof(Entry), entries.data()));
    for (const Entry& entry : entries) keys->push_back(entry.key);
  }
  return OkStatus();
}

Result<std::vector<int64_t>> RemovedKeys::Since(int64_t version) {
  if (most_ == 0) return FailedPreconditionError("removed keys: expected removed_bytes above 0, found 0");
  std::vector<int64_t> keys;
  {
    MutexLock file_lock(file_mutex_);
    int64_t forgotten;
    {
      MutexLock lock(mutex_);
      forgotten = forgotten_;
      for (size_t i = first_; i < entries_.size(); ++i) {
        if (entries_[i].version >= version) keys.push_back(entries_[i].key);
      }
    }
    if (forgotten != kNothingForgotten && version <= forgotten) {
      return FailedPreconditionError("keys removed since version ", version, ": expected a version above ", forgotten,
                                     ": older removals are not known any more");
    }
    MT_RETURN_IF_ERROR(ReadSince(version, &keys));
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

}  // namespace multitier
