#include "cc/tensorflow/checkpoint/part_reader.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "cc/checkpoint_files/read_ahead.h"
#include "cc/env/stream_reader.h"
#include "cc/partition/partition.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/common/tensorflow_versions.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace multitier {

using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

constexpr int64_t kStreamedElements = 4 << 20;  // a part file with more is read by StreamReader

Status ReadExactly(const tensorflow::RandomAccessFile& file, const std::string& path, uint64_t offset, size_t n, char* out) {
  absl::string_view found;
  const absl::Status status = ReadFile(file, offset, n, out, &found);
  if (status.ok() && found.size() == n) {
    if (found.data() != out) std::memmove(out, found.data(), n);
    return OkStatus();
  }
  if (!status.ok() && !absl::IsOutOfRange(status)) return FromAbsl(status);
  return DataLossError("checkpoint part ", path, ": expected ", n, " bytes at offset ", offset, ", found ", found.size());
}

}  // namespace

PartReader::PartReader(tensorflow::Env* env, const std::string& prefix, const std::string& name, const std::string& tensor)
    : env_(env), prefix_(prefix), name_(name), tensor_(tensor), reader_(env, prefix) {}

std::string PartReader::TensorName(int64_t part, int64_t num_parts) const {
  return absl::StrCat(name_, "/part_", part, "-of-", num_parts, "/", tensor_);
}

std::string PartReader::FileOf(const Manifest& manifest) const { return absl::StrCat(prefix_, ".", manifest.file); }

absl::Status PartReader::OfCheckpoint(const absl::Status& status) const {
  if (status.ok() || absl::StrContains(status.message(), prefix_)) return status;
  return absl::Status(status.code(), absl::StrCat("checkpoint ", prefix_, ": ", status.message()));
}

absl::Status PartReader::FindNumParts(int64_t* num_parts) {
  TF_RETURN_IF_ERROR(OfCheckpoint(reader_.status()));
  const std::string stem = absl::StrCat(name_, "/part_0-of-");
  for (reader_.Seek(stem); reader_.Valid(); reader_.Next()) {
    absl::string_view rest = reader_.key();
    if (!absl::ConsumePrefix(&rest, stem)) break;
    if (!absl::ConsumeSuffix(&rest, absl::StrCat("/", tensor_))) continue;
    if (absl::SimpleAtoi(rest, num_parts) && *num_parts >= 1 && *num_parts <= kPartitionBuckets) return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat("checkpoint ", prefix_, " does not hold the embedding variable '", name_, "'"));
}

absl::Status PartReader::ReadManifests(std::vector<Manifest>* manifests) {
  int64_t num_parts = 0;
  TF_RETURN_IF_ERROR(FindNumParts(&num_parts));
  for (int64_t part = 0; part < num_parts; ++part) {
    std::string text;
    TF_RETURN_IF_ERROR(ReadText(TensorName(part, num_parts), &text));
    Result<Manifest> manifest = Manifest::Parse(text);
    const std::string where = absl::StrCat("checkpoint ", prefix_, ", ", TensorName(part, num_parts), ": ");
    if (!manifest.ok()) {
      const std::string message = absl::StrCat(where, manifest.status().message());
      return manifest.status().code() == StatusCode::kUnimplemented ? absl::UnimplementedError(message)
                                                                    : absl::DataLossError(message);
    }
    if (manifest->partition_index != part || manifest->num_partitions != num_parts) {
      return absl::DataLossError(absl::StrCat(where, "expected part ", part, " of ", num_parts, ", found part ",
                                              manifest->partition_index, " of ", manifest->num_partitions));
    }
    manifests->push_back(*std::move(manifest));
  }
  return absl::OkStatus();
}

absl::Status PartReader::ReadText(const std::string& key, std::string* text) {
  DataType dtype;
  TensorShape shape;
  TF_RETURN_IF_ERROR(OfCheckpoint(reader_.LookupDtypeAndShape(key, &dtype, &shape)));
  if (dtype != tensorflow::DT_STRING || shape.dims() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint ", prefix_, ": expected ", key, " to be a string scalar, found ",
                                                   tensorflow::DataTypeString(dtype), " of shape ", shape.DebugString()));
  }
  Tensor tensor(dtype, shape);
  TF_RETURN_IF_ERROR(OfCheckpoint(reader_.Lookup(key, &tensor)));
  *text = tensor.scalar<tensorflow::tstring>()();
  return absl::OkStatus();
}

absl::Status PartReader::WithFile(const Manifest& manifest, bool whole, const std::function<Status(PartFileReader*)>& read) {
  const std::string path = FileOf(manifest);
  uint64_t bytes = 0;
  TF_RETURN_IF_ERROR(env_->GetFileSize(path, &bytes));
  std::unique_ptr<tensorflow::RandomAccessFile> file;
  TF_RETURN_IF_ERROR(env_->NewRandomAccessFile(path, &file));
  std::unique_ptr<StreamReader> stream;
  if (whole && past_cache_ && manifest.num_rows * manifest.row_elements() > kStreamedElements &&
      !absl::StrContains(path, "://")) {
    Result<std::unique_ptr<StreamReader>> opened = StreamReader::Open(Env::Posix(), path);
    TF_RETURN_IF_ERROR(ToAbsl(opened.status()));
    stream = *std::move(opened);
  }
  const ReadAt read_at = [&](uint64_t offset, size_t n, char* out) {
    return stream != nullptr ? stream->Read(offset, n, out) : ReadExactly(*file, path, offset, n, out);
  };
  PartFileReader reader(path, bytes, manifest, read_at, [&](const std::string& name) { return OpenLinked(name, whole); });
  return ToAbsl(read(&reader));
}

Result<LinkedFile> PartReader::OpenLinked(const std::string& name, bool whole) {
  const std::string path = absl::StrCat(prefix_, ".", name);
  uint64_t bytes = 0;
  MT_RETURN_IF_ERROR(FromAbsl(env_->GetFileSize(path, &bytes)));
  if (whole && past_cache_ && bytes > kStreamedElements * sizeof(float) && !absl::StrContains(path, "://")) {
    MT_ASSIGN_OR_RETURN(std::shared_ptr<StreamReader> stream, StreamReader::Open(Env::Posix(), path));
    return LinkedFile{path, bytes, [stream](uint64_t offset, size_t n, char* out) { return stream->Read(offset, n, out); }};
  }
  std::unique_ptr<tensorflow::RandomAccessFile> opened;
  MT_RETURN_IF_ERROR(FromAbsl(env_->NewRandomAccessFile(path, &opened)));
  std::shared_ptr<tensorflow::RandomAccessFile> file = std::move(opened);
  return LinkedFile{path, bytes,
                    [file, path](uint64_t offset, size_t n, char* out) { return ReadExactly(*file, path, offset, n, out); }};
}

absl::Status PartReader::MostRows(const Manifest& manifest, int64_t* rows) const {
  std::vector<std::string> files{manifest.file};
  for (const Manifest::Linked& linked : manifest.linked) files.push_back(linked.file);
  uint64_t all = 0;
  for (const std::string& file : files) {
    uint64_t bytes = 0;
    TF_RETURN_IF_ERROR(OfCheckpoint(env_->GetFileSize(absl::StrCat(prefix_, ".", file), &bytes)));
    all += bytes;
  }
  const int64_t least = sizeof(int64_t) + manifest.dim() * 2;  // of a row: a frozen one
  *rows = std::min(manifest.num_rows, static_cast<int64_t>(all) / least);
  return absl::OkStatus();
}

absl::Status PartReader::ReadInitializer(const Manifest& manifest, InitializerSpec* initializer) {
  return WithFile(manifest, /*whole=*/false, [&](PartFileReader* file) { return file->Begin(initializer); });
}

absl::Status PartReader::ReadRows(const Manifest& manifest, const std::function<Status(Rows*)>& visit, RowFields fields) {
  return WithFile(manifest, /*whole=*/true, [&](PartFileReader* file) {
    file->SetFields(fields);
    InitializerSpec of_the_part;
    MT_RETURN_IF_ERROR(file->Begin(&of_the_part));
    return ReadAhead(file, visit);
  });
}

}  // namespace multitier
