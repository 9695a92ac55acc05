#include "cc/tensorflow/checkpoint/part_writer.h"

#include <cerrno>
#include <cstdlib>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cc/env/env.h"
#include "cc/env/unfinished_save.h"
#include "cc/table/snapshot/snapshot_together.h"
#include "cc/tensorflow/checkpoint/stale_files.h"
#include "cc/tensorflow/checkpoint/sync_once.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/variable/kept_table.h"
#include "tensorflow/core/platform/path.h"

namespace multitier {
namespace {

constexpr const char* kLinkedSavesVariable = "TF_MULTITIER_LINKED_SAVES";

Result<bool> LinksAreWanted() {
  const char* value = std::getenv(kLinkedSavesVariable);
  const std::string text = value == nullptr ? "1" : value;
  if (text == "0" || text == "1") return text == "1";
  return InvalidArgumentError("environment variable ", kLinkedSavesVariable, ": expected 0 or 1, found '", text, "'");
}

// Whether a file could not be linked because of the places of the two names, or because it has too many.
bool IsNoPlaceForLinks(const Status& status) {
  const int error = status.os_error();
  return error == EXDEV || error == EPERM || error == EACCES || error == EMLINK || error == EOPNOTSUPP || error == ENOSYS;
}

constexpr int kMostNames = 100;  // that are tried for a link

// Letters in place of the dots of a name.
std::string Fill(std::string name) {
  std::random_device random;
  for (char& c : name) {
    if (c == '.') c = static_cast<char>('a' + random() % 26);
  }
  return name;
}

// Matches data-?????-of-?????, and is never a name that TensorFlow uses.
std::string NewPartFileName() { return Fill("data-.....-of-....."); }

// As its part file up to the last five letters: stale_files.cc finds the age of the save by the others. The last five count on
// from those of the part file, so no number below 26^5 except 0 gives a name twice. Random letters would cost more than a link.
std::string LinkedName(const std::string& part_file, uint64_t number) {
  std::string name = part_file;
  for (size_t i = name.size(); i > name.size() - 5; number /= 26) {
    char& letter = name[--i];
    number += static_cast<uint64_t>(letter - 'a');
    letter = static_cast<char>('a' + number % 26);
  }
  return name;
}

// Not 0, and new in every save.
int64_t NewSaveId() {
  std::random_device random;
  return static_cast<int64_t>((uint64_t{random()} << 31 ^ random()) >> 1 | 1);
}

Manifest NewManifest(const VariableState& state) {
  Manifest manifest = ManifestOf(state);
  manifest.file = NewPartFileName();
  return manifest;
}

bool IsLocal(const std::string& path) { return !absl::StrContains(path, "://"); }

// Other file systems have no directories to sync.
Status SyncDirectoryOf(const std::string& prefix) {
  if (!IsLocal(prefix)) return OkStatus();
  const std::string directory(tensorflow::io::Dirname(prefix));
  return Env::Posix()->SyncDir(directory.empty() ? "." : directory);
}

}  // namespace

Manifest ManifestOf(const VariableState& state) {
  Manifest manifest;
  manifest.key_dtype = state.table->options().key_dtype;
  manifest.partition_index = state.partition_index;
  manifest.num_partitions = state.num_partitions;
  manifest.initializer = state.table->options().initializer;
  return manifest;
}

PartWriter::PartWriter(tensorflow::Env* env, const std::string& prefix, std::shared_ptr<VariableState> state,
                       std::optional<DType> frozen)
    : env_(env),
      state_(std::move(state)),
      changes_(state_->kept == nullptr ? 0 : state_->kept->Changes(*state_->table)),
      manifest_(NewManifest(*state_)),
      prefix_(prefix),
      path_(absl::StrCat(prefix, ".", manifest_.file)),
      frozen_(frozen),
      writer_([this](std::string_view bytes) { return FromAbsl(file_->Append(bytes)); }) {
  manifest_.frozen = frozen.has_value();
  if (frozen.has_value()) writer_.Freeze(*frozen);
}

Status PartWriter::Open() {
  if (env_->FileExists(path_).ok()) return AlreadyExistsError("checkpoint part ", path_);
  MT_RETURN_IF_ERROR(FromAbsl(env_->NewWritableFile(path_, &file_)));
  made_ = true;
  if (IsLocal(path_)) {
    UnfinishedSave::Mark(prefix_, path_);
    writeback_.emplace(path_);
  }
  return writer_.Begin(manifest_.initializer, table()->dim());
}

Status PartWriter::Add(const Rows& rows) {
  if (!made_) MT_RETURN_IF_ERROR(Open());
  manifest_.columns = rows.columns;
  if (frozen_.has_value()) {
    manifest_.columns.resize(1);
    manifest_.columns[0].dtype = *frozen_;
  }
  manifest_.applies = rows.applies;  // the last chunk has it
  MT_RETURN_IF_ERROR(writer_.Add(rows));
  if (writeback_.has_value()) writeback_->Grew(static_cast<uint64_t>(writer_.bytes()));
  return OkStatus();
}

std::string PartWriter::LinkName() const {
  return IsLocal(prefix_) && !frozen_.has_value() ? absl::StrCat(prefix_, ".", LinkedName(manifest_.file, 1)) : "";
}

Status PartWriter::TakeFile(const SealedFile& file, const SnapshotRequest::LinkTo& link) {
  if (!made_) MT_RETURN_IF_ERROR(Open());
  LinkedRecords records{static_cast<uint32_t>(manifest_.linked.size()), file.header, file.slots, file.held};
  std::string name;
  Status linked;
  for (int i = 0; i < kMostNames; ++i) {
    name = LinkedName(manifest_.file, ++names_tried_);
    linked = link(absl::StrCat(prefix_, ".", name));
    if (linked.code() != StatusCode::kAlreadyExists) break;
  }
  if (!linked.ok()) return IsNoPlaceForLinks(linked) ? WriteRowsOf(file, records) : linked;
  manifest_.linked.push_back(Manifest::Linked{name, 0, file.rows});  // Finish sets the size
  return writer_.AddLinked(records);
}

Status PartWriter::WriteRowsOf(const SealedFile& file, const LinkedRecords& records) {
  MT_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> opened, Env::Posix()->NewRandomAccessFile(file.path));
  const std::vector<Column>& columns = table()->layout()->columns();
  Rows rows;
  rows.columns.assign(columns.begin(), columns.end());
  LinkedFile from{file.path, file.bytes, [&](uint64_t offset, size_t n, char* out) { return opened->Read(offset, n, out); }};
  MT_ASSIGN_OR_RETURN(const std::unique_ptr<LinkedRows> linked, LinkedRows::Open(std::move(from), records, rows.columns));
  while (!linked->ended()) {
    MT_RETURN_IF_ERROR(linked->Next(&rows));
    MT_RETURN_IF_ERROR(Add(rows));
  }
  return OkStatus();
}

Status PartWriter::Finish() {
  for (Manifest::Linked& linked : manifest_.linked) {
    MT_ASSIGN_OR_RETURN(linked.bytes, SyncOnce(absl::StrCat(prefix_, ".", linked.file)));
  }
  manifest_.num_rows = writer_.rows();
  manifest_.num_removed = writer_.removed();
  MT_RETURN_IF_ERROR(writer_.End());
  manifest_.checksum = writer_.checksum();
  MT_RETURN_IF_ERROR(FromAbsl(file_->Close()));
  return IsLocal(path_) ? Env::Posix()->SyncFile(path_) : OkStatus();  // TensorFlow's Sync writes to the page cache alone
}

void PartWriter::Remove() {
  file_.reset();
  for (const Manifest::Linked& linked : manifest_.linked) {
    env_->DeleteFile(absl::StrCat(prefix_, ".", linked.file)).IgnoreError();
  }
  if (made_) env_->DeleteFile(path_).IgnoreError();  // last: it tells the age of the others
}

void PartWriter::NoteSaved() const {
  if (state_->kept != nullptr && !frozen_.has_value()) state_->kept->SetCheckpoint(manifest_.ToJson(), changes_);
}

absl::Status WriteParts(tensorflow::Env* env, const std::string& prefix, const std::vector<std::unique_ptr<PartWriter>>& parts,
                        SaveKind kind, Links links) {
  bool begun = false;
  const auto write = [&]() -> Status {
    MT_ASSIGN_OR_RETURN(const bool wanted, LinksAreWanted());
    RemoveStaleFiles(env, prefix);
    if (IsLocal(prefix)) {
      UnfinishedSave::RemoveAbandoned(prefix);
      UnfinishedSave::Begin(prefix);
      begun = true;
    }
    std::vector<TableInGroup> group;
    for (const std::unique_ptr<PartWriter>& part : parts) {
      if (!part->read_only()) MT_RETURN_IF_ERROR(part->table()->Expire(part->table()->NewestStep(), nullptr));
      const int64_t save_id = kind == SaveKind::kFull ? 0 : NewSaveId();
      const int64_t since = kind == SaveKind::kDelta ? part->table()->ChangesSince() : 0;
      if (kind == SaveKind::kDelta && since == 0) {
        return FailedPreconditionError("embedding variable '", part->table()->options().name,
                                       "': expected a save that tracks changes before this one, found none: save all rows");
      }
      part->SetChain(save_id, since);
      group.push_back(TableInGroup{part->table(), [&part](Rows* rows) { return part->Add(*rows); },
                                   [&part] { return part->Finish(); }, since, save_id});
      if (kind == SaveKind::kDelta) continue;
      group.back().link_name = links != Links::kNone && wanted ? part->LinkName() : "";
      group.back().write_down = links == Links::kAll;
      group.back().take_file = [&part](const SealedFile& file, const SnapshotRequest::LinkTo& link) {
        return part->TakeFile(file, link);
      };
    }
    MT_RETURN_IF_ERROR(SnapshotTogether(group));
    return SyncDirectoryOf(prefix);
  };
  const Status status = write();
  for (const std::unique_ptr<PartWriter>& part : parts) {
    if (!status.ok()) {
      part->Remove();
    } else if (kind != SaveKind::kDelta) {
      part->NoteSaved();
    }
  }
  if (!status.ok() && begun) UnfinishedSave::GiveUp(prefix);
  return ToAbsl(status);
}

}  // namespace multitier
