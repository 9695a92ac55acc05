// PartReader: the parts of one variable in a TensorFlow checkpoint.
//
// A variable saved as n partitions (n = 1: not partitioned) is the tensors `<name>/part_<i>-of-<n>/` + manifest, keys, rows,
// frequencies, versions, counted, initial_matrix, filter_counters (may be missing); checkpoint/table_part.h says what they mean. Parts are read one at a time,
// so a reader holds the rows of one part.
//
// Not thread-safe.

#ifndef CC_KERNELS_PART_READER_H_
#define CC_KERNELS_PART_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc/checkpoint/table_part.h"
#include "tensorflow/core/framework/tensor.h"
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
  // The rows and counted keys of one part. InvalidArgument where sizes are not what the manifest says; DataLoss where a
  // checksum fails.
  absl::Status ReadRows(const Manifest& manifest, Rows* rows);

 private:
  std::string TensorName(int64_t part, int64_t num_parts, const char* what) const;
  // How many parts the variable was saved as.
  absl::Status FindNumParts(int64_t* num_parts);
  // Reads a tensor, which must be of that dtype and rank.
  absl::Status Read(const Manifest& manifest, const char* what, tensorflow::DataType dtype, int rank,
                    tensorflow::Tensor* tensor);
  absl::Status ReadKey(const std::string& key, tensorflow::DataType dtype, int rank, tensorflow::Tensor* tensor);
  absl::Status ReadFilterCounters(const Manifest& manifest, std::vector<uint8_t>* counters);
  absl::Status ReadVector(const Manifest& manifest, const char* what, std::vector<int64_t>* values);

  const std::string prefix_;
  const std::string name_;
  tensorflow::BundleReader reader_;
};

}  // namespace multitier

#endif  // CC_KERNELS_PART_READER_H_
