#include "cc/tensorflow/variable/kept_files.h"

#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/base/crc32c.h"
#include "cc/base/json.h"
#include "cc/checkpoint_files/table_part.h"
#include "cc/env/env.h"
#include "cc/tensorflow/common/status_bridge.h"

namespace multitier {
namespace {

constexpr const char* kMatrixFile = "/instance.matrix";
constexpr int64_t kFactsVersion = 1;
constexpr int64_t kMostGenerations = int64_t{1} << 62;

Status WriteSynced(const std::string& path, const void* data, size_t bytes) {
  Env* const env = Env::Posix();
  const std::string next = path + ".new";
  MT_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, env->NewWritableFile(next));
  MT_RETURN_IF_ERROR(file->Append(data, bytes));
  MT_RETURN_IF_ERROR(file->Sync());
  MT_RETURN_IF_ERROR(file->Close());
  MT_RETURN_IF_ERROR(env->RenameFile(next, path));
  return env->SyncDir(path.substr(0, path.rfind('/')));
}

Result<std::string> ReadWhole(const std::string& path) {
  MT_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file, Env::Posix()->NewRandomAccessFile(path));
  MT_ASSIGN_OR_RETURN(const uint64_t bytes, file->Size());
  std::string text(bytes, '\0');
  MT_RETURN_IF_ERROR(file->Read(0, bytes, text.data()));
  return text;
}

std::string HeadOf(const std::string& text) {
  char head[64];
  std::snprintf(head, sizeof head, "multitier-variable %lld %08x\n", static_cast<long long>(kFactsVersion),
                Crc32c(text.data(), text.size()));
  return head;
}

Result<KeptFacts> ParseFacts(const std::string& text) {
  MT_ASSIGN_OR_RETURN(const Json json, Json::Parse(std::string_view(text).substr(0, text.size() - 1)));
  KeptFacts facts;
  MT_ASSIGN_OR_RETURN(facts.generation, json.GetInt("generation"));
  if (facts.generation < 1 || facts.generation > kMostGenerations) {
    return InvalidArgumentError("generation: expected 1 to ", kMostGenerations, ", found ", facts.generation);
  }
  MT_ASSIGN_OR_RETURN(const int64_t closed, json.GetInt("closed"));
  MT_ASSIGN_OR_RETURN(facts.checkpoint, json.GetString("checkpoint"));
  MT_ASSIGN_OR_RETURN(facts.partition_index, json.GetInt("partition_index"));
  MT_ASSIGN_OR_RETURN(facts.num_partitions, json.GetInt("num_partitions"));
  MT_ASSIGN_OR_RETURN(const Json* options, json.GetObject("options"));
  MT_ASSIGN_OR_RETURN(facts.options, OptionsFromJson(*options, kInTable));
  MT_RETURN_IF_ERROR(CheckInitializer(facts.options.initializer, facts.options.dim, facts.options.value_dtype));
  MT_ASSIGN_OR_RETURN(facts.num_rows, json.GetInt("num_rows"));
  MT_ASSIGN_OR_RETURN(facts.applies, json.GetInt("applies"));
  if (closed != 0 && closed != 1) return InvalidArgumentError("closed: expected 0 or 1, found ", closed);
  if (facts.applies < 0) return InvalidArgumentError("applies: expected at least 0, found ", facts.applies);
  facts.closed = closed == 1;
  return facts;
}

}  // namespace

std::string KeptFacts::ToJson() const {
  Json json = Json::Object();
  json.Set("generation", Json::Int(generation));
  json.Set("closed", Json::Int(closed ? 1 : 0));
  json.Set("checkpoint", Json::String(checkpoint));
  json.Set("partition_index", Json::Int(partition_index));
  json.Set("num_partitions", Json::Int(num_partitions));
  json.Set("options", OptionsToJson(options, kInTable));
  json.Set("num_rows", Json::Int(num_rows));
  json.Set("applies", Json::Int(applies));
  return json.ToString();
}

Status WriteFacts(const std::string& directory, const KeptFacts& facts) {
  const std::string text = facts.ToJson() + "\n", all = HeadOf(text) + text;
  return WriteSynced(directory + kFactsFile, all.data(), all.size());
}

Result<KeptFacts> ReadFacts(const std::string& directory) {
  const std::string path = directory + kFactsFile;
  MT_ASSIGN_OR_RETURN(const std::string all, ReadWhole(path));
  const size_t end = all.find('\n');
  long long version = 0;
  if (end == std::string::npos || std::sscanf(all.c_str(), "multitier-variable %lld ", &version) != 1) {
    return DataLossError("'", path, "' at offset 0 is damaged");
  }
  if (version != kFactsVersion) {
    return UnimplementedError("'", path, "': expected format version ", kFactsVersion, ", found ", version,
                              ": use the release that wrote it");
  }
  const std::string text = all.substr(end + 1);
  if (text.empty() || HeadOf(text) != all.substr(0, end + 1)) {
    return DataLossError("'", path, "' at offset ", end + 1, ": checksum does not match");
  }
  Result<KeptFacts> facts = ParseFacts(text);
  if (!facts.ok()) return DataLossError("'", path, "' at offset ", end + 1, ": ", facts.status().message());
  return facts;
}

Status WriteMatrix(const std::string& directory, const InitializerSpec& initializer) {
  if (initializer.kind != InitializerKind::kMatrix) return OkStatus();
  const std::vector<float>& matrix = *initializer.matrix;
  return WriteSynced(directory + kMatrixFile, matrix.data(), matrix.size() * sizeof(float));
}

Status ReadMatrix(const std::string& directory, int dim, InitializerSpec* initializer) {
  if (initializer->kind != InitializerKind::kMatrix) return OkStatus();
  const std::string path = directory + kMatrixFile;
  MT_ASSIGN_OR_RETURN(const std::string bytes, ReadWhole(path));
  const auto elements = static_cast<size_t>(initializer->matrix_rows) * static_cast<size_t>(dim);
  if (bytes.size() != elements * sizeof(float)) {
    return DataLossError("'", path, "': expected ", elements * sizeof(float), " bytes, found ", bytes.size());
  }
  const auto* values = reinterpret_cast<const float*>(bytes.data());
  initializer->matrix = std::make_shared<const std::vector<float>>(values, values + elements);
  return OkStatus();
}

Status CheckFits(const VariableOptions& options, const std::string& path, const KeptFacts& facts) {
  const Options& expected = options.table;
  const Options& found = facts.options;
  const std::string cure = ": delete it, or give another storage_path";
  if (found.dim != expected.dim) {
    return FailedPreconditionError("kept rows in '", path, "': expected dim ", expected.dim, ", found dim ", found.dim, cure);
  }
  if (found.key_dtype != expected.key_dtype) {
    return FailedPreconditionError("kept rows in '", path, "': expected keys of ", KeysOf(expected.key_dtype), ", found ",
                                   KeysOf(found.key_dtype), cure);
  }
  if (found.value_dtype != expected.value_dtype) {
    return FailedPreconditionError("kept rows in '", path, "': expected values of ", DTypeName(expected.value_dtype),
                                   ", found values of ", DTypeName(found.value_dtype), cure);
  }
  if (facts.num_partitions != options.num_partitions || facts.partition_index != options.partition_index) {
    return FailedPreconditionError("kept rows in '", path, "': expected part ", options.partition_index, " of ",
                                   options.num_partitions, ", found part ", facts.partition_index, " of ", facts.num_partitions,
                                   cure);
  }
  return OkStatus();
}

absl::Status OfVariable(const std::string& name, const Status& status) {
  return ToAbsl(Status(status.code(), StrCat("embedding variable '", name, "': ", status.message())));
}

}  // namespace multitier
