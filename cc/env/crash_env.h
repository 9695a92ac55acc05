// CrashEnv: an InMemoryEnv that takes its time, and of which copies are taken at random moments: what a crash would leave. Test
// only.
//
//   the process dies   every call that returned has happened, and maybe the first part of a write; nothing is synced by that
//   the power is lost  what was synced is there; of the rest any part may be: each sector of a file, its size, each entry that
//                      was made, renamed or deleted since its directory was synced (a name then has the one file or the other)
//
// A copy is taken before one of `every` calls that change something, while all others wait, with what may be found in it
// (CrashHistory); a sample of them is kept. The next CrashEnv begins with what one of them left. Of one directory; a file that is not positioned counts
// as synced.
//
//   CrashHistory history;
//   CrashEnv env("d", crash.files, seed, &history);
//   ... operations on something in "d": history.Begin before each, history.Acknowledge after what makes them durable
//   for (const Crash& crash : env.Take()) ...  // what recovers from crash.files: crash.Allows(key, what is found)

#ifndef CC_ENV_CRASH_ENV_H_
#define CC_ENV_CRASH_ENV_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "cc/env/memory_env.h"

namespace multitier {

// What may be found after a crash: of each key a number that says which of its states, 0 for none. Thread-safe.
class CrashHistory {
 public:
  using States = std::map<int64_t, int64_t>;

  CrashHistory() = default;
  CrashHistory(const CrashHistory& other) { *this = other; }
  CrashHistory& operator=(const CrashHistory& other);

  // The key is about to get to the state.
  void Begin(int64_t key, int64_t state);
  // All keys are in these states, and will be found in them, or later ones.
  void Acknowledge(const States& states);
  // Recovery found these: acknowledged, but for a loss of power if what died was the process alone.
  void Found(const States& states, bool power_lost);

  bool Allows(int64_t key, int64_t state, bool power_lost) const;
  int64_t Known(int64_t key, bool power_lost) const;

 private:
  struct Possible {
    States known;
    std::map<int64_t, std::set<int64_t>> later;  // begun since
  };
  mutable std::mutex mutex_;
  Possible died_, power_;  // guarded by mutex_
};

struct Crash {
  // A file after it.
  struct File {
    std::string bytes;          // that the next process finds, where it is there
    std::string synced;         // that the next loss of power leaves
    bool there = true;          // or deleted, its directory not synced since
    bool entry_synced = false;  // it is in the directory as that was synced
    bool replaces = false;      // renamed over a file that is still in the directory as that was synced
    std::string replaced;       // that one, as the next loss of power leaves it
  };
  bool power_lost = false;
  CrashHistory history;
  std::map<std::string, File> files;  // by path

  bool Allows(int64_t key, int64_t state) const { return history.Allows(key, state, power_lost); }
  int64_t Known(int64_t key) const { return history.Known(key, power_lost); }
  // Puts what a new process finds into an empty env.
  Status CopyTo(InMemoryEnv* env, const std::string& directory) const;
};

// How many rounds of crashes a test has: $MT_CRASH_ROUNDS, else `under_stress` where $TF_MULTITIER_STRESS is 1, else `few`.
int CrashRounds(int few, int under_stress);
// What a test draws its rounds from: $MT_CRASH_SEED, else random. Printed, so that it can be asked for.
uint64_t CrashSeed();

class CrashEnv : public InMemoryEnv {
 public:
  // `files`: of a crash before. At most `most` copies are kept. *history must outlive this object.
  CrashEnv(std::string directory, const std::map<std::string, Crash::File>& files, uint64_t seed, const CrashHistory* history,
           uint64_t every = 30, size_t most = 25);

  // The copies taken so far.
  std::vector<Crash> Take();

  Result<std::unique_ptr<PositionedFile>> OpenPositionedFile(const std::string& path, OpenMode mode, bool direct) override;
  Status DeleteFile(const std::string& path) override;
  Status RenameFile(const std::string& from, const std::string& to) override;
  Status SyncDir(const std::string& path) override;

 private:
  class Handle;
  struct File;

  std::shared_ptr<File> NewFile(const std::string& path);
  // Maybe takes a copy, maybe takes its time. A random number.
  uint64_t MayCrash(uint64_t most_micros);
  void Leave(bool power_lost, std::map<std::string, Crash::File>* files);
  // What a loss of power leaves of a file that was written since it was synced.
  std::string Survivor(const std::string& now, const std::string& synced);

  const std::string directory_;
  const CrashHistory* const history_;
  const uint64_t every_;
  const size_t most_;
  std::shared_mutex mutex_;  // shared by what changes bytes; guards all below
  std::mt19937_64 random_;
  std::vector<Crash> crashes_;
  uint64_t moments_ = 0;  // of which crashes_ is a sample
  std::map<std::string, std::shared_ptr<File>> names_, synced_names_;
  uint64_t dir_syncs_ = 0, dir_synced_by_ = 0;  // as those of a file
};

}  // namespace multitier

#endif  // CC_ENV_CRASH_ENV_H_
