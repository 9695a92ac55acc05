// KeptTable: the state of a variable with StorageOption(keep=True), in addition to its table. The table's last tier keeps its
// rows in a kept instance directory (env/instance_dir.h). The file instance.variable in that directory says what they are:
//
//   open     A process uses the table, or ended without closing it. No checkpoint is known to have exactly these rows.
//   closed   Every row is on disk. If no row changed after a save or restore, `checkpoint` is the manifest of that save or
//            restore.
//
// What each operation does:
//
//   initializer     Opens the kept rows and logs how many there are and whether they were closed. Without kept rows, makes a
//                   new directory.
//   save, restore   Notes the manifest, and how many changes came before it.
//   restore         Writes all rows to the files before it ends, so that a program that runs the initializer alone finds them,
//                   whatever becomes of this one. Leaves the rows where they are if they were closed at this manifest and none
//                   changed since they were opened. Otherwise builds a new table from the checkpoint, in a new directory. The
//                   old directory is deleted once the variable has the new table. So dense weights and rows are of one
//                   checkpoint.
//   close           Flushes the table, then writes `closed`.
//
// A process that is killed leaves `open`: a restore then reads its rows from the checkpoint. A kill between two steps of a
// restore may leave two kept directories. The one with the greater generation is valid.
//
// Thread-safe.

#ifndef CC_TENSORFLOW_VARIABLE_KEPT_TABLE_H_
#define CC_TENSORFLOW_VARIABLE_KEPT_TABLE_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "cc/env/instance_dir.h"
#include "cc/tensorflow/variable/embedding_variable.h"
#include "cc/tensorflow/variable/kept_files.h"

namespace multitier {

class KeptTable {
 public:
  // directory: of the table, locked by this process. adopted: whether it is the variable's already. replaces (may be null): the
  // directory that it will replace.
  KeptTable(std::shared_ptr<InstanceDirectory> directory, KeptFacts facts, bool adopted,
            std::unique_ptr<InstanceDirectory> replaces);

  // An operation that changes rows begins, or ends.
  void NoteChange() { changes_.fetch_add(1); }
  int64_t Changes(const EmbeddingTable& table) const;
  // The rows were those of the part of a checkpoint with this manifest when Changes() was `changes`.
  void SetCheckpoint(std::string manifest, int64_t changes);
  // Whether the rows are those of that part.
  bool IsAt(const std::string& manifest, const EmbeddingTable& table) const;
  int64_t generation() const { return generation_; }

  // The variable has the table: from now on its directory is kept, and the one that it replaces is not.
  Status Adopt();
  // Another table takes the place of this one.
  void Discard();
  // Writes all rows and `closed`. Logs an error. Does nothing in a forked child, and for a table that is not in the variable.
  void Close(EmbeddingTable* table);

 private:
  const std::shared_ptr<InstanceDirectory> directory_;
  const pid_t pid_;
  const int64_t generation_;
  std::atomic<int64_t> changes_{0};
  mutable absl::Mutex mutex_;
  KeptFacts facts_ ABSL_GUARDED_BY(mutex_);
  int64_t changes_at_checkpoint_ ABSL_GUARDED_BY(mutex_) = 0;
  bool adopted_ ABSL_GUARDED_BY(mutex_);
  bool discarded_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<InstanceDirectory> replaces_ ABSL_GUARDED_BY(mutex_);
};

// At the end of a restore: writes all rows of a kept table to its files. A table that drops its coldest rows is left: a flush
// would drop those for which the last tier has no room.
absl::Status FlushKept(const std::string& name, const VariableState& state);

// Opens the kept rows of a variable. *state is null if there are none. FailedPrecondition if a process uses them, or if they
// are of a variable of other shape, partitioning or storage type. DataLoss if rows or files are missing.
absl::Status OpenKept(const VariableOptions& options, const std::string& name, std::shared_ptr<VariableState>* state);
// The same only if they were closed at this manifest and can be opened; else *state is null.
absl::Status OpenKeptAt(const VariableOptions& options, const std::string& name, const std::string& manifest,
                        std::shared_ptr<VariableState>* state);
// A new, empty table, which will replace what is kept. replaced: the state that the variable has now, or null.
absl::Status MakeKept(const VariableOptions& options, const std::string& name, InitializerSpec initializer,
                      const VariableState* replaced, std::shared_ptr<VariableState>* state);

}  // namespace multitier

#endif  // CC_TENSORFLOW_VARIABLE_KEPT_TABLE_H_
