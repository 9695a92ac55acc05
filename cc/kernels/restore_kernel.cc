// The kernel that restores a variable.
//
// Restore builds a new table from the checkpoint and replaces the old table when the new one is complete. A checkpoint that is
// damaged or does not fit therefore leaves the variable unchanged. During a restore both tables exist.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/partition.h"
#include "cc/checkpoint/table_part.h"
#include "cc/kernels/embedding_variable.h"
#include "cc/kernels/part_reader.h"
#include "cc/kernels/status_bridge.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace multitier {
namespace {

using tensorflow::DEVICE_CPU;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

class RestoreKernel : public OpKernel {
 public:
  explicit RestoreKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("variable_name", &variable_name_));
    OP_REQUIRES_OK(context, VariableOptions::FromAttrs(context, &options_));
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckRank(context, "prefix", context->input(1), 0));
    PartReader reader(context->env(), context->input(1).scalar<tensorflow::tstring>()(), variable_name_);
    std::vector<Manifest> manifests;
    OP_REQUIRES_OK(context, reader.ReadManifests(options_.table.dim, &manifests));

    InitializerSpec initializer = options_.table.initializer;
    OP_REQUIRES_OK(context, reader.ReadInitializer(manifests[0], &initializer));
    std::unique_ptr<EmbeddingTable> table;
    OP_REQUIRES_OK(context, options_.MakeTable(tensorflow::HandleFromInput(context, 0).name(), std::move(initializer), &table));
    auto state = std::make_shared<VariableState>();
    state->table = std::move(table);
    state->partition_index = options_.partition_index;
    state->num_partitions = options_.num_partitions;

    for (const Manifest& manifest : manifests) {
      if (!PartitionsOverlap(manifest.partition_index, manifest.num_partitions, state->partition_index,
                             state->num_partitions)) {
        continue;
      }
      OP_REQUIRES_OK(context, reader.ReadRows(manifest, [&](Rows* rows) {
        KeepPartition(state->partition_index, state->num_partitions, rows);
        // A Bloom filter counts the keys of its partition together, so its counters fit no other partition.
        if (manifest.num_partitions != state->num_partitions) rows->filter_counters.clear();
        return state->table->Import(*rows);
      }));
    }
    OP_REQUIRES_OK(context, KeepLiveSlots(context, state->table.get()));
    OP_REQUIRES_OK(context, SetState(context, 0, std::move(state)));
  }

 private:
  // Slots that the live table has and the checkpoint lacks, because an optimizer of this graph declared them.
  static absl::Status KeepLiveSlots(OpKernelContext* context, EmbeddingTable* table) {
    std::shared_ptr<VariableState> live;
    TF_RETURN_IF_ERROR(FindState(context, 0, &live));
    if (live == nullptr) return absl::OkStatus();
    const std::shared_ptr<const RowLayout> layout = live->table->layout();
    const std::vector<ColumnSpec> slots(layout->columns().begin() + 1, layout->columns().end());
    return slots.empty() ? absl::OkStatus() : ToAbsl(table->AddSlots(slots));
  }

  std::string variable_name_;
  VariableOptions options_;
};

REGISTER_KERNEL_BUILDER(Name("MultitierRestore").Device(DEVICE_CPU).TypeConstraint<float>("dtype"), RestoreKernel);

}  // namespace
}  // namespace multitier
