// InstanceDirectory: the directory of one live table under a storage path that many share.
//
//   <storage path>/<encoded name>/instance-<pid>-<number>/
//       instance.lock     POSIX record lock, held while the owner lives
//       instance.keep     present: stays when its owner goes, and is no leftover
//       ...               the tiers' files; names that begin with "instance." are ours
//
// Train and eval sessions, several processes and several partitions name the same storage path, and even the same table:
// each gets its own instance. Life of one:
//   1. Create      makes the directory and locks it, then removes leftovers: instances of the same name that nobody holds
//   2. the tiers keep their files in path()
//   3. destroyed   removes the directory, and that of the name if it was the last, unless `keep`
//   4. killed      the kernel drops the lock, and the next Create of that name removes the files; Open takes them over
//
// A record lock belongs to a process and is gone once the process closes any descriptor of the file, so live instances of
// this process stand in a registry and their lock files are never opened twice. It is not inherited: in a forked child the
// object does nothing and holds nothing, and the child may create instances of its own.
//
// Does not bound the bytes below it, and does not sync: an instance is a cache of its process unless kept.
//
// Thread-safe: all static methods; an object is const but for its destructor.

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
  // A new, empty instance of the table `name`. The storage path is made where its parent exists. A leftover that cannot be
  // removed does not fail the call: see leftovers_status(). One clear error where the storage path's parent is missing
  // (NotFound), the path is no directory (InvalidArgument), may not be written (PermissionDenied) or is full.
  static Result<std::unique_ptr<InstanceDirectory>> Create(const std::string& storage_path, const std::string& name,
                                                           bool keep);
  // Takes over the instance at `path`, whose owner is gone. NotFound where there is none; FailedPrecondition naming the
  // process that holds it.
  static Result<std::unique_ptr<InstanceDirectory>> Open(const std::string& path, bool keep);

  // Removes the directory, unless it is kept. Does nothing in a forked child.
  ~InstanceDirectory();
  InstanceDirectory(const InstanceDirectory&) = delete;
  InstanceDirectory& operator=(const InstanceDirectory&) = delete;

  const std::string& path() const { return path_; }
  int64_t leftovers_removed() const { return leftovers_removed_; }
  // The first leftover that could not be removed, and why; OK where all could.
  const Status& leftovers_status() const { return leftovers_status_; }

 private:
  InstanceDirectory(std::string path, bool keep, int lock_fd);

  // Removes what dead instances left in the directory of a name.
  void RemoveLeftovers(const std::string& name_path);

  const std::string path_;
  const bool keep_;
  const int lock_fd_;
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
