// The kernel that applies a delta to a variable: the rows that changed and the keys that were removed since the save before.
//
// All parts are read and checked before the variable changes. An error of the table itself (a full disk) may leave it between
// the two saves: restore it again.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/checkpoint_files/table_part.h"
#include "cc/partition/partition.h"
#include "cc/tensorflow/checkpoint/part_reader.h"
#include "cc/tensorflow/checkpoint/saved_chain.h"
#include "cc/tensorflow/common/host_kernel.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/variable/embedding_variable.h"
#include "cc/tensorflow/variable/kept_table.h"

namespace multitier {
namespace {

class ApplyDeltaKernel : public OpKernel {
 public:
  explicit ApplyDeltaKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("variable_name", &variable_name_));
    OP_REQUIRES_OK(context, context->GetAttr("convert", &convert_));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, GetStateToChange(context, 0, &state));
    OP_REQUIRES_OK(context, CheckRank(context, "prefix", context->input(1), 0));
    OP_REQUIRES_OK(context, CheckRank(context, "previous", context->input(2), 0));
    const std::string prefix = context->input(1).scalar<tensorflow::tstring>()();
    const std::string previous = context->input(2).scalar<tensorflow::tstring>()();
    PartReader reader(context->env(), prefix, variable_name_, "delta");
    std::vector<Manifest> manifests, before;
    OP_REQUIRES_OK(context, ReadManifests(&reader, *state, &manifests));
    OP_REQUIRES_OK(context, CheckTypes(*state, manifests, prefix));
    OP_REQUIRES_OK(context, ReadBefore(context->env(), previous, *state, &before));
    OP_REQUIRES_OK(context, CheckContinues(prefix, manifests, previous, before));
    OP_REQUIRES_OK(context, ForParts(*state, manifests, &reader, [](Rows*) { return OkStatus(); }));
    OP_REQUIRES_OK(context, ForParts(*state, manifests, &reader, [&](Rows* rows) { return Take(*rows, state->table.get()); }));
    OP_REQUIRES_OK(context, FlushKept(tensorflow::HandleFromInput(context, 0).name(), *state));
  }

 private:
  // InvalidArgument where the rows have another dim than the table.
  absl::Status ReadManifests(PartReader* reader, const VariableState& state, std::vector<Manifest>* manifests) const {
    const int dim = state.table->dim();
    TF_RETURN_IF_ERROR(reader->ReadManifests(manifests));
    for (const Manifest& manifest : *manifests) {
      if (manifest.dim() == dim) continue;
      return absl::InvalidArgumentError(absl::StrCat("embedding variable '", variable_name_, "': expected dim ", dim,
                                                     ", found dim ", manifest.dim(), " in checkpoint ", reader->prefix()));
    }
    return absl::OkStatus();
  }

  // InvalidArgument where keys have another type than those of the variable, or values, unless the rows are for serving.
  absl::Status CheckTypes(const VariableState& state, const std::vector<Manifest>& manifests, const std::string& prefix) const {
    const DType own = state.table->options().value_dtype;
    for (const Manifest& manifest : manifests) {
      TF_RETURN_IF_ERROR(CheckKeyType(variable_name_, state.table->options().key_dtype, manifest.key_dtype, prefix));
      const DType saved = manifest.columns[0].dtype;
      if (saved == own || manifest.frozen || convert_) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "embedding variable '", variable_name_, "': expected values of ", DTypeName(own), ", found ", DTypeName(saved),
          " in delta ", prefix, "; an IncrementalSaver that is made in tf_multitier.train.convert_on_restore() accepts it"));
    }
    return absl::OkStatus();
  }

  // Of a delta or of a full save.
  absl::Status ReadBefore(tensorflow::Env* env, const std::string& previous, const VariableState& state,
                          std::vector<Manifest>* manifests) const {
    PartReader delta(env, previous, variable_name_, "delta");
    const absl::Status status = ReadManifests(&delta, state, manifests);
    if (!absl::IsNotFound(status)) return status;
    manifests->clear();
    PartReader full(env, previous, variable_name_);
    return ReadManifests(&full, state, manifests);
  }

  static absl::Status ForParts(const VariableState& state, const std::vector<Manifest>& manifests, PartReader* reader,
                               const std::function<Status(Rows*)>& visit) {
    for (const Manifest& manifest : manifests) {
      if (!PartitionsOverlap(manifest.partition_index, manifest.num_partitions, state.partition_index, state.num_partitions)) {
        continue;
      }
      TF_RETURN_IF_ERROR(reader->ReadRows(manifest, [&](Rows* rows) {
        KeepPartition(state.partition_index, state.num_partitions, rows);
        if (manifest.num_partitions != state.num_partitions) rows->filter_counters.clear();
        return visit(rows);
      }));
    }
    return absl::OkStatus();
  }

  static Status Take(const Rows& rows, EmbeddingTable* table) {
    // A key that is counted now may have had a row.
    std::vector<int64_t> removed = rows.removed_keys;
    removed.insert(removed.end(), rows.counted_keys.begin(), rows.counted_keys.end());
    MT_RETURN_IF_ERROR(table->Remove(removed, nullptr));
    return table->Import(rows);
  }

  std::string variable_name_;
  bool convert_ = false;
};

MULTITIER_HOST_KERNEL("MultitierApplyDelta", ApplyDeltaKernel, "handle", "prefix", "previous");

}  // namespace
}  // namespace multitier
