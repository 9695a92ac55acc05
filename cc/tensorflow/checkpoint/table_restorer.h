// TableRestorer: builds a table from the parts of a variable in a checkpoint, or in a chain of them. Nothing that exists
// changes.
//
//   1. columns   The table gets the saved columns (if the variable is read-only, only the value), then the slots of the live
//                table that the checkpoint lacks. A slot is known by its name; `<saved name>/...` becomes `<own name>/...`.
//                With rename_slots, the saved name is what the first slot has before its last slash.
//   2. measure   Only if the rows do not fit into the first tier: reads the heads of all rows once, and finds the lowest
//                frequency whose rows fit. If the rows of the highest one do not fit, it is that one.
//   3. import    First the rows below that frequency, then the others. So the rows with the highest frequencies end in the
//                first tier.
//   4. check     The table has as many rows as were read, so no key came twice.
//   5. deltas    What each delta removes, and then its rows, in their order.
//
// Every read checks the file's checksums, and that each key belongs to the part. It keeps a few blocks of rows in memory.
//
// Not thread-safe.

#ifndef CC_TENSORFLOW_CHECKPOINT_TABLE_RESTORER_H_
#define CC_TENSORFLOW_CHECKPOINT_TABLE_RESTORER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc/base/executor.h"
#include "cc/row/initializer.h"
#include "cc/tensorflow/checkpoint/part_reader.h"
#include "cc/tensorflow/checkpoint/restore_progress.h"
#include "cc/tensorflow/checkpoint/saved_chain.h"
#include "cc/tensorflow/variable/embedding_variable.h"

namespace multitier {

class TableRestorer {
 public:
  // name: of the variable or part that is restored. variable_name: of the saved one, without partition suffix. live: the state
  // that will be replaced, or null. resize: whether another dim than the variable's is accepted.
  // convert: whether another dtype of values is. rename_slots: whether slots get the own name, whatever they were named after.
  // executor: lent for imports.
  TableRestorer(SavedChain* chain, const VariableOptions& options, std::string name, std::string variable_name, bool resize,
                bool convert, bool rename_slots, std::shared_ptr<VariableState> live, Executor* executor);

  // Call it first. InvalidArgument, with both dims, if the checkpoint does not fit.
  absl::Status ReadManifests();
  // The base, or the checkpoint if it has all rows, and the deltas. Two with equal manifests have the same rows: each part file
  // has a name of its own.
  const std::string& base_prefix() const { return saves_[0].reader->prefix(); }
  const std::string& base_manifests() const { return saves_[0].texts; }
  std::string DeltaManifests() const;
  bool has_deltas() const { return saves_.size() > 1; }

  // A table with everything: BuildBase and AddDeltas.
  absl::Status Build(std::shared_ptr<VariableState>* state);
  absl::Status BuildBase(std::shared_ptr<VariableState>* state);
  // A state that shares the base of another one, which never changes, and has a layer with what the deltas changed.
  absl::Status BuildOver(const std::shared_ptr<VariableState>& base, std::shared_ptr<VariableState>* state);
  // Reads all files, and checks what Build checks of them. Builds nothing. In memory are a few blocks, and 8 bytes for each
  // row: less than the index of the table that Build makes.
  absl::Status Check();
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
  // The parts of one save that may have keys of this partition.
  struct Save {
    PartReader* reader;
    std::vector<Manifest> manifests;
    std::string texts;  // of all parts

    int64_t rows() const;
  };

  std::vector<ColumnPlan> Plan(const Manifest& manifest) const;
  ColumnPlan PlanSlot(const Manifest& manifest, const ColumnSpec& saved) const;
  absl::Status ReadInitializer(InitializerSpec* initializer);
  // The slots of the plans and of the live table. missing: those that no part has.
  absl::Status FindSlots(std::vector<ColumnSpec>* slots, std::vector<ColumnSpec>* missing) const;
  // The counts of keys that have no row yet, which no file of a tier has.
  absl::Status ReadCounted(const Manifest& manifest, EmbeddingTable* table);
  // The part whose rows are this partition's, all of them and as they are; null if there is none.
  const Manifest* OwnPart() const;
  // Takes memory for all rows at once, so that nothing grows again and again. As many as the files can have: what a damaged
  // manifest says is found later.
  void Reserve(EmbeddingTable* table) const;
  // The lowest frequency of a row that belongs into the first tier. 0: all rows are treated alike, as where they have the same
  // frequency.
  absl::Status FindHotFrequency(const EmbeddingTable& table, RestoreProgress* progress, int64_t* hot);
  absl::Status CheckFits(const Manifest& manifest, const PartReader& reader) const;
  // DataLoss if the rows of the base have fewer keys, unless the table drops rows.
  absl::Status CheckDistinct(int64_t rows, int64_t keys) const;
  // Changes a table that has the rows of the base to what it is after all deltas.
  absl::Status AddDeltas(EmbeddingTable* table, RestoreProgress* progress);
  // Reads the rows of this partition that have a frequency in [low, high], and its removed keys.
  absl::Status Read(const Save& save, int64_t low, int64_t high, RestoreProgress* progress,
                    const std::function<Status(const Manifest&, Rows*)>& visit, RowFields fields = RowFields::kAll);
  absl::Status Import(int64_t low, int64_t high, EmbeddingTable* table, RestoreProgress* progress, int64_t* imported);
  // Saved rows to rows of the table.
  void Convert(const std::vector<ColumnPlan>& plan, const InitializerSet& initializer, Rows* rows) const;

  SavedChain* const chain_;
  const VariableOptions& options_;
  const std::string name_;
  const std::string variable_name_;
  const bool resize_;
  const bool convert_;
  const bool rename_slots_;
  const std::shared_ptr<VariableState> live_;
  Executor* const executor_;
  std::vector<Save> saves_;  // the base first
};

}  // namespace multitier

#endif  // CC_TENSORFLOW_CHECKPOINT_TABLE_RESTORER_H_
