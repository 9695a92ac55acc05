// TableRestorer: builds a table from the parts of a variable in a checkpoint. Nothing that exists changes.
//
//   1. columns   The table gets the saved columns (if the variable is read-only, only the value), then the slots of the live
//                table that the checkpoint lacks. A slot is known by its name; `<saved name>/...` becomes `<own name>/...`.
//   2. measure   Only if the rows do not fit into the first tier: reads all rows once, and finds the lowest frequency whose
//                rows fit.
//   3. import    First the rows below that frequency, then the others. So the rows with the highest frequencies end in the
//                first tier.
//   4. check     The table has as many rows as were read, so no key came twice.
//
// Every read checks the file's checksums, and that each key belongs to the part. It keeps one block of rows in memory.
//
// Not thread-safe.

#ifndef CC_KERNELS_TABLE_RESTORER_H_
#define CC_KERNELS_TABLE_RESTORER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc/kernels/embedding_variable.h"
#include "cc/kernels/part_reader.h"
#include "cc/kernels/restore_progress.h"
#include "cc/row/initializer.h"

namespace multitier {

class TableRestorer {
 public:
  // name: of the variable or part that is restored. variable_name: of the saved one, without partition suffix. live: the state
  // that will be replaced, or null. resize: whether another dim than the variable's is accepted.
  TableRestorer(PartReader* reader, const VariableOptions& options, std::string name, std::string variable_name, bool resize,
                std::shared_ptr<VariableState> live);

  // Call it first. InvalidArgument, with both dims, if the checkpoint does not fit.
  absl::Status ReadManifests();
  // Two checkpoints with equal manifests have the same rows: each part file has a name of its own.
  std::string Manifests() const;
  absl::Status Build(std::shared_ptr<VariableState>* state);
  // Instead of Build, for a variable that keeps its table: its rows where they are. *state stays null unless they are those of
  // the checkpoint; then Build replaces them.
  absl::Status OpenKept(std::shared_ptr<VariableState>* state);
  // Instead of Build, for a variable that reads kept rows in place. FailedPrecondition unless they are those of the checkpoint.
  absl::Status ReadInPlace(std::shared_ptr<VariableState>* state);

 private:
  // A saved column, and the column of the table that it becomes.
  struct ColumnPlan {
    int saved_dim = 0;
    bool kept = true;
    ColumnSpec column;
  };
  using Frequencies = std::vector<int64_t>;  // number of rows, by frequency

  std::vector<ColumnPlan> Plan(const Manifest& manifest) const;
  ColumnPlan PlanSlot(const ColumnSpec& saved, int saved_dim) const;
  absl::Status ReadInitializer(InitializerSpec* initializer);
  // Adds the slots of the plans and of the live table. missing: the slots that no part has.
  absl::Status AddSlots(EmbeddingTable* table, std::vector<ColumnSpec>* missing) const;
  // The counts of keys that have no row yet, which no file of a tier has.
  absl::Status ReadCounted(const Manifest& manifest, EmbeddingTable* table);
  // The part whose rows are this partition's, all of them and as they are; null if there is none.
  const Manifest* OwnPart() const;
  // The lowest frequency of a row that belongs into the first tier. 0: all rows are treated alike.
  absl::Status FindHotFrequency(const EmbeddingTable& table, RestoreProgress* progress, int64_t* hot);
  // Reads the rows of this partition that have a frequency in [low, high].
  absl::Status Read(int64_t low, int64_t high, RestoreProgress* progress,
                    const std::function<Status(const Manifest&, Rows*)>& visit);
  absl::Status Import(int64_t low, int64_t high, EmbeddingTable* table, RestoreProgress* progress, int64_t* imported);
  // Saved rows to rows of the table.
  void Convert(const std::vector<ColumnPlan>& plan, const Initializer& initializer, Rows* rows) const;

  PartReader* const reader_;
  const VariableOptions& options_;
  const std::string name_;
  const std::string variable_name_;
  const bool resize_;
  const std::shared_ptr<VariableState> live_;
  std::vector<Manifest> manifests_;  // of the parts that may have keys of this partition
  std::string all_manifests_;
};

}  // namespace multitier

#endif  // CC_KERNELS_TABLE_RESTORER_H_
