// CrashEnv: an InMemoryEnv that takes its time, and of which copies are taken at random moments: what a crash would leave. Test
// only.
//
//   the process dies   every call that returned has happened, no other has; nothing is synced by that
//   the power is lost  what was synced is there; of the rest any part may be: each sector of a file, its size, each entry that
//                      was made or deleted since its directory was synced
//
// A copy is taken before one of `every` calls that change something, while all others wait; `observe` says what must be found
// in it. The next CrashEnv begins with what one of them left. Of directory `directory`; a file that is not positioned counts
// as synced.

#ifndef CC_TIER_SSDHASH_CRASH_ENV_H_
#define CC_TIER_SSDHASH_CRASH_ENV_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/env/memory_env.h"

namespace multitier {

// A file after a crash.
struct LeftFile {
  std::string bytes;          // that the next process finds, where it is there
  std::string synced;         // that the next loss of power leaves
  bool there = true;          // or deleted, its directory not synced since
  bool entry_synced = false;  // it is in the directory as that was synced
};

template <typename Observed>
struct Crash {
  bool power_lost = false;
  Observed observed;
  std::map<std::string, LeftFile> files;  // by path
};

template <typename Observed>
class CrashEnv : public InMemoryEnv {
 public:
  struct Rate {
    uint64_t every = 30;
    size_t most = 25;  // copies
  };

  CrashEnv(std::string directory, const std::map<std::string, LeftFile>& files, uint64_t seed, Rate rate,
           std::function<Observed()> observe)
      : directory_(std::move(directory)), random_(seed), rate_(rate), observe_(std::move(observe)) {
    EXPECT_TRUE(CreateDir(directory_).ok());
    for (const auto& [path, left] : files) {
      EXPECT_TRUE((*NewWritableFile(path))->Append(left.bytes.data(), left.bytes.size()).ok());
      const std::shared_ptr<File> file = NewFile(path);
      file->synced = left.synced;
      if (left.there) names_[path] = file;
      if (left.entry_synced) synced_names_[path] = file;
      EXPECT_TRUE(left.there || InMemoryEnv::DeleteFile(path).ok());
    }
  }

  // What was taken since the last time.
  std::vector<Crash<Observed>> Take() {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    return std::exchange(crashes_, {});
  }

  Result<std::unique_ptr<PositionedFile>> OpenPositionedFile(const std::string& path, OpenMode mode, bool direct) override {
    if (mode == OpenMode::kCreate) MayCrash(0);
    std::unique_lock<std::shared_mutex> lock(mutex_);
    MT_ASSIGN_OR_RETURN(std::unique_ptr<PositionedFile> file, InMemoryEnv::OpenPositionedFile(path, mode, direct));
    std::shared_ptr<File>& known = names_[path];
    if (known == nullptr) known = NewFile(path);
    return std::unique_ptr<PositionedFile>(new Handle(this, known, std::move(file)));
  }
  Status DeleteFile(const std::string& path) override {
    MayCrash(kSlowEntryMicros);
    std::unique_lock<std::shared_mutex> lock(mutex_);
    names_.erase(path);
    return InMemoryEnv::DeleteFile(path);
  }
  Status SyncDir(const std::string& path) override {
    MayCrash(kSlowEntryMicros);
    std::unique_lock<std::shared_mutex> lock(mutex_);
    if (path == directory_) synced_names_ = names_;
    return InMemoryEnv::SyncDir(path);
  }

 private:
  static constexpr size_t kSectorBytes = 512;
  static constexpr uint64_t kSlowWriteMicros = 100, kSlowSyncMicros = 3000, kSlowEntryMicros = 500;

  struct File {
    std::unique_ptr<PositionedFile> now;  // for reading, when it is deleted, too
    // Guarded by mutex_.
    std::string synced;
    uint64_t syncs = 0, synced_by = 0;  // begun; the last begun of those that have ended

    std::string Bytes() const {
      std::string bytes(*now->Size(), '\0');
      EXPECT_TRUE(bytes.empty() || now->Read(0, bytes.size(), bytes.data()).ok());
      return bytes;
    }
  };

  class Handle : public PositionedFile {
   public:
    Handle(CrashEnv* env, std::shared_ptr<File> file, std::unique_ptr<PositionedFile> base)
        : env_(env), file_(std::move(file)), base_(std::move(base)) {}
    Status Write(uint64_t offset, const void* data, size_t bytes) override {
      env_->MayCrash(kSlowWriteMicros);
      std::shared_lock<std::shared_mutex> lock(env_->mutex_);
      return base_->Write(offset, data, bytes);
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

  std::shared_ptr<File> NewFile(const std::string& path) {
    auto file = std::make_shared<File>();
    file->now = *InMemoryEnv::OpenPositionedFile(path, OpenMode::kRead, false);
    return file;
  }

  // Maybe takes a copy, maybe takes its time.
  void MayCrash(uint64_t most_micros) {
    uint64_t micros = 0;
    {
      std::unique_lock<std::shared_mutex> lock(mutex_);
      if (most_micros > 0 && random_() % 3 == 0) micros = random_() % most_micros;
      if (crashes_.size() < rate_.most && random_() % rate_.every == 0) {
        Crash<Observed> crash;
        crash.power_lost = random_() % 2 == 0;
        crash.observed = observe_();
        Leave(crash.power_lost, &crash.files);
        crashes_.push_back(std::move(crash));
      }
    }
    if (micros > 0) SleepMicros(micros);
  }

  void Leave(bool power_lost, std::map<std::string, LeftFile>* files) {
    const std::vector<std::string> listed = *ListDir(directory_);
    for (const std::string& name : listed) {
      const std::string path = directory_ + "/" + name;
      if (names_.count(path) > 0) continue;
      const std::string bytes = NewFile(path)->Bytes();
      (*files)[path] = LeftFile{bytes, bytes, true, true};
    }
    std::map<std::string, std::shared_ptr<File>> either = names_;
    either.insert(synced_names_.begin(), synced_names_.end());
    for (const auto& [path, file] : either) {
      const bool there = names_.count(path) > 0, entry_synced = synced_names_.count(path) > 0;
      const std::string now = file->Bytes();
      if (!power_lost) {
        (*files)[path] = LeftFile{now, file->synced, there, entry_synced};
      } else if ((there && entry_synced) || random_() % 2 == 0) {
        const std::string bytes = Survivor(now, file->synced);
        (*files)[path] = LeftFile{bytes, bytes, true, true};
      }
    }
  }

  // Of a file that was written since it was synced.
  std::string Survivor(const std::string& now, const std::string& synced) {
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

  const std::string directory_;
  std::shared_mutex mutex_;  // shared by what changes bytes; guards all below
  std::mt19937_64 random_;
  const Rate rate_;
  const std::function<Observed()> observe_;
  std::vector<Crash<Observed>> crashes_;
  std::map<std::string, std::shared_ptr<File>> names_, synced_names_;
};

}  // namespace multitier

#endif  // CC_TIER_SSDHASH_CRASH_ENV_H_
