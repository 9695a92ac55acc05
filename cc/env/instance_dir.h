// InstanceDirectory: the directory of one live table under a storage path that many share.
//
//   <storage path>/<encoded name>/instance-<pid>-<number>/
//       instance.lock                             POSIX record lock, held while the owner lives
//       instance.claim-<pid>-<start>-<boot id>    made and locked with flock before a process opens the lock file, removed
//       after it
//                                                 has closed it
//       instance.keep                             present: stays when its owner goes, and is no leftover
//       ...                                       the tiers' files; names that begin with "instance." are ours
//
// Train and eval sessions, several processes and several partitions name the same storage path, and even the same table:
// each gets its own instance. Life of one:
//   1. Create      makes the directory and locks it, then removes leftovers: instances of the same name that nobody holds
//   2. the tiers keep their files in path()
//   3. destroyed   removes the directory, and that of the name if it was the last, unless `keep`
//   4. killed      the kernel drops the lock, and the next Create of that name removes the files; Open takes them over
//
// A record lock belongs to a process: it is granted again to whoever in the process asks, and gone once the process closes any
// descriptor of the file. So a process never opens a lock file twice, and since this code may be in it twice (two shared
// objects, neither knows of the other), what says so is a file: the claim, which one at a time holds locked. The lock alone
// tells processes apart; a claim outlives a process that is killed and then means nothing, as its name says whose it was, and
// so does one that nobody holds because it could not be removed. Neither is inherited: in a forked child the object does
// nothing and holds nothing, and the child may create instances of its own.
//
// Does not bound the bytes below it. Only a kept instance's own name is synced: others are a cache of their process.
//
// Thread-safe: all static methods; of an object path().

#ifndef CC_ENV_INSTANCE_DIR_H_
#define CC_ENV_INSTANCE_DIR_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "cc/base/status.h"

namespace multitier {

class InstanceDirectory {
 public:
  // A new, empty instance of the table `name`. A relative path, here and of Open, is one below the directory that the process
  // works in now. The storage path is made where its parent exists. A leftover that cannot be
  // removed does not fail the call: see leftovers_status(). One clear error where the storage path's parent is missing
  // (NotFound), the path is no directory (InvalidArgument), may not be written (PermissionDenied) or is full.
  static Result<std::unique_ptr<InstanceDirectory>> Create(const std::string& storage_path, const std::string& name,
                                                           bool keep);
  // The directory of the name, below which Create makes instances.
  static std::string PathOfName(const std::string& storage_path, const std::string& name);
  // Takes over the instance at `path`, whose owner is gone. NotFound where there is none; FailedPrecondition naming the
  // process that holds it. `keep`: whether it stays when the object goes; if this process dies before SetKeep it is what
  // it was: kept, or a leftover.
  static Result<std::unique_ptr<InstanceDirectory>> Open(const std::string& path, bool keep);

  // Removes the directory, unless it is kept. Does nothing in a forked child.
  ~InstanceDirectory();
  InstanceDirectory(const InstanceDirectory&) = delete;
  InstanceDirectory& operator=(const InstanceDirectory&) = delete;

  // Whether the files stay from now on: when the object goes, and when this process dies.
  Status SetKeep(bool keep);

  const std::string& path() const { return path_; }
  int64_t leftovers_removed() const { return leftovers_removed_; }
  // The first leftover that could not be removed, and why; OK where all could.
  const Status& leftovers_status() const { return leftovers_status_; }

 private:
  InstanceDirectory(std::string path, std::string process, bool keep, int lock_fd, int claim_fd);

  // Removes what dead instances left in the directory of a name.
  void RemoveLeftovers(const std::string& name_path);

  const std::string path_;
  const std::string process_;  // of the claim
  bool keep_;
  const int lock_fd_, claim_fd_;
  const pid_t pid_;
  int64_t leftovers_removed_ = 0;
  Status leftovers_status_;
};

// The name as one file name: all but letters, digits, '_' and '-' become %XX; empty: "%". One longer than a file name may
// be is cut, and ends in '~' and a hash of the whole.
std::string EncodeInstanceName(const std::string& name);

// Removes a directory and everything below it; OK where it does not exist. Symbolic links are removed, not followed.
Status RemoveDirectoryTree(const std::string& path);

}  // namespace multitier

#endif  // CC_ENV_INSTANCE_DIR_H_
