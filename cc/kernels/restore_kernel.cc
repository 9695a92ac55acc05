// The kernels that restore a variable, in one op or in two, and that say what this process restores and shares.
//
// Restore builds a new table from the checkpoint and replaces the old table when the new one is complete. A checkpoint that is
// damaged or does not fit therefore leaves the variable unchanged. During a restore both tables exist. A read-only variable
// takes the table of another session that restored the same rows, if there is one.

#include <limits.h>
#include <stdlib.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cc/base/json.h"
#include "cc/kernels/embedding_variable.h"
#include "cc/kernels/host_kernel.h"
#include "cc/kernels/intra_op_executor.h"
#include "cc/kernels/op_kernel.h"
#include "cc/kernels/restore_progress.h"
#include "cc/kernels/saved_chain.h"
#include "cc/kernels/shared_tables.h"
#include "cc/kernels/table_restorer.h"
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

class RestoreKernel : public OpKernel {
 public:
  explicit RestoreKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("variable_name", &variable_name_));
    OP_REQUIRES_OK(context, context->GetAttr("resize", &resize_));
    OP_REQUIRES_OK(context, context->GetAttr("convert", &convert_));
    OP_REQUIRES_OK(context, VariableOptions::FromAttrs(context, &options_));
    std::map<std::string, std::string> attrs;
    for (const auto& [name, value] : context->def().attr()) {
      if (name.empty() || name[0] != '_') attrs[name] = value.SerializeAsString();
    }
    for (const auto& [name, value] : attrs) absl::StrAppend(&attrs_key_, name, "=", value, "\n");
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, Read(context, &state));
    OP_REQUIRES_OK(context, SetState(context, 0, std::move(state)));
  }

 protected:
  // Builds the table that the variable gets.
  absl::Status Read(OpKernelContext* context, std::shared_ptr<VariableState>* state) const {
    TF_RETURN_IF_ERROR(CheckRank(context, "prefix", context->input(1), 0));
    const std::string prefix = context->input(1).scalar<tensorflow::tstring>()();
    const std::string name = tensorflow::HandleFromInput(context, 0).name();
    std::shared_ptr<VariableState> live;
    TF_RETURN_IF_ERROR(FindState(context, 0, &live));
    SavedChain chain(context->env(), prefix, variable_name_);
    // A model that serves may have the path of the program that exported it: it keeps nothing, and takes nothing.
    VariableOptions options = options_;
    if (live == nullptr && absl::EndsWith(prefix, "/variables/variables")) {
      options.storage.keep = options.in_place = options.storage.read_only = false;
    }
    IntraOpExecutor executor(context);
    TableRestorer restorer(&chain, options, name, variable_name_, resize_, convert_, std::move(live), &executor);
    TF_RETURN_IF_ERROR(restorer.ReadManifests());
    if (options.in_place) return restorer.ReadInPlace(state);
    if (options.storage.keep) {
      TF_RETURN_IF_ERROR(restorer.OpenKept(state));
      if (*state != nullptr) return absl::OkStatus();
    }
    if (!options_.read_only) return restorer.Build(state);
    return Share(name, prefix, &restorer, state);
  }

 private:
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
  VariableOptions options_;
  std::string attrs_key_;  // all attrs, for a key of SharedTables
};

// A table on its way from MultitierReadPart to MultitierReplaceTable, as a scalar variant. It is deleted with the step's
// tensors.
class ReadTable {
 public:
  ReadTable() = default;
  explicit ReadTable(std::shared_ptr<VariableState> state) : state_(std::move(state)) {}
  const std::shared_ptr<VariableState>& state() const { return state_; }

  std::string TypeName() const { return "tf_multitier::ReadTable"; }
  std::string DebugString() const { return "a table that was read from a checkpoint"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }

 private:
  std::shared_ptr<VariableState> state_;
};

class ReadPartKernel : public RestoreKernel {
 public:
  using RestoreKernel::RestoreKernel;

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, Read(context, &state));
    Tensor table(tensorflow::DT_VARIANT, {});
    table.scalar<tensorflow::Variant>()() = ReadTable(std::move(state));
    context->set_output(0, table);
  }
};

class ReplaceTableKernel : public OpKernel {
 public:
  explicit ReplaceTableKernel(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    const Tensor& table = context->input(1);
    OP_REQUIRES_OK(context, CheckRank(context, "table", table, 0));
    const ReadTable* read = table.scalar<tensorflow::Variant>()().get<ReadTable>();
    OP_REQUIRES(context, read != nullptr && read->state() != nullptr,
                absl::InvalidArgumentError("table: expected the output of MultitierReadPart, found another variant"));
    OP_REQUIRES_OK(context, SetState(context, 0, read->state()));
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
