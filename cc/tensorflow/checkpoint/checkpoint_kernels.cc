// Kernels that export the whole contents of a variable. save_kernels.cc saves, restore_kernel.cc restores.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/checkpoint_files/table_part.h"
#include "cc/tensorflow/checkpoint/part_writer.h"
#include "cc/tensorflow/common/host_kernel.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/variable/embedding_variable.h"

namespace multitier {
namespace {

// Writes values[order[i]] to output `index`, [n].
absl::Status SetOrdered(OpKernelContext* context, int index, const std::vector<int64_t>& order,
                        const std::vector<int64_t>& values) {
  Tensor* out = nullptr;
  TF_RETURN_IF_ERROR(context->allocate_output(index, TensorShape({static_cast<int64_t>(order.size())}), &out));
  int64_t* next = out->flat<int64_t>().data();
  for (const int64_t i : order) *next++ = values[i];
  return absl::OkStatus();
}

// Writes the row data at order[i] to output `index`, [n, elements].
absl::Status SetRows(OpKernelContext* context, int index, const std::vector<int64_t>& order, const Rows& rows) {
  const int64_t elements = rows.row_elements();
  Tensor* out = nullptr;
  TF_RETURN_IF_ERROR(context->allocate_output(index, TensorShape({static_cast<int64_t>(order.size()), elements}), &out));
  float* next = out->flat<float>().data();
  for (const int64_t i : order) next = std::copy_n(rows.data.data() + i * elements, elements, next);
  return absl::OkStatus();
}

class ExportKernel : public OpKernel {
 public:
  explicit ExportKernel(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, GetState(context, 0, &state));
    const Result<Rows> rows = state->table->Export(/*all_columns=*/false);
    OP_REQUIRES_OK(context, ToAbsl(rows.status()));
    const std::vector<int64_t> order = OrderByKey(rows->keys);
    OP_REQUIRES_OK(context, SetOrdered(context, 0, order, rows->keys));
    OP_REQUIRES_OK(context, SetRows(context, 1, order, *rows));
    OP_REQUIRES_OK(context, SetOrdered(context, 2, order, rows->versions));
    OP_REQUIRES_OK(context, SetOrdered(context, 3, order, rows->frequencies));
  }
};

class ExportRowsKernel : public OpKernel {
 public:
  explicit ExportRowsKernel(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, GetState(context, 0, &state));
    const Result<Rows> rows = state->table->Export(/*all_columns=*/true);
    OP_REQUIRES_OK(context, ToAbsl(rows.status()));
    Manifest manifest = ManifestOf(*state);
    manifest.columns = rows->columns;
    manifest.num_rows = static_cast<int64_t>(rows->keys.size());
    manifest.applies = rows->applies;

    const std::vector<int64_t> order = OrderByKey(rows->keys);
    Tensor* out_manifest = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &out_manifest));
    out_manifest->scalar<tensorflow::tstring>()() = manifest.ToJson();
    OP_REQUIRES_OK(context, SetOrdered(context, 1, order, rows->keys));
    OP_REQUIRES_OK(context, SetRows(context, 2, order, *rows));
    OP_REQUIRES_OK(context, SetOrdered(context, 3, order, rows->frequencies));
    OP_REQUIRES_OK(context, SetOrdered(context, 4, order, rows->versions));
    OP_REQUIRES_OK(context, SetCounted(context, *rows));
    OP_REQUIRES_OK(context, SetMatrix(context, manifest.initializer, state->table->dim()));
    Tensor* counters = nullptr;
    const TensorShape counters_shape({static_cast<int64_t>(rows->filter_counters.size())});
    OP_REQUIRES_OK(context, context->allocate_output(7, counters_shape, &counters));
    std::copy(rows->filter_counters.begin(), rows->filter_counters.end(), counters->flat<uint8_t>().data());
  }

 private:
  static absl::Status SetCounted(OpKernelContext* context, const Rows& rows) {
    const std::vector<int64_t> order = OrderByKey(rows.counted_keys);
    Tensor* out = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(5, TensorShape({static_cast<int64_t>(order.size()), 3}), &out));
    auto counted = out->matrix<int64_t>();
    for (size_t i = 0; i < order.size(); ++i) {
      counted(i, 0) = rows.counted_keys[order[i]];
      counted(i, 1) = rows.counted_frequencies[order[i]];
      counted(i, 2) = rows.counted_versions[order[i]];
    }
    return absl::OkStatus();
  }

  static absl::Status SetMatrix(OpKernelContext* context, const InitializerSpec& initializer, int dim) {
    const int64_t rows = initializer.kind == InitializerKind::kMatrix ? initializer.matrix_rows : 0;
    Tensor* out = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(6, TensorShape({rows, dim}), &out));
    if (rows > 0) std::copy_n(initializer.matrix->data(), rows * dim, out->flat<float>().data());
    return absl::OkStatus();
  }
};

MULTITIER_HOST_KERNEL("MultitierExport", ExportKernel, "handle", "keys", "values", "versions", "frequencies");
MULTITIER_HOST_KERNEL("MultitierExportRows", ExportRowsKernel, "handle", "manifest", "keys", "rows", "frequencies", "versions",
                      "counted", "initial_matrix", "filter_counters");

}  // namespace
}  // namespace multitier
