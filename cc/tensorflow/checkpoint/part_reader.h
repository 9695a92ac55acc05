// PartReader: the parts of one variable in a TensorFlow checkpoint.
//
// A variable that was saved as n partitions (n = 1: not partitioned) has n tensors `<name>/part_<i>-of-<n>/manifest` in the
// bundle (checkpoint_files/table_part.h). Each manifest names a part file next to the bundle (checkpoint_files/part_file.h). A
// reader keeps a few blocks of rows in memory (checkpoint_files/read_ahead.h).
//
// Not thread-safe.

#ifndef CC_TENSORFLOW_CHECKPOINT_PART_READER_H_
#define CC_TENSORFLOW_CHECKPOINT_PART_READER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc/checkpoint_files/part_file.h"
#include "cc/checkpoint_files/table_part.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace multitier {

class PartReader {
 public:
  // prefix: the checkpoint's prefix. name: the variable's name, without partition suffix. tensor: of a part; "delta" where a
  // save has what changed alone.
  PartReader(tensorflow::Env* env, const std::string& prefix, const std::string& name, const std::string& tensor = "manifest");

  // Reads the manifests of all parts, at least one. NotFound if the checkpoint lacks the variable or a part. DataLoss if a
  // manifest is damaged or of another part.
  absl::Status ReadManifests(std::vector<Manifest>* manifests);
  // Reads the initializer of the saved variable, including its matrix.
  absl::Status ReadInitializer(const Manifest& manifest, InitializerSpec* initializer);
  // The files are read through the page cache from now on: several passes, or several readers, read the same file.
  void ReadThroughCache() { past_cache_ = false; }
  // Calls visit with the rows and counted keys of one part, block by block; see PartFileReader. NotFound if its file is
  // missing. DataLoss, with file and offset, if it is damaged.
  absl::Status ReadRows(const Manifest& manifest, const std::function<Status(Rows*)>& visit,
                        RowFields fields = RowFields::kAll);

  // Sets `rows` to the most rows that the files of a part can hold, at most what its manifest says. NotFound if one is missing.
  absl::Status MostRows(const Manifest& manifest, int64_t* rows) const;

  const std::string& prefix() const { return prefix_; }
  // The path of a part's file.
  std::string FileOf(const Manifest& manifest) const;

 private:
  std::string TensorName(int64_t part, int64_t num_parts) const;
  // The status; an error of TensorFlow's reader gets the checkpoint's prefix.
  absl::Status OfCheckpoint(const absl::Status& status) const;
  // The number of parts as which the variable was saved.
  absl::Status FindNumParts(int64_t* num_parts);
  absl::Status ReadText(const std::string& key, std::string* text);
  // Opens the file of a part and calls read with it. whole: read will read all of it.
  absl::Status WithFile(const Manifest& manifest, bool whole, const std::function<Status(PartFileReader*)>& read);
  Result<LinkedFile> OpenLinked(const std::string& name, bool whole);

  tensorflow::Env* const env_;
  const std::string prefix_;
  const std::string name_;
  const std::string tensor_;
  tensorflow::BundleReader reader_;
  bool past_cache_ = true;  // large parts
};

}  // namespace multitier

#endif  // CC_TENSORFLOW_CHECKPOINT_PART_READER_H_
