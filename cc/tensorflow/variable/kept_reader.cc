#include "cc/tensorflow/variable/kept_reader.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/base/status.h"
#include "cc/env/env.h"
#include "cc/env/instance_dir.h"
#include "cc/options/options.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/variable/kept_files.h"
#include "cc/tensorflow/variable/shared_tables.h"
#include "tensorflow/core/platform/logging.h"

namespace multitier {
namespace {

constexpr const char* kCure = ". A trainer with StorageOption(keep=True) that saves last and closes its session leaves them";

struct Found {
  std::string path;
  KeptFacts facts;
};

// The kept directory of the greatest generation. One whose description is damaged may have a greater one: DataLoss, unless the
// rows of the checkpoint are asked for and found.
Result<Found> FindToRead(const std::string& storage_path, const std::string& name, const std::optional<std::string>& manifest) {
  Env* const env = Env::Posix();
  const std::string of_name = InstanceDirectory::PathOfName(storage_path, name);
  const Result<std::vector<std::string>> names = env->ListDir(of_name);
  if (!names.ok() && names.status().code() != StatusCode::kNotFound) return names.status();
  Found found;
  Status damaged;
  for (const std::string& instance : names.ok() ? *names : std::vector<std::string>()) {
    const std::string path = StrCat(of_name, "/", instance);
    MT_ASSIGN_OR_RETURN(const bool keeps, env->FileExists(path + kKeepFile));
    MT_ASSIGN_OR_RETURN(const bool has_facts, env->FileExists(path + kFactsFile));
    if (!keeps || !has_facts) continue;
    Result<KeptFacts> facts = ReadFacts(path);
    if (facts.status().code() == StatusCode::kDataLoss) {
      damaged = facts.status();
      continue;
    }
    MT_RETURN_IF_ERROR(facts.status());
    if (found.path.empty() || facts->generation > found.facts.generation) found = Found{path, *std::move(facts)};
  }
  const bool of_checkpoint =
      !found.path.empty() && manifest.has_value() && found.facts.closed && found.facts.checkpoint == *manifest;
  if (!damaged.ok() && !of_checkpoint) return damaged;
  if (!found.path.empty()) return found;
  return FailedPreconditionError("expected kept rows in '", of_name, "', found none", kCure);
}

Status CheckClosed(const Found& found, const std::optional<std::string>& manifest) {
  MT_RETURN_IF_ERROR(InstanceDirectory::CheckUnused(found.path));
  if (!found.facts.closed) {
    return FailedPreconditionError("kept rows in '", found.path, "': expected rows that were closed, found those of a process ",
                                   "that was killed or ended without closing its session", kCure);
  }
  if (!manifest.has_value() || found.facts.checkpoint == *manifest) return OkStatus();
  return FailedPreconditionError(
      "kept rows in '", found.path, "': expected those of the checkpoint, found ",
      found.facts.checkpoint.empty() ? "rows that changed after the last save or restore" : "those of another checkpoint",
      kCure);
}

// Steps 2 and 3.
absl::Status Open(const VariableOptions& options, const std::string& name, const Found& found,
                  std::shared_ptr<VariableState>* state) {
  InitializerSpec initializer = found.facts.options.initializer;
  const Status read = ReadMatrix(found.path, options.table.dim, &initializer);
  if (!read.ok()) return OfVariable(name, read);
  Result<std::unique_ptr<InstanceDirectory>> instance = InstanceDirectory::OpenForReading(found.path);
  if (!instance.ok()) return OfVariable(name, instance.status());
  Opening opening = options.opening;
  opening.read_only = true;
  opening.recover = *std::move(instance);
  std::shared_ptr<VariableState> opened;
  const absl::Status made = options.MakeStateOf(opening, name, std::move(initializer), nullptr, &opened);
  const Result<KeptFacts> now = ReadFacts(found.path);
  if (!now.ok() || now->ToJson() != found.facts.ToJson()) {
    return OfVariable(name, FailedPreconditionError("kept rows in '", found.path,
                                                    "': a process took them over while they were opened for reading"));
  }
  TF_RETURN_IF_ERROR(made);
  const int64_t rows = opened->table->TotalCount();
  if (rows != found.facts.num_rows) {
    return OfVariable(name,
                      DataLossError("kept rows in '", found.path, "': expected ", found.facts.num_rows, ", found ", rows));
  }
  LOG(INFO) << StrCat("embedding variable '", name, "' reads ", rows, " rows in place, in '", found.path, "'");
  *state = std::move(opened);
  return absl::OkStatus();
}

// For SharedTables: everything that two variables with one table must have in common.
std::string KeyOf(const VariableOptions& options, const std::string& name, const Found& found) {
  Options record = options.table;
  record.initializer = InitializerSpec();  // the facts have it
  return absl::StrCat("in place\n", name, "\n", found.path, "\n", found.facts.ToJson(), "\n",
                      OptionsToJson(record, kInVariable).ToString());
}

}  // namespace

absl::Status OpenInPlace(const VariableOptions& options, const std::string& name, const std::optional<std::string>& manifest,
                         std::shared_ptr<VariableState>* state) {
  const Result<Found> found = FindToRead(options.table.storage_path, name, manifest);
  if (!found.ok()) return OfVariable(name, found.status());
  Status status = CheckClosed(*found, manifest);
  if (status.ok()) status = CheckFits(options, found->path, found->facts);
  if (!status.ok()) return OfVariable(name, status);
  const auto open = [&](std::shared_ptr<VariableState>* made) { return Open(options, name, *found, made); };
  return SharedTables::Global().FindOrMake(KeyOf(options, name, *found), found->path, open, state);
}

}  // namespace multitier
