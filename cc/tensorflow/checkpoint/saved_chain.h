// SavedChain: a variable in a checkpoint of all rows, or in a base and the deltas that continue it.
//
//   /models/model-1000              a checkpoint of all rows
//   /models/model-1000.delta-0003   the delta 3, and so all rows of model-1000 with the deltas 1, 2 and 3
//
// The prefix decides: a delta is a checkpoint whose manifests have the name `delta` (docs/formats/table_part.md). Each part of
// a delta names the save that it continues.
//
// Not thread-safe.

#ifndef CC_TENSORFLOW_CHECKPOINT_SAVED_CHAIN_H_
#define CC_TENSORFLOW_CHECKPOINT_SAVED_CHAIN_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc/checkpoint_files/table_part.h"
#include "cc/tensorflow/checkpoint/part_reader.h"
#include "tensorflow/core/platform/env.h"

namespace multitier {

class SavedChain {
 public:
  struct Save {
    std::unique_ptr<PartReader> reader;
    std::vector<Manifest> manifests;  // of all parts
  };

  // name: the variable's name, without partition suffix.
  SavedChain(tensorflow::Env* env, std::string prefix, std::string name)
      : env_(env), prefix_(std::move(prefix)), name_(std::move(name)) {}

  // Reads the manifests of all saves. NotFound if the checkpoint lacks the variable. DataLoss, with the file, if a save between
  // the base and the prefix is missing, damaged, or of another chain. Call it first.
  absl::Status Open();
  // The base first, then the deltas in their order.
  const std::vector<Save>& saves() const { return saves_; }
  const std::string& prefix() const { return prefix_; }

 private:
  absl::Status Add(const std::string& prefix, const char* tensor);

  tensorflow::Env* const env_;
  const std::string prefix_;
  const std::string name_;
  std::vector<Save> saves_;
};

// DataLoss unless each part of the delta at `prefix` continues the same part of the save at `previous`.
absl::Status CheckContinues(const std::string& prefix, const std::vector<Manifest>& delta, const std::string& previous,
                            const std::vector<Manifest>& before);

}  // namespace multitier

#endif  // CC_TENSORFLOW_CHECKPOINT_SAVED_CHAIN_H_
