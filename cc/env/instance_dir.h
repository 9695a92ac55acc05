// InstanceDirectory: the directory of one live table below a storage path that many tables may share.
//
//   <storage path>/<encoded name>/instance-<pid>-<number>/
//       instance.lock                             POSIX record lock, held while the owner lives
//       instance.claim-<pid>-<start>-<boot id>    made and locked with flock before a process opens the lock file, removed
//                                                 after the process has closed the lock file
//       instance.keep                             if it exists, the instance stays when its owner ends, and is not a leftover
//       ...                                       the tiers' files; names that begin with "instance." are reserved
//
// Train and eval sessions, several processes and several partitions may use the same storage path, and even the same table
// name. Each has its own instance. Life of an instance:
//   1. Create      makes the directory and locks it, then removes leftovers: instances of the same name that no process holds
//   2. in use      the tiers keep their files in path()
//   3. destroyed   removes the directory, and the directory of the name if it was the last instance, unless `keep`
//   4. killed      the kernel releases the lock. The next Create of that name removes the files, or Open takes them over
//
// instance_lock.h has the locking protocol. No lock is inherited: in a forked child the object does nothing and holds nothing;
// the child may create its own instances.
//
// This class does not bound the bytes in the directory. It syncs only the entry of a kept instance; others are a cache of their
// process.
//
// Thread-safe: all static methods, and path().

#ifndef CC_ENV_INSTANCE_DIR_H_
#define CC_ENV_INSTANCE_DIR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cc/base/status.h"
#include "cc/env/directories.h"
#include "cc/env/instance_lock.h"

namespace multitier {

class InstanceDirectory {
 public:
  // Makes a new, empty instance of the table `name`. A relative path, here and in Open, starts at the current working
  // directory. The storage path is created if its parent exists. A leftover that cannot be removed does not fail the call: see
  // leftovers_status(). Errors: NotFound if the parent of the storage path is missing, InvalidArgument if the path is not a
  // directory, PermissionDenied if this process cannot write to it, ResourceExhausted if it is full.
  static Result<std::unique_ptr<InstanceDirectory>> Create(const std::string& storage_path, const std::string& name, bool keep);
  // The directory of the name, in which Create makes instances.
  static std::string PathOfName(const std::string& storage_path, const std::string& name);
  // Takes over the instance at `path` of a process that has ended. NotFound if there is no instance. FailedPrecondition if a
  // process holds it; the message names the process. keep: whether the directory stays when this object is destroyed. If this
  // process dies before SetKeep, the instance stays what it was: kept, or a leftover.
  static Result<std::unique_ptr<InstanceDirectory>> Open(const std::string& path, bool keep);

  // A kept instance, for reading: the object holds no lock, and neither it nor its destructor changes anything. CheckUnused as
  // below. A process may take the instance over at any time afterwards: files that it deletes can be read as long as they are
  // open.
  static Result<std::unique_ptr<InstanceDirectory>> OpenForReading(const std::string& path);
  // FailedPrecondition, naming the process, if a process holds the instance at `path`. NotFound if there is no instance.
  static Status CheckUnused(const std::string& path);

  // Removes the directory, unless it is kept or was opened for reading. Does nothing in a forked child.
  ~InstanceDirectory();
  InstanceDirectory(const InstanceDirectory&) = delete;
  InstanceDirectory& operator=(const InstanceDirectory&) = delete;

  // Sets whether the files stay when this object is destroyed, and when this process dies. REQUIRES: not opened for reading
  Status SetKeep(bool keep);

  const std::string& path() const { return path_; }
  int64_t leftovers_removed() const { return leftovers_removed_; }
  // The error for the first leftover that could not be removed; OK if all were removed.
  const Status& leftovers_status() const { return leftovers_status_; }

 private:
  InstanceDirectory(std::string path, bool keep, std::optional<InstanceLock> lock);

  // Removes the leftovers in the directory of a name.
  void RemoveLeftovers(const std::string& name_path);

  const std::string path_;
  bool keep_;
  std::optional<InstanceLock> lock_;  // empty: opened for reading
  int64_t leftovers_removed_ = 0;
  Status leftovers_status_;
};

// Encodes a name as one file name. All characters except letters, digits, '_' and '-' become %XX. An empty name becomes "%". A
// name that is too long is cut and ends with '~' and a hash of the whole name.
std::string EncodeInstanceName(const std::string& name);

}  // namespace multitier

#endif  // CC_ENV_INSTANCE_DIR_H_
