// The kernels that restore a variable, in one op or in two, and that say what this process restores and shares.
//
// Restore builds a new table from the checkpoint and replaces the old table when the new one is complete. A checkpoint that is
// damaged or does not fit therefore leaves the variable unchanged. During a restore both tables exist. A read-only variable
// takes the table of another session that restored the same rows, if there is one.
//
// Variables that are restored together are read by an op each, and replaced once all have been read. A variable that has rows
// is only checked by the first op, and read again by the second: so not all new tables are in memory next to all old ones.

#include <limits.h>
#include <stdlib.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cc/base/json.h"
#include "cc/tensorflow/checkpoint/restore_progress.h"
#include "cc/tensorflow/checkpoint/saved_chain.h"
#include "cc/tensorflow/checkpoint/table_restorer.h"
#include "cc/tensorflow/common/host_kernel.h"
#include "cc/tensorflow/common/intra_op_executor.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/variable/embedding_variable.h"
#include "cc/tensorflow/variable/shared_tables.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace multitier {
namespace {

// The path that names the same file whatever the working directory, if the file system has it.
std::string AbsolutePath(const std::string& path) {
  char resolved[PATH_MAX];
  const std::string index = path + ".index";
  return realpath(index.c_str(), resolved) == nullptr ? path : resolved;
}

// How a variable is restored: what the attrs of an op say. Tables that are built later refer to it.
class Restoration {
 public:
  static absl::Status FromAttrs(OpKernelConstruction* context, std::shared_ptr<const Restoration>* restoration) {
    auto made = std::make_shared<Restoration>();
    TF_RETURN_IF_ERROR(context->GetAttr("variable_name", &made->variable_name_));
    TF_RETURN_IF_ERROR(context->GetAttr("resize", &made->resize_));
    TF_RETURN_IF_ERROR(context->GetAttr("convert", &made->convert_));
    TF_RETURN_IF_ERROR(context->GetAttr("rename_slots", &made->rename_slots_));
    TF_RETURN_IF_ERROR(VariableOptions::FromAttrs(context, &made->options_));
    std::map<std::string, std::string> attrs;
    for (const auto& [name, value] : context->def().attr()) {
      if (name.empty() || name[0] != '_') attrs[name] = value.SerializeAsString();
    }
    for (const auto& [name, value] : attrs) absl::StrAppend(&made->attrs_key_, name, "=", value, "\n");
    *restoration = std::move(made);
    return absl::OkStatus();
  }

  // Builds the table that the variable, input 0, gets from the checkpoint at `prefix`.
  absl::Status Build(OpKernelContext* context, const std::string& prefix, std::shared_ptr<VariableState>* state) const {
    return WithRestorer(context, prefix, [&](TableRestorer* restorer, const VariableOptions& options) -> absl::Status {
      if (options.table.in_place) return restorer->ReadInPlace(state);
      if (options.table.keep) {
        TF_RETURN_IF_ERROR(restorer->OpenKept(state));
        if (*state != nullptr) return absl::OkStatus();
      }
      if (!options_.table.read_only) return restorer->Build(state);
      return Share(tensorflow::HandleFromInput(context, 0).name(), prefix, restorer, state);
    });
  }

  // Finds what Build would find in the checkpoint, with a few blocks in memory, and builds nothing.
  absl::Status Check(OpKernelContext* context, const std::string& prefix) const {
    return WithRestorer(context, prefix, [](TableRestorer* restorer, const VariableOptions& options) {
      return options.table.in_place ? absl::OkStatus() : restorer->Check();
    });
  }

 private:
  absl::Status WithRestorer(OpKernelContext* context, const std::string& prefix,
                            const std::function<absl::Status(TableRestorer*, const VariableOptions&)>& run) const {
    std::shared_ptr<VariableState> live;
    TF_RETURN_IF_ERROR(FindState(context, 0, &live));
    SavedChain chain(context->env(), prefix, variable_name_);
    // A model that serves may have the path of the program that exported it: it keeps nothing, and takes nothing.
    VariableOptions options = options_;
    if (live == nullptr && absl::EndsWith(prefix, "/variables/variables")) {
      options.table.keep = options.table.in_place = false;
    }
    IntraOpExecutor executor(context);
    TableRestorer restorer(&chain, options, tensorflow::HandleFromInput(context, 0).name(), variable_name_, resize_, convert_,
                           rename_slots_, std::move(live), &executor);
    TF_RETURN_IF_ERROR(restorer.ReadManifests());
    return run(&restorer, options);
  }

  // All versions that continue one base share its table; those with deltas have a layer above it.
  absl::Status Share(const std::string& name, const std::string& prefix, TableRestorer* restorer,
                     std::shared_ptr<VariableState>* state) const {
    const std::string& base_prefix = restorer->base_prefix();
    const std::string base_key =
        absl::StrCat(name, "\n", AbsolutePath(base_prefix), "\n", attrs_key_, restorer->base_manifests());
    const auto build_base = [&](std::shared_ptr<VariableState>* built) { return restorer->BuildBase(built); };
    if (!restorer->has_deltas()) return SharedTables::Global().FindOrMake(base_key, prefix, build_base, state);
    const auto build = [&](std::shared_ptr<VariableState>* built) {
      std::shared_ptr<VariableState> base;
      TF_RETURN_IF_ERROR(SharedTables::Global().FindOrMake(base_key, base_prefix, build_base, &base));
      return restorer->BuildOver(base, built);
    };
    const std::string key = absl::StrCat(base_key, "\n", AbsolutePath(prefix), "\n", restorer->DeltaManifests());
    return SharedTables::Global().FindOrMake(key, prefix, build, state);
  }

  std::string variable_name_;
  bool resize_ = false;
  bool convert_ = false;
  bool rename_slots_ = false;
  VariableOptions options_;
  std::string attrs_key_;  // all attrs, for a key of SharedTables
};

// The checkpoint's prefix, input 1 of an op.
absl::Status GetPrefix(OpKernelContext* context, std::string* prefix) {
  TF_RETURN_IF_ERROR(CheckRank(context, "prefix", context->input(1), 0));
  *prefix = context->input(1).scalar<tensorflow::tstring>()();
  return absl::OkStatus();
}

class RestoreKernel : public OpKernel {
 public:
  explicit RestoreKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, Restoration::FromAttrs(context, &restoration_));
  }

  void Compute(OpKernelContext* context) override {
    std::string prefix;
    OP_REQUIRES_OK(context, GetPrefix(context, &prefix));
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, restoration_->Build(context, prefix, &state));
    OP_REQUIRES_OK(context, SetState(context, 0, std::move(state)));
  }

 private:
  std::shared_ptr<const Restoration> restoration_;
};

// A table on its way from MultitierReadPart to MultitierReplaceTable, as a scalar variant: built, or checked and built later.
// It is deleted with the step's tensors.
class ReadTable {
 public:
  ReadTable() = default;
  explicit ReadTable(std::shared_ptr<VariableState> state) : state_(std::move(state)) {}
  ReadTable(std::shared_ptr<const Restoration> restoration, std::string prefix)
      : restoration_(std::move(restoration)), prefix_(std::move(prefix)) {}

  // The table, for the variable of the same handle.
  absl::Status Get(OpKernelContext* context, std::shared_ptr<VariableState>* state) const {
    *state = state_;
    if (restoration_ != nullptr) return restoration_->Build(context, prefix_, state);
    if (state_ != nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError("table: expected the output of MultitierReadPart, found an empty variant");
  }

  std::string TypeName() const { return "tf_multitier::ReadTable"; }
  std::string DebugString() const { return "a table that was read from a checkpoint"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }

 private:
  std::shared_ptr<VariableState> state_;
  std::shared_ptr<const Restoration> restoration_;
  std::string prefix_;
};

class ReadPartKernel : public OpKernel {
 public:
  explicit ReadPartKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("check_only", &check_only_));
    OP_REQUIRES_OK(context, Restoration::FromAttrs(context, &restoration_));
  }

  void Compute(OpKernelContext* context) override {
    std::string prefix;
    OP_REQUIRES_OK(context, GetPrefix(context, &prefix));
    std::shared_ptr<VariableState> live, state;
    OP_REQUIRES_OK(context, FindState(context, 0, &live));
    Tensor table(tensorflow::DT_VARIANT, {});
    if (check_only_ || (live != nullptr && live->table->TotalCount() > 0)) {
      OP_REQUIRES_OK(context, restoration_->Check(context, prefix));
      table.scalar<tensorflow::Variant>()() = ReadTable(restoration_, prefix);
    } else {
      OP_REQUIRES_OK(context, restoration_->Build(context, prefix, &state));
      table.scalar<tensorflow::Variant>()() = ReadTable(std::move(state));
    }
    context->set_output(0, table);
  }

 private:
  bool check_only_ = false;
  std::shared_ptr<const Restoration> restoration_;
};

class ReplaceTableKernel : public OpKernel {
 public:
  explicit ReplaceTableKernel(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    const Tensor& table = context->input(1);
    OP_REQUIRES_OK(context, CheckRank(context, "table", table, 0));
    const ReadTable* read = table.scalar<tensorflow::Variant>()().get<ReadTable>();
    OP_REQUIRES(context, read != nullptr,
                absl::InvalidArgumentError("table: expected the output of MultitierReadPart, found another variant"));
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, read->Get(context, &state));
    OP_REQUIRES_OK(context, SetState(context, 0, std::move(state)));
  }
};

class ProcessStateKernel : public OpKernel {
 public:
  explicit ProcessStateKernel(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    Json state = Json::Object();
    state.Set("restored_rows", RestoreProgress::ReadRows());
    state.Set("shared_tables", SharedTables::Global().List());
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &out));
    out->scalar<tensorflow::tstring>()() = state.ToString();
  }
};

[[maybe_unused]] const HostVariant<ReadTable> host_read_table;

MULTITIER_HOST_KERNEL("MultitierRestore", RestoreKernel, "handle", "prefix");
MULTITIER_HOST_KERNEL("MultitierReadPart", ReadPartKernel, "handle", "prefix", "table");
MULTITIER_HOST_KERNEL("MultitierReplaceTable", ReplaceTableKernel, "handle", "table");
REGISTER_KERNEL_BUILDER(Name("MultitierProcessState").Device(DEVICE_CPU), ProcessStateKernel);

}  // namespace
}  // namespace multitier
