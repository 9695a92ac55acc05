// RemoveStaleFiles: what earlier saves under the same prefix have left. A save writes new files and never changes those that
// the index names, so two sorts of files stay: those of the save whose index was overwritten, and those of a save that was
// killed.

#ifndef CC_TENSORFLOW_CHECKPOINT_STALE_FILES_H_
#define CC_TENSORFLOW_CHECKPOINT_STALE_FILES_H_

#include <string>
#include <vector>

#include "tensorflow/core/platform/env.h"

namespace multitier {

// Deletes the part files and linked files of a local prefix (docs/formats/table_part.md) that its index does not name and that
// are older than the index: newer ones may be of a save that runs now on another device. A linked file is as old as the part
// file with the same first letters: its own inode becomes newer with each link and unlink of other names. Does nothing without
// an index, or where it cannot be read.
void RemoveStaleFiles(tensorflow::Env* env, const std::string& prefix);

// Deletes `files` (what stands after the prefix and a dot), which a save has written and which may be of no checkpoint, except
// those that the index names. Where there is an index that cannot be read, it deletes none.
void RemoveUnnamedFiles(tensorflow::Env* env, const std::string& prefix, const std::vector<std::string>& files);

}  // namespace multitier

#endif  // CC_TENSORFLOW_CHECKPOINT_STALE_FILES_H_
