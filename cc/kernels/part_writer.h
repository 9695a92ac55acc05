// PartWriter: the file of one part of a checkpoint that is being saved, next to TensorFlow's files (checkpoint/part_file.h).
//
// WriteParts: the files of several parts, as of one moment (table/group_snapshot.h). When it returns OK, every file is complete
// and synced, and so is the directory. On an error it removes all of them. TensorFlow's index is written afterwards, and with
// it the checkpoint exists.
//
// A save may begin a chain (kBase): then the tables track what changes. The next one may be a delta, which has what changed
// since the save before, and goes on with the chain. If a save fails, its tables track nothing: the next one has to be a base.
//
// Not thread-safe.

#ifndef CC_KERNELS_PART_WRITER_H_
#define CC_KERNELS_PART_WRITER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc/checkpoint/part_file.h"
#include "cc/checkpoint/table_part.h"
#include "cc/env/early_writeback.h"
#include "cc/kernels/embedding_variable.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/file_system.h"

namespace multitier {

enum class SaveKind { kFull, kBase, kDelta };

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
  // Completes, syncs and closes the file.
  Status Finish();
  // Deletes the file if there is one.
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

  tensorflow::Env* const env_;
  const std::shared_ptr<VariableState> state_;
  const int64_t changes_;  // of a kept table, before the save
  Manifest manifest_;
  const std::string path_;
  const std::optional<DType> frozen_;
  std::unique_ptr<tensorflow::WritableFile> file_;
  std::optional<EarlyWriteback> writeback_;  // of local files
  PartFileWriter writer_;
  bool made_ = false;
};

// FailedPrecondition if a delta is asked for and changes are not known.
absl::Status WriteParts(tensorflow::Env* env, const std::string& prefix, const std::vector<std::unique_ptr<PartWriter>>& parts,
                        SaveKind kind);

}  // namespace multitier

#endif  // CC_KERNELS_PART_WRITER_H_
