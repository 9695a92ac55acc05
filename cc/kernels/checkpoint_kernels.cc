// Kernels that export and save the whole contents of a variable.
//
// A save streams the rows to a part file next to TensorFlow's files (checkpoint/part_file.h). It gives TensorFlow's Saver the
// manifest, which contains the name of the part file. The checkpoint is complete once TensorFlow has written its index.

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/checkpoint/part_file.h"
#include "cc/checkpoint/table_part.h"
#include "cc/kernels/embedding_variable.h"
#include "cc/kernels/status_bridge.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/env.h"

namespace multitier {
namespace {

using tensorflow::DEVICE_CPU;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Writes values[order[i]] to output `index`, [n].
absl::Status SetVector(OpKernelContext* context, int index, const std::vector<int64_t>& order,
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

constexpr int64_t kChunkRows = 16 * 1024;  // of a snapshot

// The description of a part, without its rows.
Manifest ManifestOf(const VariableState& state) {
  Manifest manifest;
  manifest.partition_index = state.partition_index;
  manifest.num_partitions = state.num_partitions;
  manifest.initializer = state.table->options().initializer;
  return manifest;
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
    OP_REQUIRES_OK(context, SetVector(context, 0, order, rows->keys));
    OP_REQUIRES_OK(context, SetRows(context, 1, order, *rows));
    OP_REQUIRES_OK(context, SetVector(context, 2, order, rows->versions));
    OP_REQUIRES_OK(context, SetVector(context, 3, order, rows->frequencies));
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
    OP_REQUIRES_OK(context, SetVector(context, 1, order, rows->keys));
    OP_REQUIRES_OK(context, SetRows(context, 2, order, *rows));
    OP_REQUIRES_OK(context, SetVector(context, 3, order, rows->frequencies));
    OP_REQUIRES_OK(context, SetVector(context, 4, order, rows->versions));
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

// Streams the table to its part file. The output, which goes into TensorFlow's bundle, is the manifest.
class SavePartKernel : public OpKernel {
 public:
  explicit SavePartKernel(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, GetState(context, 0, &state));
    OP_REQUIRES_OK(context, CheckRank(context, "prefix", context->input(1), 0));
    const std::string prefix = context->input(1).scalar<tensorflow::tstring>()();
    OP_REQUIRES_OK(context, ToAbsl(state->table->Expire(state->table->NewestStep(), nullptr)));
    Manifest manifest = ManifestOf(*state);
    manifest.file = NewPartFileName();
    const std::string path = absl::StrCat(prefix, ".", manifest.file);
    const absl::Status written = Write(context->env(), path, state->table.get(), &manifest);
    if (!written.ok()) context->env()->DeleteFile(path).IgnoreError();
    OP_REQUIRES_OK(context, written);
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &out));
    out->scalar<tensorflow::tstring>()() = manifest.ToJson();
  }

 private:
  // Matches data-?????-of-?????, and is never a name that TensorFlow uses.
  static std::string NewPartFileName() {
    std::random_device random;
    std::string name = "data-.....-of-.....";
    for (char& c : name) {
      if (c == '.') c = static_cast<char>('a' + random() % 26);
    }
    return name;
  }

  static absl::Status Write(tensorflow::Env* env, const std::string& path, EmbeddingTable* table, Manifest* manifest) {
    std::unique_ptr<tensorflow::WritableFile> file;
    if (env->FileExists(path).ok()) return absl::AlreadyExistsError(absl::StrCat("checkpoint part ", path));
    TF_RETURN_IF_ERROR(env->NewWritableFile(path, &file));
    PartFileWriter writer([&](const std::string& bytes) { return FromAbsl(file->Append(bytes)); });
    TF_RETURN_IF_ERROR(ToAbsl(writer.Begin(manifest->initializer, table->dim())));
    TF_RETURN_IF_ERROR(ToAbsl(table->TakeSnapshot(/*all_columns=*/true, kChunkRows, [&](Rows* rows) {
      manifest->columns = rows->columns;
      manifest->applies = rows->applies;
      return writer.Add(*rows);
    })));
    manifest->num_rows = writer.rows();
    TF_RETURN_IF_ERROR(ToAbsl(writer.End()));
    TF_RETURN_IF_ERROR(file->Sync());
    return file->Close();
  }
};

REGISTER_KERNEL_BUILDER(Name("MultitierExport").Device(DEVICE_CPU).TypeConstraint<float>("dtype"), ExportKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierExportRows").Device(DEVICE_CPU).TypeConstraint<float>("dtype"), ExportRowsKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierSavePart").Device(DEVICE_CPU), SavePartKernel);

}  // namespace
}  // namespace multitier
