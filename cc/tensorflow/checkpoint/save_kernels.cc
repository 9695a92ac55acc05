// Kernels that save variables: the rows go to part files next to TensorFlow's files, and TensorFlow's Saver gets the manifests,
// which have the names of the files. The checkpoint is complete once TensorFlow has written its index.
//
// All variables of one save in one process are saved as of one moment (cc/table/snapshot/snapshot_together.h). A Saver asks for
// one variable after the other while it builds its graph, so the ops of a save are
//
//   MultitierSaveGroup --+--> MultitierJoinSaveGroup (one for each part)
//                        +--> MultitierWriteSaveGroup, after all joins: the moment, and the files
//                        +--> MultitierSavedPart (one for each part), after the write: its manifest
//                        +--> MultitierKeepSaveGroup, after the index, where the write has until_kept
//
// The group is a variant tensor, so it lives as long as one run of the save. With until_kept it deletes its files at its end,
// unless it was kept: a save may have several groups, and if one of them fails, or the index, the others' files are of
// no checkpoint. A run may also end between the index and the keep. Then the index names the files, and they stay.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cc/base/helpers.h"
#include "cc/checkpoint_files/column_files.h"
#include "cc/table/snapshot/snapshot_together.h"
#include "cc/tensorflow/checkpoint/part_writer.h"
#include "cc/tensorflow/checkpoint/stale_files.h"
#include "cc/tensorflow/common/host_kernel.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/variable/embedding_variable.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace multitier {
namespace {

// The parts of one save. Thread-safe.
class SaveGroup {
 public:
  SaveGroup() = default;
  ~SaveGroup() {
    if (!unkept_.empty()) RemoveUnnamedFiles(env_, prefix_, unkept_);
  }
  SaveGroup(const SaveGroup&) = delete;
  SaveGroup& operator=(const SaveGroup&) = delete;

  absl::Status Join(std::shared_ptr<VariableState> state) {
    absl::MutexLock lock(&mutex_);
    if (written_) return absl::FailedPreconditionError("MultitierJoinSaveGroup: the group was written before");
    for (const auto& joined : states_) {
      if (joined->table == state->table) return absl::OkStatus();  // the Saver has the variable under two names
    }
    states_.push_back(std::move(state));
    return absl::OkStatus();
  }

  // until_kept: the files are deleted with the group, unless Keep is called first.
  absl::Status Write(tensorflow::Env* env, const std::string& prefix, SaveKind kind, std::optional<DType> frozen,
                     bool until_kept, Links links) {
    absl::MutexLock lock(&mutex_);
    if (written_) return absl::FailedPreconditionError("MultitierWriteSaveGroup: the group was written before");
    written_ = true;
    std::vector<std::unique_ptr<PartWriter>> parts;
    for (const auto& state : states_) parts.push_back(std::make_unique<PartWriter>(env, prefix, state, frozen));
    // No state outlives the kernel: a session that is closed next closes its tables.
    states_.clear();
    TF_RETURN_IF_ERROR(WriteParts(env, prefix, parts, kind, links));
    for (const auto& part : parts) manifests_.emplace_back(part->table(), part->manifest().ToJson());
    if (until_kept) {
      env_ = env;
      prefix_ = prefix;
      for (const auto& part : parts) unkept_.push_back(part->manifest().file);
    }
    return absl::OkStatus();
  }

  // slots: see ColumnFiles.
  absl::Status WriteColumns(const std::string& prefix, bool slots) {
    absl::MutexLock lock(&mutex_);
    if (written_) return absl::FailedPreconditionError("MultitierWriteSaveGroup: the group was written before");
    written_ = true;
    const std::vector<std::shared_ptr<VariableState>> states = std::exchange(states_, {});
    std::vector<std::unique_ptr<ColumnFiles>> files;
    std::vector<TableInGroup> group;
    for (const auto& state : states) {
      EmbeddingTable* const table = state->table.get();
      if (!state->read_only) TF_RETURN_IF_ERROR(ToAbsl(table->Expire(table->NewestStep(), nullptr)));
      files.push_back(std::make_unique<ColumnFiles>(absl::StrCat(prefix, "-", files.size()), slots));
      ColumnFiles* const its = files.back().get();
      TF_RETURN_IF_ERROR(ToAbsl(its->Open()));
      TableInGroup of_group;
      of_group.table = table;
      of_group.visit = [its](Rows* rows) { return its->Add(*rows); };
      of_group.finish = [its] { return its->Finish(); };
      group.push_back(std::move(of_group));
    }
    TF_RETURN_IF_ERROR(ToAbsl(SnapshotTogether(group)));
    for (size_t i = 0; i < files.size(); ++i) manifests_.emplace_back(group[i].table, files[i]->Describe().ToString());
    return absl::OkStatus();
  }

  void Keep() {
    absl::MutexLock lock(&mutex_);
    unkept_.clear();
  }

  absl::Status ManifestOf(const VariableState& state, std::string* json) const {
    absl::MutexLock lock(&mutex_);
    for (const auto& [table, manifest] : manifests_) {
      if (table != state.table.get()) continue;
      *json = manifest;
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrCat("embedding variable '", state.table->options().name,
                                                      "' was initialized or restored while it was saved: save again"));
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<std::shared_ptr<VariableState>> states_ ABSL_GUARDED_BY(mutex_);
  // Of the tables that were written.
  std::vector<std::pair<const EmbeddingTable*, std::string>> manifests_ ABSL_GUARDED_BY(mutex_);
  bool written_ ABSL_GUARDED_BY(mutex_) = false;
  tensorflow::Env* env_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::string prefix_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> unkept_ ABSL_GUARDED_BY(mutex_);  // files under the prefix
};

class SaveGroupVariant {
 public:
  SaveGroupVariant() = default;
  explicit SaveGroupVariant(std::shared_ptr<SaveGroup> group) : group_(std::move(group)) {}
  const std::shared_ptr<SaveGroup>& group() const { return group_; }
  std::string TypeName() const { return "tf_multitier::SaveGroup"; }
  std::string DebugString() const { return "the variables of one save"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }

 private:
  std::shared_ptr<SaveGroup> group_;
};

// The group in input 0.
absl::Status GetGroup(OpKernelContext* context, std::shared_ptr<SaveGroup>* group) {
  TF_RETURN_IF_ERROR(CheckRank(context, "group", context->input(0), 0));
  const auto* found = context->input(0).scalar<tensorflow::Variant>()().get<SaveGroupVariant>();
  if (found == nullptr || found->group() == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(context->op_kernel().type_string(), ": expected the group of a save, found another variant"));
  }
  *group = found->group();
  return absl::OkStatus();
}

// The group in input 0, and the state of the variable in input 1.
absl::Status GetGroupAndState(OpKernelContext* context, std::shared_ptr<SaveGroup>* group,
                              std::shared_ptr<VariableState>* state) {
  TF_RETURN_IF_ERROR(GetGroup(context, group));
  return GetState(context, 1, state);
}

absl::Status SetManifest(OpKernelContext* context, const std::string& json) {
  Tensor* out = nullptr;
  TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &out));
  out->scalar<tensorflow::tstring>()() = json;
  return absl::OkStatus();
}

class SaveGroupKernel : public OpKernel {
 public:
  explicit SaveGroupKernel(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &out));
    out->scalar<tensorflow::Variant>()() = SaveGroupVariant(std::make_shared<SaveGroup>());
  }
};

class JoinSaveGroupKernel : public OpKernel {
 public:
  explicit JoinSaveGroupKernel(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<SaveGroup> group;
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, GetGroupAndState(context, &group, &state));
    OP_REQUIRES_OK(context, group->Join(std::move(state)));
  }
};

// It waits for snapshots that other steps take of the same variables, and for the files: on a thread of its own, so that steps
// go on with any number of inter-op threads.
class WriteSaveGroupKernel : public AsyncOpKernel {
 public:
  explicit WriteSaveGroupKernel(OpKernelConstruction* context) : AsyncOpKernel(context) {
    std::string kind;
    OP_REQUIRES_OK(context, context->GetAttr("kind", &kind));
    kind_ = kind == "delta" ? SaveKind::kDelta : kind == "base" ? SaveKind::kBase : SaveKind::kFull;
    std::string frozen;
    OP_REQUIRES_OK(context, context->GetAttr("frozen", &frozen));
    if (frozen == "float32") frozen_ = DType::kFloat32;
    if (frozen == "float16") frozen_ = DType::kFloat16;
    if (frozen == "bfloat16") frozen_ = DType::kBFloat16;
    OP_REQUIRES(
        context, !frozen_.has_value() || kind_ == SaveKind::kFull,
        absl::InvalidArgumentError(absl::StrCat("MultitierWriteSaveGroup: expected kind full of frozen parts, found ", kind)));
    OP_REQUIRES_OK(context, context->GetAttr("until_kept", &until_kept_));
    OP_REQUIRES(context, !until_kept_ || frozen_.has_value(),
                absl::InvalidArgumentError("MultitierWriteSaveGroup: expected until_kept of frozen parts alone"));
    bool write_down = false;
    OP_REQUIRES_OK(context, context->GetAttr("write_down", &write_down));
    if (write_down) links_ = Links::kAll;
    OP_REQUIRES_OK(context, context->GetAttr("columns", &columns_));
    OP_REQUIRES(context, columns_.empty() || (kind_ == SaveKind::kFull && !frozen_.has_value()),
                absl::InvalidArgumentError("MultitierWriteSaveGroup: expected kind full, and no frozen parts, of columns"));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto write = [this, context, done = std::move(done)] {
      OP_REQUIRES_OK_ASYNC(context, Write(context), done);
      done();
    };
    if (!RunApart(write)) write();
  }

 private:
  // Does not hold the group when it returns: the step may end before the thread does, and then the group may delete its files.
  absl::Status Write(OpKernelContext* context) {
    std::shared_ptr<SaveGroup> group;
    TF_RETURN_IF_ERROR(GetGroup(context, &group));
    TF_RETURN_IF_ERROR(CheckRank(context, "prefix", context->input(1), 0));
    const std::string prefix = context->input(1).scalar<tensorflow::tstring>()();
    if (!columns_.empty()) return group->WriteColumns(prefix, columns_ == "all");
    return group->Write(context->env(), prefix, kind_, frozen_, until_kept_, links_);
  }

  SaveKind kind_ = SaveKind::kFull;
  std::optional<DType> frozen_;
  bool until_kept_ = false;
  Links links_ = Links::kBelow;
  std::string columns_;
};

class KeepSaveGroupKernel : public OpKernel {
 public:
  explicit KeepSaveGroupKernel(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<SaveGroup> group;
    OP_REQUIRES_OK(context, GetGroup(context, &group));
    group->Keep();
  }
};

class SavedPartKernel : public OpKernel {
 public:
  explicit SavedPartKernel(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<SaveGroup> group;
    std::shared_ptr<VariableState> state;
    std::string json;
    OP_REQUIRES_OK(context, GetGroupAndState(context, &group, &state));
    OP_REQUIRES_OK(context, group->ManifestOf(*state, &json));
    OP_REQUIRES_OK(context, SetManifest(context, json));
  }
};

// A save of one variable alone, whose rows are all in the part file: for archives of Keras.
class SavePartKernel : public OpKernel {
 public:
  explicit SavePartKernel(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, GetState(context, 0, &state));
    OP_REQUIRES_OK(context, CheckRank(context, "prefix", context->input(1), 0));
    const std::string prefix = context->input(1).scalar<tensorflow::tstring>()();
    std::vector<std::unique_ptr<PartWriter>> parts;
    parts.push_back(std::make_unique<PartWriter>(context->env(), prefix, std::move(state)));
    OP_REQUIRES_OK(context, WriteParts(context->env(), prefix, parts, SaveKind::kFull, Links::kNone));
    OP_REQUIRES_OK(context, SetManifest(context, parts[0]->manifest().ToJson()));
  }
};

[[maybe_unused]] const HostVariant<SaveGroupVariant> host_save_group;

MULTITIER_HOST_KERNEL("MultitierSaveGroup", SaveGroupKernel, "group");
MULTITIER_HOST_KERNEL("MultitierJoinSaveGroup", JoinSaveGroupKernel, "group", "handle");
MULTITIER_HOST_KERNEL("MultitierWriteSaveGroup", WriteSaveGroupKernel, "group", "prefix");
MULTITIER_HOST_KERNEL("MultitierKeepSaveGroup", KeepSaveGroupKernel, "group");
MULTITIER_HOST_KERNEL("MultitierSavedPart", SavedPartKernel, "group", "handle", "manifest");
MULTITIER_HOST_KERNEL("MultitierSavePart", SavePartKernel, "handle", "prefix", "manifest");

}  // namespace
}  // namespace multitier
