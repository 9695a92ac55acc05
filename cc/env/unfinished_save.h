// UnfinishedSave: what tells the files of a save that was killed from those of one that runs, and from a checkpoint's.
//
// A save writes its part files first and TensorFlow's index last. Until the index is there,
//
//   the folder   has a lock on one byte, which the prefix chooses (an open file description lock: it ends with the process)
//   a part file  has the extended attribute user.tf_multitier.save with its own inode number, so that a copy is not marked
//
// RemoveAbandoned deletes the files that are marked, and whose prefix has neither an index nor a lock. Where a file system has
// no such locks or attributes, no file is marked, and none is deleted.
//
// The process does not learn of the index: locks are given up by the next Begin in the process. Thread-safe.

#ifndef CC_ENV_UNFINISHED_SAVE_H_
#define CC_ENV_UNFINISHED_SAVE_H_

#include <string>

namespace multitier {

class UnfinishedSave {
 public:
  // Locks a local prefix. Call it before a file is made. Gives up the locks of earlier prefixes that have an index now.
  static void Begin(const std::string& prefix);
  // The save has failed and has deleted its files.
  static void GiveUp(const std::string& prefix);
  // Marks a part file of a prefix that Begin has locked.
  static void Mark(const std::string& prefix, const std::string& part_file);
  // Deletes the files that killed saves have left in the folder of a local prefix, under any prefix: part files, and the linked
  // files whose names begin like theirs (docs/formats/table_part.md).
  static void RemoveAbandoned(const std::string& prefix);
};

}  // namespace multitier

#endif  // CC_ENV_UNFINISHED_SAVE_H_
