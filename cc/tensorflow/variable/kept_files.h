// The files with which a variable describes its kept rows, in the instance directory of its table (env/instance_dir.h,
// docs/formats/instance.md):
//
//   instance.variable   KeptFacts: which rows they are, and whether they were closed
//   instance.matrix     the initial values, if the initializer is a matrix
//
// Each is replaced as a whole: written under another name, synced and renamed.

#ifndef CC_TENSORFLOW_VARIABLE_KEPT_FILES_H_
#define CC_TENSORFLOW_VARIABLE_KEPT_FILES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "cc/base/status.h"
#include "cc/options/options.h"
#include "cc/tensorflow/variable/embedding_variable.h"

namespace multitier {

inline constexpr const char* kFactsFile = "/instance.variable";
inline constexpr const char* kKeepFile = "/instance.keep";

// The content of instance.variable.
struct KeptFacts {
  int64_t generation = 1;
  bool closed = false;
  std::string checkpoint;  // a manifest; empty: none
  int64_t partition_index = 0;
  int64_t num_partitions = 1;
  Options options;       // dim, types of values and keys, initializer, and slots as of the close
  int64_t num_rows = 0;  // as of the close
  int64_t applies = 0;   // as of the close

  std::string ToJson() const;
};

Status WriteFacts(const std::string& directory, const KeptFacts& facts);
// DataLoss, with file and offset, if the file is damaged. Unimplemented for another format version.
Result<KeptFacts> ReadFacts(const std::string& directory);

// They do nothing if the initializer has no matrix.
Status WriteMatrix(const std::string& directory, const InitializerSpec& initializer);
Status ReadMatrix(const std::string& directory, int dim, InitializerSpec* initializer);

// FailedPrecondition if the kept rows at `path` are of another dim, type of keys or values, partition or last tier than the
// variable.
Status CheckFits(const VariableOptions& options, const std::string& path, const KeptFacts& facts);

// The status with the name of the variable.
absl::Status OfVariable(const std::string& name, const Status& status);

}  // namespace multitier

#endif  // CC_TENSORFLOW_VARIABLE_KEPT_FILES_H_
