// SyncedList: the file "synced.list" in the directory of a kept LevelDB: how much of its logs and its manifest was on the disk
// at the last Sync (docs/formats/leveldb.md). LevelDB takes a log that is missing, or ends early, for one that was never
// written; recovery holds the files against the list first, so that it is an error that names the file.
//
// What is checked here, since LevelDB does not:
//   CURRENT    names a manifest that is there and not older than the list's
//   manifest   begins with the bytes that were synced. A newer one, of another program or of an opening that died, is taken as
//              it is
//   logs       those that the manifest still needs are there, and begin with the bytes that were synced
//   tables     those that the manifest names are there, have its length, and begin and end with its keys: not swapped
// All else LevelDB's own checksums find when recovery reads every row.
//
// The list is written after the database was opened, which begins a new manifest, and by each Sync (slot_file.h). Between two
// lists a file only grows, or is deleted once the manifest does not need it, so a crash at any point causes no false error. A
// database that repair made anew from what it found has an older manifest and a folder "lost": its files are taken as they are.
//
// Not thread-safe: guarded by the database's write_mutex.

#ifndef CC_TIER_LEVELDB_SYNCED_LIST_H_
#define CC_TIER_LEVELDB_SYNCED_LIST_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/env/slot_file.h"
#include "cc/tier/leveldb/leveldb_disk.h"
#include "cc/tier/leveldb/leveldb_env.h"
#include "cc/tier/leveldb/leveldb_manifest.h"
#include "cc/tier/tier.h"
#include "leveldb/iterator.h"

namespace multitier {

class SyncedList {
 public:
  // Keeps `disk`.
  SyncedList(LevelDbDisk* disk, std::string directory);

  // Holds the directory against its list. DataLoss naming the file that is not as it was; also where the list is damaged.
  // *counts receives files and listed files. Without a list nothing is checked: see found().
  Status Check(TierRecovery* counts);
  // Whether Check found a list, or that the database was repaired, for which a damaged list is deleted.
  bool found() const { return found_; }
  // Reads all table files: DataLoss naming the first with a bad block. For an error that does not name it.
  Status FindDamagedTable() const;
  // Writes what the disk knows as synced; OK: it survives a loss of power. Unavailable naming a log that is not synced.
  Status Write();
  const std::string& path() const { return file_.path(); }

 private:
  Result<bool> IsRepaired() const;
  Status Load(std::vector<SyncedFile>* files) const;
  Status CheckBytes(const SyncedFile& file) const;
  Status CheckTables(const std::map<uint64_t, LevelDbManifest::Table>& tables) const;
  // DataLoss naming the file, with what `read` says is wrong (null: nothing), or LevelDB does.
  Status ReadTable(const std::string& path, uint64_t bytes, const std::function<const char*(leveldb::Iterator*)>& read) const;

  LevelDbDisk* const disk_;
  mutable LevelDbEnv env_;  // reads table files; starts no thread
  const std::string directory_;
  SlotFile file_;
  bool found_ = false;
};

}  // namespace multitier

#endif  // CC_TIER_LEVELDB_SYNCED_LIST_H_
