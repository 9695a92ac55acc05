#include "cc/tensorflow/variable/kept_table.h"

#include <unistd.h>

#include <optional>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/env/env.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "tensorflow/core/platform/logging.h"

namespace multitier {
namespace {

std::vector<ColumnSpec> ColumnsOf(const EmbeddingTable& table) {
  const std::shared_ptr<const RowLayout> layout = table.layout();
  return {layout->columns().begin(), layout->columns().end()};
}

struct KeptDirectory {
  std::unique_ptr<InstanceDirectory> instance;
  KeptFacts facts;
};

// What FindKept does with a directory whose instance.variable is damaged. A restore replaces it, as any other.
enum class Damaged { kIsAnError, kCountsAsOpen };

Result<KeptFacts> ReadFactsOr(const std::string& directory, Damaged damaged) {
  Result<KeptFacts> facts = ReadFacts(directory);
  if (damaged == Damaged::kIsAnError || facts.status().code() != StatusCode::kDataLoss) return facts;
  LOG(WARNING) << facts.status().message();
  KeptFacts open;
  open.generation = 0;
  return open;
}

// The kept directory of a variable that is in force, locked. Others of it are deleted. Null if there is none.
Result<std::optional<KeptDirectory>> FindKept(const std::string& storage_path, const std::string& name, Damaged damaged) {
  Env* const env = Env::Posix();
  const std::string of_name = InstanceDirectory::PathOfName(storage_path, name);
  MT_ASSIGN_OR_RETURN(const bool exists, env->FileExists(of_name));
  if (!exists) return std::optional<KeptDirectory>();
  MT_ASSIGN_OR_RETURN(const std::vector<std::string> names, env->ListDir(of_name));
  std::string newest;
  int64_t generation = 0;
  std::vector<std::string> others;
  for (const std::string& instance : names) {
    const std::string path = StrCat(of_name, "/", instance);
    MT_ASSIGN_OR_RETURN(const bool has_facts, env->FileExists(path + kFactsFile));
    MT_ASSIGN_OR_RETURN(const bool keeps, env->FileExists(path + kKeepFile));
    if (!keeps && instance.rfind("instance-", 0) == 0) others.push_back(path);  // of a restore that was killed, or in use
    if (!has_facts || !keeps) continue;
    MT_ASSIGN_OR_RETURN(const KeptFacts facts, ReadFactsOr(path, damaged));
    if (!newest.empty() && facts.generation <= generation) {
      others.push_back(path);
      continue;
    }
    if (!newest.empty()) others.push_back(newest);
    newest = path;
    generation = facts.generation;
  }
  if (newest.empty()) return std::optional<KeptDirectory>();
  KeptDirectory kept;
  MT_ASSIGN_OR_RETURN(kept.instance, InstanceDirectory::Open(newest, /*keep=*/true));
  MT_ASSIGN_OR_RETURN(kept.facts, ReadFactsOr(newest, damaged));
  for (const std::string& path : others) (void)InstanceDirectory::Open(path, /*keep=*/false);  // deleted, unless in use
  return std::optional<KeptDirectory>(std::move(kept));
}

// `state` gets the table of the directory.
absl::Status OpenFound(const VariableOptions& options, const std::string& name, KeptDirectory found,
                       std::shared_ptr<VariableState>* state) {
  const std::string path = found.instance->path();
  KeptFacts facts = std::move(found.facts);
  const KeptFacts before = facts;
  InitializerSpec initializer = facts.options.initializer;
  const Status read = ReadMatrix(path, options.table.dim, &initializer);
  if (!read.ok()) return OfVariable(name, read);
  Opening opening = options.opening;
  opening.recover = std::move(found.instance);
  std::shared_ptr<InstanceDirectory> directory;
  std::shared_ptr<VariableState> opened;
  TF_RETURN_IF_ERROR(options.MakeStateOf(opening, name, std::move(initializer), &directory, &opened));
  const int64_t rows = opened->table->TotalCount();
  if (facts.closed && rows != facts.num_rows) {
    return OfVariable(name, DataLossError("kept rows in '", path, "': expected ", facts.num_rows, " rows, found ", rows));
  }
  Rows counts;  // of applies alone
  counts.columns = ColumnsOf(*opened->table);
  counts.applies = facts.applies;
  TF_RETURN_IF_ERROR(ToAbsl(opened->table->Import(counts)));
  facts.closed = false;
  const Status written = WriteFacts(path, facts);
  if (!written.ok()) return OfVariable(name, written);
  opened->kept = std::make_unique<KeptTable>(std::move(directory), before, /*adopted=*/true, nullptr);
  if (before.closed && !before.checkpoint.empty()) {
    opened->kept->SetCheckpoint(before.checkpoint, opened->kept->Changes(*opened->table));
  }
  *state = std::move(opened);
  return absl::OkStatus();
}

}  // namespace

KeptTable::KeptTable(std::shared_ptr<InstanceDirectory> directory, KeptFacts facts, bool adopted,
                     std::unique_ptr<InstanceDirectory> replaces)
    : directory_(std::move(directory)),
      pid_(::getpid()),
      generation_(facts.generation),
      facts_(std::move(facts)),
      adopted_(adopted),
      replaces_(std::move(replaces)) {
  facts_.closed = false;
  facts_.checkpoint.clear();
}

int64_t KeptTable::Changes(const EmbeddingTable& table) const {
  const int64_t changes = changes_.load();  // before the others: a change that is counted late counts
  const TableStats stats = table.Stats();
  return changes + stats.dropped + stats.corrupt;
}

void KeptTable::SetCheckpoint(std::string manifest, int64_t changes) {
  absl::MutexLock lock(&mutex_);
  facts_.checkpoint = std::move(manifest);
  changes_at_checkpoint_ = changes;
}

bool KeptTable::IsAt(const std::string& manifest, const EmbeddingTable& table) const {
  const int64_t changes = Changes(table);
  absl::MutexLock lock(&mutex_);
  return facts_.checkpoint == manifest && changes_at_checkpoint_ == changes;
}

Status KeptTable::Adopt() {
  absl::MutexLock lock(&mutex_);
  if (adopted_) return OkStatus();
  MT_RETURN_IF_ERROR(directory_->SetKeep(true));
  adopted_ = true;
  if (replaces_ == nullptr) return OkStatus();
  const Status status = replaces_->SetKeep(false);  // it is of an earlier generation, in any case
  if (!status.ok()) LOG(WARNING) << StrCat("kept directory '", replaces_->path(), "' is not deleted: ", status.message());
  replaces_.reset();
  return OkStatus();
}

void KeptTable::Discard() {
  absl::MutexLock lock(&mutex_);
  discarded_ = true;
  const Status status = directory_->SetKeep(false);
  if (!status.ok()) LOG(WARNING) << StrCat("kept directory '", directory_->path(), "' is not deleted: ", status.message());
}

void KeptTable::Close(EmbeddingTable* table) {
  if (::getpid() != pid_) return;
  absl::MutexLock lock(&mutex_);
  if (!adopted_ || discarded_) return;
  Status status = table->Flush();
  if (status.ok()) {
    KeptFacts facts = facts_;
    facts.closed = true;
    if (changes_at_checkpoint_ != Changes(*table)) facts.checkpoint.clear();
    const std::vector<ColumnSpec> columns = ColumnsOf(*table);
    facts.options.slots.assign(columns.begin() + 1, columns.end());
    facts.num_rows = table->TotalCount();
    facts.applies = table->Stats().applies;
    status = WriteFacts(directory_->path(), facts);
  }
  if (status.ok()) return;
  LOG(ERROR) << StrCat("embedding variable '", table->options().name, "': its kept rows in '", directory_->path(),
                       "' were not closed: the next restore reads its checkpoint. ", status.ToString());
}

absl::Status FlushKept(const std::string& name, const VariableState& state) {
  if (state.kept == nullptr || state.table->options().drop_coldest) return absl::OkStatus();
  const Status flushed = state.table->Flush();
  return flushed.ok() ? absl::OkStatus() : OfVariable(name, flushed);
}

absl::Status OpenKept(const VariableOptions& options, const std::string& name, std::shared_ptr<VariableState>* state) {
  state->reset();
  Result<std::optional<KeptDirectory>> found = FindKept(options.table.storage_path, name, Damaged::kIsAnError);
  if (!found.ok()) return OfVariable(name, found.status());
  if (!found->has_value()) return absl::OkStatus();
  KeptDirectory& kept = **found;
  const Status fits = CheckFits(options, kept.instance->path(), kept.facts);
  if (!fits.ok()) return OfVariable(name, fits);
  const std::string path = kept.instance->path();
  const bool closed = kept.facts.closed;
  TF_RETURN_IF_ERROR(OpenFound(options, name, std::move(kept), state));
  const int64_t rows = (*state)->table->TotalCount();
  if (closed) {
    LOG(INFO) << StrCat("embedding variable '", name, "' goes on with ", rows, " rows that are kept in '", path, "'");
  } else {
    LOG(WARNING) << StrCat("embedding variable '", name, "' goes on with ", rows, " rows that are kept in '", path,
                           "' by a process that did not close them: each is as of its last write. A restore replaces them");
  }
  return absl::OkStatus();
}

absl::Status OpenKeptAt(const VariableOptions& options, const std::string& name, const std::string& manifest,
                        std::shared_ptr<VariableState>* state) {
  state->reset();
  Result<std::optional<KeptDirectory>> found = FindKept(options.table.storage_path, name, Damaged::kCountsAsOpen);
  if (!found.ok()) return OfVariable(name, found.status());
  if (!found->has_value()) return absl::OkStatus();
  KeptDirectory& kept = **found;
  if (!kept.facts.closed || kept.facts.checkpoint != manifest || !CheckFits(options, kept.instance->path(), kept.facts).ok()) {
    LOG(INFO) << StrCat("embedding variable '", name, "': the rows in '", kept.instance->path(),
                        "' are not those of the checkpoint: they are replaced");
    return absl::OkStatus();
  }
  const absl::Status opened = OpenFound(options, name, std::move(kept), state);
  if (opened.ok()) return opened;
  LOG(WARNING) << StrCat("the kept rows cannot be opened, and are read from the checkpoint: ", opened.message());
  state->reset();
  return absl::OkStatus();
}

absl::Status MakeKept(const VariableOptions& options, const std::string& name, InitializerSpec initializer,
                      const VariableState* replaced, std::shared_ptr<VariableState>* state) {
  KeptFacts facts;
  std::unique_ptr<InstanceDirectory> replaces;
  if (replaced != nullptr && replaced->kept != nullptr) {
    facts.generation = replaced->kept->generation() + 1;
  } else {
    Result<std::optional<KeptDirectory>> found = FindKept(options.table.storage_path, name, Damaged::kCountsAsOpen);
    if (!found.ok()) return OfVariable(name, found.status());
    if (found->has_value()) {
      facts.generation = (*found)->facts.generation + 1;
      replaces = std::move((*found)->instance);
    }
  }
  facts.options.dim = options.table.dim;
  facts.options.value_dtype = options.table.value_dtype;
  facts.options.key_dtype = options.table.key_dtype;
  facts.options.initializer = initializer;
  facts.partition_index = options.partition_index;
  facts.num_partitions = options.num_partitions;
  std::shared_ptr<InstanceDirectory> directory;
  std::shared_ptr<VariableState> made;
  TF_RETURN_IF_ERROR(options.MakeStateOf(options.opening, name, initializer, &directory, &made));
  Status written = WriteMatrix(directory->path(), initializer);
  if (written.ok()) written = WriteFacts(directory->path(), facts);
  if (!written.ok()) return OfVariable(name, written);
  made->kept = std::make_unique<KeptTable>(std::move(directory), std::move(facts), /*adopted=*/false, std::move(replaces));
  *state = std::move(made);
  return absl::OkStatus();
}

}  // namespace multitier
