// InstanceLock: this process holds the directory of one instance (instance_dir.h), so that no other owner uses or removes it.
//
// Each process has one claim file in an instance, locked with flock. A flock lock belongs to a descriptor, so only one owner
// within a process gets the claim, even if the process has loaded this code in two shared objects. The lock file excludes other
// processes. A claim file that could not be deleted is not locked; it only prevents the removal of its directory.
//
//   create   mkdir the instance, claim it, create and lock its lock file. Another process may meanwhile have removed the
//            directory, or hold the lock in order to remove it: then try another number.
//   open     claim the instance; fail if this process has a claim already, without opening anything. Open and lock the lock
//            file; check that it still has its name. From now on no process removes it. Delete claims of dead processes.
//   look     see whether a process holds an instance, without a lock: its own claim shows this process, F_GETLK shows others.
//            The lock file stays open until it is deleted: closing it would release a lock that this process took in the
//            meantime.
//   remove   open the instance (if it is a leftover); remove everything except the lock file and the claim; then remove the
//            lock file, close it, and remove the claim, the directory, and the name's directory if it is empty.
//
// Therefore an instance directory without a lock file contains at most claims, and any process may remove it. A claim of a
// live process prevents this; a later process then removes the directory.
//
// Why there is a claim. A record lock belongs to the process: the kernel grants it again to any code of the process, and
// releases it when the process closes any descriptor of the file. So a process must never open a lock file twice. This code may
// be in a process twice (two shared objects that do not know of each other), so a file keeps the rule: only the holder of
// the locked claim opens the lock file. The record lock alone tells processes apart. A claim is without effect if its process
// was killed (its name identifies the process), or if it is not locked (its process could not remove it).
//
// A lock that goes out of scope is released; the files stay. In a forked child it only closes its descriptors.
//
// Owns the two descriptors. Thread-safe: the static methods. An object belongs to one thread.

#ifndef CC_ENV_INSTANCE_LOCK_H_
#define CC_ENV_INSTANCE_LOCK_H_

#include <sys/types.h>

#include <string>

#include "cc/base/status.h"

namespace multitier {

class InstanceLock {
 public:
  static constexpr char kPrefix[] = "instance-";  // of the name of an instance

  // Makes a new instance in the directory of a name, and locks it.
  static Result<InstanceLock> New(const std::string& name_path);
  // Locks the instance at `path`. NotFound if there is none. FailedPrecondition, naming the process, if it is in use.
  static Result<InstanceLock> Existing(const std::string& path);
  // FailedPrecondition, naming the process, if a process holds the instance at `path`. NotFound if there is none.
  static Status CheckUnused(const std::string& path);
  // Removes an instance without a lock file, and the directory of its name if it was the last. Returns whether it existed.
  static bool RemoveEmpty(const std::string& path);

  InstanceLock(InstanceLock&& other) noexcept;
  InstanceLock& operator=(InstanceLock&&) = delete;
  ~InstanceLock() { Release(); }

  const std::string& path() const { return path_; }
  // Releases the lock. The directory and its contents stay.
  void Release();
  // Removes the whole instance and releases the lock. On an error the lock file stays: the instance is a leftover. Does nothing
  // in a forked child.
  Status Remove();

 private:
  InstanceLock(std::string path, std::string process, int lock_fd, int claim_fd);

  const std::string path_;
  const std::string process_;  // of the claim
  int lock_fd_, claim_fd_;     // -1: released
  pid_t pid_;
};

}  // namespace multitier

#endif  // CC_ENV_INSTANCE_LOCK_H_
