#include "cc/kernels/part_reader.h"

#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "cc/base/partition.h"
#include "cc/kernels/status_bridge.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace multitier {

using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::TensorShape;

PartReader::PartReader(tensorflow::Env* env, const std::string& prefix, const std::string& name)
    : prefix_(prefix), name_(name), reader_(env, prefix) {}

std::string PartReader::TensorName(int64_t part, int64_t num_parts, const char* what) const {
  return absl::StrCat(name_, "/part_", part, "-of-", num_parts, "/", what);
}

absl::Status PartReader::FindNumParts(int64_t* num_parts) {
  TF_RETURN_IF_ERROR(reader_.status());
  const std::string stem = absl::StrCat(name_, "/part_0-of-");
  for (reader_.Seek(stem); reader_.Valid(); reader_.Next()) {
    absl::string_view rest = reader_.key();
    if (!absl::ConsumePrefix(&rest, stem)) break;
    if (!absl::ConsumeSuffix(&rest, "/manifest")) continue;
    if (absl::SimpleAtoi(rest, num_parts) && *num_parts >= 1 && *num_parts <= kPartitionBuckets) return absl::OkStatus();
  }
  return absl::NotFoundError(
      absl::StrCat("checkpoint ", prefix_, " does not hold the embedding variable '", name_, "'"));
}

absl::Status PartReader::ReadManifests(int dim, std::vector<Manifest>* manifests) {
  int64_t num_parts = 0;
  TF_RETURN_IF_ERROR(FindNumParts(&num_parts));
  for (int64_t part = 0; part < num_parts; ++part) {
    Tensor text;
    TF_RETURN_IF_ERROR(ReadKey(TensorName(part, num_parts, "manifest"), tensorflow::DT_STRING, 0, &text));
    Result<Manifest> manifest = Manifest::Parse(text.scalar<tensorflow::tstring>()());
    TF_RETURN_IF_ERROR(ToAbsl(manifest.status()));
    if (manifest->partition_index != part || manifest->num_partitions != num_parts) {
      return absl::InvalidArgumentError(absl::StrCat(
          "checkpoint ", prefix_, ", variable '", name_, "': part ", part, " of ", num_parts, " says it is part ",
          manifest->partition_index, " of ", manifest->num_partitions));
    }
    if (manifest->dim() != dim) {
      return absl::InvalidArgumentError(absl::StrCat("embedding variable '", name_, "' has dim ", dim, ", the checkpoint ",
                                                     prefix_, " holds it with dim ", manifest->dim()));
    }
    manifests->push_back(*std::move(manifest));
  }
  return absl::OkStatus();
}

absl::Status PartReader::ReadInitializer(const Manifest& manifest, InitializerSpec* initializer) {
  *initializer = manifest.initializer;
  if (initializer->kind != InitializerKind::kMatrix) return absl::OkStatus();
  Tensor matrix;
  TF_RETURN_IF_ERROR(Read(manifest, "initial_matrix", tensorflow::DT_FLOAT, 2, &matrix));
  const float* values = matrix.flat<float>().data();
  initializer->matrix = std::make_shared<const std::vector<float>>(values, values + matrix.NumElements());
  return absl::OkStatus();
}

absl::Status PartReader::ReadRows(const Manifest& manifest, Rows* rows) {
  rows->columns = manifest.columns;
  TF_RETURN_IF_ERROR(ReadVector(manifest, "keys", &rows->keys));
  TF_RETURN_IF_ERROR(ReadVector(manifest, "frequencies", &rows->frequencies));
  TF_RETURN_IF_ERROR(ReadVector(manifest, "versions", &rows->versions));
  {
    Tensor data;
    TF_RETURN_IF_ERROR(Read(manifest, "rows", tensorflow::DT_FLOAT, 2, &data));
    rows->data.assign(data.flat<float>().data(), data.flat<float>().data() + data.NumElements());
  }
  rows->applies = manifest.applies;
  TF_RETURN_IF_ERROR(ReadFilterCounters(manifest, &rows->filter_counters));
  Tensor counted;
  TF_RETURN_IF_ERROR(Read(manifest, "counted", tensorflow::DT_INT64, 2, &counted));
  if (counted.dim_size(1) != 3) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint ", prefix_, ", variable '", name_,
                                                   "': expected counted of shape [m,3], found ",
                                                   counted.shape().DebugString()));
  }
  const auto entries = counted.matrix<int64_t>();
  for (int64_t i = 0; i < counted.dim_size(0); ++i) {
    rows->counted_keys.push_back(entries(i, 0));
    rows->counted_frequencies.push_back(entries(i, 1));
    rows->counted_versions.push_back(entries(i, 2));
  }
  return ToAbsl(CheckPart(manifest, *rows));
}

absl::Status PartReader::Read(const Manifest& manifest, const char* what, DataType dtype, int rank, Tensor* tensor) {
  return ReadKey(TensorName(manifest.partition_index, manifest.num_partitions, what), dtype, rank, tensor);
}

absl::Status PartReader::ReadKey(const std::string& key, DataType dtype, int rank, Tensor* tensor) {
  DataType stored_dtype;
  TensorShape shape;
  TF_RETURN_IF_ERROR(reader_.LookupDtypeAndShape(key, &stored_dtype, &shape));
  if (stored_dtype != dtype || shape.dims() != rank) {
    return absl::InvalidArgumentError(absl::StrCat(
        "checkpoint ", prefix_, ": expected ", key, " to be ", tensorflow::DataTypeString(dtype), " of rank ", rank,
        ", found ", tensorflow::DataTypeString(stored_dtype), " of shape ", shape.DebugString()));
  }
  *tensor = Tensor(dtype, shape);
  return reader_.Lookup(key, tensor);
}

absl::Status PartReader::ReadFilterCounters(const Manifest& manifest, std::vector<uint8_t>* counters) {
  counters->clear();
  if (!reader_.Contains(TensorName(manifest.partition_index, manifest.num_partitions, "filter_counters"))) {
    return absl::OkStatus();
  }
  Tensor tensor;
  TF_RETURN_IF_ERROR(Read(manifest, "filter_counters", tensorflow::DT_UINT8, 1, &tensor));
  counters->assign(tensor.flat<uint8_t>().data(), tensor.flat<uint8_t>().data() + tensor.NumElements());
  return absl::OkStatus();
}

absl::Status PartReader::ReadVector(const Manifest& manifest, const char* what, std::vector<int64_t>* values) {
  Tensor tensor;
  TF_RETURN_IF_ERROR(Read(manifest, what, tensorflow::DT_INT64, 1, &tensor));
  const int64_t* data = tensor.flat<int64_t>().data();
  values->assign(data, data + tensor.NumElements());
  return absl::OkStatus();
}

}  // namespace multitier
