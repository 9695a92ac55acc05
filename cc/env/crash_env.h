// CrashEnv: an InMemoryEnv that simulates crashes. At random moments it copies the files as a crash would leave them. Test
// only.
//
//   the process dies   All calls that returned have happened, and maybe the first part of a running write. Nothing more is
//                      synced.
//   the power is lost  Everything that was synced is there. Of the rest, any part may be there: each sector of a file, its
//                      size, and each entry that was made, renamed or deleted since its directory was synced (the name has the
//                      old or the new file).
//
// A copy is taken before about one of `every` calls that change something. All other calls wait meanwhile. A copy includes what
// recovery may find in it (CrashHistory). A random sample of the copies is kept. The next CrashEnv can begin with the files of
// one copy. Calls are delayed at random. It simulates one directory. A file that is not positioned counts as synced.
//
//   CrashHistory history;
//   CrashEnv env("d", crash.files, seed, &history);
//   ... operations on files in "d": history.Begin before each; history.Acknowledge after a call that makes them durable
//   for (const Crash& crash : env.Take()) ...  // recover from crash.files, then check crash.Allows(key, state that was found)

#ifndef CC_ENV_CRASH_ENV_H_
#define CC_ENV_CRASH_ENV_H_

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/env/memory_env.h"

namespace multitier {

// The states in which recovery may find each key after a crash. A state is a number; 0 means that the key is absent.
// Thread-safe.
class CrashHistory {
 public:
  using States = std::map<int64_t, int64_t>;

  CrashHistory() = default;
  CrashHistory(const CrashHistory& other) { *this = other; }
  CrashHistory& operator=(const CrashHistory& other);

  // An operation that puts the key into this state begins.
  void Begin(int64_t key, int64_t state);
  // All keys are durable in these states. Recovery must find these states or later ones.
  void Acknowledge(const States& states);
  // Recovery found these states, so they count as acknowledged. If only the process had died, they may still be lost with the
  // power.
  void Found(const States& states, bool power_lost);

  bool Allows(int64_t key, int64_t state, bool power_lost) const;
  int64_t Known(int64_t key, bool power_lost) const;

 private:
  struct Possible {
    States known;
    std::map<int64_t, std::set<int64_t>> later;  // states whose operations began since
  };
  mutable Mutex mutex_;
  Possible died_ MT_GUARDED_BY(mutex_), power_ MT_GUARDED_BY(mutex_);
};

struct Crash {
  // A file after the crash.
  struct File {
    std::string bytes;          // what the next process reads, if `there`
    std::string synced;         // what the next loss of power leaves
    bool there = true;          // false: deleted, and the directory was not synced since
    bool entry_synced = false;  // the synced directory has this file
    bool replaces = false;      // renamed over a file that the synced directory still has
    std::string replaced;       // the bytes of that file after the next loss of power
  };
  bool power_lost = false;
  CrashHistory history;
  std::map<std::string, File> files;  // by path

  bool Allows(int64_t key, int64_t state) const { return history.Allows(key, state, power_lost); }
  int64_t Known(int64_t key) const { return history.Known(key, power_lost); }
  // Writes the files that a new process finds into an empty env.
  Status CopyTo(InMemoryEnv* env, const std::string& directory) const;
};

// The number of rounds of a crash test: $MT_CRASH_ROUNDS if set, else `under_stress` if $TF_MULTITIER_STRESS is 1, else `few`.
int CrashRounds(int few, int under_stress);
// The seed of a crash test: $MT_CRASH_SEED if set, else random. It is printed, so that a run can be repeated.
uint64_t CrashSeed();

class CrashEnv : public InMemoryEnv {
 public:
  // files: the files of an earlier crash. every: see above. most: maximal number of copies kept. *history must outlive this
  // object.
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
  // Maybe takes a copy, and maybe sleeps. Returns a random number.
  uint64_t MayCrash(uint64_t most_micros);
  void Leave(bool power_lost, std::map<std::string, Crash::File>* files);
  // The bytes that a loss of power leaves of a file that was written since its last sync.
  std::string Survivor(const std::string& now, const std::string& synced);

  const std::string directory_;
  const CrashHistory* const history_;
  const uint64_t every_;
  const size_t most_;
  std::shared_mutex mutex_;  // held shared by calls that change bytes; guards all members below
  std::mt19937_64 random_;
  std::vector<Crash> crashes_;
  uint64_t moments_ = 0;  // number of copies taken; crashes_ is a sample of them
  std::map<std::string, std::shared_ptr<File>> names_, synced_names_;
  uint64_t dir_syncs_ = 0, dir_synced_by_ = 0;  // see the members of File
};

}  // namespace multitier

#endif  // CC_ENV_CRASH_ENV_H_
