// PartReader: the parts of one variable in a TensorFlow checkpoint.
//
// A variable saved as n partitions (n = 1: not partitioned) is n tensors `<name>/part_<i>-of-<n>/manifest` of the bundle
// (checkpoint/table_part.h) and the part files that they name, beside it (checkpoint/part_file.h). A reader holds a block of
// rows.
//
// Not thread-safe.

#ifndef CC_KERNELS_PART_READER_H_
#define CC_KERNELS_PART_READER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc/checkpoint/part_file.h"
#include "cc/checkpoint/table_part.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace multitier {

class PartReader {
 public:
  // prefix: of the checkpoint; name: of the variable, without partition suffix.
  PartReader(tensorflow::Env* env, const std::string& prefix, const std::string& name);

  // The manifests of all parts, at least one. NotFound where the checkpoint does not hold the variable or lacks a part;
  // InvalidArgument naming both where its dim is not `dim`.
  absl::Status ReadManifests(int dim, std::vector<Manifest>* manifests);
  // The initializer that the checkpoint was made with, matrix included.
  absl::Status ReadInitializer(const Manifest& manifest, InitializerSpec* initializer);
  // Calls visit with the rows and counted keys of one part, block by block; see PartFileReader. NotFound where its file is
  // missing; DataLoss naming file and offset where it is damaged.
  absl::Status ReadRows(const Manifest& manifest, const std::function<Status(Rows*)>& visit);

 private:
  std::string TensorName(int64_t part, int64_t num_parts) const;
  // How many parts the variable was saved as.
  absl::Status FindNumParts(int64_t* num_parts);
  absl::Status ReadText(const std::string& key, std::string* text);
  // Opens a part's file and calls read with it.
  absl::Status WithFile(const Manifest& manifest, const std::function<Status(PartFileReader*)>& read);

  tensorflow::Env* const env_;
  const std::string prefix_;
  const std::string name_;
  tensorflow::BundleReader reader_;
};

}  // namespace multitier

#endif  // CC_KERNELS_PART_READER_H_
