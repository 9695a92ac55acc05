// PartWriter: the file of one part of a checkpoint that is being saved (checkpoint_files/part_file.h). It is next to
// TensorFlow's files.
//
// WriteParts: the files of several parts, as of one moment (table/snapshot/snapshot_together.h). When it returns OK, every file
// is complete and synced, and so is the directory. On an error it removes all of them. TensorFlow's index is written
// afterwards, and with it the checkpoint exists.
//
// Rows of an SSDHASH tier are not written again where they can be linked (checkpoint_files/linked_rows.h). Three conditions:
// the tier's directory and the checkpoint are on one file system that has hard links, SSDHASH is the only tier below DRAM, and
// on_corruption is "error".
// A segment is linked if at least half of its records are rows (SsdHashTier::TakeSealedFiles), so that the checkpoint is at
// most about twice as large as its rows. The other rows are written. Linked files belong to the save as the part file does:
// their names match data-?????-of-?????, they are synced before the directory, and a save that fails removes them. The
// environment variable TF_MULTITIER_LINKED_SAVES=0 turns links off. Links::kAll also has the rows of DRAM in linked files: they
// are written down first (SnapshotRequest::write_down).
//
// A save may begin a chain (kBase): then the tables track what changes. The next one may be a delta, which has what changed
// since the save before, and goes on with the chain. If a save fails, its tables track nothing: the next one has to be a base.
//
// Not thread-safe.

#ifndef CC_TENSORFLOW_CHECKPOINT_PART_WRITER_H_
#define CC_TENSORFLOW_CHECKPOINT_PART_WRITER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc/checkpoint_files/part_file.h"
#include "cc/checkpoint_files/table_part.h"
#include "cc/env/early_writeback.h"
#include "cc/table/api/table_snapshot.h"
#include "cc/tensorflow/variable/embedding_variable.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/file_system.h"

namespace multitier {

enum class SaveKind { kFull, kBase, kDelta };
enum class Links { kNone, kBelow, kAll };  // which rows may be linked. kNone: each part has one file

// The description of a part, without its rows.
Manifest ManifestOf(const VariableState& state);

class PartWriter {
 public:
  // A file with a new name, `<prefix>.data-?????-of-?????`; see docs/formats/table_part.md.
  // frozen: the dtype of the values of a frozen part (Manifest::frozen).
  PartWriter(tensorflow::Env* env, const std::string& prefix, std::shared_ptr<VariableState> state,
             std::optional<DType> frozen = std::nullopt);
  PartWriter(const PartWriter&) = delete;
  PartWriter& operator=(const PartWriter&) = delete;

  // Makes the file at the first call.
  Status Add(const Rows& rows);
  // Links a file of the table's tier. Where that is not possible after all, writes its rows.
  Status TakeFile(const SealedFile& file, const SnapshotRequest::LinkTo& link);
  // Of a save of all rows, in a local file system: the name of a file that a link could get, for a trial; else empty.
  std::string LinkName() const;
  // Completes, syncs and closes the file, and syncs the linked ones.
  Status Finish();
  // Deletes the files if there are any.
  void Remove();
  // The file is complete: a kept table notes that its rows are in this checkpoint.
  void NoteSaved() const;

  EmbeddingTable* table() const { return state_->table.get(); }
  bool read_only() const { return state_->read_only; }
  const Manifest& manifest() const { return manifest_; }
  void SetChain(int64_t save_id, int64_t since) {
    manifest_.save_id = save_id;
    manifest_.since = since;
  }

 private:
  Status Open();
  Status WriteRowsOf(const SealedFile& file, const LinkedRecords& records);

  tensorflow::Env* const env_;
  const std::shared_ptr<VariableState> state_;
  const int64_t changes_;  // of a kept table, before the save
  Manifest manifest_;
  const std::string prefix_;
  const std::string path_;
  const std::optional<DType> frozen_;
  std::unique_ptr<tensorflow::WritableFile> file_;
  std::optional<EarlyWriteback> writeback_;  // of local files
  PartFileWriter writer_;
  bool made_ = false;
  uint64_t names_tried_ = 0;  // for links
};

// FailedPrecondition if a delta is asked for and changes are not known. InvalidArgument for a bad TF_MULTITIER_LINKED_SAVES.
absl::Status WriteParts(tensorflow::Env* env, const std::string& prefix, const std::vector<std::unique_ptr<PartWriter>>& parts,
                        SaveKind kind, Links links);

}  // namespace multitier

#endif  // CC_TENSORFLOW_CHECKPOINT_PART_WRITER_H_
