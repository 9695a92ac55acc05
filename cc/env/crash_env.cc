#include "cc/env/crash_env.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

namespace multitier {
namespace {

constexpr size_t kSectorBytes = 512;
constexpr uint64_t kSlowWriteMicros = 100, kSlowSyncMicros = 3000, kSlowEntryMicros = 500;

}  // namespace

// The analysis does not know a lock of two mutexes.
CrashHistory& CrashHistory::operator=(const CrashHistory& other) MT_NO_THREAD_SAFETY_ANALYSIS {
  if (this == &other) return *this;
  std::scoped_lock lock(mutex_, other.mutex_);
  died_ = other.died_;
  power_ = other.power_;
  return *this;
}

void CrashHistory::Begin(int64_t key, int64_t state) {
  MutexLock lock(mutex_);
  died_.later[key].insert(state);
  power_.later[key].insert(state);
}

void CrashHistory::Acknowledge(const States& states) { Found(states, true); }

void CrashHistory::Found(const States& states, bool power_lost) {
  MutexLock lock(mutex_);
  died_ = Possible{states, {}};
  if (power_lost) power_ = died_;
}

bool CrashHistory::Allows(int64_t key, int64_t state, bool power_lost) const {
  if (state == Known(key, power_lost)) return true;
  MutexLock lock(mutex_);
  const Possible& possible = power_lost ? power_ : died_;
  const auto later = possible.later.find(key);
  return later != possible.later.end() && later->second.count(state) > 0;
}

int64_t CrashHistory::Known(int64_t key, bool power_lost) const {
  MutexLock lock(mutex_);
  const Possible& possible = power_lost ? power_ : died_;
  const auto known = possible.known.find(key);
  return known == possible.known.end() ? 0 : known->second;
}

Status Crash::CopyTo(InMemoryEnv* env, const std::string& directory) const {
  MT_RETURN_IF_ERROR(env->CreateDir(directory));
  for (const auto& [path, file] : files) {
    if (!file.there) continue;
    MT_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> copy, env->NewWritableFile(path));
    MT_RETURN_IF_ERROR(copy->Append(file.bytes.data(), file.bytes.size()));
  }
  return OkStatus();
}

int CrashRounds(int few, int under_stress) {
  const char* text = std::getenv("MT_CRASH_ROUNDS");
  if (text != nullptr) return std::atoi(text);
  const char* stress = std::getenv("TF_MULTITIER_STRESS");
  return stress != nullptr && stress[0] == '1' ? under_stress : few;
}

uint64_t CrashSeed() {
  const char* text = std::getenv("MT_CRASH_SEED");
  const uint64_t seed = text == nullptr ? std::random_device()() : std::strtoull(text, nullptr, 10);
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

struct CrashEnv::File {
  std::unique_ptr<PositionedFile> now;  // for reading, when it is deleted, too
  // Guarded by CrashEnv::mutex_.
  std::string synced;
  uint64_t syncs = 0, synced_by = 0;  // begun; the last begun of those that have ended

  std::string Bytes() const {
    std::string bytes(*now->Size(), '\0');
    MT_CHECK(bytes.empty() || now->Read(0, bytes.size(), bytes.data()).ok());
    return bytes;
  }
};

class CrashEnv::Handle : public PositionedFile {
 public:
  Handle(CrashEnv* env, std::shared_ptr<File> file, std::unique_ptr<PositionedFile> base)
      : env_(env), file_(std::move(file)), base_(std::move(base)) {}
  Status Write(uint64_t offset, const void* data, size_t bytes) override {
    const auto* from = static_cast<const uint8_t*>(data);
    const size_t first = env_->MayCrash(kSlowWriteMicros) % (bytes / kSectorBytes + 1) * kSectorBytes;
    for (const auto& [begin, end] : {std::pair<size_t, size_t>(0, first), std::pair<size_t, size_t>(first, bytes)}) {
      if (begin == end) continue;
      if (begin > 0) env_->MayCrash(0);
      std::shared_lock<std::shared_mutex> lock(env_->mutex_);
      MT_RETURN_IF_ERROR(base_->Write(offset + begin, from + begin, end - begin));
    }
    return OkStatus();
  }
  Status Read(uint64_t offset, size_t bytes, void* out) const override { return base_->Read(offset, bytes, out); }
  // Of what was written when it began.
  Status Sync() override {
    std::string bytes;
    uint64_t begun = 0;
    {
      std::unique_lock<std::shared_mutex> lock(env_->mutex_);
      bytes = file_->Bytes();
      begun = ++file_->syncs;
    }
    env_->MayCrash(kSlowSyncMicros);
    std::unique_lock<std::shared_mutex> lock(env_->mutex_);
    if (begun > file_->synced_by) {
      file_->synced = std::move(bytes);
      file_->synced_by = begun;
    }
    return base_->Sync();
  }
  Status Allocate(uint64_t bytes) override {
    std::shared_lock<std::shared_mutex> lock(env_->mutex_);
    return base_->Allocate(bytes);
  }
  Status Truncate(uint64_t bytes) override {
    env_->MayCrash(kSlowWriteMicros);
    std::shared_lock<std::shared_mutex> lock(env_->mutex_);
    return base_->Truncate(bytes);
  }
  Result<uint64_t> Size() const override { return base_->Size(); }
  bool direct() const override { return base_->direct(); }

 private:
  CrashEnv* const env_;
  const std::shared_ptr<File> file_;
  const std::unique_ptr<PositionedFile> base_;
};

CrashEnv::CrashEnv(std::string directory, const std::map<std::string, Crash::File>& files, uint64_t seed,
                   const CrashHistory* history, uint64_t every, size_t most)
    : directory_(std::move(directory)), history_(history), every_(every), most_(most), random_(seed) {
  MT_CHECK(CreateDir(directory_).ok());
  for (const auto& [path, left] : files) {
    if (left.replaces) {
      MT_CHECK((*NewWritableFile(path))->Append(left.replaced.data(), left.replaced.size()).ok());
      synced_names_[path] = NewFile(path);
      synced_names_[path]->synced = left.replaced;
      MT_CHECK(InMemoryEnv::DeleteFile(path).ok());
    }
    MT_CHECK((*NewWritableFile(path))->Append(left.bytes.data(), left.bytes.size()).ok());
    const std::shared_ptr<File> file = NewFile(path);
    file->synced = left.synced;
    if (left.there) names_[path] = file;
    if (left.entry_synced) synced_names_[path] = file;
    MT_CHECK(left.there || InMemoryEnv::DeleteFile(path).ok());
  }
}

std::shared_ptr<CrashEnv::File> CrashEnv::NewFile(const std::string& path) {
  auto file = std::make_shared<File>();
  file->now = *InMemoryEnv::OpenPositionedFile(path, OpenMode::kRead, false);
  return file;
}

std::vector<Crash> CrashEnv::Take() {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  moments_ = 0;
  return std::exchange(crashes_, {});
}

Result<std::unique_ptr<PositionedFile>> CrashEnv::OpenPositionedFile(const std::string& path, OpenMode mode, bool direct) {
  if (mode == OpenMode::kCreate) MayCrash(0);
  std::unique_lock<std::shared_mutex> lock(mutex_);
  MT_ASSIGN_OR_RETURN(std::unique_ptr<PositionedFile> file, InMemoryEnv::OpenPositionedFile(path, mode, direct));
  std::shared_ptr<File>& known = names_[path];
  if (known == nullptr) known = NewFile(path);
  return std::unique_ptr<PositionedFile>(new Handle(this, known, std::move(file)));
}

Status CrashEnv::DeleteFile(const std::string& path) {
  MayCrash(kSlowEntryMicros);
  std::unique_lock<std::shared_mutex> lock(mutex_);
  names_.erase(path);
  return InMemoryEnv::DeleteFile(path);
}

Status CrashEnv::RenameFile(const std::string& from, const std::string& to) {
  MayCrash(kSlowEntryMicros);
  std::unique_lock<std::shared_mutex> lock(mutex_);
  const auto renamed = names_.find(from);
  if (renamed != names_.end()) {
    names_[to] = renamed->second;
    names_.erase(renamed);
  }
  return InMemoryEnv::RenameFile(from, to);
}

Status CrashEnv::SyncDir(const std::string& path) {
  std::map<std::string, std::shared_ptr<File>> names;
  uint64_t begun = 0;
  {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    names = names_;
    begun = ++dir_syncs_;
  }
  MayCrash(kSlowEntryMicros);
  std::unique_lock<std::shared_mutex> lock(mutex_);
  if (path == directory_ && begun > dir_synced_by_) {
    synced_names_ = std::move(names);
    dir_synced_by_ = begun;
  }
  return InMemoryEnv::SyncDir(path);
}

uint64_t CrashEnv::MayCrash(uint64_t most_micros) {
  uint64_t micros = 0, drawn = 0;
  {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    if (most_micros > 0 && random_() % 3 == 0) micros = random_() % most_micros;
    drawn = random_();
    // Reservoir sampling: every moment so far is kept with the same probability.
    const size_t place = crashes_.size() < most_ ? crashes_.size() : random_() % (moments_ + 1);
    if (random_() % every_ == 0 && (++moments_, place < most_)) {
      Crash crash;
      crash.power_lost = random_() % 2 == 0;
      crash.history = *history_;
      Leave(crash.power_lost, &crash.files);
      if (place == crashes_.size()) crashes_.emplace_back();
      crashes_[place] = std::move(crash);
    }
  }
  if (micros > 0) SleepMicros(micros);
  return drawn;
}

void CrashEnv::Leave(bool power_lost, std::map<std::string, Crash::File>* files) {
  const std::vector<std::string> listed = *ListDir(directory_);
  for (const std::string& name : listed) {
    const std::string path = directory_ + "/" + name;
    if (names_.count(path) > 0) continue;
    const std::string bytes = NewFile(path)->Bytes();
    (*files)[path] = Crash::File{bytes, bytes, true, true, false, ""};
  }
  std::map<std::string, std::shared_ptr<File>> either = names_;
  either.insert(synced_names_.begin(), synced_names_.end());
  for (auto [path, file] : either) {
    const bool there = names_.count(path) > 0;
    const auto synced = synced_names_.find(path);
    const bool entry_synced = synced != synced_names_.end() && synced->second == file;
    if (!power_lost) {
      Crash::File& left = (*files)[path] = Crash::File{file->Bytes(), file->synced, there, entry_synced, false, ""};
      left.replaces = synced != synced_names_.end() && !entry_synced;
      if (left.replaces) left.replaced = synced->second->synced;
      continue;
    }
    if (!(there && entry_synced) && random_() % 2 == 0) {
      if (entry_synced || synced == synced_names_.end()) continue;
      file = synced->second;  // which had that name before
    }
    const std::string bytes = Survivor(file->Bytes(), file->synced);
    (*files)[path] = Crash::File{bytes, bytes, true, true, false, ""};
  }
}

std::string CrashEnv::Survivor(const std::string& now, const std::string& synced) {
  std::string bytes = random_() % 2 == 0 ? now : synced;
  if (random_() % 2 == 0) return bytes;
  for (size_t at = 0; at < bytes.size(); at += kSectorBytes) {
    const std::string& from = random_() % 2 == 0 ? now : synced;
    const size_t sector = std::min(kSectorBytes, bytes.size() - at);
    std::string some = at < from.size() ? from.substr(at, sector) : std::string();
    some.resize(sector, '\0');
    bytes.replace(at, sector, some);
  }
  return bytes;
}

}  // namespace multitier
